"""The command line: one file a subcommand, everything heavy imported in its handler.

Exit codes: 0 all is well, 1 a case failed, is unproven or got worse, 2 wrong usage or a machine
problem, 3 undecided (gate, replicate), 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from firstlight import __version__
from firstlight.cli import (
    calibrate,
    compare,
    export,
    gate,
    histfactory,
    keys,
    list_cases,
    publish,
    replicate,
    run,
    show,
    site,
    snapshots,
    system,
    trace,
    verify,
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="firstlight",
        description="Measure the time to first result of compiled Python, phase by phase.",
        epilog="Start with: firstlight run",
    )
    parser.add_argument("--version", action="version", version=f"firstlight {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        *(run, show, compare, list_cases, system, export, histfactory, gate, calibrate),
        *(publish, verify, replicate, keys, snapshots, site, trace),
    ):
        command.add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors that are meant for the user are printed without a traceback."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.handle(options)
    except KeyboardInterrupt:
        print("firstlight: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as in `firstlight show RUN | head`.
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"firstlight: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 2
    except Exception as error:
        # records is the standard library only, but even that waits until something went wrong.
        from firstlight.records import FirstlightError
        from firstlight.report.plain_text import printable

        if not isinstance(error, FirstlightError):
            raise
        print(f"firstlight: {printable(str(error))}", file=sys.stderr)
        return 2
    return code
