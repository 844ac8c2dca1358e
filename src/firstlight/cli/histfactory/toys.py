"""`firstlight hf toys`: pseudo-experiments, and CLs from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from firstlight.cli.histfactory import options as shared
from firstlight.cli.histfactory.cls import add_statistic
from firstlight.cli.values import between

if TYPE_CHECKING:
    from collections.abc import Callable

    from firstlight.cli.histfactory.job import Job
    from firstlight.cli.values import Commands
    from firstlight.cluster.fits import FittedToys
    from firstlight.histfactory.toy_fits import ToyCLs, Toys

#: More toys than this are kept on disk while they are fitted.
MAX_IN_MEMORY = 20_000


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "toys",
        "pseudo-experiments: draw data and fit them, or compute CLs from them",
        "firstlight hf toys workspace.json -n 1000 --mu 1\n"
        "  firstlight hf toys workspace.json -n 5000 --cls 2 --seed 7",
        handle,
        data=False,
    )
    add = parser.add_argument
    add(
        "-n",
        type=between(1),
        default=1000,
        metavar="N",
        help="number of toys; with --cls, per hypothesis (default: 1000)",
    )
    add(
        "--seed",
        type=between(0, 2**63 - 1),
        default=0,
        metavar="N",
        help="equal seeds draw equal toys (default: 0)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--mu",
        type=shared.number,
        metavar="MU",
        help="draw at this signal strength, with the other parameters fitted to the observed data "
        "(default: draw at the best fit)",
    )
    what.add_argument(
        "--cls", type=shared.number, metavar="MU", help="CLs of this signal strength from toys"
    )
    add_statistic(parser)
    shared.add_cluster(parser)
    shared.add_top(parser, "rows in the table", default=10)


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory.job import prepare

    needs_poi = options.mu is not None or options.cls is not None
    job = prepare(options, poi=needs_poi)
    return cls_from_toys(options, job) if options.cls is not None else fit_toys(options, job)


def fit_toys(options: argparse.Namespace, job: Job) -> int:
    from contextlib import ExitStack

    from firstlight.cli.histfactory import output

    spread = shared.cluster_options(options)
    with ExitStack() as opened:
        with output.Working("fitting toys") as progress:
            arguments: dict[str, Any] = {"mu": options.mu, "fixed": job.fixed, "progress": progress}
            if spread or options.n > MAX_IN_MEMORY:
                from firstlight.cluster.fits import fitted_toys

                found = fitted_toys(job.model, options.n, options.seed, **arguments, **spread)
                result: Toys | FittedToys = opened.enter_context(found)
            else:
                from firstlight.histfactory.toy_fits import toys

                result = toys(job.model, options.n, options.seed, **arguments)
        return show_toys(result, options, job)


def show_toys(result: Toys | FittedToys, options: argparse.Namespace, job: Job) -> int:
    from firstlight.cli.histfactory import output

    summary = summarise(result)
    content = {
        "toys": options.n,
        "seed": options.seed,
        "mu": options.mu,
        "not_converged": result.not_converged,
        "parameters": summary,
        "converged": result.converged,
        "statuses": output.names_of(output.statuses(result.status_code)),
        "branches": result.branches,
    }
    if job.model.poi is not None:
        content["poi_values"] = result.values_of(job.model.poi)
    output.show_results(
        options, job, content, lambda: print_toys(result, summary, job.model.poi, options)
    )
    return output.ending(failed(result.not_converged, options.n))


def failed(count: int, of: int) -> list[str]:
    text = f"{count} of {of} toys DID NOT CONVERGE; they are left out of these results."
    return [text] if count else []


def summarise(result: Toys | FittedToys) -> dict[str, dict[str, float]]:
    """Mean, standard deviation and quantiles of the fitted values, over converged toys."""
    summaries: list[dict[str, float]] = []
    for _, values in result.columns():
        summaries += _summaries(values[result.converged])
    return dict(zip(result.names, summaries, strict=True))


def _summaries(good: Any) -> list[dict[str, float]]:
    """Of every column. Each is summed on its own, so that its digits do not depend on others."""
    import numpy as np

    rows = np.ascontiguousarray(good.T)
    if not rows.size:
        rows = np.full((len(rows), 1), np.nan)
    several = rows.shape[1] > 1
    low, median, high = np.quantile(rows, [0.158655, 0.5, 0.841345], axis=1)
    found = {
        "mean": rows.mean(axis=1),
        "standard_deviation": rows.std(axis=1, ddof=1) if several else np.full(len(rows), np.nan),
        "median": median,
        "quantile_16": low,
        "quantile_84": high,
    }
    return [{name: float(values[i]) for name, values in found.items()} for i in range(len(rows))]


def print_toys(
    result: Toys | FittedToys,
    summary: dict[str, dict[str, float]],
    poi: str | None,
    options: argparse.Namespace,
) -> None:
    from firstlight.cli.histfactory.output import measured, significant
    from firstlight.present.terminal import Terminal

    ordered = sorted(summary, key=lambda name: name != poi)
    rows = []
    for name in ordered[: options.top or None]:
        row = summary[name]
        mean, spread = measured(row["mean"], row["standard_deviation"])
        quantiles = (significant(row[q]) for q in ("quantile_16", "median", "quantile_84"))
        rows.append((f"{name} (POI)" if name == poi else name, mean, spread, *quantiles))
    at = "the best fit" if options.mu is None else f"{poi} = {options.mu:g}"
    title = f"{options.n} toys drawn at {at}, seed {options.seed}"
    columns = ("fitted parameter", "mean", "std. deviation", "16%", "median", "84%")
    console = Terminal()
    console.table(title, columns, rows)
    if len(rows) < len(ordered):
        console.say(f"… and {len(ordered) - len(rows)} more: --top 0 shows all.", "dim")
    console.say(f"{options.n - result.not_converged} of {options.n} fits converged.")
    several = int((result.branches > 1).sum())
    if several:
        console.say(f"{several} of them found more than one minimum; the lowest is used.")


def cls_from_toys(options: argparse.Namespace, job: Job) -> int:
    from firstlight.cli.histfactory import output

    with output.Working("fitting toys") as progress:
        from firstlight.histfactory.toy_fits import toy_cls

        run: Callable[..., ToyCLs] = toy_cls
        spread = shared.cluster_options(options)
        if spread:
            from firstlight.cluster import fits

            run = fits.toy_cls
        result = run(
            job.model,
            options.cls,
            options.n,
            options.seed,
            fixed=job.fixed,
            test_statistic=options.test_statistic,
            progress=progress,
            **spread,
        )
    error = statistical_error(result)
    output.several_minima(result.branches)
    names = ("mu", "observed", "expected", "clsb", "clb", "q", "not_converged", "branches")
    content = {name: getattr(result, name) for name in names}
    content |= {"observed_error": error, "toys_per_hypothesis": options.n, "seed": options.seed}
    content |= {"test_statistic": options.test_statistic, **output.explained(result.status, job)}
    output.show_results(
        options, job, content, lambda: print_toy_cls(result, error, job.model.poi, options.n)
    )
    problems = output.untested(result.status, job, f"{job.model.poi} = {result.mu:g}")
    return output.ending(problems or failed(result.not_converged, 2 * options.n))


def statistical_error(result: ToyCLs) -> float:
    """Standard deviation of the observed CLs due to the finite number of toys."""
    import math

    import numpy as np

    relative = 0.0
    for fraction, toys in ((result.clsb, result.q_signal), (result.clb, result.q_background)):
        n = int(np.sum(~np.isnan(toys)))
        if not fraction > 0 or not n:
            return math.nan
        relative += (1 - fraction) / (n * fraction)
    return result.observed * math.sqrt(relative)


def print_toy_cls(result: ToyCLs, error: float, poi: str | None, n: int) -> None:
    from firstlight.cli.histfactory import output
    from firstlight.present.terminal import Terminal

    value, sigma = output.measured(result.observed, error)
    rows = [("observed", value, sigma)]
    expected = zip(output.BAND_NAMES, result.expected.tolist(), strict=True)
    rows += [(f"expected {name}", output.significant(v, 3), "") for name, v in expected]
    title = f"CLs at {poi} = {result.mu:g} from {n} toys with and {n} without signal"
    console = Terminal()
    console.table(title, ("", "CLs", "± (toys)"), rows)
    console.say(f"{2 * n - result.not_converged} of {2 * n} toys converged.")
