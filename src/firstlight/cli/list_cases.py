"""`firstlight list`: suites, workloads with their sizes, and backends."""

from __future__ import annotations

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    parser = commands.add_parser("list", help="list workloads, backends and the cases of a suite")
    parser.add_argument("suite", nargs="?", help="a suite or workload whose cases are listed")
    parser.set_defaults(handle=handle)


def handle(options: argparse.Namespace) -> int:
    from firstlight.measure.plan import select
    from firstlight.workloads.catalog import SUITES, registered

    backends, workloads = registered()
    if options.suite:
        for case in select(options.suite, workloads, backends):
            print(case.id)
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
