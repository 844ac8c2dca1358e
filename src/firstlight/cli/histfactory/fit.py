"""`firstlight hf fit`: best-fit parameters, their uncertainties, correlations and plots."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firstlight.cli.histfactory import options as shared

if TYPE_CHECKING:
    from firstlight.cli.histfactory.job import Job
    from firstlight.cli.values import Commands
    from firstlight.histfactory.fitting import FitResult
    from firstlight.histfactory.workspace_file import JsonObject

PLOTS = ("plot_pulls", "plot_correlation", "plot_yields")


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "fit",
        "maximum-likelihood fit: parameters, uncertainties, correlations",
        "firstlight hf fit workspace.json --fix lumi --plot-pulls pulls.png",
        handle,
    )
    shared.add_top(parser, "rows in each table and in the plots of pulls and correlations")
    shared.add_positive(parser)
    parser.add_argument(
        "--correlation",
        action="store_true",
        help="also show the largest correlations (JSON: the matrix)",
    )
    shared.add_plot(parser, "pulls and constraints", "--plot-pulls")
    shared.add_plot(parser, "the correlation matrix", "--plot-correlation")
    shared.add_plot(parser, "yields before and after the fit, with the data", "--plot-yields")


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory import output
    from firstlight.cli.histfactory.job import prepare, with_asimov

    job = prepare(options, poi=False, plots=PLOTS)
    with output.Working("fitting"):
        from firstlight.histfactory.fitting import fit

        job = with_asimov(job, options.asimov, options.blind)
        result = fit(job.model, job.data, job.fixed, require_positive=job.positive)
        rows = describe(job, result)
    content = {"parameters": rows, **summary(result)}
    if options.json and options.correlation:
        content["correlation"] = {"names": result.names, "matrix": result.correlation}
    output.show_results(options, job, content, lambda: print_fit(job, result, rows, options))
    output.several_minima(result.branches)
    output.below_zero(result, job.model)
    plot(job, result, options)
    return output.ending(output.unconverged(result, "the fit"))


def summary(result: FitResult) -> JsonObject:
    return {
        "nll": result.nll,
        "edm": result.edm,
        "iterations": result.iterations,
        "branches": result.branches,
        "converged": bool(result.converged),
        "status": result.status.message,
        "status_name": result.status.name,
        "undetermined": result.undetermined,
        "negative_bins": [one._asdict() for one in result.negative_bins],
        "negative_samples": [one._asdict() for one in result.negative_samples],
    }


def describe(job: Job, result: FitResult) -> dict[str, JsonObject]:
    """All results for every parameter, by name, in the order of the model."""
    from firstlight.histfactory.scans import constraint_widths as constraint_terms

    width, centre = constraint_terms(job.model)
    uncertainties = result.uncertainties
    rows = {}
    for i, (name, value) in enumerate(result.parameters.items()):
        rows[name] = {
            "value": value,
            "uncertainty": uncertainties[name],
            "pull": (value - centre[i]) / width[i],
            "constraint": uncertainties[name] / width[i],
            "free": bool(result.is_free[i] > 0),
            "at_bound": bool(result.at_bound[i]),
        }
    return rows


def chosen(rows: dict[str, JsonObject], poi: str | None, top: int) -> list[tuple[str, JsonObject]]:
    """The POI first, then unconstrained parameters, then the largest pulls."""

    def rank(item: tuple[str, JsonObject]) -> tuple[int, float]:
        name, row = item
        if name == poi:
            return 0, 0.0
        if row["pull"] != row["pull"]:  # NaN: no constraint
            return 1, 0.0
        return 2, -abs(row["pull"])

    ordered = sorted(rows.items(), key=rank)
    return ordered[:top] if top else ordered


def print_fit(
    job: Job, result: FitResult, rows: dict[str, JsonObject], options: argparse.Namespace
) -> None:
    from firstlight.cli.histfactory.output import measured, signed, state_of_fit
    from firstlight.present.terminal import Terminal

    console = Terminal()
    shown = chosen(rows, job.model.poi, options.top)
    table = []
    undetermined = result.undetermined
    for name, row in shown:
        note = "" if row["free"] else "at its bound" if row["at_bound"] else "fixed"
        label = f"{name} (POI)" if name == job.model.poi else name
        pulled = row["free"] and row["pull"] == row["pull"]
        pull = (signed(row["pull"], 2), f"{row['constraint']:.2f}") if pulled else ("", "")
        fitted = measured(row["value"], row["uncertainty"])
        if name in undetermined:
            fitted = (fitted[0], "not determined")
        table.append((label, note, *fitted, *pull))
    more = len(rows) - len(shown)
    title = f"{job.model.about.measurement or 'fit'}: {len(rows)} parameters"
    columns = ("parameter", "", "best fit", "±", "pull", "σ after / before")
    console.table(title, columns, table, texts=2)
    if more:
        console.say(f"… and {more} more with smaller pulls: --top 0 shows all.", "dim")
    if options.correlation:
        pairs = strongest_pairs(result, options.top)
        cells = [(a, b, signed(value, 3)) for a, b, value in pairs]
        console.table("largest correlations", ("parameter", "parameter", "ρ"), cells, texts=2)
    state = state_of_fit(result.status)
    text = f"NLL {result.nll:.6f}, EDM {result.edm:.1e}, {result.iterations} steps: {state}"
    console.say(text, "" if result.converged else "bold red")


def strongest_pairs(result: FitResult, top: int) -> list[tuple[str, str, float]]:
    """Pairs of free parameters, ordered by the size of their correlation."""
    import numpy as np

    matrix = np.asarray(result.correlation)
    row, column = np.triu_indices(len(matrix), 1)
    values = matrix[row, column]
    order = np.argsort(-np.abs(values), kind="stable")
    order = order[np.abs(values[order]) > 0]
    order = order[:top] if top else order
    return [(result.names[row[i]], result.names[column[i]], float(values[i])) for i in order]


def plot(job: Job, result: FitResult, options: argparse.Namespace) -> None:
    if not any(getattr(options, name) for name in PLOTS):
        return
    from firstlight.cli.histfactory.job import draw
    from firstlight.cli.histfactory.output import Working
    from firstlight.histfactory.yield_plots import yields

    top = options.top or job.model.n_parameters
    with Working("drawing"):
        draw(options.plot_pulls, lambda plots: plots.pulls(job.model, result, top))
        draw(options.plot_correlation, lambda plots: plots.correlations(result, top))
        label = "data" if job.data is None else "Asimov data"
        draw(options.plot_yields, lambda _: yields(job.model, result, job.data, label))
