"""`firstlight hf cls`: CLs of given signal strengths."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from firstlight.cli.histfactory import options as shared

if TYPE_CHECKING:
    from firstlight.cli.histfactory.job import Job
    from firstlight.cli.values import Commands
    from firstlight.histfactory.exclusion import CLs
    from firstlight.histfactory.workspace_file import JsonObject


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "cls",
        "CLs of signal strengths, observed and expected (asymptotic)",
        "firstlight hf cls workspace.json --mu 0.5 1 2",
        handle,
    )
    parser.add_argument(
        "--mu",
        type=shared.number,
        nargs="+",
        action="extend",
        metavar="MU",
        help="one or more signal strengths (default: 1)",
    )
    add_statistic(parser)
    shared.add_positive(parser)
    shared.add_cluster(parser)


def add_statistic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--test-statistic",
        choices=("qtilde", "q"),
        default="qtilde",
        help="q allows a negative best-fit signal (default: qtilde)",
    )


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory import output
    from firstlight.cli.histfactory.job import prepare, with_asimov

    spread = shared.cluster_options(options)
    job = prepare(options)
    values = options.mu or [1.0]
    with output.Working("fitting") as progress:
        from firstlight.histfactory.exclusion import cls

        job = with_asimov(job, options.asimov, options.blind)
        if spread:
            from firstlight.cluster.fits import cls  # type: ignore[assignment]

            spread["progress"] = progress
        spread |= {"test_statistic": options.test_statistic, "require_positive": job.positive}
        grid = cls(job.model, values, job.data, job.fixed, **spread)
    results = [row(grid, i) for i in range(len(values))]
    described = [describe(result, job) for result in results]
    content = {"test_statistic": options.test_statistic, "results": described}
    output.show_results(options, job, content, lambda: print_results(results, job.model.poi))
    output.several_minima(max(result.branches for result in results))
    return output.ending(problems(results, job))


def describe(result: CLs, job: Job) -> JsonObject:
    from firstlight.cli.histfactory.output import explained

    numbers = {name: value for name, value in vars(result).items() if name != "status_code"}
    return {**numbers, "converged": result.converged, **explained(result.status, job)}


def problems(results: list[CLs], job: Job) -> list[str]:
    """Why tests failed; the data without signal are the same in all of them."""
    from firstlight.cli.histfactory.output import untested
    from firstlight.histfactory.exclusion import CLsStatus

    if results[0].status is CLsStatus.IMPOSSIBLE_NULL:
        return untested(results[0].status, job, "CLs")
    return [p for r in results for p in untested(r.status, job, f"{job.model.poi} = {r.mu:g}")]


def row(grid: CLs, i: int) -> CLs:
    """One of several signal strengths."""
    return replace(grid, **{name: value[i] for name, value in vars(grid).items()})


def print_results(results: list[CLs], poi: str | None) -> None:
    from firstlight.cli.histfactory.output import BAND_NAMES, significant, state_of
    from firstlight.present.terminal import Terminal

    rows = []
    for result in results:
        state = state_of(result.status)
        numbers = (result.observed, *result.expected.tolist())
        rows.append((significant(result.mu, 6), state, *(significant(n, 3) for n in numbers)))
    columns = (str(poi), "", "observed", *(f"exp. {name}" for name in BAND_NAMES))
    console = Terminal()
    console.table("CLs", columns, rows, texts=2)
    console.say("Values below 0.05 are excluded at the 95% confidence level.", "dim")
