"""Options that several commands share. Imports argparse only; nothing here reads a workspace."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstlight.cli.values import between, signals_interrupt

if TYPE_CHECKING:
    from firstlight.cli.values import Commands

#: Codes of normsys and of histosys, as in `firstlight.histfactory.interpolation`.
CODES = (("code1", "code4"), ("code0", "code2", "code4p"))


def command(
    commands: Commands,
    name: str,
    help: str,
    example: str,
    handle: Callable[[argparse.Namespace], int],
    *,
    model: bool = True,
    data: bool = True,
    asimov: str = "use Asimov data at this signal strength, with the other parameters fitted to "
    "the observed data",
) -> argparse.ArgumentParser:
    """Add a command with the options that select a model and its data.

    model: with the options that change the model. data: with the choice between observed and
    Asimov data; `asimov` is its help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_workspace(parser)
    parser.set_defaults(handle=handle, command=name)
    if model:
        _add_model(parser)
    if data:
        _add_data(parser, asimov)
    return parser


def _add_workspace(parser: argparse.ArgumentParser) -> None:
    """The workspace, the choice of measurement and patches, and --json."""
    add = parser.add_argument
    add("workspace", type=Path, metavar="WORKSPACE", help="a pyhf JSON workspace")
    add(
        "--measurement",
        metavar="NAME",
        help="measurement to use (default: the first in the workspace)",
    )
    add(
        "--patch",
        dest="patches",
        action="append",
        default=[],
        metavar="FILE",
        help="apply a JSON patch first (repeatable, in the order given)",
    )
    add(
        "--patchset",
        dest="patches",
        action="append",
        nargs=2,
        metavar=("FILE", "NAME"),
        help="apply the patch NAME of a pyhf patchset (repeatable)",
    )
    add("--poi", metavar="NAME", help="parameter of interest, instead of the measurement's")
    add(
        "--no-poi",
        action="store_true",
        help="no parameter of interest, for background-only workspaces",
    )
    add(
        "--json",
        action="store_true",
        help="print one JSON object; numbers that are not finite become null",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Interpolation, fixed and free parameters."""
    add = parser.add_argument
    add(
        "--interpolation",
        type=_codes,
        default=("code4", "code4p"),
        metavar="NORMSYS,HISTOSYS",
        help="interpolation codes: code1 or code4 for normsys, code0, code2 or code4p for histosys "
        "(default: code4,code4p)",
    )
    add(
        "--fix",
        type=_fixed,
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="fix a parameter, at its initial value if no value is given (repeatable; a name "
        "without an index fixes all bins)",
    )
    add(
        "--free",
        action="append",
        default=[],
        metavar="NAME",
        help="free a parameter that the workspace fixes (repeatable)",
    )


def _add_data(parser: argparse.ArgumentParser, asimov: str) -> None:
    parser.add_argument("--asimov", type=number, metavar="MU", help=asimov)
    parser.add_argument(
        "--blind",
        action="store_true",
        help="with --asimov: keep the other parameters at their initial values, so that the "
        "observed data are not used",
    )


def add_positive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--require-positive",
        action="store_true",
        help="use the lowest fits at which no sample is below zero in any bin",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Where the fits run, and where finished ones are kept."""
    add = parser.add_argument
    add(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="spread the fits over a Ray cluster: the one at RAY_ADDRESS, one started on this "
        "machine, or the one at an address (same results; needs the extra 'ray')",
    )
    add(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="keep finished pieces in this folder, which must be new",
    )
    add(
        "--resume",
        action="store_true",
        help="continue from the pieces in the folder of --checkpoint",
    )
    parser.set_defaults(handle=partial(_stoppable, parser.get_default("handle")))


def _stoppable(handle: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Handle SIGTERM like Ctrl-C, and say how to continue."""
    if options.on is None and options.checkpoint is None:
        return handle(options)
    try:
        with signals_interrupt():
            return handle(options)
    except KeyboardInterrupt:
        if options.checkpoint is not None and any(options.checkpoint.glob("piece-*")):
            kept = "finished pieces are kept. Repeat the command with --resume to continue."
            print(f"firstlight: {kept}", file=sys.stderr)
        raise


def cluster_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords for a function of `firstlight.cluster`; empty if the work stays here."""
    from firstlight.cli.histfactory.job import CommandError

    if options.resume and options.checkpoint is None:
        raise CommandError("--resume needs --checkpoint DIR: it says what to continue.")
    if options.on is None and options.checkpoint is None:
        return {}
    return {"on": options.on, "checkpoint": options.checkpoint, "resume": options.resume}


def add_plot(parser: argparse.ArgumentParser, what: str, name: str = "--plot") -> None:
    parser.add_argument(
        name,
        type=Path,
        metavar="FILE",
        help=f"draw {what} (.png or .svg)",
    )


def add_top(parser: argparse.ArgumentParser, what: str, default: int = 20) -> None:
    parser.add_argument(
        "--top",
        type=between(0),
        default=default,
        metavar="N",
        help=f"{what} (default: {default}; 0 for all)",
    )


def number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError("must be a finite number")
    return value


def _fixed(text: str) -> tuple[str, float | None]:
    """NAME or NAME=VALUE. Text after the last `=` that is not a number belongs to the name."""
    name, equals, value = text.rpartition("=")
    if equals:
        try:
            number = float(value)
        except ValueError:
            return text, None
        if not math.isfinite(number):
            raise argparse.ArgumentTypeError(f"{text!r}: the value must be finite")
        return name, number
    return text, None


def _codes(text: str) -> tuple[str, str]:
    parts = tuple(text.split(","))
    if len(parts) != 2 or any(p not in known for p, known in zip(parts, CODES, strict=True)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NORMSYS,HISTOSYS with one of {', '.join(CODES[0])} and one of "
            f"{', '.join(CODES[1])}"
        )
    return parts[0], parts[1]
