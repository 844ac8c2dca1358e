"""How fast is `firstlight.histfactory`, compared with its peers on this CPU?

    python benchmarks/histfactory.py [PART …] [--rounds N] [--workspace FILE]

Parts: fit, nll-grad, batch, toys, padding, scaling; `warmstart.py` measures fresh processes. Needs
the extra `peers`.

Both sides are measured in one run, in turns, and every figure is a ratio with its spread. The
workspaces are synthetic, with the dimensions of a published analysis of 184 parameters and of a toy
of eight. Published ones are measured too if they are given (`--workspace`, or the folder named by
FIRSTLIGHT_SHARED_DATA). Use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firstlight import histfactory as hf
from firstlight.histfactory import synthetic
from firstlight.histfactory.layout import natural_sizes
from firstlight.histfactory.spec import parse
from firstlight.statistics.intervals import median_estimate
from histfactory_peers import NextStat, PyhfJax, arranged, toy_data

Call = Callable[[], Any]


def say(name: str, value: str, bar: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'MISS'}  {name}: {value}  (bar: {bar})", flush=True)


def ratios(ours: Call, theirs: Call, rounds: int, repeat: int = 1) -> list[float]:
    """Their time over ours, one pair per round; the order alternates."""
    ours(), theirs()
    found = []
    for k in range(rounds):
        order = (ours, theirs) if k % 2 else (theirs, ours)
        seconds = {call: _seconds(call, repeat) for call in order}
        found.append(seconds[theirs] / seconds[ours])
    return found


def _seconds(call: Call, repeat: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeat):
        call()
    return time.perf_counter() - begin


def report(name: str, found: Sequence[float], bar: float, note: str = "") -> None:
    e = median_estimate(found)
    text = f"{e.median:.1f}× faster [{e.low:.1f}, {e.high:.1f}] over {e.n} pairs{note}"
    say(name, text, f"≥ {bar:g}×", e.median >= bar)


def _compiled(workspace: Any, sizes: Any = None) -> hf.Model:
    """Load a model and compile its calls, because warm times are measured."""
    model = hf.load(workspace, sizes=sizes)
    hf.precompile(model)
    return model


def fit(workspaces: dict[str, Any], rounds: int) -> None:
    """Maximum-likelihood fit, warm, and the depth of the minimum."""
    for name, workspace in workspaces.items():
        model, nextstat = _compiled(workspace), NextStat.load(workspace)
        ours, theirs = hf.fit(model), nextstat.fit()
        note = f"; our NLL is {theirs.nll - ours.nll:.2g} lower, EDM {ours.edm:.1g}"
        found = ratios(partial(hf.fit, model), nextstat.fit, rounds)
        report(f"{name}: fit against NextStat", found, 8, note)
        pyhf = PyhfJax.load(workspace)
        note = f"; our NLL is {pyhf.fit().nll - ours.nll:.2g} lower"
        found = ratios(partial(hf.fit, model), pyhf.fit, max(3, rounds // 4))
        report(f"{name}: fit against pyhf (JAX)", found, 30, note)


def nll_grad(workspaces: dict[str, Any], rounds: int) -> None:
    """Likelihood and full gradient of one parameter point."""
    import jax

    for name, workspace in workspaces.items():
        model, nextstat = _compiled(workspace), NextStat.load(workspace)
        theta = np.asarray(model.init)
        with jax.enable_x64(True):
            point = jax.device_put(theta)
        there = arranged(theta, model.parameter_names, nextstat.names)
        compiled = jax.jit(lambda t, m=model: hf.nll_and_gradient(m, t))

        def in_a_program(compiled: Any = compiled, point: Any = point) -> None:
            jax.block_until_ready(compiled(point))

        def by_calls(model: Any = model, theta: Any = theta) -> None:
            hf.nll_and_gradient(model, theta)

        def theirs(nextstat: Any = nextstat, there: Any = there) -> None:
            nextstat.nll_and_gradient(there)

        report(f"{name}: NLL + gradient, jitted", ratios(in_a_program, theirs, rounds, 50), 5)
        report(f"{name}: NLL + gradient, called", ratios(by_calls, theirs, rounds, 50), 5)


def batch(workspaces: dict[str, Any], rounds: int) -> None:
    """Likelihood and gradient at 10 000 points: one call here, a loop for the peer."""
    for name, workspace in workspaces.items():
        model, nextstat = _compiled(workspace), NextStat.load(workspace)
        rng = np.random.default_rng(0)
        points = np.asarray(model.init) * rng.normal(1, 0.01, (10_000, model.n_parameters))
        there = arranged(points.T, model.parameter_names, nextstat.names).T.copy()

        def ours(model: Any = model, points: Any = points) -> None:
            hf.nll_and_gradient(model, points)

        def theirs(nextstat: Any = nextstat, there: Any = there) -> None:
            for row in there:
                nextstat.nll_and_gradient(row)

        report(f"{name}: 10 000 points", ratios(ours, theirs, rounds), 1)


def toys(workspaces: dict[str, Any], rounds: int) -> None:
    """200 fits of the same pseudo-data."""
    for name, workspace in workspaces.items():
        model, nextstat = _compiled(workspace), NextStat.load(workspace)
        drawn = toy_data(workspace, 200, 0)
        data = np.concatenate([drawn[c] for c in model.channel_names], axis=1)
        result = hf.toys(model, data=data)
        note = f"; {result.not_converged} of ours did not converge"
        found = ratios(
            partial(hf.toys, model, data=data),
            partial(nextstat.toys, 200, 0),
            max(2, rounds // 8),
        )
        report(f"{name}: 200 toys", found, 5, note)


def padding(workspaces: dict[str, Any], rounds: int) -> None:
    """The cost of padding: a warm fit with padded dimensions, compared with one without."""
    for name, workspace in workspaces.items():
        padded = _compiled(workspace)
        exact = _compiled(workspace, natural_sizes(parse(workspace)))
        found = ratios(partial(hf.fit, padded), partial(hf.fit, exact), rounds, 3)
        e = median_estimate([1 / r for r in found])
        text = f"{e.median - 1:+.1%} [{e.low - 1:+.1%}, {e.high - 1:+.1%}] of a warm fit"
        say(f"{name}: padding", text, "≤ +20 %", e.median <= 1.2)


def scaling(_: dict[str, Any], rounds: int) -> None:
    """How time grows: parameters (per step of the search), bins, toys, scan points."""
    sizes = (125, 250, 500, 1000)
    _growth(
        "parameters, per step",
        sizes,
        lambda n: _compiled(synthetic.scaled(n)),
        lambda m: hf.fit(m).iterations,
        2.0,
        rounds,
    )
    _growth(
        "bins, per step",
        (100, 200, 400, 800),
        lambda n: _compiled(synthetic.scaled(60, bins=n)),
        lambda m: hf.fit(m).iterations,
        1.0,
        rounds,
    )
    model = _compiled(synthetic.preset("thu-184p"))
    counts = (25, 50, 100, 200)
    _growth("toys", counts, lambda n: n, lambda n: len(hf.toys(model, n).nll) and 1, 1.0, 3)
    _growth(
        "scan points",
        counts,
        lambda n: n,
        lambda n: len(hf.scan(model, points=n).nll) and 1,
        1.0,
        3,
    )


def _growth(
    name: str,
    sizes: Sequence[int],
    make: Callable[[int], Any],
    run: Callable[[Any], int],
    bar: float,
    rounds: int,
) -> None:
    """The exponent of a power law through the medians, and the curve relative to its start."""
    subjects = [make(n) for n in sizes]
    for subject in subjects:
        run(subject)
    seconds = np.empty((rounds, len(sizes)))
    for k in range(rounds):
        for i, subject in enumerate(subjects):
            begin = time.perf_counter()
            steps = run(subject)
            seconds[k, i] = (time.perf_counter() - begin) / steps
    middle = np.median(seconds, axis=0)
    exponent = np.polyfit(np.log(sizes), np.log(middle), 1)[0]
    curve = ", ".join(f"{n}: {t / middle[0]:.2f}" for n, t in zip(sizes, middle, strict=True))
    say(
        f"growth with {name}",
        f"exponent {exponent:.2f} ({curve})",
        f"≤ {bar:g}",
        exponent <= bar + 0.1,
    )


PARTS: dict[str, tuple[Callable[[dict[str, Any], int], None], str]] = {
    "fit": (fit, "thu"),
    "nll-grad": (nll_grad, "thu"),
    "batch": (batch, "complex"),
    "toys": (toys, "thu"),
    "padding": (padding, "all"),
    "scaling": (scaling, ""),
}


def workspaces_of(kind: str, given: list[str]) -> dict[str, Any]:
    """The synthetic workspaces of a kind, and the published ones that were found."""
    kinds = {"thu": ["thu-184p"], "complex": ["complex-8p"], "all": ["thu-184p", "complex-8p"]}
    chosen: dict[str, Any] = {n: synthetic.preset(n) for n in kinds.get(kind, [])}
    folder = os.environ.get("FIRSTLIGHT_SHARED_DATA")
    files = {"thu": ["workspace_tHu.json"], "complex": ["complex_workspace.json"]}
    files["all"] = files["thu"] + files["complex"]
    paths = [Path(folder) / name for name in files.get(kind, [])] if folder else []
    for path in [*paths, *(Path(g) for g in given)]:
        chosen[path.name] = json.loads(path.read_text())
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=25, help="pairs of measurements (25)")
    parser.add_argument("--workspace", action="append", default=[], help="measure this one too")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for name in options.parts or PARTS:
        part, kind = PARTS[name]
        part(workspaces_of(kind, options.workspace), options.rounds)


if __name__ == "__main__":
    main()
