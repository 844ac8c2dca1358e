"""How good is the instrument? The figures about Firstlight itself in README and docs.

    python benchmarks/instrument.py [PART …]

Parts: accounting, cold (needs hyperfine), warm, help, coverage, two-levels, change-points.

Each part measures both sides in one run, interleaved, and prints a ratio with its spread, never an
absolute time. Use a quiet machine.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firstlight.measure import instrument
from firstlight.measure.adapters import Adapter
from firstlight.measure.case_selection import SAMPLING, select
from firstlight.measure.runner import Runner, compile_bytecode, worker_environment
from firstlight.records import Sample
from firstlight.statistics.intervals import median, median_estimate
from firstlight.workloads.catalog import registered

ROUNDS = 25


def say(name: str, value: str, bar: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'MISS'}  {name}: {value}  (bar: {bar})", flush=True)


def ratio_text(ratios: Sequence[float]) -> str:
    e = median_estimate(ratios)
    return f"{e.median:.4f} [{e.low:.4f}, {e.high:.4f}] over {e.n} pairs"


def accounting() -> None:
    """Unattributed time of every JAX and NumPy case of the quick suite."""
    backends, workloads = registered()
    names = ["numpy", "jax-eager", "jax-jit"]
    chosen = [c for c in select("quick", workloads, backends) if c.backend in names]
    samples: list[Sample] = []
    with Runner(chosen, SAMPLING["quick"], samples.append) as runner:
        runner.run(lambda *_: None)
    for case in chosen:
        starts = [s.cold for s in samples if s.case == case.id and s.cold]
        shares = [c.unattributed_seconds / c.total_seconds for c in starts]
        worst = max(
            abs(
                sum(v for v in c.phases_seconds.values() if v is not None)
                + c.unattributed_seconds
                - c.total_seconds
            )
            for c in starts
        )
        text = f"median {median(shares):.2%}, largest {max(shares):.2%}, n = {len(shares)}"
        say(f"unattributed, {case.id}", text, "≤ 5 %", median(shares) <= 0.05)
        if worst > 1e-6:
            say(f"phases add up, {case.id}", f"off by {worst:.2g} s", "≤ 1 µs", False)


BARE = """
import numpy as np, jax, os
generator = np.random.default_rng(0)
a = generator.normal(size=(128, 128)).astype(np.float32)
b = generator.normal(size=(128, 128)).astype(np.float32)
f = jax.jit(lambda a, b: a @ b)
a, b = jax.block_until_ready(jax.device_put((a, b)))
jax.block_until_ready(f(a, b))
os._exit(0)
"""


def cold() -> None:
    """Our cold total, compared with hyperfine timing a bare script that does the same work."""
    hyperfine = shutil.which("hyperfine")
    if hyperfine is None:
        say("cold total", "not measured: hyperfine is not installed", "within 5 %", False)
        return
    backends, workloads = registered()
    (case,) = select("matmul", workloads, backends, ["jax-jit"], ["none"], "small")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        script, export = Path(folder) / "bare.py", Path(folder) / "hyperfine.json"
        script.write_text(BARE)
        environment = worker_environment(case, Path(folder) / "cache")
        settings = SAMPLING["quick"]
        with Runner([case], settings, lambda _: None) as runner:
            runner.measure(case, "check", 0)

            def ours() -> float:
                sample = runner.measure(case, "timed", 0)
                if sample.cold is None:
                    sys.exit(f"cold: {sample.reason}")
                return sample.cold.total_seconds

            def theirs() -> float:
                command = f"{sys.executable} -P {script}"
                subprocess.run(
                    [hyperfine, "-N", "-r", "1", "--export-json", str(export), command],
                    env=environment,
                    check=True,
                    capture_output=True,
                )
                seconds: float = json.loads(export.read_text())["results"][0]["times"][0]
                return seconds

            ratios = paired(ours, theirs)
    good = abs(median(ratios) - 1) <= 0.05
    say("cold total / hyperfine of a bare script", ratio_text(ratios), "within 5 %", good)


def paired(
    one: Callable[[], float], other: Callable[[], float], rounds: int = ROUNDS
) -> list[float]:
    """Ratios of neighbouring measurements, in alternating order, so that drift cancels."""
    one(), other()
    ratios = []
    for number in range(rounds):
        if number % 2:
            a, b = one(), other()
        else:
            b, a = other(), one()
        ratios.append(a / b)
    return ratios


def warm() -> None:
    """Our warm median, compared with a bare loop in the same process; a fast and a slower call."""
    import jax

    x = jax.device_put(np.ones((64, 64), np.float32))
    y = jax.device_put(np.ones((512, 512), np.float32))
    product = jax.jit(lambda a: a @ a)
    for name, arguments in (("64 × 64 product", (x,)), ("512 × 512 product", (y,))):
        _warm(name, product, arguments, jax.block_until_ready)


def _warm(name: str, step: Any, arguments: tuple[Any, ...], sync: Callable[[Any], Any]) -> None:
    class Synced(Adapter):
        def sync(self, value: Any) -> Any:
            return sync(value)

    job = {"warm_calls": 300, "warm_calls_least": 300, "warm_seconds": 60.0}
    job |= {"batches": 1, "batch_seconds": 0.0, "timeout_seconds": 600.0}
    last = {}

    def ours() -> float:
        report, _ = instrument.warm_calls(job, Synced(), step, arguments, time.monotonic_ns())
        last["ours"] = median(report["calls_ns"]) / 1e9
        return last["ours"]

    def bare() -> float:
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            sync(step(*arguments))
            times.append(time.perf_counter() - begin)
        last["bare"] = median(times)
        return last["bare"]

    differences: list[float] = []
    ratios = []
    ours(), bare()
    for number in range(ROUNDS):
        pair = (ours(), bare()) if number % 2 else (bare(), ours())[::-1]
        ratios.append(pair[0] / pair[1])
        differences.append(pair[0] - pair[1])
    good = abs(median(ratios) - 1) <= 0.02 or abs(median(differences)) <= 2e-6
    text = f"{ratio_text(ratios)}, {median(differences) * 1e6:+.2f} µs"
    say(f"warm median / bare loop, {name}", text, "within 2 % or 2 µs", good)


def help_() -> None:
    """`firstlight --help`, compared with `python -c pass`."""
    executable = Path(sys.executable).with_name("firstlight")

    def timed(*command: str) -> Callable[[], float]:
        def call() -> float:
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - begin

        return call

    ratios = paired(
        timed(str(executable), "--help"), timed(sys.executable, "-c", "pass"), rounds=41
    )
    say("firstlight --help / python -c pass", ratio_text(ratios), "≤ 5", median(ratios) <= 5)


def coverage() -> None:
    """How often the interval contains the true median, 2 000 simulated draws each."""
    generator = np.random.default_rng(1)
    laws: dict[str, tuple[Callable[[int], Any], float]] = {
        "exponential": (lambda n: generator.exponential(1.0, n), math.log(2)),
        "lognormal": (lambda n: generator.lognormal(0.0, 1.0, n), 1.0),
        "normal": (lambda n: generator.normal(0.0, 1.0, n), 0.0),
    }
    for n in (6, 10, 20, 30):
        for name, (draw, truth) in laws.items():
            estimates = [median_estimate([float(v) for v in draw(n)]) for _ in range(2000)]
            share = sum(e.low <= truth <= e.high for e in estimates) / 2000
            stated = estimates[0].confidence
            margin = 4 * math.sqrt(stated * (1 - stated) / 2000)
            text = f"{share:.2%} observed, {stated:.2%} stated"
            good = abs(share - stated) <= margin
            say(f"interval coverage, {name}, n = {n}", text, f"± {margin:.2%}", good)


def two_levels() -> None:
    """Warm medians: the exact interval over processes, compared with a two-level bootstrap.

    Processes differ by 5 % (lognormal), calls within one by 10 %; the truth is the median process.
    The bootstrap resamples processes, then calls, and takes the middle 95 % of the medians.
    """
    generator = np.random.default_rng(2)
    draws, calls, resamples = 1000, 40, 300
    for processes in (6, 10, 30):
        exact = boot = 0
        stated = 0.0
        for _ in range(draws):
            level = generator.lognormal(0.0, 0.05, (processes, 1))
            values = level * generator.lognormal(0.0, 0.10, (processes, calls))
            e = median_estimate([float(v) for v in np.median(values, axis=1)])
            exact += e.low <= 1.0 <= e.high
            stated = e.confidence
            chosen = generator.integers(processes, size=(resamples, processes, 1))
            within = generator.integers(calls, size=(resamples, processes, calls))
            medians = np.median(np.median(values[chosen, within], axis=2), axis=1)
            low, high = np.percentile(medians, (2.5, 97.5))
            boot += low <= 1.0 <= high
        text = f"{exact / draws:.1%} observed, {stated:.1%} stated"
        text += f"; two-level bootstrap {boot / draws:.1%} observed, 95.0% stated"
        margin = 4 * math.sqrt(stated * (1 - stated) / draws)
        good = abs(exact / draws - stated) <= margin
        say(f"warm interval, {processes} processes", text, f"± {margin:.1%}", good)


def change_points() -> None:
    """Our change points, compared with ruptures' PELT on the same series of 300 calls."""
    import warnings

    import ruptures

    from firstlight.statistics.change_points import change_points

    generator = np.random.default_rng(3)
    series = np.concatenate([generator.normal(2, 0.1, 60), generator.normal(1, 0.1, 240)])
    scaled = (series - series.mean()) / series.std()

    def ours() -> float:
        begin = time.perf_counter()
        change_points(series)
        return time.perf_counter() - begin

    def theirs() -> float:
        begin = time.perf_counter()
        search = ruptures.Pelt(model="normal", min_size=5, jump=1).fit(scaled)
        search.predict(pen=15 * np.log(len(series)))
        return time.perf_counter() - begin

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ruptures announces a change of its version 1.1.5
        ratios = paired(theirs, ours, rounds=7)
    say("ruptures / our change points", ratio_text(ratios), "none", True)


PARTS = {
    "accounting": accounting,
    "cold": cold,
    "warm": warm,
    "help": help_,
    "coverage": coverage,
    "two-levels": two_levels,
    "change-points": change_points,
}


def main() -> None:
    unknown = [name for name in sys.argv[1:] if name not in PARTS]
    if unknown:
        sys.exit(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: load {load:.1f}: this machine is not quiet", flush=True)
    compile_bytecode()
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
