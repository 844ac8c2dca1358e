"""What does tracing cost, and do its phases add up? The figures about `trace` in the docs.

    python benchmarks/trace.py [PART …] [--rounds N]

Parts: first-result, own-work, command, warm-call, accounting.

Both sides are measured in one run, in fresh processes: to the first result both at the same time,
so that both meet the same load; warm calls one after the other, in alternating order. Use a quiet
machine with two cores or more: three per cent of a second is thirty milliseconds.

When Python runs a full garbage collection (40 ms with JAX), and at which call depth its stack needs
another piece of memory (10 µs each time a call crosses it), is chance. A few more objects or one
more frame can move either to before the first result, or away from there: by up to 5 %, of either
sign, and the same in every run of the same program. So every pair runs in another layout, with
extra objects and at another depth. A pair still differs by a tenth; the recorder's own work is
therefore also timed directly (own-work), listener by listener.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstlight.statistics.intervals import median, median_estimate
from firstlight.trace import running
from firstlight.trace.read.assembly import read_folder
from firstlight.trace.read.log_events import read_logs

FIRSTLIGHT = (sys.executable, "-m", "firstlight")
#: Every program runs in a function, and calls `first_result()` when its first result is there.
PROGRAMS = {
    "one small function": """
import jax
print(float(jax.jit(lambda x: x * 2)(1.0)))
first_result()
""",
    "training of a small network": """
import jax, jax.numpy as jnp, numpy as np
def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return (x ** 2).mean()
weights = [np.eye(32, dtype=np.float32) for _ in range(6)]
step = jax.jit(jax.value_and_grad(loss))
x = np.ones((64, 32), np.float32)
float(step(weights, x)[0])
first_result()
""",
    "a hundred operations outside of jit": """
import jax, jax.numpy as jnp
total = 0.0
for n in range(1, 21):
    x = jnp.arange(float(n))
    total = total + jnp.sin(x).sum() * 2
float(total)
first_result()
""",
    "a program of 1500 equations": """
import jax, jax.numpy as jnp
@jax.jit
def f(x):
    for n in range(500):
        x = jnp.sin(x) * 1.01 + n
    return x
float(f(1.0))
first_result()
""",
}
LAYOUT = """
import os as _os, sys as _sys, time as _time
def first_result():
    told = b"%d %d" % (_time.monotonic_ns(), _time.process_time_ns())
    _os.write(int(_os.environ["BENCHMARK_PIPE"]), told)
def _at_depth(depth):
    return _at_depth(depth - 1) if depth else program()
_objects = [[] for _ in range(int(_sys.argv[1]))]
"""
#: With JAX there are 100 000 objects; Python's full collection runs at a quarter more.
MAX_OBJECTS, MAX_DEPTH = 25_000, 40

CALLS = """
import json, sys, time
import jax, numpy as np
f = jax.jit(lambda x: x + 1)
x = jax.device_put(np.ones(4, np.float32))
def timed(call, n=1000):
    best = []
    for _ in range(60):
        begin = time.perf_counter_ns()
        for _ in range(n):
            call()
        best.append((time.perf_counter_ns() - begin) / n)
    return min(best)  # other load only ever adds
