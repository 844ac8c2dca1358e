"""The model of benchmarks/serve.py for each server, with its best documented settings.

Kept as text, because each runs in its own process, the peers in another environment.
"""

from __future__ import annotations

#: An MLP 16→64→64→4. Peers get executables for the same batches as ours.
MODEL = """
import numpy as np

rng = np.random.default_rng(0)
SIZES = (16, 64, 64, 4)
WEIGHTS = [
    (rng.normal(size=pair) / np.sqrt(pair[0])).astype(np.float32) for pair in zip(SIZES, SIZES[1:])
]
BUCKETS = (1, 2, 4, 8, 16, 32)


def forward(weights, x):
    import jax.numpy as jnp

    for w in weights[:-1]:
        x = jnp.tanh(x @ w)
    return x @ weights[-1]


def compiled():
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    weights = jax.device_put(WEIGHTS)
    run = {
        n: jax.jit(forward).lower(weights, jax.ShapeDtypeStruct((n, 16), np.float32)).compile()
        for n in BUCKETS
    }

    def answer(rows):
        n = next(size for size in BUCKETS if size >= len(rows))
        x = np.zeros((n, 16), np.float32)
        x[: len(rows)] = rows
        return np.asarray(run[n](weights, x))[: len(rows)]

    answer(np.zeros((1, 16)))
    return answer
"""

FIRSTLIGHT = """
from firstlight import serve
from model import WEIGHTS, forward

mlp = serve.model(name="mlp", inputs={"x": serve.Input("float32", (16,))}, parameters=WEIGHTS)(
    lambda weights, x: {"y": forward(weights, x)}
)
import jax

slow = serve.model(name="slow", inputs={"x": serve.Input("float32", (16,))}, buckets=(1, 2, 4))(
    lambda x: {"y": jax.lax.fori_loop(0, 300_000, lambda i, s: s * 0.999 + 1e-3, x)}
)
wide = serve.model(name="wide", inputs={"x": serve.Input("float32", (262144,))}, buckets=(1,))(
    lambda x: {"y": x}
)
"""

#: Large enough that a GPU has something to do.
WIDE = """
import jax.numpy as jnp
import numpy as np
from firstlight import serve

rng = np.random.default_rng(0)
WEIGHTS = [(rng.normal(size=(1024, 1024)) / 32).astype(np.float32) for _ in range(4)]


@serve.model(
    inputs={"x": serve.Input("float32", (1024,))}, parameters=WEIGHTS, buckets=(1, 4, 16, 64)
)
def wide(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return {"y": x}
"""

#: The same with names of their programs, so that a restart does not trace them.
NAMED = """
from dataclasses import replace

mlp, slow, wide = (replace(model, program="benchmark") for model in (mlp, slow, wide))
"""

#: Batching whenever the device is free, and nothing else: no limits, deadlines, tokens or metrics.
BARE = """
import asyncio
import msgspec
from model import compiled

answer = compiled()
decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
waiting, scheduled = [], False


def flush():
    global waiting, scheduled
    now, waiting = waiting[:32], waiting[32:]
    rows = answer([row for row, _ in now]).tolist()
    for (_, future), row in zip(now, rows):
        if not future.done():
            future.set_result(row)
    scheduled = bool(waiting)
    if waiting:
        asyncio.get_running_loop().call_soon(flush)


async def app(scope, receive, send):
    global scheduled
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    waiting.append((decode(body)["x"][0], future))
    if not scheduled:
        scheduled = True
        loop.call_soon(flush)
    data = encode({"y": [await future]})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})
"""

LITSERVE = """
import sys
import litserve
import numpy as np


class Api(litserve.LitAPI):
    def setup(self, device):
        from model import compiled

        self.answer = compiled()

    def decode_request(self, request):
        return request["x"][0]

    def batch(self, inputs):
        return np.asarray(inputs, np.float32)

    def predict(self, x):
        return self.answer(x)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, row):
        return {"y": [row.tolist()]}


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="error")
"""

BENTOML = """
import bentoml
import numpy as np


@bentoml.service(
    workers=1,
    traffic={"timeout": 10, "max_concurrency": 256},
    logging={"access": {"enabled": False}},
)
class Mlp:
    def __init__(self):
        from model import compiled

        self.answer = compiled()

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=50, route="/predict")
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.answer(x.astype(np.float32))
"""

RAY = """
import sys
import time
import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=256, num_replicas=1, ray_actor_options={"num_cpus": 1})
class Mlp:
    def __init__(self):
        from model import compiled

        self.answer = compiled()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def batched(self, rows):
        return [row.tolist() for row in self.answer(rows)]

    async def __call__(self, request: Request):
        body = await request.json()
        return {"y": [await self.batched(body["x"][0])]}


if __name__ == "__main__":
    ray.init(include_dashboard=False, logging_level="error", log_to_driver=False, num_cpus=4)
    serve.start(http_options={"port": int(sys.argv[1]), "host": "127.0.0.1"})
    serve.run(Mlp.bind(), route_prefix="/predict")
    while True:
        time.sleep(3600)
"""

#: What no server can do without: every request is received into the same memory, and sent back.
ECHO = """
import re
import socket
import sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
memory = memoryview(bytearray(2**22))
while True:
    client, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while size := client.recv_into(memory):
        while (end := bytes(memory[: min(size, 2000)]).find(b"\\r\\n\\r\\n") + 4) < 4:
            size += client.recv_into(memory[size:])
        length = int(re.search(rb"(?i)\\r\\ncontent-length: (\\d+)", bytes(memory[:end]))[1])
        while size < end + length:
            size += client.recv_into(memory[size:])
        client.sendmsg([b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % length])
        client.sendall(memory[end : end + length])
"""
