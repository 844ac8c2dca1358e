"""`firstlight hf limit`: the upper limit on the signal strength, and a plot of its bands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstlight.cli.histfactory import options as shared
from firstlight.cli.histfactory.cls import add_statistic
from firstlight.cli.values import share

if TYPE_CHECKING:
    from firstlight.cli.histfactory.job import Job
    from firstlight.cli.values import Commands
    from firstlight.cluster.patch_limits import PatchLimit
    from firstlight.histfactory.exclusion import CLs
    from firstlight.histfactory.limits import UpperLimit
    from firstlight.histfactory.workspace_file import JsonObject

POINTS = 41


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "limit",
        "upper limit on the signal strength, observed and expected (asymptotic CLs)",
        "firstlight hf limit workspace.json --plot limit.png\n"
        "  firstlight hf limit background.json --all-patches patchset.json --on ray",
        handle,
    )
    parser.add_argument(
        "--level",
        type=_level,
        default=0.05,
        metavar="P",
        help="CLs at the limit (default: 0.05, for the 95%% confidence level)",
    )
    add_statistic(parser)
    shared.add_positive(parser)
    parser.add_argument(
        "--all-patches",
        type=Path,
        metavar="PATCHSET",
        help="limits for all patches of a pyhf patchset, such as the masses of a signal",
    )
    shared.add_cluster(parser)
    shared.add_plot(parser, "CLs against the signal strength, with the expected bands")


def _level(text: str) -> float:
    try:
        return share(text)
    except (argparse.ArgumentTypeError, ValueError):
        # Not the words of `share`: it would advise 0.95 to those who mean the confidence level 95.
        raise argparse.ArgumentTypeError(
            f"{text!r}: give CLs at the limit, between 0 and 1, such as 0.05 for the 95% "
            "confidence level"
        ) from None


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory import output
    from firstlight.cli.histfactory.job import draw, prepare, with_asimov

    spread = shared.cluster_options(options)
    if options.all_patches is not None:
        return handle_all_patches(options, spread)
    job = prepare(options)
    results: CLs | None = None
    with output.Working("finding the limits"):
        from firstlight.histfactory.limits import upper_limit

        job = with_asimov(job, options.asimov, options.blind)
        test = {"test_statistic": options.test_statistic, "require_positive": job.positive}
        limit = upper_limit(job.model, options.level, job.data, job.fixed, **test)
    if options.plot and limit.converged:
        with output.Working("CLs for the plot"):
            results = along(job, limit, {**test, **spread})
    content = describe(limit, results, options, job)
    output.show_results(options, job, content, lambda: print_limit(limit, job.model.poi))
    if results is not None:
        draw(options.plot, lambda plots: plots.limit_band(results, limit, str(job.model.poi)))
    output.several_minima(limit.branches)
    problems = output.untested(limit.status, job, "the limits")
    if problems and options.plot:
        problems.append("no plot was written.")
    return output.ending(problems)


def along(job: Job, limit: UpperLimit, settings: dict[str, Any]) -> CLs:
    """CLs from no signal to beyond all limits."""
    import numpy as np

    from firstlight.histfactory.exclusion import cls

    if "on" in settings:
        from firstlight.cluster.fits import cls  # type: ignore[assignment]
    far = max([limit.observed, *limit.expected.tolist()])
    grid = np.linspace(0.0, 1.15 * far, POINTS)
    return cls(job.model, grid, job.data, job.fixed, **settings)


def describe(
    limit: UpperLimit, results: CLs | None, options: argparse.Namespace, job: Job
) -> JsonObject:
    import numpy as np

    from firstlight.cli.histfactory.output import explained, names_of
    from firstlight.histfactory.exclusion import CLsStatus

    content = {
        "level": limit.level,
        "test_statistic": options.test_statistic,
        "observed": limit.observed,
        "expected": limit.expected,
        "converged": bool(limit.converged),
        **explained(limit.status, job),
        "branches": limit.branches,
    }
    if results is not None:
        names = ("mu", "observed", "expected", "converged")
        content["curve"] = {name: getattr(results, name) for name in names}
        content["curve"]["statuses"] = names_of(
            map(CLsStatus, np.asarray(results.status_code).tolist())
        )
    return content


def print_limit(limit: UpperLimit, poi: str | None) -> None:
    from firstlight.cli.histfactory.output import BAND_NAMES, significant, state_of
    from firstlight.present.terminal import Terminal

    rows = [("observed", significant(limit.observed, 5))]
    expected = zip(BAND_NAMES, limit.expected.tolist(), strict=True)
    rows += [(f"expected {name}", significant(value, 5)) for name, value in expected]
    title = f"upper limit on {poi} at {100 * (1 - limit.level):.4g}% confidence level"
    console = Terminal()
    console.table(title, ("", f"{poi} <"), rows)
    if not limit.converged:
        console.say(state_of(limit.status), "bold red")


# --- --all-patches: one limit per patch of a patchset ---------------------------------------------


def handle_all_patches(options: argparse.Namespace, spread: dict[str, Any]) -> int:
    from firstlight.cli.histfactory import output
    from firstlight.cli.histfactory.job import CommandError, patches, prepare
    from firstlight.histfactory.patches import patches_of
    from firstlight.histfactory.workspace_file import read_json

    if options.plot is not None or options.asimov is not None:
        raise CommandError("--all-patches goes with neither --plot nor --asimov. Leave them out.")
    file = str(options.all_patches)
    first = next(iter(patches_of(read_json(file), source=file)))
    given = patches(options)
    options.patches = [*options.patches, (file, first)]
    job = prepare(options)  # what is wrong with the options is wrong with the first patch
    with output.Working("finding the limits") as progress:
        from firstlight.cluster.patch_limits import upper_limits

        found = upper_limits(
            options.workspace,
            options.all_patches,
            options.level,
            measurement=options.measurement,
            patches=given,
            interpolation=options.interpolation,
            poi=options.poi,
            fixed=job.fixed,
            test_statistic=options.test_statistic,
            require_positive=job.positive,
            progress=progress,
            **spread,
        )
    header = {"test_statistic": options.test_statistic, "level": options.level}
    content = {**header, "patchset": file, "limits": [describe_patch(one) for one in found]}
    output.show_results(options, job, content, lambda: print_limits(found, options, job.model.poi))
    output.several_minima(max(one.limit.branches for one in found))
    return output.ending(
        f"patch {one.name}: the limits: {one.limit.status.message}"
        for one in found
        if not one.limit.converged
    )


def describe_patch(one: PatchLimit) -> JsonObject:
    return {
        "patch": one.name,
        "values": list(one.values),
        "observed": one.limit.observed,
        "expected": one.limit.expected,
        "converged": bool(one.limit.converged),
        "status": one.limit.status.message,
        "status_name": one.limit.status.name,
        "branches": one.limit.branches,
    }


def print_limits(found: list[PatchLimit], options: argparse.Namespace, poi: str | None) -> None:
    from firstlight.cli.histfactory.output import BAND_NAMES, significant, state_of
    from firstlight.present.terminal import Terminal

    rows = []
    for one in found:
        limit = one.limit
        numbers = (limit.observed, *limit.expected.tolist())
        state = state_of(limit.status)
        rows.append((one.name, state, *(significant(n, 4) for n in numbers)))
    title = f"upper limits on {poi} at {100 * (1 - options.level):.4g}% confidence level"
    columns = ("patch", "", "observed", *(f"exp. {name}" for name in BAND_NAMES))
    Terminal().table(title, columns, rows, texts=2)
