"""What the watch of a process costs: on a step of a millisecond, per scrape, and in memory.

    python benchmarks/telemetry.py [--quick]

- Overhead: steps with and without the watch, in turns; the median of their ratio per process, over
  fresh processes with its interval, because where code and data lie in a process matters as much
  as the watch. A step is a synchronised call of a jitted function of about a millisecond.
- A scrape over HTTP with 1 000 functions, all of which were called since the last one.
- Memory: resident bytes before and after a million steps, and ten thousand recompiles of one
  function. Recompiles are real events of JAX, sent by its own `jax.monitoring`, since compiling ten
  thousand programs would measure XLA's memory.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from subprocess import DEVNULL, PIPE
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import monitoring
from jax._src import array

from firstlight import telemetry
from firstlight.statistics.intervals import median_estimate
from firstlight.telemetry.process_values import memory_bytes
from firstlight.telemetry.watch.process import ProcessWatch

#: JAX's own function, before the watch replaces it.
PLAIN_WAIT = array.ArrayImpl.block_until_ready
#: Limits.
MAX_OVERHEAD = 0.01
MAX_SCRAPE_SECONDS = 0.020
MAX_GROWTH_BYTES = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument(
        "--one-process", type=int, metavar="ROUNDS", help="the overhead in this one"
    )
    options = parser.parse_args()
    if options.one_process:
        step, argument = step_of_a_millisecond()
        telemetry.start("127.0.0.1:0", max_functions=1000)
        print(overhead(step, argument, options.one_process))
        return 0
    share = 10 if options.quick else 1
    passed = [overhead_of_processes(20 // share)]
    watch = telemetry.start("127.0.0.1:0", max_functions=1000)
    passed += [
        scrape(watch),
        memory_of_steps(1_000_000 // share),
        memory_of_recompiles(10_000 // share),
    ]
    telemetry.stop()
    return 0 if all(passed) else 1


def step_of_a_millisecond() -> tuple[Any, Any]:
    """A function that takes about a millisecond, and its argument."""

    def make(rounds: int) -> Any:
        def step(x: Any) -> Any:
            return jax.lax.fori_loop(0, rounds, lambda _, y: jnp.tanh(y) * 1.01, x)

        return step

    x = jax.device_put(np.linspace(0, 1, 512, dtype=np.float32))
    rounds = 100
    for _ in range(2):  # the first one has the call itself in it
        trial = jax.jit(make(rounds))
        seconds = statistics.quantiles(timed(partial(one, trial, x), 200))[0]
        rounds = max(1, round(rounds * 1e-3 / seconds))
    return make(rounds), x


def one(function: Any, x: Any) -> object:
    return function(x).block_until_ready()


def timed(action: Callable[[], object], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return seconds


def overhead_of_processes(count: int) -> bool:
    command = [sys.executable, __file__, "--one-process", "20"]
    found = [
        float(subprocess.run(command, stdout=PIPE, stderr=DEVNULL, check=True).stdout)
        for _ in range(count)
    ]
    e = median_estimate(found)
    print(
        f"step of a millisecond: {e.median:+.2%} [{e.low:+.2%}, {e.high:+.2%}] with the watch "
        f"({count} processes, from {min(found):+.2%} to {max(found):+.2%}, 20 rounds of 100 pairs "
        f"each; bar {MAX_OVERHEAD:.0%})"
    )
    return e.median <= MAX_OVERHEAD


def overhead(step: Any, x: Any, rounds: int) -> float:
    """Time one executable with and without the watch: each step with, then without, or
    the other way round. Other load makes a step longer, never shorter, so the fastest tenth of each
    side is compared."""
    watched, plain_wait = jax.jit(step), PLAIN_WAIT
    plain = watched._function

    def without() -> object:
        return plain_wait(plain(x))

    with_it = partial(one, watched, x)
    timed(with_it, 20), timed(without, 20)
    differences = []
    for _ in range(rounds):
        sides: dict[bool, list[float]] = {True: [], False: []}
        for number in range(100):
            for is_watched in (True, False) if number % 2 else (False, True):
                sides[is_watched] += timed(with_it if is_watched else without, 1)
        low = {side: float(np.quantile(values, 0.1)) for side, values in sides.items()}
        differences.append(low[True] / low[False] - 1)
    return statistics.median(differences)


#: Another process, as Prometheus is: it asks whenever it is told to.
CLIENT = """
import sys, time, urllib.request
for _ in sys.stdin:
    begin = time.perf_counter()
    with urllib.request.urlopen(sys.argv[1]) as answer:
        size = len(answer.read())
    print(time.perf_counter() - begin, size, flush=True)
"""


def scrape(watch: ProcessWatch) -> bool:
    """Processor time of the scraped process; the duration would depend on other load."""
    functions = [watch.steps.functions.of_steps(f"function_{n}") for n in range(1000)]
    for function in functions:
        watch.steps.functions.of_compiles(function.name).add("compiler")
    assert watch.server is not None
    url = f"http://127.0.0.1:{watch.server.port}/metrics"
    command = [sys.executable, "-c", CLIENT, url]
    seconds, processor = [], []
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as client:
        assert client.stdin is not None and client.stdout is not None
        for _ in range(20):
            for function in functions:
                function.ok.add()
                function.durations["warm"].observe(1e-3)
            begin = time.process_time()
            client.stdin.write("\n")
            took, size = client.stdout.readline().split()
            seconds.append(float(took))
            processor.append(time.process_time() - begin)
        client.stdin.close()
    print(
        f"scrape with 1 000 functions, {int(size) / 2**20:.1f} MiB: "
        f"{statistics.median(processor) * 1e3:.1f} ms of a processor (bar "
        f"{MAX_SCRAPE_SECONDS * 1e3:.0f} ms), answered after {min(seconds) * 1e3:.1f} ms at best, "
        f"{statistics.median(seconds) * 1e3:.1f} ms in the middle"
    )
    return statistics.median(processor) <= MAX_SCRAPE_SECONDS


def memory_of_steps(count: int) -> bool:
    small = jax.jit(lambda x: x + 1)
    x = jax.device_put(np.float32(0))

    def run(times: int) -> None:
        for _ in range(times):
            small(x).block_until_ready()

    return flat(f"{count:,} steps", run, count)


def memory_of_recompiles(count: int) -> bool:
    def run(times: int) -> None:
        for number in range(times):
            about = {"fun_name": f"jit(recompiled_{number})"}
            event = "/jax/core/compile/backend_compile_duration"
            monitoring.record_event_duration_secs(event, 0.01, **about)

    return flat(f"{count:,} recompiles of as many names", run, count)


def flat(what: str, run: Callable[[int], None], count: int) -> bool:
    run(count // 10)
    before = resident()
    run(count)
    grown = resident() - before
    print(f"{what}: {grown / 1024:+.0f} KiB resident (bar {MAX_GROWTH_BYTES / 1024:.0f} KiB)")
    return grown <= MAX_GROWTH_BYTES


def resident() -> int:
    gc.collect()
    memory = memory_bytes()
    assert memory is not None
    return memory[0]


if __name__ == "__main__":
    raise SystemExit(main())
