"""`firstlight hf scan`: the profile likelihood along one parameter."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firstlight.cli.histfactory import options as shared
from firstlight.cli.values import between

if TYPE_CHECKING:
    from collections.abc import Callable

    from firstlight.cli.histfactory.job import Job
    from firstlight.cli.values import Commands
    from firstlight.histfactory.scans import Scan
    from firstlight.histfactory.workspace_file import JsonObject

HEIGHTS = (("1σ", 1.0), ("2σ", 4.0))


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "scan",
        "profile likelihood along one parameter, with intervals",
        "firstlight hf scan workspace.json --parameter mu --from 0 --to 3 --plot scan.svg",
        handle,
    )
    add = parser.add_argument
    add(
        "--parameter", metavar="NAME", help="parameter to scan (default: the parameter of interest)"
    )
    add(
        "--from",
        dest="begin",
        type=shared.number,
        metavar="X",
        help="start of the range; needs --to",
    )
    add(
        "--to",
        dest="end",
        type=shared.number,
        metavar="X",
        help="end of the range (default range: best fit ± 3 standard deviations, within bounds)",
    )
    add(
        "--points",
        type=between(1),
        default=41,
        metavar="N",
        help="number of points (default: 41)",
    )
    shared.add_positive(parser)
    shared.add_cluster(parser)
    shared.add_plot(parser, "the profile with 1σ and 2σ intervals")


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory import output
    from firstlight.cli.histfactory.job import draw, prepare, with_asimov

    values = grid(options)
    spread = shared.cluster_options(options)
    job = prepare(options, poi=options.parameter is None)
    require_moving(job, options.parameter)
    with output.Working("scanning") as progress:
        from firstlight.histfactory.scans import interval, scan

        run: Callable[..., Scan] = scan
        if spread:
            from firstlight.cluster import fits

            run = fits.scan

        job = with_asimov(job, options.asimov, options.blind)
        result = run(
            job.model,
            options.parameter,
            values,
            job.data,
            job.fixed,
            points=options.points,
            require_positive=job.positive,
            progress=progress,
            **spread,
        )
    ends = {name: interval(result, height) for name, height in HEIGHTS}
    output.show_results(options, job, describe(result, ends), lambda: print_scan(result, ends))
    draw(options.plot, lambda plots: plots.profile_scan(result))
    output.several_minima(max(result.best.branches, *result.branches))
    return output.ending([*output.unconverged(result.best, "the best fit"), *failed(result)])


def failed(result: Scan) -> list[str]:
    """The points that did not converge, by what they did instead."""
    from firstlight.cli.histfactory.output import ended_as, statuses

    bad: dict[str, list[str]] = {}
    for value, status in zip(result.values, statuses(result.status_code), strict=True):
        if status:
            bad.setdefault(ended_as(status, "are"), []).append(f"{value:.6g}")
    of = len(result.values)
    return [f"{len(at)} of {of} points {what}: {', '.join(at)}" for what, at in bad.items()]


def grid(options: argparse.Namespace) -> list[float] | None:
    """The values to scan, if a range is given."""
    from firstlight.cli.histfactory.job import CommandError

    if (options.begin is None) != (options.end is None):
        raise CommandError("--from and --to go together: give both or neither.")
    if options.begin is None:
        return None
    if options.begin >= options.end:
        raise CommandError("--from must be below --to.")
    if options.points < 2:
        raise CommandError("a range needs at least two points: --points 2.")
    step = (options.end - options.begin) / (options.points - 1)
    inner = [options.begin + i * step for i in range(options.points - 1)]
    return [*inner, options.end]


def require_moving(job: Job, parameter: str | None) -> None:
    """Fails for a fixed parameter, which has no best fit to compare with."""
    from firstlight.cli.histfactory.job import CommandError

    if parameter is None:
        return
    held = job.fixed.get(parameter, bool(job.model.fixed[job.model.index(parameter)]))
    if held is not False:
        raise CommandError(f"{parameter!r} is fixed. To scan it, free it: --free {parameter}.")


def describe(result: Scan, ends: dict[str, tuple[float | None, float | None]]) -> JsonObject:
    from firstlight.cli.histfactory.output import names_of, statuses

    return {
        "parameter": result.parameter,
        "best": {
            "value": result.best.parameters[result.parameter],
            "uncertainty": result.best.uncertainties[result.parameter],
            "nll": result.best.nll,
            "converged": bool(result.best.converged),
            "status": result.best.status.name,
        },
        "intervals": ends,
        "values": result.values,
        "nll": result.nll,
        "twice_delta_nll": result.twice_delta_nll,
        "converged": result.status_code == 0,
        "statuses": names_of(statuses(result.status_code)),
        "branches": result.branches,
    }


def print_scan(result: Scan, ends: dict[str, tuple[float | None, float | None]]) -> None:
    from firstlight.cli.histfactory.output import measured, significant, state_of_fit, statuses
    from firstlight.present.terminal import Terminal

    console = Terminal()
    rows = [
        (significant(value, 6), f"{height:.4f}", state_of_fit(status) if status else "")
        for value, height, status in zip(
            result.values, result.twice_delta_nll, statuses(result.status_code), strict=True
        )
    ]
    console.table("profile likelihood", (result.parameter, "2 ΔNLL", ""), rows, texts=0)
    name = result.parameter
    value, sigma = measured(result.best.parameters[name], result.best.uncertainties[name])
    console.say(f"best fit: {name} = {value}" + (f" ± {sigma}" if sigma else ""))
    for label, (low, high) in ends.items():
        beyond = "outside the scan"
        low_text, high_text = (beyond if e is None else significant(e, 5) for e in (low, high))
        console.say(f"{label} interval: [{low_text}, {high_text}]")
