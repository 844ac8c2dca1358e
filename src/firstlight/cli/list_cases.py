"""`firstlight list`: suites, workloads with their sizes, and backends."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstlight.cli.values import Commands


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("list")
    parser.add_argument(
        "target",
        nargs="?",
        metavar="SUITE|WORKLOAD|FILE.py",
        help="list the names of its cases, which `run -b REGEX` selects from",
    )
    parser.set_defaults(handle=handle)


def handle(options: argparse.Namespace) -> int:
    from firstlight.measure.case_selection import select
    from firstlight.present.plain_text import printable
    from firstlight.workloads.catalog import SUITES, registered

    backends, workloads = registered()
    if options.target:
        if options.target.endswith(".py"):
            from firstlight.measure.user_file import cases_in

            cases = cases_in(Path(options.target), backends, None, None)
        else:
            cases = select(options.target, workloads, backends)
        for case in cases:
            print(printable(case.id))
        return 0
    print("Workloads:")
    for workload in workloads.values():
        print(f"  {workload.name:<20} {workload.title}  [{', '.join(workload.sizes)}]")
    print("Backends:")
    for backend in backends.values():
        print(f"  {backend.name:<20} {backend.title}")
    print("Suites:")
    for suite in SUITES:
        print(f"  {suite:<20} {len(select(suite, workloads, backends))} cases")
    return 0
