"""What does the compilation cache cost, and what does it save?

    python benchmarks/compile_cache.py [--rounds N]

Measures eight processes that need the same programs at once, compared with one process alone, with
one folder and as eight machines with one server; lookups and puts with 100 and 10 000 entries, in a
folder and at the server; a server that is killed meanwhile; and what `firstlight exec` adds to a
start. Both sides of every ratio are measured in one run, in turns. Use a quiet machine.
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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from firstlight.snapshot.keys import generate
from firstlight.snapshot.trust import default_private_key
from firstlight.statistics.intervals import median_estimate
from firstlight.warmstart.entries import Entries, name_of
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.sealed import seal
from firstlight.warmstart.sharing.http_place import HttpPlace
from firstlight.warmstart.sharing.shared import Shared
from firstlight.warmstart.signing import Signatures
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


@dataclass(frozen=True)
class Fleet:
    """Seconds from all processes being ready to all having answered, and their counts."""

    seconds: float
    requests: int
    hits: int
    written: int


def together(
    count: int,
    cache: Path | str,
    ours: bool = True,
    machines: Path | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Fleet:
    """Run this many processes at once.

    ours: under `firstlight exec`; otherwise with JAX's own cache, told to store everything.
    machines: below it, each process has a folder of its own in front of the cache. meanwhile: done
    as soon as all of them run.
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
            command,
            env={
                **environment,
                "FIRSTLIGHT_CACHE_LOCAL_DIR": f"{machines}/{n}" if machines else "",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(count)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    meanwhile()
    seen: Counter[str] = Counter()
    for process in processes:
        assert process.stdout is not None
        seen.update(json.loads(process.stdout.readline()))
    seconds = time.perf_counter() - begin
    for process in processes:
        process.communicate()
    requests, hits = seen["compile_requests_use_cache"], seen["cache_hits"]
    return Fleet(seconds, requests, hits, seen["cache_misses"])


@contextmanager
def server(folder: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server in another process; yield its URL and the process."""
    command = [sys.executable, "-m", "firstlight", "cache", "serve", "--folder", folder]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].split(",")[0], process
    finally:
        process.kill()
        process.communicate()


def as_machines(rounds: int) -> tuple[Ratios, set[tuple[int, int]], int]:
    """Compare eight machines that share a server with one alone; entries written by each; and how
    often another machine had to compile after them."""
    ratios, written, compiled = [], set(), 0
    for _ in range(rounds):
        with (
            tempfile.TemporaryDirectory() as folder,
            server(f"{folder}/alone") as (alone, _),
            server(f"{folder}/served") as (url, _),
        ):
            one = together(1, alone, machines=Path(folder) / "one")
            all_eight = together(8, url, machines=Path(folder) / "eight")
            another = together(1, url, machines=Path(folder) / "another")
        ratios.append(all_eight.seconds / one.seconds)
        written.add((one.written, all_eight.written))
        compiled += another.requests - another.hits
    return ratios, written, compiled


def killed_meanwhile() -> tuple[bool, bool]:
    """Whether all eight answer although their server is killed, and one hits after its restart."""
    with tempfile.TemporaryDirectory() as folder:
        with server(f"{folder}/served") as (url, process):
            fleet = together(8, url, machines=Path(folder) / "eight", meanwhile=process.kill)
        port = int(url.rpartition(":")[2])
        with server(f"{folder}/served", port) as (url, _):
            together(1, url, machines=Path(folder) / "one")
            another = together(1, url, machines=Path(folder) / "another")
    return fleet.requests > 0, another.requests == another.hits


def fleets(rounds: int) -> tuple[Ratios, Ratios, set[tuple[int, int]]]:
    """Times of eight processes, relative to one, with our cache and JAX's own; entries written."""
    ours, jax_own, written = [], [], set()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            alone = together(1, Path(folder) / "alone")
            all_of_ours = together(8, Path(folder) / "ours")
            all_of_jax = together(8, Path(folder) / "jax", ours=False)
        ours.append(all_of_ours.seconds / alone.seconds)
        jax_own.append(all_of_jax.seconds / alone.seconds)
        written.add((alone.written, all_of_ours.written))
    return ours, jax_own, written


def lookups_and_puts(count: int, value: bytes) -> tuple[float, ...]:
    """Median seconds of a hit, a miss with its lease, and a put, with this many entries."""
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


def at_a_server(count: int, value: bytes) -> tuple[float, ...]:
    """Median seconds of a hit, a miss with its lease, a put, and until others find it."""
    signatures = Signatures.of_user()
    with tempfile.TemporaryDirectory() as folder, server(folder) as (url, _):
        place = HttpPlace(url)
        for number in range(count):
            entry = signatures.sign(seal("kind", f"key {number}", value))
            place.store(f"kind/{name_of(f'key {number}')}", entry)
        joined = Shared(place, signatures)
        hits, misses, puts, arrivals = [], [], [], []
        for number in range(200):
            begin = time.perf_counter()
            assert joined.get("kind", f"key {number * 37 % count}") is not None
            hit = time.perf_counter()
            assert joined.get("kind", f"new {number}") is None
            miss = time.perf_counter()
            joined.put(f"new {number}", seal("kind", f"new {number}", value), "kind")
            puts.append(time.perf_counter() - miss)
            joined.flush(60.0)
            arrivals.append(time.perf_counter() - miss)
            hits.append(hit - begin)
            misses.append(miss - hit)
        return tuple(map(statistics.median, (hits, misses, puts, arrivals)))


def seconds(command: list[str], **variables: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **variables})
    return time.perf_counter() - begin


def differences(rounds: int) -> dict[str, list[float]]:
    """Seconds that the command, and its hook in every Python, add to `python -c pass`."""
    found: dict[str, list[float]] = {"`firstlight exec`": [], "every Python under it": []}
    for _ in range(rounds):
        plain = seconds(PASS)
        found["`firstlight exec`"].append(seconds([*FIRSTLIGHT, *PASS]) - plain)
        found["every Python under it"].append(seconds(PASS, FIRSTLIGHT_WARMSTART="1") - plain)
    return found


def _mark(holds: bool) -> str:
    return "ok  " if holds else "MISS"


def tell_of_machines(rounds: int) -> None:
    ratios, written, compiled = as_machines(rounds)
    e = median_estimate(ratios)
    print(
        f"{_mark(all(a == b for a, b in written))}  8 machines and one server: {e.median:.2f}× the "
        f"time of one alone [{e.low:.2f}, {e.high:.2f}]; entries by 1 and 8: {written}"
    )
    print(f"{_mark(not compiled)}  another machine afterwards compiled {compiled} programs")
    answered, hit = killed_meanwhile()
    print(f"{_mark(answered and hit)}  server killed meanwhile: all answer; used again afterwards")


def main() -> None:
    with tempfile.TemporaryDirectory() as config:  # with a key of its own
        os.environ["XDG_CONFIG_HOME"] = config
        generate(default_private_key())
        measure()


def measure() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    for where, measure in (("here", lookups_and_puts), ("at a server", at_a_server)):
        for count in (100, 10_000):
            times = measure(count, os.urandom(20_000))
            names = ("hit", "miss", "put", "found by others")
            told = ", ".join(
                f"{n} {1e6 * each:.0f} µs" for n, each in zip(names, times, strict=False)
            )
            holds = max(times[:3]) <= 0.005  # nobody waits for the fourth
            print(f"{_mark(holds)}  {count} entries {where}: {told} (bar: ≤ 5 ms)")
    for what, added in differences(5 * options.rounds).items():
        e = median_estimate(added)
        print(f"      {what} adds {1e3 * e.median:.1f} ms [{1e3 * e.low:.1f}, {1e3 * e.high:.1f}]")
    ours, jax_own, written = fleets(options.rounds)
    for name, ratios, bar in (("", ours, 1.5), (" with JAX's own cache", jax_own, None)):
        e = median_estimate(ratios)
        mark = "    " if bar is None else _mark(e.median <= bar)
        told = "" if bar is None else f" (bar: ≤ {bar:g}×)"
        print(
            f"{mark}  8 processes{name}, empty cache: {e.median:.2f}× the time of one alone "
            f"[{e.low:.2f}, {e.high:.2f}] over {e.n} rounds{told}"
        )
    print(f"{_mark(all(a == b for a, b in written))}  entries by 1 and 8: {written}")
    tell_of_machines(options.rounds)


if __name__ == "__main__":
    main()
