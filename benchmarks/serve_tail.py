"""Where the slowest answers of `firstlight serve` come from: a histogram of waits per cause.

The kernel counts how long a thread computed and how long it was ready but another ran
(`/proc/thread-self/schedstat`). What is left of a batch's time is a wait for another thread, such
as one of XLA's.
"""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path

from serve_process import free_port, running, wrk

#: Added to the model's file: it measures the thread that reads requests and runs small batches.
PROBE = """
import gc, json, math, os, time
from collections import Counter
from firstlight.serve import engine, http_server, running

CAUSES = (
    "between batches: ready, but another process or thread ran",
    "in a batch: ready, but another process or thread ran",
    "in a batch: waited for another thread",
    "in a batch: computed",
    "reading one packet: computed",
    "garbage collection",
)
seen = {cause: Counter() for cause in CAUSES}
state = {}


def note(cause, seconds):
    seen[CAUSES[cause]][max(0, math.ceil(math.log2(max(seconds, 1e-9) / 31.25e-6)))] += 1


def scheduled():
    if "file" not in state:  # opened by the thread that it tells of
        state["file"] = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    computed, waited, _ = os.pread(state["file"], 64, 0).split()
    return int(computed) * 1e-9, int(waited) * 1e-9


def probed_run(batch, run=engine.Batch.run):
    begin, (computed, waited) = time.perf_counter(), scheduled()
    note(0, waited - state.get("waited", waited))
    run(batch)
    taken, (computed_after, waited_after) = time.perf_counter() - begin, scheduled()
    state["waited"] = waited_after
    note(1, waited_after - waited)
    note(2, taken - (computed_after - computed) - (waited_after - waited))
    note(3, computed_after - computed)


def probed_read(connection, size, read=http_server.Connection.buffer_updated):
    computed, _ = scheduled()
    read(connection, size)
    note(4, scheduled()[0] - computed)


def collecting(phase, _):
    if phase == "start":
        state["collecting"] = time.perf_counter()
    else:
        note(5, time.perf_counter() - state["collecting"])


def taken():
    found = {cause: dict(counts) for cause, counts in seen.items()}
    for counts in seen.values():
        counts.clear()
    return json.dumps(found).encode(), b"application/json"


class Probed(running.App):
    def __init__(self, models, values, token, pages, *rest):
        super().__init__(models, values, token, {**pages, b"/causes": taken}, *rest)


engine.Batch.run, http_server.Connection.buffer_updated = probed_run, probed_read
gc.callbacks.append(collecting)
"""
#: Before the server makes its app: the file with the models is read later.
START = """
import sys
import probe
from firstlight.serve import running
running.App = probe.Probed
from firstlight.cli import main
sys.exit(main(sys.argv[1:]))
"""


def tail(folder: Path, seconds: int) -> None:
    """Waits of the serving thread by cause, at several numbers of connections."""
    (folder / "probe.py").write_text(PROBE)
    (folder / "start.py").write_text(START)
    port = free_port()
    command = [sys.executable, "start.py", "serve", "firstlight_app.py", "--port", str(port)]
    with running("probed", command, port, "/models/mlp", folder) as server:
        for connections in (1, 8, 64):
            wrk(server, folder, 1, connections)
            causes(port)
            load = wrk(server, folder, seconds, connections)
            print(
                f"{connections} connections: p50 {load.median_seconds * 1e3:.2f} ms, p99 "
                f"{load.p99_seconds * 1e3:.2f} ms ({load.requests_per_second:.0f} req/s, probed)"
            )
            for cause, counts in causes(port).items():
                total = sum(counts.values())
                above = {
                    f"{2 ** (int(power) - 6):g}": sum(
                        n for other, n in counts.items() if int(other) > int(power)
                    )
                    for power in ("5", "6", "8", "10")
                }
                shown = ", ".join(f"{n} over {ms} ms" for ms, n in above.items())
                print(f"  {cause:58} {total:7}: {shown}")


def causes(port: int) -> dict[str, dict[str, int]]:
    """Counts by cause and power of two, since they were asked for the last time."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/causes")
    found: dict[str, dict[str, int]] = json.loads(connection.getresponse().read())
    connection.close()
    return found
