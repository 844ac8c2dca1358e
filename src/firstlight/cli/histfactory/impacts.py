"""`firstlight hf impacts`: nuisance parameters ranked by their impact on the POI."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firstlight.cli.histfactory import options as shared

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.histfactory.scans import Impacts
    from firstlight.histfactory.workspace_file import JsonObject

#: Columns of a result, and their names for one parameter.
COLUMNS = {
    **{"values": "value", "uncertainties": "uncertainty", "pulls": "pull"},
    "constraints": "constraint",
    **{name: name for name in ("post_up", "post_down", "pre_up", "pre_down")},
}


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "impacts",
        "nuisance parameters ranked by their impact on the parameter of interest",
        "firstlight hf impacts workspace.json --top 15 --plot ranking.png",
        handle,
    )
    shared.add_positive(parser)
    shared.add_top(parser, "rows in the table and in the plot")
    shared.add_plot(parser, "the ranking: pulls, and impacts before and after the fit")


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory import output
    from firstlight.cli.histfactory.job import draw, prepare, with_asimov

    job = prepare(options)
    with output.Working("impacts") as progress:
        from firstlight.histfactory.scans import impacts

        job = with_asimov(job, options.asimov, options.blind)
        given = (job.model, job.data, job.fixed)
        result = impacts(*given, progress=progress, require_positive=job.positive)
    top = options.top or len(result.names)
    output.show_results(options, job, describe(result), lambda: print_impacts(result, top))
    draw(options.plot, lambda plots: plots.ranking(result, top))
    output.several_minima(result.branches)
    some = f"{result.not_converged} of the fits with one parameter fixed DID NOT CONVERGE."
    return output.ending(
        [
            *output.unconverged(result.best, "the best fit"),
            *([some] if result.not_converged else []),
        ]
    )


def describe(result: Impacts) -> JsonObject:
    columns = {one: getattr(result, many).tolist() for many, one in COLUMNS.items()}
    return {
        "best": {
            "value": result.best.parameters[result.poi],
            "uncertainty": result.best.uncertainties[result.poi],
            "converged": bool(result.best.converged),
            "status": result.best.status.name,
        },
        "not_converged": result.not_converged,
        "branches": result.branches,
        "impacts": [
            {"name": name, **{column: values[i] for column, values in columns.items()}}
            for i, name in enumerate(result.names)
        ],
    }


def print_impacts(result: Impacts, top: int) -> None:
    from firstlight.cli.histfactory.output import measured, signed
    from firstlight.present.terminal import Terminal

    rows = []
    for i, name in enumerate(result.names[:top]):
        value, sigma = measured(result.values[i], result.uncertainties[i])
        after, before = (
            f"{signed(up[i])} / {signed(down[i])}"
            for up, down in ((result.post_up, result.post_down), (result.pre_up, result.pre_down))
        )
        rows.append((str(i + 1), name, value, sigma, signed(result.pulls[i], 2), after, before))
    value, sigma = measured(
        result.best.parameters[result.poi], result.best.uncertainties[result.poi]
    )
    title = f"impacts on {result.poi} = {value}" + (f" ± {sigma}" if sigma else "")
    columns = ("", "parameter", "best fit", "±", "pull", "after the fit +/−", "before the fit +/−")
    console = Terminal()
    console.table(title, columns, rows, texts=2)
    more = len(result.names) - len(rows)
    if more:
        console.say(f"… and {more} more with smaller impacts: --top 0 shows all.", "dim")
