"""How fast is `firstlight.histfactory`, compared with its peers on this CPU?

    python benchmarks/histfactory.py [PART …] [--rounds N] [--workspace FILE]

Parts: fit, small, start, limit, nll-grad, batch, toys, padding, scaling; `warmstart.py` measures
more of fresh processes. Needs the extra `peers`.

Both sides are measured in one run, in turns, and every figure is a ratio with its spread. The
workspaces are synthetic, with the dimensions of a published analysis of 184 parameters and of a toy
of eight. Published ones are measured too if they are given (`--workspace`, or the folder named by
FIRSTLIGHT_SHARED_DATA). Use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
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
from warmstart import measure

Call = Callable[[], Any]
Clock = Callable[[], float]


def say(name: str, value: str, bar: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'MISS'}  {name}: {value}  (bar: {bar})", flush=True)


def ratios(
    ours: Call, theirs: Call, rounds: int, repeat: int = 1, clock: Clock = time.perf_counter
) -> list[float]:
    """Their time over ours, one pair per round; the order alternates."""
    ours(), theirs()
    found = []
    for k in range(rounds):
        order = (ours, theirs) if k % 2 else (theirs, ours)
        seconds = {call: _seconds(call, repeat, clock) for call in order}
        found.append(seconds[theirs] / seconds[ours])
    return found


def _seconds(call: Call, repeat: int, clock: Clock = time.perf_counter) -> float:
    begin = clock()
    for _ in range(repeat):
        call()
    return clock() - begin


def report(name: str, found: Sequence[float], bar: float, note: str = "") -> None:
    e = median_estimate(found)
    text = f"{e.median:.2g}× faster [{e.low:.2g}, {e.high:.2g}] over {e.n} pairs{note}"
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


def small(workspaces: dict[str, Any], rounds: int) -> None:
    """Plain calls on a model of a few parameters, in processor time of all threads.

    These calls take less time than a busy machine lets another process run.
    """

    def compare(what: str, bar: float, ours: Call, theirs: Call, repeat: int) -> None:
        report(what, ratios(ours, theirs, rounds, repeat, time.process_time), bar)

    for name, workspace in workspaces.items():
        model, nextstat = _compiled(workspace), NextStat.load(workspace)
        compare(f"{name}: fit, called", 0.8, partial(hf.fit, model), nextstat.fit, 200)
        limits = hf.upper_limit(model)
        points = np.linspace(0, 1.5 * limits.expected[-1], 60).tolist()
        scan = partial(nextstat.upper_limits, points)
        what = f"{name}: limit with bands, against a scan of 60 points"
        compare(what, 1.0, partial(hf.upper_limit, model), scan, 5)
        theta = np.asarray(model.init)
        there = arranged(theta, model.parameter_names, nextstat.names)
        value, values = partial(hf.nll, model, theta), partial(nextstat.nll, there)
        compare(f"{name}: NLL, called", 0.3, value, values, 3000)
        slope = partial(hf.nll_and_gradient, model, theta)
        slopes = partial(nextstat.nll_and_gradient, there)
        compare(f"{name}: NLL and gradient, called", 0.3, slope, slopes, 3000)


def limit(workspaces: dict[str, Any], rounds: int) -> None:
    """An upper limit with its bands, in warm fits of the same model."""
    for name, workspace in workspaces.items():
        model = _compiled(workspace)
        found = ratios(partial(hf.fit, model), partial(hf.upper_limit, model), rounds)
        e, seconds = median_estimate(found), _seconds(partial(hf.upper_limit, model), 3) / 3
        text = f"{e.median:.1f} fits [{e.low:.1f}, {e.high:.1f}]; here {1000 * seconds:.0f} ms"
        say(f"{name}: limit with bands", text, "≤ 27 fits", e.median <= 27)


def start(workspaces: dict[str, Any], rounds: int) -> None:
    """Fresh processes, from their start to their end with a fit in between."""
    for name, workspace in workspaces.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "workspace.json"
            path.write_text(json.dumps(workspace))
            found = measure(["library", "NextStat", "NumPy alone"], path, rounds)
        ours, theirs, numpy = found["library"], found["NextStat"], found["NumPy alone"]
        if name.startswith("complex"):
            e = median_estimate([1000 * (a - b) for a, b in zip(ours, numpy, strict=True)])
            text = f"{e.median:.0f} ms [{e.low:.0f}, {e.high:.0f}] more than `import numpy`"
            say(f"{name}: fresh process", text, "≤ 15 ms", e.median <= 15)
        else:
            e = median_estimate([a / b for a, b in zip(ours, theirs, strict=True)])
            text = f"{e.median:.2f} [{e.low:.2f}, {e.high:.2f}] of NextStat's time"
            say(f"{name}: fresh process", text, "≤ 0.40", e.median <= 0.4)


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
    "small": (small, "complex"),
    "start": (start, "all"),
    "limit": (limit, "thu"),
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
