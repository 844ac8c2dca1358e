"""How soon does a fresh process answer, compared with its peers?

    python benchmarks/warmstart.py [fits] [gradients] [imports] [--rounds N] [--workspace FILE]
                                   [--only NAME,NAME] [--ours] [--skip SIDE]

A process is timed from its start to its end.

fits: fit a workspace with the library (`python -c`), `firstlight hf fit`, NextStat, pyhf, and the
same engine compiled by JAX, with a warm persistent cache and with none. The workspace is synthetic,
with the dimensions of a published analysis of 184 parameters, unless `--workspace` names another.
Needs the extra `peers`.

gradients: differentiate a result of a model with eight parameters with respect to all of its
numbers, by `jax.grad` without `jit`, or take a step of a PyTorch loss (on a GPU if there is one):
with the library's defaults, and with everything compiled at once.

imports: import JAX, with and without FIRSTLIGHT_WARMSTART.

`--only torch,cls,limit` measures the sides whose names begin with one of these; packages of the
others are not needed. `--ours` measures no peers and prints seconds: for a slow machine, where
`gradients --rounds 2 --ours` starts fifteen processes (the first round fills caches).

All sides run in turns, and every figure is a ratio of medians of pairs with its interval. Use a
quiet machine.
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
from collections.abc import Iterable
from pathlib import Path

from firstlight.histfactory import synthetic
from firstlight.statistics.intervals import median_estimate

LIBRARY = """
import sys
from firstlight import histfactory as hf
print(hf.fit(hf.load(sys.argv[1])).nll)
"""
NEXTSTAT = """
import sys, nextstat
model = nextstat.from_pyhf(open(sys.argv[1]).read())
print(nextstat.MaximumLikelihoodEstimator().fit_minimum(model).nll)
"""
JAX = """
import sys, jax
from firstlight import histfactory as hf
model = hf.load(sys.argv[1])
print(jax.jit(lambda counts: hf.fit(model, counts).nll)(model.observed))
"""
PYHF = """
import json, sys, pyhf
workspace = pyhf.Workspace(json.load(open(sys.argv[1])))
model = workspace.model()
print(pyhf.infer.mle.fit(workspace.data(model), model, return_fitted_val=True)[1])
"""
GRADIENT = """
import sys, jax
from firstlight import histfactory as hf
from firstlight.histfactory import programs
if sys.argv[2] == "compiled":
    programs.PATIENCE = 0.0
model = hf.load(sys.argv[3])
result = {
    "q0": lambda m: hf.discovery(m).q0,
    "CLs": lambda m: hf.cls(m, 1.0).observed,
    "limit": lambda m: hf.upper_limit(m).observed,
    "fit": lambda m: hf.fit(m).values[m.poi_index],
}[sys.argv[1]]
print(float(jax.grad(result)(model).template("signal").sum()))
"""
TORCH = """
import sys, torch
import firstlight.torch as ft
from firstlight.histfactory import programs
if sys.argv[2] == "compiled":
    programs.PATIENCE = 0.0
