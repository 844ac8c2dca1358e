"""`firstlight export RUN --format …`: a run in the format of another tool."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command
from firstlight.records import write_new

if TYPE_CHECKING:
    from firstlight.cli.values import Commands

FORMATS = ("pyperf", "csv", "github-action-benchmark")


def add_to(commands: Commands) -> None:
    about = "Write a run in the format of another tool."
    parser = add_command(commands, "export", handle, about)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write; must be new (default: the terminal)",
    )


def handle(options: argparse.Namespace) -> int:
    from firstlight.report import exporters
    from firstlight.statistics.run_summaries import load

    run, samples = load(options.run)
    write = {
        "pyperf": exporters.pyperf_json,
        "csv": exporters.csv_text,
        "github-action-benchmark": exporters.github_action_benchmark_json,
    }[options.format]
    text = write(run, samples)
    if options.output is None:
        sys.stdout.write(text)
        return 0
    write_new(options.output, text)
    print(options.output)
    return 0
