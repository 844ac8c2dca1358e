"""How fast is `firstlight serve`, compared with its peers and with a bare ASGI app?

    python benchmarks/serve.py [--peers PYTHON] [--rounds N] [--seconds S] [--only PART]

PYTHON is the interpreter of an environment with litserve, bentoml, ray[serve] and jax; without it
only the bare app is compared (`uvicorn` has to be installed). The client is `wrk`. All servers run
the same model, and are measured in turns. Use a quiet machine.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import serve_peers
from firstlight.load.summary import quantile
from serve_process import (
    BODY,
    Load,
    at_rate,
    commands,
    cpu_seconds,
    free_port,
    metric,
    running,
    write_programs,
    wrk,
)
from serve_tail import tail
from serve_trials import binary, gpu, kill, overload

NEED_WRK = ("throughput", "steady", "overload", "tail")
AT_CONNECTIONS = (1, 8, 64)
WITHOUT_WRK = ("binary", "starts", "kill", "gpu")


def throughput(folder: Path, peers: str | None, rounds: int, seconds: int) -> None:
    """Requests per second and p99 at several numbers of connections, all servers in turns."""
    from contextlib import ExitStack

    loads: dict[tuple[int, str], list[Load]] = {}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running(*contender, folder))
            for contender in commands(peers, free_port)
        ]
        for server in servers:
            wrk(server, folder, 2)
        for _ in range(rounds):
            for connections in AT_CONNECTIONS:
                for server in servers:
                    load = wrk(server, folder, seconds, connections)
                    loads.setdefault((connections, server.name), []).append(load)
        compiles = metric(servers[0].port, "firstlight_request_path_compiles_total")
    print(f"one row per request; median of {rounds} rounds")
    medians = {key: median_load(seen) for key, seen in loads.items()}
    for (connections, name), load in medians.items():
        ours = medians[connections, "firstlight"]
        rate = ours.requests_per_second / load.requests_per_second
        p99 = ours.p99_seconds / load.p99_seconds
        print(
            f"  {connections:3} connections  {name:14} {load.requests_per_second:8.0f} req/s"
            f"  p50 {load.median_seconds * 1e3:6.2f} ms  p99 {load.p99_seconds * 1e3:7.2f} ms"
            f"  errors {load.errors:5}  {load.cpu_seconds * 1e6:5.0f} µs of processor time;"
            f" firstlight: {rate:5.2f}x at {p99:4.2f}x its p99"
        )
    print(f"  requests that met a compile: {compiles:.0f}")


def median_load(seen: list[Load]) -> Load:
    return Load(
        statistics.median(load.requests_per_second for load in seen),
        statistics.median(load.median_seconds for load in seen),
        statistics.median(load.p99_seconds for load in seen),
        sum(load.errors for load in seen),
        statistics.median(load.cpu_seconds for load in seen),
    )


def steady(folder: Path, peers: str | None, rounds: int, seconds: int) -> None:
    """p99 at 70 % of each peer's best load, on that peer and on ours."""
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


def starts(folder: Path, rounds: int) -> None:
    """Time to ready with an empty and a filled cache; the first request, relative to the median."""
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
    """Time and processor time to ready, with a filled cache relative to an empty one."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
            "tail": lambda: tail(folder, options.seconds),
            "gpu": lambda: gpu(folder, options.seconds),
        }
        for part, measure in parts.items():
            if options.only in (None, part):
                measure()


if __name__ == "__main__":
    main()
