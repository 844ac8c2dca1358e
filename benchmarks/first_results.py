"""Time to first result of the catalogue's JAX workloads: jit, caches, frozen functions, tiers.

    python benchmarks/first_results.py frozen    fresh process → first result, ratios to plain jit
    python benchmarks/first_results.py tiers     the same for `tiered`, over the standard suite
    python benchmarks/first_results.py penalty   warm calls after the switch, tiered / jit in turns
    python benchmarks/first_results.py hits      second process under our cache: hits of requests

Every figure is a ratio of processes that ran in turns; medians with their spread (min to max).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from firstlight.measure.case_selection import select
from firstlight.measure.runner import worker_environment
from firstlight.records import Case
from firstlight.workloads.catalog import registered

#: In a fresh process: build the workload of a case, call its step, report.
CHILD = """
import json, os, sys, time
about = json.loads(sys.argv[1])
sys.path[:] = about["path"]
events = {"requests": 0, "hits": 0, "compiles": 0}
import jax
from jax import monitoring
import firstlight.warmstart as warmstart
from firstlight.measure.program import load_object
names = {"compile_requests_use_cache": "requests", "cache_hits": "hits"}
monitoring.register_event_listener(
    lambda event, **_: events.update({n: events[n] + 1 for e, n in names.items()
                                      if event == "/jax/compilation_cache/" + e}))
monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: events.update(compiles=events["compiles"] + (
        event == "/jax/core/compile/backend_compile_duration")))
made = []
def compile(f):
    if about["how"] == "as it is":
        return f
    if about["how"] == "tiered":
        made.append(warmstart.tiered(f))
    elif about["how"] == "level 0":
        options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
        made.append(jax.jit(f, compiler_options=options))
    else:
        made.append(jax.jit(f))
    return made[-1]
step, arguments = load_object(about["program"])(compile, about["seed"], **about["parameters"])
jax.block_until_ready(arguments)
begin = time.perf_counter()
result = jax.block_until_ready(step(*arguments))
first_call = time.perf_counter() - begin
cpu = time.process_time()
print("first", flush=True)
report = {"first_call": first_call, "cpu": cpu, **events}
if about["how"] == "tiered":
    switches = [s for f in made for s in f.switches]
    report["tiers"] = sorted({s.first_tier.value for s in switches})
    report["numpy_calls"] = sum(s.numpy_calls for s in switches)
if about["warm_seconds"]:
    for f in made:
        if about["how"] == "tiered":
            f.wait()
    for _ in range(3):
        jax.block_until_ready(step(*arguments))
    calls, end = [], time.perf_counter() + about["warm_seconds"]
    while time.perf_counter() < end or len(calls) < 5:
        begin = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        calls.append(time.perf_counter() - begin)
    report["warm_call"] = sorted(calls)[len(calls) // 2]
    if about["how"] == "tiered":
        spent = [s for f in made for s in f.switches if s.numpy_calls]
        report["compile"] = sum(s.compile_seconds for s in spent)
        numpy_seconds = sum(s.numpy_calls * s.numpy_call_seconds for s in spent)
        report["numpy_call"] = numpy_seconds / max(1, sum(s.numpy_calls for s in spent))
print(json.dumps(report), flush=True)
os._exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("frozen", "tiers", "penalty", "hits"))
    parser.add_argument("-b", dest="pattern", default="", help="only cases that match")
    parser.add_argument("-n", type=int, default=3, help="processes per side")
    parser.add_argument("--warm-seconds", type=float, default=0.5, help="per process")
    parser.add_argument("--level-0", action="store_true", help="tiers: also XLA's level 0")
    options = parser.parse_args()
    {"frozen": frozen, "tiers": tiers, "penalty": penalty, "hits": hits}[options.what](options)


def standard_cases(pattern: str, of: Sequence[str] = ("jax-jit",)) -> list[Case]:
    backends, workloads = registered()
    cases = select("standard", workloads, backends, list(of), ["none"])
    return [case for case in cases if re.search(pattern, case.id)]


Environment = Mapping[str, str]


def child(
    case: Case, how: str, environment: Environment | None = None, warm_seconds: float = 0.0
) -> dict[str, Any]:
    """Return the report of a fresh process, with the seconds from its start to its first result."""
    about = {"how": how, "warm_seconds": warm_seconds}
    # Nothing that an earlier process has measured may decide what this one does.
    alone = {"FIRSTLIGHT_CACHE": "off"} if how == "tiered" else {}
    return started(case, CHILD, about, alone | dict(environment or {}))


