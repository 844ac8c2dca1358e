"""`firstlight hf inspect`: the contents of a workspace, without fitting it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firstlight.cli.histfactory import options as shared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from firstlight.cli.values import Commands
    from firstlight.histfactory.spec import Specification
    from firstlight.histfactory.workspace_file import JsonObject

ROWS = 40


def add_to(commands: Commands) -> None:
    parser = shared.command(
        commands,
        "inspect",
        "contents of a workspace, and what looks odd about it",
        "firstlight hf inspect workspace.json --bins",
        handle,
        model=False,
        data=False,
    )
    parser.add_argument(
        "--bins", action="store_true", help="also show nominal and observed counts per bin"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"show all parameters, not only the first {ROWS}"
    )


def handle(options: argparse.Namespace) -> int:
    from firstlight.cli.histfactory.job import read
    from firstlight.cli.histfactory.output import print_json

    spec = read(options, require_observations=False)
    content = describe(spec, measurements(options))
    if options.json:
        print_json({"command": "inspect"}, content)
    else:
        print_workspace(content, options)
    return 0


def measurements(options: argparse.Namespace) -> list[str]:
    """The names of all measurements, after patching."""
    import os

    from firstlight.cli.histfactory.job import patches
    from firstlight.histfactory.patches import apply_patches
    from firstlight.histfactory.workspace_file import read_json

    source = os.fspath(options.workspace)
    plain = apply_patches(read_json(source), patches(options), source)
    return [str(entry["name"]) for entry in plain.get("measurements", [])]


def describe(spec: Specification, names: list[str]) -> JsonObject:
    from firstlight.cli.histfactory.findings import findings, uses

    return {
        "workspace": spec.source,
        "measurement": spec.measurement,
        "measurements": names,
        "poi": spec.poi,
        "channels": _channels(spec),
        "samples": sorted({s.name for c in spec.channels for s in c.samples}),
        "modifiers": uses(spec),
        "parameters": len(spec.parameter_names),
        "fixed_parameters": int(sum(one.fixed.sum() for one in spec.parameter_sets)),
        "parameter_sets": _parameter_sets(spec),
        "warnings": findings(spec),
    }


def _channels(spec: Specification) -> list[JsonObject]:
    begin, channels = 0, []
    for channel in spec.channels:
        total = sum(sample.nominal for sample in channel.samples)
        end = begin + channel.bins
        channels.append(
            {
                "name": channel.name,
                "bins": channel.bins,
                "samples": {sample.name: sample.nominal for sample in channel.samples},
                "nominal": total,
                "observed": None if spec.observed is None else spec.observed[begin:end],
            }
        )
        begin = end
    return channels


def _parameter_sets(spec: Specification) -> list[JsonObject]:
    from firstlight.cli.histfactory.findings import constraint_text

    return [
        {
            "name": one.name,
            "size": one.size,
            "types": one.types,
            "constraint": one.constraint,
            "constraint_text": constraint_text(one),
            "init": one.init,
            "lower": one.lower,
            "upper": one.upper,
            "fixed": one.fixed,
        }
        for one in spec.parameter_sets
    ]


def print_workspace(content: JsonObject, options: argparse.Namespace) -> None:
    from firstlight.present.terminal import Terminal

    console = Terminal()
    channels, sets = content["channels"], content["parameter_sets"]
    bins = sum(channel["bins"] for channel in channels)
    console.say(content["workspace"], "bold")
    console.say(
        f"{len(channels)} channels, {bins} bins, {len(content['samples'])} samples, "
        f"{content['parameters']} parameters ({content['fixed_parameters']} fixed)"
    )
    console.say(f"measurement: {content['measurement'] or 'none'}{_others(content)}")
    console.say(f"parameter of interest: {content['poi'] or 'none'}")
    console.print()
    console.table("channels", _CHANNEL_COLUMNS, [_channel_row(c) for c in channels])
    if options.bins:
        rows = [row for channel in channels for row in _bin_rows(channel)]
        console.table("bins", ("channel", "bin", "nominal", "observed"), rows)
    counts = [
        (kind, *(str(n[key]) for key in ("modifiers", "names", "parameters")))
        for kind, n in content["modifiers"].items()
    ]
    console.table("modifiers", ("type", "modifiers", "names", "parameters"), counts)
    # The parameter of interest and unconstrained parameters first, otherwise the model's order.
    sets = sorted(sets, key=lambda s: (s["name"] != content["poi"], s["constraint"] is not None))
    shown = sets if options.all else sets[:ROWS]
    rows = [_set_row(one, content["poi"]) for one in shown]
    console.table("parameters", _SET_COLUMNS, rows, texts=3)
    if len(shown) < len(sets):
        console.say(f"… and {len(sets) - len(shown)} more: --all shows them.\n", "dim")
    for warning in content["warnings"]:
        console.say(f"Note: {warning}.", "yellow")


def _others(content: JsonObject) -> str:
    others = [name for name in content["measurements"] if name != content["measurement"]]
    return f" (others: {', '.join(others)})" if others else ""


_CHANNEL_COLUMNS = ("channel", "bins", "samples", "nominal", "observed", "observed / nominal")
_SET_COLUMNS = ("parameter", "modifiers", "constraint", "init", "bounds", "state")


def _channel_row(channel: JsonObject) -> tuple[str, ...]:
    from firstlight.cli.histfactory.output import significant
    from firstlight.present.quantities import ABSENT

    nominal = float(channel["nominal"].sum())
    counts = channel["observed"]
    observed = None if counts is None else float(counts.sum())
    ratio = observed / nominal if observed is not None and nominal > 0 else None
    return (
        channel["name"],
        str(channel["bins"]),
        str(len(channel["samples"])),
        significant(nominal, 6),
        ABSENT if observed is None else significant(observed, 6),
        significant(ratio, 3),
    )


def _bin_rows(channel: JsonObject) -> list[tuple[str, ...]]:
    from firstlight.cli.histfactory.output import significant
    from firstlight.present.quantities import ABSENT

    observed = channel["observed"]
    return [
        (
            channel["name"],
            str(i),
            significant(float(nominal), 6),
            ABSENT if observed is None else significant(float(observed[i]), 6),
        )
        for i, nominal in enumerate(channel["nominal"])
    ]


def _set_row(one: JsonObject, poi: str | None) -> tuple[str, ...]:
    name = one["name"] + (f" [{one['size']}]" if one["size"] > 1 else "")
    held = int(one["fixed"].sum())
    state = "" if not held else "fixed" if held == one["size"] else f"{held} fixed"
    return (
        f"{name} (POI)" if one["name"] == poi else name,
        ", ".join(one["types"]),
        one["constraint_text"],
        _same(one["init"]),
        f"[{_same(one['lower'])}, {_same(one['upper'])}]",
        state,
    )


def _same(values: NDArray[np.float64]) -> str:
    """The value that all components share."""
    from firstlight.cli.histfactory.output import significant

    low, high = significant(float(values.min())), significant(float(values.max()))
    return low if low == high else f"{low}…{high}"
