"""What does the compilation cache cost, and what does it save?

    python benchmarks/compile_cache.py [--rounds N]

Eight processes that need the same programs at once, beside one that is alone; the time of a lookup
and of a put with 100 and with 10 000 entries; and what `firstlight exec` adds to a start. Both
sides of every ratio are measured in one run, in turns. Use a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from firstlight.statistics.intervals import median_estimate
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.store import Store

#: Little to trace and to load, and much to compile: all eight trace and load, on few cores.
PROGRAM = """
import json, sys
from collections import Counter
import jax, jax.numpy as jnp

seen = Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))

@jax.jit
def layer(x):
    for _ in range(10):
        x = jnp.sin(x) * x + jnp.exp(-x * x)
    return x

@jax.jit
def network(x):
    for _ in range(40):
        x = layer(x)
    return x

x = jax.device_put(jnp.zeros(16))
print("ready", flush=True)
sys.stdin.readline()
network(x).block_until_ready()
print(json.dumps(seen))
"""
FIRSTLIGHT = [sys.executable, "-m", "firstlight", "exec"]
PASS = [sys.executable, "-c", "pass"]
Ratios = list[float]


def together(count: int, cache: Path, ours: bool = True) -> tuple[float, int]:
    """Seconds from the moment when `count` processes are ready until all answered; entries written.

    ours: under `firstlight exec`; otherwise with JAX's own cache, told to store everything.
    """
    command = [sys.executable, "-c", PROGRAM]
    environment = dict(os.environ)
    if ours:
        command = [*FIRSTLIGHT, "--cache", str(cache), *command]
    else:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    processes = [
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    written = 0
    for process in processes:
        assert process.stdout is not None
        written += json.loads(process.stdout.readline()).get("cache_misses", 0)
    seconds = time.perf_counter() - begin
    for process in processes:
        process.communicate()
    return seconds, written


def fleets(rounds: int) -> tuple[Ratios, Ratios, set[tuple[int, int]]]:
    """Times of eight processes as shares of that of one: ours, JAX's own; entries written."""
    ours, jax_own, written = [], [], set()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            alone, by_one = together(1, Path(folder) / "alone")
            all_of_ours, by_all = together(8, Path(folder) / "ours")
            all_of_jax, _ = together(8, Path(folder) / "jax", ours=False)
        ours.append(all_of_ours / alone)
        jax_own.append(all_of_jax / alone)
        written.add((by_one, by_all))
    return ours, jax_own, written


def lookups_and_puts(count: int, value: bytes) -> tuple[float, float, float]:
    """Median seconds of a hit, of a miss with its lease, and of a put, with so many entries."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Entries(folder, "kind", 2**32), Leases())
        for number in range(count):
            store.put(f"key {number}", value)
        hits, misses, puts = [], [], []
        for number in range(200):
            begin = time.perf_counter()
            assert store.get(f"key {number * 37 % count}") is not None
            hit = time.perf_counter()
            assert store.get(f"new {number}") is None
            miss = time.perf_counter()
            store.put(f"new {number}", value)
            puts.append(time.perf_counter() - miss)
            hits.append(hit - begin)
            misses.append(miss - hit)
        return statistics.median(hits), statistics.median(misses), statistics.median(puts)


def seconds(command: list[str], **variables: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **variables})
    return time.perf_counter() - begin


def differences(rounds: int) -> dict[str, list[float]]:
    """Seconds that the command, and what it puts into every Python, add to `python -c pass`."""
    found: dict[str, list[float]] = {"`firstlight exec`": [], "every Python under it": []}
    for _ in range(rounds):
        plain = seconds(PASS)
        found["`firstlight exec`"].append(seconds([*FIRSTLIGHT, *PASS]) - plain)
        found["every Python under it"].append(seconds(PASS, FIRSTLIGHT_WARMSTART="1") - plain)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    for count in (100, 10_000):
        times = lookups_and_puts(count, os.urandom(20_000))
        mark = "ok  " if max(times) <= 0.005 else "MISS"
        hit, miss, put = (f"{1e6 * time:.0f} µs" for time in times)
        print(f"{mark}  {count} entries: hit {hit}, miss {miss}, put {put} (bar: ≤ 5 ms)")
    for what, added in differences(5 * options.rounds).items():
        e = median_estimate(added)
        print(f"      {what} adds {1e3 * e.median:.1f} ms [{1e3 * e.low:.1f}, {1e3 * e.high:.1f}]")
    ours, jax_own, written = fleets(options.rounds)
    for name, ratios, bar in (("", ours, 1.5), (" with JAX's own cache", jax_own, None)):
        e = median_estimate(ratios)
        mark = "    " if bar is None else "ok  " if e.median <= bar else "MISS"
        told = "" if bar is None else f" (bar: ≤ {bar:g}×)"
        print(
            f"{mark}  8 processes{name}, empty cache: {e.median:.2f}× the time of one alone "
            f"[{e.low:.2f}, {e.high:.2f}] over {e.n} rounds{told}"
        )
    print(f"{'ok  ' if all(a == b for a, b in written) else 'MISS'}  entries by 1 and 8: {written}")


if __name__ == "__main__":
    main()