def started(
    case: Case, code: str, about: Mapping[str, object], environment: Environment
) -> dict[str, Any]:
    about = {**about, "path": sys.path, "program": case.program, "seed": case.seed}
    about["parameters"] = dict(case.parameters)
    command = [sys.executable, "-c", code, json.dumps(about)]
    environment = worker_environment(case, Path("unused")) | dict(environment)
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    first = process.stdout.readline()
    seconds = time.perf_counter() - begin
    rest = process.stdout.read()
    if process.wait() or first != "first\n":
        raise SystemExit(f"{case.id}: a process failed")
    return {"total": seconds, **json.loads(rest)}


def spread(values: Iterable[float]) -> str:
    numbers = sorted(values)
    return f"{statistics.median(numbers):.2f} ({numbers[0]:.2f}-{numbers[-1]:.2f})"


def in_turns(times: int, sides: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in sides}
    for number in range(times):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in order:
            found[name].append(sides[name]())
    return found


def ratios(over: list[Any], under: list[Any], key: str) -> list[float]:
    return [a[key] / b[key] for a, b in zip(over, under, strict=True)]


def tiers(options: argparse.Namespace) -> None:
    print("jit / tiered, > 1: tiered is faster; warm: tiered / jit, after the switch")
    print("level 0: jit / jit at XLA's optimisation level 0 without fusion emitters, first calls")
    print("processor: seconds of processor time, which is what a machine with one core takes")
    columns = f"{'process':>18} {'processor':>18} {'first call':>22} {'warm':>18}"
    print(f"{'workload':44} {columns}  first tier")
    print("break-even: the number of calls from which on compiling is faster in total")
    passed = lone = quick = total = 0
    for case in standard_cases(options.pattern):
        names = ("jit", "tiered", *(("level 0",) if options.level_0 else ()))
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            how: partial(child, case, how, None, options.warm_seconds) for how in names
        }
        found = in_turns(options.n, sides)
        jit, tiered = found["jit"], found["tiered"]
        whole = ratios(jit, tiered, "total")
        total += 1
        first, cpu = (ratios(jit, tiered, key) for key in ("first_call", "cpu"))
        passed += statistics.median(whole) >= 2
        lone += statistics.median(cpu) >= 2
        quick += statistics.median(first) >= 2
        row = (
            f"{spread(whole):>18} {spread(cpu):>18} {spread(first):>22} "
            f"{spread(ratios(tiered, jit, 'warm_call')):>18}  {', '.join(tiered[0]['tiers'])}, "
            f"{_break_even(tiered)}"
        )
        if options.level_0:
            row += f"  level 0 {spread(ratios(jit, found['level 0'], 'first_call'))}"
        print(f"{case.id.removesuffix('/jax-jit/none'):44} {row}", flush=True)
    print(
        f"In half the time or less: {quick} of {total} first calls, {passed} whole processes; "
        f"of whole processes in half the processor time: {lone}."
    )


def _break_even(tiered: Sequence[Mapping[str, Any]]) -> str:
    known = [t for t in tiered if t.get("numpy_call")]
    if not known:
        return "no break-even: NumPy has answered nothing"
    calls = statistics.median(t["compile"] / t["numpy_call"] for t in known)
    numpy, compiled = (statistics.median(t[k] for t in known) for k in ("numpy_call", "compile"))
    return f"break-even {int(calls) + 1} calls (NumPy {numpy:.3g} s each, compile {compiled:.3g} s)"


#: Both in one process, call by call, so that the load of the machine is the same for both.
PENALTY_CHILD = """
import json, os, sys, time
about = json.loads(sys.argv[1])
sys.path[:] = about["path"]
import jax
from firstlight.measure.program import load_object
from firstlight.warmstart import tiered
build, in_tiers = load_object(about["program"]), []
def compile(f):
    in_tiers.append(tiered(f))
    return in_tiers[-1]
sides = [build(how, about["seed"], **about["parameters"]) for how in (jax.jit, compile)]
for step, arguments in sides:
    jax.block_until_ready(step(*arguments))
for f in in_tiers:
    f.wait()
print("first", flush=True)
times, end, number = [[], []], time.perf_counter() + about["warm_seconds"], 0
while time.perf_counter() < end or number < 40:
    number += 1
    for which in (0, 1) if number % 2 else (1, 0):
        step, arguments = sides[which]
        begin = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        times[which].append(time.perf_counter() - begin)
middle = [sorted(t[10:])[len(t[10:]) // 2] for t in times]
print(json.dumps({"ratio": middle[1] / middle[0], "jit": middle[0], "calls": number}), flush=True)
os._exit(0)
"""


