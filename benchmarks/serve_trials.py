"""Parts of benchmarks/serve.py without peers: large tensors, overload, kill -9, a GPU."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import serve_peers
from firstlight.load.generator import Loop, Seen, ask
from firstlight.load.summary import quantile
from firstlight.load.target import Target
from firstlight.telemetry import metrics
from serve_process import Server, at_rate, commands, cpu_seconds, free_port, metric, running, wrk

EXECUTED = 'firstlight_execute_duration_seconds_sum{model="wide"}'
CLIENTS, CONNECTIONS_EACH = 8, 8


def binary(folder: Path, rounds: int) -> None:
    """1 MB in and 1 MB out as bytes: the server's own time, compared with one memory copy.

    Measured in memory, without sockets, less the model's time and a copy that stands for the
    kernel's. The kernel's time is that of a program that only receives and sends.
    """
    x = np.random.default_rng(0).normal(size=262144).astype(np.float32)
    head = (
        b'{"inputs":[{"name":"x","shape":[1,262144],"datatype":"FP32",'
        b'"parameters":{"binary_data_size":1048576}}],"parameters":{"binary_data_output":true}}'
    )
    headers = {"inference-header-content-length": str(len(head))}
    body = head + x.tobytes()
    import uvloop

    own, model, copy = uvloop.run(in_memory(wire_request(body, headers), x, 200 * rounds))
    print(
        f"binary tensors of 1 MB, in and out: {own / copy:.1f}x a memory copy of "
        f"{copy * 1e6:.0f} µs (bar 5, goal 2), and {model / copy:.1f}x in the model"
    )
    (folder / "echo.py").write_text(serve_peers.ECHO)
    name, command, port, path = next(commands(None, free_port))
    echo_port = free_port()
    echo = [sys.executable, "echo.py", str(echo_port)]
    with (
        running(name, command, port, path, folder) as ours,
        running("echo", echo, echo_port, path, folder) as bare,
    ):
        spent = [
            [processor_time_of_each(server, body, headers) for server in (ours, bare)]
            for _ in range(4 * rounds)
        ]
    total, kernel = (statistics.median(seconds) for seconds in zip(*spent, strict=True))
    print(
        f"  with sockets {total * 1e6:.0f} µs of processor time per request; a program that only "
        f"receives and sends them takes {kernel * 1e6:.0f} µs"
    )


def wire_request(body: bytes, headers: dict[str, str]) -> bytes:
    target = Target("127.0.0.1", 80, "/v2/models/wide/infer", body, tuple(headers.items()))
    return target.request


async def in_memory(
    request: bytes, x: np.ndarray[tuple[int], np.dtype[np.float32]], count: int
) -> tuple[float, float, float]:
    """Median seconds of the server, the model and a copy."""
    import jax

    from firstlight.serve import Input, model
    from firstlight.serve.compile_watch import CompileWatch
    from firstlight.serve.compiled_models import load
    from firstlight.serve.http_server import keep_freed_memory
    from firstlight.serve.rehearsal import Loopback

    keep_freed_memory()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    wide = model(name="wide", inputs={"x": Input("float32", (262144,))}, buckets=(1,))
    loopback = Loopback()
    loopback.models.put(load(wide(lambda x: {"y": x}), CompileWatch(loopback.values)))
    executed = loopback.values.histogram(metrics.EXECUTE_DURATION, "wide")
    gc.collect()
    gc.freeze()  # as the server does
    target = np.empty_like(x)
    whole, computing, copies = [], [], []
    for _ in range(count):
        before, begin = executed.total, time.perf_counter()
        await loopback.ask(request)
        whole.append(time.perf_counter() - begin)
        computing.append(executed.total - before)
        begin = time.perf_counter()
        np.copyto(target, x)
        copies.append(time.perf_counter() - begin)
    copy = statistics.median(copies)
    own = statistics.median(w - c for w, c in zip(whole, computing, strict=True)) - copy
    return own, statistics.median(computing), copy


def processor_time_of_each(server: Server, body: bytes, headers: dict[str, str]) -> float:
    """Processor seconds of the server per request, over a hundred requests."""
    count = 100
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    before = 0.0
    for i in range(count + 10):
        if i == 10:
            before = cpu_seconds(server)
        connection.request("POST", "/v2/models/wide/infer", body, headers)
        received = connection.getresponse().read()
        assert received.endswith(body[-(2**20) :])
    connection.close()
    return (cpu_seconds(server) - before) / count


def overload(folder: Path, seconds: int) -> None:
    """Three times the capacity of a slow model: deadlines kept, the rest refused, memory flat."""
    deadline = 0.25
    _, command, port, _ = next(commands(None, free_port))
    with running("firstlight", command, port, "/models/slow", folder) as server:
        capacity = wrk(server, folder, 5).requests_per_second
        before = sorted(at_rate(server, 0.3 * capacity, 2).latencies)
        memory = metric(port, "process_resident_memory_bytes")
        seen = at_rate(server, 3 * capacity, seconds, header=str(deadline))
        after = metric(port, "process_resident_memory_bytes")
        light = at_rate(server, 0.3 * capacity, 2)
    late = sum(latency > deadline for latency in seen.latencies)
    other = {code: n for code, n in seen.statuses.items() if code not in (200, 429)}
    p99 = {
        name: quantile(sorted(latencies), 0.99) * 1e3
        for name, latencies in (
            ("taken", seen.latencies), ("refused", seen.refusals),
            ("before", before), ("after", light.latencies),
        )
    }  # fmt: skip
    print(
        f"3x the capacity ({capacity:.0f} req/s) for {seconds} s: {len(seen.latencies)} answered, "
        f"p99 {p99['taken']:.0f} ms after they were due, {late} later than {deadline} s; "
        f"{seen.statuses[429]} refused, p99 {p99['refused']:.1f} ms; others {other}, never sent "
        f"{seen.unsent}; memory {(after - memory) / 2**20:+.1f} MiB; in the 2 s after it "
        f"{light.statuses[429]} refused, p99 {p99['after']:.1f} ms ({p99['before']:.1f} before)"
    )


class RetryingClients:
    """Threads that send every row, and send it again if no answer came."""

    def __init__(self, port: int, path: str, rows: np.ndarray[Any, Any], threads: int) -> None:
        self.answers: dict[int, Any] = {}
        self.retries = 0
        self._port, self._path, self._rows = port, path, rows
        self._left = iter(range(len(rows)))
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask_all) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        while len(self.answers) < count:
            time.sleep(0.001)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _ask_all(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while True:
            with self._lock:
                i = next(self._left, None)
            if i is None:
                break
            while (answer := self._answer(connection, i)) is None:
                self.retries += 1
                time.sleep(0.02)
            self.answers[i] = answer
        connection.close()

    def _answer(self, connection: http.client.HTTPConnection, i: int) -> Any:
        try:
            connection.request("POST", self._path, json.dumps({"x": [self._rows[i].tolist()]}))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return None
        return json.loads(body)["y"][0] if answer.status == 200 else None


def kill(folder: Path, rounds: int) -> None:
    """`kill -9` under load, with clients that retry: every request is answered, correctly."""
    model: dict[str, Any] = {}
    exec(serve_peers.MODEL, model)
    rows = np.random.default_rng(1).normal(size=(2000 * rounds, 16)).astype(np.float32)
    name, command, port, path = next(commands(None, free_port))
    clients = RetryingClients(port, path, rows, threads=8)
    for killed in range(1, rounds + 1):
        with running(name, command, port, path, folder) as server:
            clients.wait_for(2000 * killed - 1000)
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait()
    with running(name, command, port, path, folder):
        clients.join()
    wanted = rows.astype(np.float64)
    for weights in model["WEIGHTS"][:-1]:
        wanted = np.tanh(wanted @ weights)
    wanted = wanted @ model["WEIGHTS"][-1]
    found = np.array([clients.answers[i] for i in range(len(rows))])
    wrong = int((~np.isclose(found, wanted, rtol=1e-4, atol=1e-5)).any(axis=1).sum())
    print(
        f"killed {rounds} times under load: {len(clients.answers)} of {len(rows)} requests "
        f"answered, {wrong} wrongly, {clients.retries} retries"
    )
    if wrong or len(clients.answers) != len(rows):
        sys.exit("an answer was lost or wrong")


def gpu(folder: Path, seconds: int) -> None:
    """An MLP 1024 wide, 64 connections: requests per second, and how long the device is idle."""
    (folder / "wide_app.py").write_text(serve_peers.WIDE)
    port = free_port()
    command = [
        *(sys.executable, "-m", "firstlight", "serve", "wide_app.py"),
        *("--port", str(port)),
    ]
    row = np.random.default_rng(0).normal(size=(1, 1024)).astype(np.float32)
    plain = json.dumps({"x": row.tolist()})
    head = (
        b'{"inputs":[{"name":"x","shape":[1,1024],"datatype":"FP32",'
        b'"parameters":{"binary_data_size":4096}}],"parameters":{"binary_data_output":true}}'
    )
    length = (("inference-header-content-length", str(len(head))),)
    with running("firstlight", command, port, "/models/wide", folder, plain):
        for name, path, body, headers in (
            ("JSON", "/models/wide", plain.encode(), ()),
            ("binary tensors", "/v2/models/wide/infer", head + row.tobytes(), length),
        ):
            target = Target("127.0.0.1", port, path, body, headers)
            from_clients(target, 2)
            executed = metric(port, EXECUTED)
            with utilization() as device:
                seen = from_clients(target, seconds)
            busy = (metric(port, EXECUTED) - executed) / seen.seconds
            p99 = quantile(sorted(seen.latencies), 0.99) * 1e3
            print(
                f"MLP 1024 wide, {name}: {len(seen.latencies) / seen.seconds:.0f} req/s, p99 "
                f"{p99:.1f} ms, errors {seen.statuses.total() - seen.statuses[200]}; no batch was "
                f"being computed {max(0.0, 1 - busy):.0%} of the time; nvidia-smi: "
                + (f"{1 - statistics.mean(device):.0%} idle" if device else "no GPU")
                + " (goal < 20 %)"
            )


def from_clients(target: Target, seconds: float) -> Seen:
    """64 connections from several processes: one in Python would be slower than the server."""
    loop = Loop(CONNECTIONS_EACH, seconds)
    with ProcessPoolExecutor(CLIENTS, get_context("spawn")) as pool:
        seen = list(pool.map(asked_by_one, [target] * CLIENTS, [loop] * CLIENTS))
    return Seen(
        [latency for one in seen for latency in one.latencies],
        sum((one.statuses for one in seen), Counter[int]()),
        seconds=max(one.seconds for one in seen),
    )


def asked_by_one(target: Target, loop: Loop) -> Seen:
    return asyncio.run(ask(target, loop))


@contextmanager
def utilization() -> Iterator[list[float]]:
    """The share of time in which a GPU computes, from nvidia-smi; empty without a GPU."""
    shares: list[float] = []
    if shutil.which("nvidia-smi") is None:
        yield shares
        return
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    process = subprocess.Popen([*query, "-lms", "200"], stdout=subprocess.PIPE, text=True)
    yield shares
    process.terminate()
    assert process.stdout is not None
    shares += [float(line) / 100 for line in process.stdout.read().split() if line.isdigit()]
