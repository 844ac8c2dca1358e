"""Start, query and measure servers as processes, for benchmarks/serve.py and fuzz_serve.py."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import serve_peers
from firstlight.load.generator import Loop, Seen, ask
from firstlight.load.target import Target

BODY = '{"x": [[' + ", ".join(f"{i / 16}" for i in range(16)) + "]]}"
CONNECTIONS = 32


@dataclass(frozen=True)
class Server:
    """A running server: its address and its processes."""

    name: str
    port: int
    path: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class Load:
    """What wrk measured."""

    requests_per_second: float
    median_seconds: float
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
    """Name, command, port and path of every server."""
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
    """The status of one request; None if nothing listens."""
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


def wrk(server: Server, folder: Path, seconds: int, connections: int = CONNECTIONS) -> Load:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", "post.lua"]
    url = f"http://127.0.0.1:{server.port}{server.path}"
    before = cpu_seconds(server)
    done = subprocess.run(
        [*command, url], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    spent = cpu_seconds(server) - before
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done)
    p50, p99 = (re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", done) for share in (50, 99))
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", done)
    count = re.search(r"(\d+) requests in", done)
    assert rate and p50 and p99 and count, done
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    median, tail = (float(found[1]) * units[found[2]] for found in (p50, p99))
    errors = int(wrong[1]) if wrong else 0
    return Load(float(rate[1]), median, tail, errors, spent / int(count[1]))


def cpu_seconds(server: Server) -> float:
    """Processor time of a server's processes so far."""
    import psutil

    process = psutil.Process(server.process.pid)
    processes = [process, *process.children(recursive=True)]
    nanoseconds = [  # of every thread; what the kernel tells of processes counts 10 ms at a time
        int(path.read_text().split()[0])
        for one in processes
        for path in Path(f"/proc/{one.pid}/task").glob("*/schedstat")
    ]
    return sum(nanoseconds) * 1e-9


def metric(port: int, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def at_rate(server: Server, rate: float, seconds: float, header: str = "") -> Seen:
    """Send an open loop of requests: latency counts from when a request was due."""
    headers = (("firstlight-timeout", header),) if header else ()
    target = Target("127.0.0.1", server.port, server.path, BODY.encode(), headers)
    return asyncio.run(ask(target, Loop(1024, seconds, rate)))
