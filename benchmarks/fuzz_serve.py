"""Send ten thousand wrong requests to a running `firstlight serve`.

    python benchmarks/fuzz_serve.py [--requests N] [--seed S]

Spoiled requests over sockets, some in pieces or cut off; slow clients; huge or deep bodies; and the
requests that schemathesis derives from the OpenAPI page. Exit code 1 if an answer was 5xx, the
server ended, something compiled, or memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from serve_process import Server, answers, free_port, metric, running
from wrong_requests import request_of

APP = """
import jax.numpy as jnp
from firstlight import serve

row, number = serve.Input("float32", (2,)), serve.Input("int32", (), default=1)


@serve.model(inputs={"x": row, "n": number}, buckets=(1, 4))
def pair(x, n):
    return {"y": x * n}


@serve.model(
    inputs={"tokens": serve.Input("int32", ("length",)), "mask": serve.Input("bool", ("length",))},
    axes={"length": (4, 16)}, buckets=(1, 2),
)
def total(tokens, mask):
    return {"total": jnp.where(mask, tokens, 0).sum(), "kept": mask}
"""
BODY = '{"x": [[1, 2]]}'
AT_ONCE, SLOW_CLIENTS = 8, 20
REQUEST_SECONDS = 2
#: Not that all data that fit the schema are accepted: it cannot say "as many rows as the other".
MAX_GROWTH_BYTES = 32 * 2**20
HEAD = b"POST /models/pair HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n"


async def spoiled(port: int, requests: int, seed: int) -> Counter[int]:
    """Send spoiled requests, each on a new connection, a few at once."""
    seen: Counter[int] = Counter()
    draw = random.Random(seed)

    async def one(data: bytes, cut: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data[:cut])
            await asyncio.sleep(0)
            writer.write(data[cut:])
            writer.write_eof()
            count(seen, await asyncio.wait_for(reader.read(), 60))
        except OSError:  # the server has ended the connection
            seen[0] += 1
        finally:
            writer.close()

    for _ in range(requests // AT_ONCE):
        group = [request_of(draw) for _ in range(AT_ONCE)]
        await asyncio.gather(*(one(data, draw.randrange(len(data) + 1)) for data in group))
    return seen


def count(seen: Counter[int], received: bytes) -> None:
    codes = [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
    seen.update(code for code in codes or [0] if code != 100)


def large_and_deep(port: int) -> Counter[int]:
    """Send bodies of 40 MB, above the limit, and nested a million times."""
    seen: Counter[int] = Counter()
    deep = b'{"x":' + b"[" * 1_000_000
    bodies = [b" " * 40_000_000, deep, deep + b"]" * 1_000_000 + b"}", b'{"x":[[1e999,2]]}',
              b'{"x":[[NaN,2]]}', b'{"x":[[' + b"1" * 100_000 + b",2]]}"]  # fmt: skip
    for data in [*(HEAD % len(body) + body for body in bodies), HEAD % 10**9]:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(data)
            count(seen, client.recv(65536))
    return seen


def slow(port: int) -> tuple[Counter[int], int]:
    """Run clients that send a byte now and then; return how many others were answered meanwhile."""
    seen: Counter[int] = Counter()
    request, others = HEAD % len(BODY) + BODY.encode(), 0
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(SLOW_CLIENTS)]
    for byte in request:
        for client in clients:
            with suppress(OSError):  # let go by the server
                client.send(bytes([byte]), socket.MSG_DONTWAIT)
        others += answers(port, "/models/pair", BODY) == 200
        time.sleep((REQUEST_SECONDS + 3) / len(request))
    for client in clients:
        with client:
            client.settimeout(30)
            count(seen, client.recv(65536))
    return seen, others


def by_schemathesis(port: int, examples: int, seed: int) -> tuple[int, str]:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/openapi.json"),
        *("--checks", "all"),
        *("--phases", "coverage,fuzzing", "--max-examples", str(examples), "--seed", str(seed)),
        *("--continue-on-failure", "--warnings", "off", "--suppress-health-check", "all"),
    ]
    with tempfile.TemporaryDirectory() as folder:  # where it keeps what it found
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout[-3000:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20261116)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "app.py").write_text(APP)
        command = [sys.executable, "-m", "firstlight", "serve", "app.py", "--port", str(port)]
        command += ["--request-seconds", str(REQUEST_SECONDS)]
        with running("firstlight", command, port, "/models/pair", folder, BODY) as server:
            return fuzz(server, options.requests, options.seed)


def fuzz(server: Server, requests: int, seed: int) -> int:
    port, process = server.port, psutil.Process(server.process.pid)
    seen = large_and_deep(port)  # before memory is looked at: what they took is kept for others
    seen += asyncio.run(spoiled(port, requests // 10, seed + 1))
    memory = process.memory_info().rss
    seen += asyncio.run(spoiled(port, requests, seed))
    slowly, others = slow(port)
    seen += slowly
    code, text = by_schemathesis(port, max(requests // 50, 10), seed)
    grown = process.memory_info().rss - memory
    compiles = metric(port, "firstlight_request_path_compiles_total")
    print(f"answers by status (0: none): {dict(sorted(seen.items()))}")
    print(f"{SLOW_CLIENTS} slow clients: {dict(slowly)}; others answered meanwhile: {others}")
    print(f"schemathesis: exit code {code}")
    print(f"memory {grown / 2**20:+.1f} MiB; requests that met a compile: {compiles:.0f}")
    wrong = [
        *(f"{seen[code]} answers {code}" for code in seen if code >= 500),
        *([text] if code else []),
        *(["something compiled"] if compiles else []),
        *(["memory grew"] if grown > MAX_GROWTH_BYTES else []),
        *(["slow clients were not let go"] if slowly[408] != SLOW_CLIENTS else []),
        *(["it does not answer any more"] if answers(port, "/models/pair", BODY) != 200 else []),
    ]
    print("\n".join(wrong) or "no answer 5xx, nothing compiled, memory flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