s = jax.device_put(np.float32(1))
ready = f(x).block_until_ready(), float(f(s))
for _ in range(5000): f(x)
print(json.dumps({
    "a call": timed(lambda: f(x)),
    "a call with block_until_ready": timed(lambda: f(x).block_until_ready()),
    "a call with jax.block_until_ready": timed(lambda: jax.block_until_ready(f(x))),
    "a call and reading its result": timed(lambda: float(f(s))),
}))
"""


def say(name: str, value: str, bar: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'MISS'}  {name}: {value}  (bar: {bar})", flush=True)


def text_of(values: Sequence[float], form: str, what: str = "pairs") -> str:
    e = median_estimate(values)
    return f"{e.median:{form}} [{e.low:{form}}, {e.high:{form}}] over {e.n} {what}"


def environment(traced: bool, folder: Path) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("FIRSTLIGHT_TRACE")}
    return {**plain, "FIRSTLIGHT_TRACE": str(folder)} if traced else plain


def pairs(
    one: Callable[[bool], dict[str, float]], rounds: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """(traced, untraced) in neighbouring processes, in alternating order."""
    one(True), one(False)
    found = []
    for number in range(rounds):
        first = number % 2 == 0
        a, b = one(first), one(not first)
        found.append((a, b) if first else (b, a))
    return found


def first_result(rounds: int) -> None:
    """Time from spawn to first result, traced relative to untraced."""
    for name, text in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as place:
            script = Path(place) / "program.py"
            body = textwrap.indent(text.strip(), "    ")
            script.write_text(f"{LAYOUT}\ndef program():\n{body}\n_at_depth(int(_sys.argv[2]))\n")
            layouts = random.Random(name)
            found = []
            for number in range(-1, rounds):  # the first pair warms up the machine
                layout = (layouts.randrange(MAX_OBJECTS), layouts.randrange(MAX_DEPTH))
                sides = {
                    traced: _start(script, layout, traced, Path(place))
                    for traced in ((True, False) if number % 2 else (False, True))
                }
                pair = {traced: side.told() for traced, side in sides.items()}
                found += [pair] if number >= 0 else []
        for what, words in (("seconds", "first result"), ("cpu", "processor time until then")):
            ratios = [pair[True][what] / pair[False][what] for pair in found]
            whole = sum(p[True][what] for p in found) / sum(p[False][what] for p in found)
            value = f"{text_of(ratios, '.4f')}, of sums {whole:.4f}"
            say(f"{words}, traced / untraced, {name}", value, "≤ 1.03", median(ratios) <= 1.03)


@dataclass
class _Started:
    process: subprocess.Popen[bytes]
    reading: int
    begin_ns: int

    def told(self) -> dict[str, float]:
        if self.process.wait():
            raise SystemExit("a program of the benchmark failed; its message is above")
        ns, cpu = map(int, os.read(self.reading, 100).split())
        os.close(self.reading)
        return {"seconds": (ns - self.begin_ns) / 1e9, "cpu": cpu / 1e9}


def _start(script: Path, layout: tuple[int, int], traced: bool, place: Path) -> _Started:
    reading, writing = os.pipe()
    variables = {**environment(traced, place / "logs"), "BENCHMARK_PIPE": str(writing)}
    begin = time.monotonic_ns()
    process = subprocess.Popen(
        [sys.executable, str(script), *map(str, layout)],
        env=variables,
        pass_fds=[writing],
        stdout=subprocess.DEVNULL,
    )
    os.close(writing)
    return _Started(process, reading, begin)


#: Starts the recorder by hand, with a clock around all that is called of it.
OWN_WORK = """
import os, sys, time
_clock, _spent, _within = time.monotonic_ns, [0], []
def _timed(function):
    def timed(*arguments, **named):
        if _within:  # what one of them calls is its own
            return function(*arguments, **named)
        _within.append(True)
        begin = _clock()
        try:
            return function(*arguments, **named)
        finally:
            _spent[0] += _clock() - begin
            _within.clear()
    return timed
def _start():
    from firstlight.trace.record import import_clock, recorder
    safely = recorder.Recorder.safely
    recorder.Recorder.safely = lambda self, function: _timed(safely(self, function))
    for name in ("_begin", "_end"):
        setattr(import_clock.ImportClock, name, _timed(getattr(import_clock.ImportClock, name)))
    import firstlight.trace.startup
os.environ["FIRSTLIGHT_TRACE"] = sys.argv[1]
_timed(_start)()
def first_result():
    print("own", _spent[0], _clock() - int(sys.argv[2]))