loss = ft.SignificanceLoss(ft.from_pyhf(open(sys.argv[3]).read()), "signal")
device = "cuda" if torch.cuda.is_available() else "cpu"
signal = torch.full((loss.n_bins,), 5.0, device=device, requires_grad=True)
loss(signal).backward()
print(signal.grad.sum().item())
"""
CACHED = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
#: What a process runs.
FITS: dict[str, list[str]] = {
    "library": ["-c", LIBRARY],
    "command": ["-m", "firstlight", "hf", "fit"],
    "NextStat": ["-c", NEXTSTAT],
    "JAX, warm persistent cache": ["-c", JAX],
    "JAX, no cache": ["-c", JAX],
    "pyhf, NumPy": ["-W", "ignore", "-c", PYHF],
}
RESULTS = {
    **dict.fromkeys(("q0", "CLs", "limit", "fit"), GRADIENT),
    "torch loss": TORCH,
}
GRADIENTS: dict[str, list[str]] = {
    f"{name}, {how}": ["-c", program, name, how]
    for name, program in RESULTS.items()
    for how in ("library", "compiled")
}
WARM, PLAIN = "import under warm start", "plain import"
IMPORTS = {WARM: ["-c", "import jax"], PLAIN: ["-c", "import jax"]}
NUMPY = {"NumPy alone": ["-c", "import numpy"]}
SIDES = FITS | GRADIENTS | IMPORTS | NUMPY
#: (ours, theirs, the most that ours may take as a share of theirs)
BARS = [
    ("library", "NextStat", 0.8),
    ("command", "NextStat", 0.8),
    ("library", "JAX, warm persistent cache", 0.4),
    ("command", "JAX, warm persistent cache", 0.4),
    ("library", "JAX, no cache", 1.05),
    ("command", "JAX, no cache", 1.05),
    ("library", "pyhf, NumPy", 1.0),
    *((f"{name}, library", f"{name}, compiled", 0.6) for name in RESULTS),
    (WARM, PLAIN, 1.0),
]


def seconds(side: str, workspace: Path, cache: Path) -> float:
    """From the start of a fresh process to its end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    if side == "JAX, warm persistent cache":
        environment |= CACHED | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    if side == WARM:
        environment["FIRSTLIGHT_WARMSTART"] = "1"
    command = [sys.executable, *SIDES[side], str(workspace)]
    begin = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(sides: list[str], workspace: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of every side, in turns; the first round fills caches and is dropped."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds + 1):
            order = sides if number % 2 else sides[::-1]
            for side in order:
                took = seconds(side, workspace, Path(cache))
                if number:
                    found[side].append(took)
    return found


def chosen(sides: Iterable[str], options: argparse.Namespace) -> list[str]:
    """The selected sides: by the beginnings of their names, with or without peers."""
    names = tuple(name.strip().lower() for name in (options.only or "").split(","))
    theirs = {side for _, side, _ in BARS} if options.ours else set()
    left_out = theirs | set(options.skip)
    return [side for side in sides if side not in left_out and side.lower().startswith(names)]


def report(found: dict[str, list[float]], what: str) -> None:
    for ours, theirs, bar in BARS:
        if not {ours, theirs} <= set(found):
            continue
        pairs = [a / b for a, b in zip(found[ours], found[theirs], strict=True)]
        e, took = median_estimate(pairs), (statistics.median(found[s]) for s in (ours, theirs))
        mark = "ok  " if e.median <= bar else "MISS"
        print(
            f"{mark}  fresh process to {what}, {ours} against {theirs}: "
            f"{e.median:.2f}× its time [{e.low:.2f}, {e.high:.2f}] over {e.n} pairs "
            f"(bar: ≤ {bar:g}×); here {next(took):.2f} and {next(took):.2f} s",
            flush=True,
        )
    pairs_of_sides = [{ours, theirs} for ours, theirs, _ in BARS]
    compared = {side for pair in pairs_of_sides if pair <= set(found) for side in pair}
    for side in [side for side in found if side not in compared]:
        times = found[side]
        print(
            f"      fresh process to {what}, {side}: {statistics.median(times):.2f} s "
            f"[{min(times):.2f}, {max(times):.2f}] over {len(times)} processes",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help="fits, gradients, imports (all)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workspace", type=Path, help="a pyhf JSON workspace, for the fits")
    parser.add_argument(
        "--skip", action="append", choices=SIDES, default=[], help="a side to leave out"
    )
    parser.add_argument("--only", metavar="NAME,NAME", help="the sides that begin with these names")
    parser.add_argument("--ours", action="store_true", help="no peers: seconds, not ratios")
    options = parser.parse_args()
    plans = {
        "fits": (FITS, "thu-184p", "fit"),
        "gradients": (GRADIENTS, "complex-8p", "gradient"),
        "imports": (IMPORTS, "complex-8p", "the end of the import of JAX"),
    }
    for part in options.parts or plans:
        sides, preset, what = plans[part]
        kept = chosen(sides, options)
        if not kept:
            parser.error(f"--only {options.only}: the sides of {part} are {', '.join(sides)}")
        with tempfile.TemporaryDirectory() as folder:
            workspace = Path(folder) / "workspace.json"
            workspace.write_text(json.dumps(synthetic.preset(preset)))
            given = options.workspace if part == "fits" and options.workspace else workspace
            report(measure(kept, given, options.rounds), what)


if __name__ == "__main__":
    main()
