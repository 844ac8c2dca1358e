"""Real gates: with nothing changed, and with a program that takes 10 % longer.

Used by gate.py; every gate is the real command in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firstlight.records import now
from gate_noise import rate, rate_text, say

INJECTED = '''"""A training step; HEAD takes {percent} % longer to {what}."""
import time

import firstlight
import jax
import jax.numpy as jnp
import numpy as np

SHARE = {share}
WHAT = "{what}"


def slow_compile(event, seconds, **_):
    """Compiling takes a share of its time longer: slept before the event's end is told."""
    if WHAT == "compile" and event == "/jax/core/compile/backend_compile_duration":
        time.sleep(SHARE * seconds)


jax.monitoring.register_event_duration_secs_listener(slow_compile)


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w) + 0.1 * jnp.sin(x)
    return jnp.mean(x**2)


@firstlight.bench(workload="step", backend="jax")
def step():
    generator = np.random.default_rng(0)
    weights = [jnp.asarray(generator.normal(size=(96, 96)) / 10, jnp.float32) for _ in range(12)]
    x = jnp.asarray(generator.normal(size=(256, 96)), jnp.float32)
    gradient = jax.jit(jax.grad(loss))
    calls = []

    def call(weights, x):
        begin = time.perf_counter()
        result = jax.block_until_ready(gradient(weights, x))
        calls.append(None)
        if WHAT == "call" and SHARE and len(calls) > 1:  # the first one compiles
            end = time.perf_counter()
            while time.perf_counter() - end < SHARE * (end - begin):
                pass
        return result

    return call, (weights, x)
'''


def real_power(options: argparse.Namespace) -> None:
    """Run gates on a repository whose head takes 10 % longer to compile, or to call."""
    for what in ("compile", "call"):
        with tempfile.TemporaryDirectory() as folder:
            repository(Path(folder), what)
            caught = 0
            for number in range(options.real):
                begun = time.monotonic()
                code, report = run_gate(
                    ["bench_step.py", "--base", "HEAD~1", "--head", "HEAD", "--max-minutes", "5"],
                    Path(folder),
                )
                caught += code == 1
                found = [c for c in report["comparisons"] if c["gated"]]
                effects = ", ".join(f"{c['quantity']} {c['effect']['ratio']:.3f}" for c in found)
                spent = time.monotonic() - begun
                print(
                    f"  {what} {number + 1}: {report['verdict']} after {report['rounds']} rounds, "
                    f"{spent:.0f} s; {effects}",
                    flush=True,
                )
        text = f"{caught} of {options.real}"
        say(f"a real 10 % more to {what}", text, "≥ 90 %", caught >= 0.9 * options.real)


def repository(folder: Path, what: str) -> None:
    """Make a repository with two commits of a benchmark file, the second 10 % slower."""

    def git(*arguments: str) -> None:
        name = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
        subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)

    git("init", "--quiet")
    for share, message in ((0.0, "as it was"), (0.1, "10 % slower")):
        text = INJECTED.format(share=share, what=what, percent=round(100 * share))
        (folder / "bench_step.py").write_text(text)
        git("add", "bench_step.py")
        git("commit", "--quiet", "-m", message)


def run_gate(arguments: Sequence[str], folder: Path) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and report."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "firstlight",
                "gate",
                *arguments,
                "--json",
                "--no-calibration",
                "--out",
                str(Path(out) / "gate"),
            ],
            cwd=folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")},
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout.startswith("{"):
        sys.exit(f"firstlight gate {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    return done.returncode, json.loads(done.stdout)


# --- real: A/A gates with the real command --------------------------------------------------------


def real(options: argparse.Namespace) -> None:
    """Run gates over the cases of the quick suite until there are enough."""
    from firstlight.measure.case_selection import select
    from firstlight.workloads.catalog import registered

    backends, workloads = registered()
    cases = [c.id for c in select("quick", workloads, backends)]
    cases = [c for c in cases if options.pattern is None or re.search(options.pattern, c)]
    known = [json.loads(line) for line in lines(options.log)]
    for number in range(len(known), options.gates):
        case = cases[number % len(cases)]
        begun = time.monotonic()
        code, report = run_gate(
            [
                "quick",
                "-b",
                f"^{re.escape(case)}$",
                "--base-env",
                sys.prefix,
                "--head-env",
                sys.prefix,
                "--max-minutes",
                str(options.max_minutes),
            ],
            Path.cwd(),
        )
        gated = [c for c in report["comparisons"] if c["gated"]]
        entry = {
            "case": case,
            "at": now(),
            "exit_code": code,
            "verdict": report["verdict"],
            "rounds": report["rounds"],
            "seconds": round(time.monotonic() - begun, 1),
            "reasons": report["reasons"],
            "effects": {f"{c['case']} {c['quantity']}": c["effect"] for c in gated},
        }
        options.log.parent.mkdir(parents=True, exist_ok=True)
        with open(options.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        known.append(entry)
        print(
            f"{number + 1}: {case}: {entry['verdict']} after {entry['rounds']} rounds, "
            f"{entry['seconds']:.0f} s",
            flush=True,
        )
    summarise_real(known)


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def summarise_real(known: Sequence[Mapping[str, Any]]) -> None:
    if not known:
        return
    verdicts = [entry["verdict"] for entry in known]
    alarms = verdicts.count("regression")
    tests = [e for entry in known for e in entry["effects"].values()]
    below = sum(e["p"] < 0.05 for e in tests)
    print(f"{len(known)} real A/A gates: { {v: verdicts.count(v) for v in sorted(set(verdicts))} }")
    _, low, _ = rate(alarms, len(known))
    text = rate_text(alarms, len(known))
    say("false alarms", text, "interval reaches below 2.5 %", low <= 0.025)
    _, low, _ = rate(below, len(tests))
    good = low <= 0.05
    say("single tests with p < 5 %", rate_text(below, len(tests)), "interval reaches 5 %", good)