"""


def own_work(rounds: int) -> None:
    """The recorder's own work until the first result, as a share of the time until then."""
    for name, text in PROGRAMS.items():
        spent, shares = [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as place:
                script = Path(place) / "program.py"
                script.write_text(OWN_WORK + text)
                arguments = [str(Path(place) / "logs"), str(time.monotonic_ns())]
                done = subprocess.run(
                    [sys.executable, str(script), *arguments],
                    env=environment(False, Path(place)),
                    capture_output=True,
                    check=True,
                )
            ours, whole = map(int, done.stdout.splitlines()[-1].split()[1:])
            spent.append(ours / 1e6)
            shares.append(ours / whole)
        value = f"{text_of(shares, '.4f', 'runs')}; {median(spent):.1f} ms"
        say(f"own work / time to first result, {name}", value, "≤ 0.03", median(shares) <= 0.03)


def processor_seconds() -> float:
    """Processor seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def whole_command(rounds: int) -> None:
    """`firstlight trace program.py`, with its report, relative to `python program.py`."""
    for name, text in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as place:
            script = Path(place) / "program.py"
            script.write_text("def first_result(): pass\n" + text)
            folders = (Path(place) / f"trace-{number}" for number in itertools.count())

            def once(traced: bool) -> dict[str, float]:
                folder = next(folders)  # noqa: B023  # called before the next program
                ours = [*FIRSTLIGHT, "trace", "--out", str(folder)] if traced else [sys.executable]
                begin, used = time.monotonic_ns(), processor_seconds()
                subprocess.run(
                    [*ours, str(script)],  # noqa: B023
                    env=environment(False, folder),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
                end, used = time.monotonic_ns(), processor_seconds() - used
                gone = read_logs(folder)[0].first("exited") if traced else None
                return {
                    "wall": (end - begin) / 1e9,
                    "cpu": used,
                    "report": (end - gone["ns"]) / 1e9 if gone else 0,
                }

            found = pairs(once, rounds)
        for what, words in (("wall", "whole command"), ("cpu", "processor time of all of it")):
            ratios = [traced[what] / plain[what] for traced, plain in found]
            extra = median([traced[what] - plain[what] for traced, plain in found])
            value = f"{text_of(ratios, '.3f')}; {extra:+.3f} s"
            say(f"{words}, traced / untraced, {name}", value, "≤ 1.15", median(ratios) <= 1.15)
        after = [traced["report"] for traced, _ in found]
        value = text_of(after, ".3f", "runs")
        say(f"report after the program's end, s, {name}", value, "≤ 0.2", median(after) <= 0.2)


def warm_call(rounds: int) -> None:
    """The extra cost of a call that compiles nothing."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "calls.py"
        script.write_text(CALLS)
        logs = Path(place) / "logs"

        def once(traced: bool) -> dict[str, float]:
            done = subprocess.run(
                [sys.executable, str(script)],
                env=environment(traced, logs),
                capture_output=True,
                check=True,
            )
            found: dict[str, float] = json.loads(done.stdout)
            return found

        found = pairs(once, rounds)
    for name in found[0][0]:
        differences = [(a[name] - b[name]) / 1e3 for a, b in found]
        ratio = median([a[name] / b[name] for a, b in found])
        value = f"{text_of(differences, '+.3f')}, µs; ratio {ratio:.3f}"
        say(f"{name}, traced − untraced", value, "≤ 1 µs", median(differences) <= 1.0)


def accounting(rounds: int) -> None:
    """The sum of a trace's phases, compared with the clock of the parent process."""
    for name, text in PROGRAMS.items():
        shares = []
        for _ in range(max(3, rounds // 5)):
            with tempfile.TemporaryDirectory() as place:
                script = Path(place) / "program.py"
                script.write_text("def first_result(): pass\n" + text)
                with open(os.devnull, "wb") as nowhere:
                    command = [sys.executable, str(script)]
                    begin = time.perf_counter()
                    running.run(command, Path(place) / "logs", output=nowhere.fileno())
                    seconds = time.perf_counter() - begin
                process = read_folder(Path(place) / "logs").processes[0]
                shares.append(sum(process.phases_seconds.values()) / seconds)
        worst = max(abs(share - 1) for share in shares)
        value = f"median {median(shares):.4f}, furthest from one {worst:.4f}"
        say(f"summed phases / outside clock, {name}", value, "within 5 %", worst <= 0.05)


PARTS = {
    "first-result": first_result,
    "own-work": own_work,
    "command": whole_command,
    "warm-call": warm_call,
    "accounting": accounting,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []])
    parser.add_argument("--rounds", type=int, help="default: 60 to the first result, else 15")
    options = parser.parse_args()
    running.compile_bytecode()
    for name in options.parts or PARTS:
        PARTS[name](options.rounds or (60 if name == "first-result" else 15))


if __name__ == "__main__":
    main()
