"""How fast is `firstlight serve`, beside its peers and beside a bare ASGI app?

    python benchmarks/serve.py [--peers PYTHON] [--rounds N] [--seconds S] [--only PART]

PYTHON is the interpreter of an environment with litserve, bentoml, ray[serve] and jax; without it
only the bare app is compared (`uvicorn` has to be installed). The client is `wrk`. All servers run
the same model, and are measured in turns. Use a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

import serve_peers
from firstlight.load.generator import Loop, Seen, ask
from firstlight.load.summary import quantile
from firstlight.load.target import Target
from firstlight.telemetry import metrics

BODY = '{"x": [[' + ", ".join(f"{i / 16}" for i in range(16)) + "]]}"
CONNECTIONS = 32
NEED_WRK = ("throughput", "steady", "overload")
WITHOUT_WRK = ("binary", "starts", "kill")


@dataclass(frozen=True)
class Server:
    """A running server: where it is asked, and the processes that it is."""

    name: str
    port: int
    path: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class Load:
    """What wrk saw."""

    requests_per_second: float
    p99_seconds: float
    errors: int
    cpu_seconds: float  # of the server's processes, per request: what a busy machine disturbs least


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def commands(
    peers: str | None, port: Callable[[], int]
) -> Iterator[tuple[str, list[str], int, str]]:
    """Name, command, port and path of every contender."""
    p = port()
    ours = [sys.executable, "-m", "firstlight", "serve", "firstlight_app.py", "--port", str(p)]
    yield "firstlight", ours, p, "/models/mlp"
    p = port()
    bare = [
        sys.executable,
        "-m",
        "uvicorn",
        "bare_app:app",
        "--port",
        str(p),
        "--http",
        "httptools",
    ]
    yield "bare ASGI app", [*bare, "--loop", "uvloop", "--no-access-log"], p, "/"
    if peers is None:
        return
    p = port()
    yield "LitServe", [peers, "litserve_app.py", str(p)], p, "/predict"
    p = port()
    bento = [peers, "-m", "bentoml", "serve", "bentoml_app:Mlp", "--port", str(p)]
    yield "BentoML", bento, p, "/predict"
    p = port()
    yield "Ray Serve", [peers, "ray_app.py", str(p)], p, "/predict"


def write_programs(folder: Path) -> None:
    for name in ("FIRSTLIGHT", "BARE", "LITSERVE", "BENTOML", "RAY"):
        (folder / f"{name.lower()}_app.py").write_text(getattr(serve_peers, name))
    (folder / "model.py").write_text(serve_peers.MODEL)
    lua = f"wrk.method='POST'; wrk.headers['content-type']='application/json'; wrk.body='{BODY}'"
    (folder / "post.lua").write_text(lua)


def answers(port: int, path: str, body: str = BODY) -> int | None:
    """The status of one request; None where nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@contextmanager
