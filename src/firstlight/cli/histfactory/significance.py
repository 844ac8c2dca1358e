"""`firstlight hf significance`: how strongly the data disagree with no signal."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from firstlight.cli.histfactory import options as shared

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.histfactory.inference import Discovery
    from firstlight.histfactory.workspace_file import JsonObject


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "significance",
        "significance of a signal, observed and expected (asymptotic)",
        "firstlight hf significance workspace.json --asimov 1",
        handle,
        asimov="also report the expected significance, from Asimov data at this signal strength "
        "with the other parameters fitted to the observed data; with --blind, report only this one",
    )
    shared.add_positive(parser)


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory import output
    from firstlight.cli.histfactory.job import prepare, with_asimov

    job = prepare(options)
    results: dict[str, Discovery] = {}
    with output.Working("fitting"):
        from firstlight.histfactory.inference import discovery

        test = partial(discovery, require_positive=job.positive)
        if not options.blind:
            results["observed"] = test(job.model, None, job.fixed)
        if options.asimov is not None:
            asimov = with_asimov(job, options.asimov, options.blind)
            results["expected"] = test(job.model, asimov.data, job.fixed)
        content = {name: describe(result, job.model.poi) for name, result in results.items()}
    if options.json:
        header = {k: v for k, v in job.header.items() if k != "data"}
        asimov_mu = {"asimov": options.asimov, "blind": options.blind}
        output.print_json({**header, **asimov_mu}, content)
    else:
        print_significance(content, job.model.poi, options.asimov)
    output.several_minima(max(result.branches for result in results.values()))
    return output.ending(p for name, result in results.items() for p in failed(name, result))


def describe(result: Discovery, poi: str | None) -> JsonObject:
    return {
        "z0": result.z0,
        "p0": result.p0,
        "q0": result.q0,
        "muhat": result.muhat,
        "muhat_uncertainty": result.free.uncertainties[str(poi)],
        "converged": result.converged,
        "statuses": {
            "free": result.free.status.name,
            "conditional": result.conditional.status.name,
        },
        "branches": result.branches,
    }


def failed(name: str, result: Discovery) -> list[str]:
    from firstlight.cli.histfactory.output import unconverged

    return [
        *unconverged(result.free, f"{name}: the free fit"),
        *unconverged(result.conditional, f"{name}: the fit without signal"),
    ]


def print_significance(
    content: dict[str, JsonObject], poi: str | None, asimov: float | None
) -> None:
    from firstlight.cli.histfactory.output import measured, significant
    from firstlight.present.terminal import Terminal

    labels = {"observed": "observed", "expected": f"expected, {poi} = {asimov}"}
    rows = []
    for name, result in content.items():
        fitted = measured(result["muhat"], result["muhat_uncertainty"])
        numbers = (f"{result['z0']:.3f} σ", significant(result["p0"], 3), f"{result['q0']:.4f}")
        state = "" if result["converged"] else "NOT CONVERGED"
        rows.append((labels[name], state, *numbers, *fitted))
    columns = ("data", "", "significance", "p-value", "q₀", f"fitted {poi}", "±")
    console = Terminal()
    console.table("significance of a signal", columns, rows, texts=2)
    if any(result["muhat"] <= 0 for result in content.values()):
        console.say(f"{poi} ≤ 0 means no excess: the significance is zero.", "dim")