def penalty(options: argparse.Namespace) -> None:
    """Median of calls of a tiered function, relative to that of a jitted one."""
    for case in standard_cases(options.pattern):
        about = {"warm_seconds": options.warm_seconds}
        found = [started(case, PENALTY_CHILD, about, {}) for _ in range(options.n)]
        call = f"jit {found[0]['jit'] * 1e6:.0f} µs, {found[0]['calls']} calls"
        name = case.id.removesuffix("/jax-jit/none")
        print(f"{name:44} {spread(f['ratio'] for f in found):>18}  {call}", flush=True)


def hits(options: argparse.Namespace) -> None:
    """Check that a second process finds every compile in Firstlight's cache."""
    missed = 0
    for case in standard_cases(options.pattern, ("jax-jit", "jax-eager", "torch-jax", "pyhf-jax")):
        how = "jit" if case.backend == "jax-jit" else "as it is"
        with tempfile.TemporaryDirectory() as folder:
            cache = {"FIRSTLIGHT_WARMSTART": "1", "FIRSTLIGHT_CACHE_DIR": folder}
            cache["JAX_ENABLE_COMPILATION_CACHE"] = "true"
            first, second = (child(case, how, cache) for _ in range(2))
        missed += second["requests"] - second["hits"]
        said = f"{second['hits']} of {second['requests']} requests, {second['compiles']} compiles"
        print(
            f"{case.id:50} {said}; first process {first['hits']} of {first['requests']}", flush=True
        )
    print("all found" if not missed else f"{missed} requests missed")
    sys.exit(bool(missed))


#: In a fresh process that has only the frozen function; NumPy makes its arguments.
FROZEN_CHILD = """
import importlib, json, os, sys
about = json.loads(sys.argv[1])
sys.path[:] = about["path"]
from firstlight.warmstart import load
frozen = load(about["file"])
module = importlib.import_module(about["program"].partition(":")[0])
frozen(*module.make_inputs(about["seed"], **about["parameters"]))
assert "jax" not in sys.modules
print("first", flush=True)
print("{}", flush=True)
os._exit(0)
"""
FREEZING = ("option_greeks[small]", "transformer_block[small]", "hypergradient[small]")


def frozen(options: argparse.Namespace) -> None:
    print("fresh process → first result: seconds of plain jit, and the others relative to it")
    cases = [c for c in standard_cases(options.pattern) if c.id.startswith(FREEZING)]
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            warm = {
                "JAX_ENABLE_COMPILATION_CACHE": "true",
                "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
            child(case, "jit", warm)
            path = _frozen(case, folder / "function.frozen")
            found = in_turns(
                options.n,
                {
                    "jit": partial(child, case, "jit"),
                    "warm": partial(child, case, "jit", warm),
                    "frozen": partial(started, case, FROZEN_CHILD, {"file": str(path)}, {}),
                },
            )
        cached, saved = (ratios(found[n], found["jit"], "total") for n in ("warm", "frozen"))
        print(
            f"{case.id:40} jit {spread(r['total'] for r in found['jit'])} s, warm persistent cache "
            f"{spread(cached)}, frozen without jax {spread(saved)}, frozen against warm "
            f"{spread(ratios(found['frozen'], found['warm'], 'total'))}",
            flush=True,
        )


def _frozen(case: Case, path: Path) -> Path:
    """Freeze the programs of a case in this process, in the environment of the case."""
    os.environ.update(case.environment)
    from firstlight.measure.program import load_object
    from firstlight.warmstart import freeze

    step, _ = load_object(case.program)(lambda f: f, case.seed, **case.parameters)
    module = sys.modules[case.program.partition(":")[0]]
    return freeze(step, tuple(module.make_inputs(case.seed, **case.parameters)), path=path)


if __name__ == "__main__":
    main()
