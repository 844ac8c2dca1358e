"""`firstlight hf limit --all-patches`: a mass scan, one limit per patch of a patchset."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firstlight.cluster.limits import PatchLimit
    from firstlight.histfactory.workspace_file import JsonObject


def handle_patches(options: argparse.Namespace, spread: dict[str, Any]) -> int:
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
        from firstlight.cluster.limits import upper_limits

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
            progress=progress,
            **spread,
        )
    header = {"test_statistic": options.test_statistic, "level": options.level}
    content = {**header, "patchset": file, "limits": [describe(one) for one in found]}
    output.show_results(options, job, content, lambda: print_limits(found, options, job.model.poi))
    output.several_minima(max(one.limit.branches for one in found))
    return output.ending(
        f"patch {one.name}: the limits DID NOT CONVERGE."
        for one in found
        if not one.limit.converged
    )


def describe(one: PatchLimit) -> JsonObject:
    return {
        "patch": one.name,
        "values": list(one.values),
        "observed": one.limit.observed,
        "expected": one.limit.expected,
        "converged": bool(one.limit.converged),
        "branches": one.limit.branches,
    }


def print_limits(found: list[PatchLimit], options: argparse.Namespace, poi: str | None) -> None:
    from firstlight.cli.histfactory.output import BAND_NAMES, significant
    from firstlight.present.terminal import Terminal

    rows = []
    for one in found:
        limit = one.limit
        numbers = (limit.observed, *limit.expected.tolist())
        state = "" if limit.converged else "NOT CONVERGED"
        rows.append((one.name, state, *(significant(n, 4) for n in numbers)))
    title = f"upper limits on {poi} at {100 * (1 - options.level):.4g}% confidence level"
    columns = ("patch", "", "observed", *(f"exp. {name}" for name in BAND_NAMES))
    Terminal().table(title, columns, rows, texts=2)
