"""`firstlight system`: what would be recorded about this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command

if TYPE_CHECKING:
    from firstlight.cli.values import Commands


def add_to(commands: Commands) -> None:
    about = "Show what a run would record about this machine, and what makes it noisy."
    parser = add_command(commands, "system", handle, about)
    parser.add_argument("--json", action="store_true", help="print JSON")


def handle(options: argparse.Namespace) -> int:
    import json

    from firstlight.measure.host import describe_host, harness, noise_warnings

    host = describe_host(watch_seconds=0.5)
    warnings = noise_warnings(host)
    if options.json:
        print(json.dumps({"harness": harness(), "host": host, "warnings": warnings}, indent=1))
        return 0
    from firstlight.report.terminal import print_system

    print_system(harness(), host, warnings)
    return 0
