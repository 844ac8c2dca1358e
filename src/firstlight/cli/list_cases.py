"""`firstlight list`: suites, workloads with their sizes, and backends."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command

if TYPE_CHECKING:
    from firstlight.cli.values import Commands


def add_to(commands: Commands) -> None:
    about = "List workloads, backends and suites, or the cases of one target."
    parser = add_command(commands, "list", handle, about)
    parser.add_argument(
        "target",
        nargs="?",
        metavar="SUITE|WORKLOAD|FILE.py",
        help="list the cases of this target, from which `run -b REGEX` selects",
    )


def handle(options: argparse.Namespace) -> int:
    from firstlight.measure.case_selection import select
    from firstlight.measure.planning import Request, cases_of
    from firstlight.present.plain_text import printable
    from firstlight.workloads.catalog import SUITES, registered

    if options.target:
        for case in cases_of(Request(options.target)):
            print(printable(case.id))
        return 0
    backends, workloads = registered()
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