def running(
    name: str, command: list[str], port: int, path: str, folder: Path, body: str = BODY
) -> Iterator[Server]:
    """Start a server and wait for its first answer; end all its processes afterwards."""
    variables = {
        "FIRSTLIGHT_CACHE_DIR": str(folder / "cache"),
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, **variables},
        )  # fmt: skip
    try:
        end = time.monotonic() + 180
        while answers(port, path, body) != 200:
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{name} did not start:\n{(folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.01)
        yield Server(name, port, path, process)
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def wrk(server: Server, folder: Path, seconds: int) -> Load:
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", "post.lua"]
    url = f"http://127.0.0.1:{server.port}{server.path}"
    before = cpu_seconds(server)
    done = subprocess.run(
        [*command, url], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    spent = cpu_seconds(server) - before
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", done)
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", done)
    count = re.search(r"(\d+) requests in", done)
    assert rate and p99 and count, done
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[p99[2]]
    errors = int(wrong[1]) if wrong else 0
    return Load(float(rate[1]), float(p99[1]) * unit, errors, spent / int(count[1]))


def cpu_seconds(server: Server) -> float:
    """Processor time of a server's processes so far."""
    process = psutil.Process(server.process.pid)
    processes = [process, *process.children(recursive=True)]
    nanoseconds = [  # of every thread; what the kernel tells of processes counts 10 ms at a time
        int(path.read_text().split()[0])
        for one in processes
        for path in Path(f"/proc/{one.pid}/task").glob("*/schedstat")
    ]
    return sum(nanoseconds) * 1e-9


def throughput(folder: Path, peers: str | None, rounds: int, seconds: int) -> None:
    """Requests per second and p99, all servers in turns."""
    from contextlib import ExitStack

    loads: dict[str, list[Load]] = {}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running(*contender, folder))
            for contender in commands(peers, free_port)
        ]
        for server in servers:
            wrk(server, folder, 2)
        for _ in range(rounds):
            for server in servers:
                loads.setdefault(server.name, []).append(wrk(server, folder, seconds))
        compiles = metric(servers[0].port, "firstlight_request_path_compiles_total")
    print(f"{CONNECTIONS} connections, one row per request; median of {rounds} rounds")
    medians = {name: median_load(seen) for name, seen in loads.items()}
    ours = medians["firstlight"]
    for name, load in medians.items():
        rate = ours.requests_per_second / load.requests_per_second
        p99 = ours.p99_seconds / load.p99_seconds
        print(
            f"  {name:14} {load.requests_per_second:8.0f} req/s  p99 {load.p99_seconds * 1e3:7.2f}"
            f" ms  errors {load.errors:5}  {load.cpu_seconds * 1e6:5.0f} µs of processor time;"
            f" firstlight: {rate:5.2f}x at {p99:4.2f}x its p99"
        )
    print(f"  requests that met a compile: {compiles:.0f}")


def median_load(seen: list[Load]) -> Load:
    return Load(
        statistics.median(load.requests_per_second for load in seen),
        statistics.median(load.p99_seconds for load in seen),
        sum(load.errors for load in seen),
        statistics.median(load.cpu_seconds for load in seen),
    )


