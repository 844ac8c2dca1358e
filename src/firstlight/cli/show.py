"""`firstlight show RUN`: show a finished run again, as a table, JSON, or an HTML report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command
from firstlight.records import to_json, write_new

if TYPE_CHECKING:
    from firstlight.cli.values import Commands


def add_to(commands: Commands) -> None:
    about = "Print the results of a run as a table or JSON, or write its report."
    parser = add_command(commands, "show", handle, about)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--json", action="store_true", help="print a list of cases as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report to FILE (new)")


def handle(options: argparse.Namespace) -> int:
    from firstlight.statistics.run_summaries import load

    run, samples = load(options.run)
    if options.html:
        from firstlight.report.html import render

        write_new(options.html, render(run, samples))
        print(options.html)
        return 0
    if options.json:
        print(json.dumps([to_json(case) for case in run.cases], indent=1))
        return 0
    from firstlight.report.terminal import print_run

    print_run(run)
    return 0