def metric(port: int, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def binary(folder: Path, rounds: int) -> None:
    """1 MB in and 1 MB out as bytes: what the server does with them, against one memory copy.

    In memory, without sockets: a copy that stands for the kernel's and the model's own time are
    taken off. What the kernel takes is what a program takes that only receives and sends.
    """
    x = np.random.default_rng(0).normal(size=262144).astype(np.float32)
    head = (
        b'{"inputs":[{"name":"x","shape":[1,262144],"datatype":"FP32",'
        b'"parameters":{"binary_data_size":1048576}}],"parameters":{"binary_data_output":true}}'
    )
    headers = {"inference-header-content-length": str(len(head))}
    body = head + x.tobytes()
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
    """Medians of the server's time, the model's and that of a copy, in seconds."""
    import jax

    from firstlight.serve import Input, model
    from firstlight.serve.compile_watch import CompileWatch
    from firstlight.serve.loading import load
    from firstlight.serve.rehearsal import Loopback
    from firstlight.serve.running import keep_freed_memory

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
    """Seconds of the server's processors per request of a hundred."""
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


def at_rate(server: Server, rate: float, seconds: float, header: str = "") -> Seen:
    """An open loop: latency counts from when a request was due."""
    headers = (("firstlight-timeout", header),) if header else ()
    target = Target("127.0.0.1", server.port, server.path, BODY.encode(), headers)
    return asyncio.run(ask(target, Loop(1024, seconds, rate)))


def steady(folder: Path, peers: str | None, rounds: int, seconds: int) -> None:
    """p99 at 70 % of the best load of each peer, on that peer and on ours."""
    contenders = list(commands(peers, free_port))
    with running(*contenders[0], folder) as ours:
        for contender in contenders[1:]:
            with running(*contender, folder) as peer:
                best = max(wrk(peer, folder, seconds).requests_per_second for _ in range(rounds))
                ratios = []
                for _ in range(rounds):
                    p99 = [
                        quantile(sorted(at_rate(server, 0.7 * best, seconds).latencies), 0.99)
                        for server in (ours, peer)
                    ]
                    ratios.append(p99[0] / p99[1])
                print(
                    f"p99 at {0.7 * best:.0f} req/s, 70 % of the best of {peer.name}: "
                    f"{statistics.median(ratios):.2f}x (bar 0.3, goal 0.1)"
                )


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
    """Threads that ask for every row once, and again whenever no answer came."""

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
    """kill -9 under load, with clients that retry: every request answered, every answer right."""
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


def starts(folder: Path, rounds: int) -> None:
    """Time to ready with an empty and with a filled cache; the first request against the median."""
    workspace = subprocess.run(
        [sys.executable, "-m", "firstlight.histfactory.synthetic"], capture_output=True, check=True
    ).stdout
    (folder / "workspace.json").write_bytes(workspace)
    (folder / "named_app.py").write_text(serve_peers.FIRSTLIGHT + serve_peers.NAMED)
    for what, arguments, path, body in (
        ("a workspace's models", ["--hf", "workspace.json"], "/models/fit", "{}"),
        ("three small models", ["firstlight_app.py"], "/models/mlp", BODY),
        ("the same, their programs named", ["named_app.py"], "/models/mlp", BODY),
    ):
        ratio, cpu = restart(folder, rounds, arguments, path, body)
        print(
            f"restart with a filled cache, {what}: {ratio:.2f}x the time to ready "
            f"(bar 0.4, goal 0.25), {cpu:.2f}x the processor time"
        )
    first = [first_against_median(folder) for _ in range(2 * rounds)]
    median = statistics.median(first)
    print(f"first request after ready: {median:.2f}x the warm median (bar 2, goal 1.2)")


def restart(
    folder: Path, rounds: int, arguments: list[str], path: str, body: str
) -> tuple[float, float]:
    """Time to ready and processor time until then with a filled cache, against an empty one."""
    seconds, processor = [], []
    for _ in range(rounds):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        for _ in ("cold", "warm"):
            port = free_port()
            command = [sys.executable, "-m", "firstlight", "serve", *arguments]
            command += ["--port", str(port)]
            with running("firstlight", command, port, path, folder, body=body) as server:
                seconds.append(metric(port, "firstlight_startup_duration_seconds"))
                processor.append(cpu_seconds(server))
    ratios = [
        statistics.median(warm / cold for cold, warm in zip(s[::2], s[1::2], strict=True))
        for s in (seconds, processor)
    ]
    return ratios[0], ratios[1]


def first_against_median(folder: Path) -> float:
    _, command, port, path = next(commands(None, free_port))
    variables = {**os.environ, "FIRSTLIGHT_CACHE_DIR": str(folder / "cache")}
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, env=variables, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "ready after" in line:
            break
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/v2/health/live")  # the client's own first time is not the server's
    connection.getresponse().read()
    seconds = []
    for _ in range(300):
        begin = time.perf_counter()
        connection.request("POST", path, BODY, {"content-type": "application/json"})
        connection.getresponse().read()
        seconds.append(time.perf_counter() - begin)
    connection.close()
    process.terminate()
    process.wait(30)
    process.stdout.close()
    return seconds[0] / statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--only", choices=(*NEED_WRK, *WITHOUT_WRK))
    options = parser.parse_args()
    if shutil.which("wrk") is None and options.only not in WITHOUT_WRK:
        sys.exit("wrk is not installed: apt-get install wrk")
    if find_spec("uvicorn") is None and options.only in (None, "throughput", "steady"):
        sys.exit("uvicorn, which runs the bare app, is not installed: pip install uvicorn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_programs(folder)
        parts: dict[str, Callable[[], None]] = {
            "throughput": lambda: throughput(
                folder, options.peers, options.rounds, options.seconds
            ),
            "steady": lambda: steady(folder, options.peers, options.rounds, options.seconds),
            "binary": lambda: binary(folder, options.rounds),
            "starts": lambda: starts(folder, options.rounds),
            "overload": lambda: overload(folder, 10 * options.seconds),
            "kill": lambda: kill(folder, options.rounds),
        }
        for part, measure in parts.items():
            if options.only in (None, part):
                measure()


if __name__ == "__main__":
    main()
