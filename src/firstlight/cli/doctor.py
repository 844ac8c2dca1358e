"""`firstlight doctor`: checklists that run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command

if TYPE_CHECKING:
    from firstlight.cli.values import Commands

EPILOG = """\
examples:
  firstlight doctor
  firstlight doctor --pre-production --constraints constraints.txt --warm app.warm
  firstlight doctor --production --prometheus http://prometheus:9090 --metrics http://app:8000/metrics
  firstlight doctor --incident --prometheus http://prometheus:9090

A checklist fails if one of its checks lacks an option that it needs.

exit codes: 0 every check passed; 1 a check failed; 2 wrong usage"""


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "doctor",
        handle,
        "Check versions, device, cache, gradients, memory and monitoring.",
        EPILOG,
    )
    stage = parser.add_mutually_exclusive_group()
    for name, about in (
        ("pre-production", "check what must hold before a deploy"),
        ("production", "check what must hold while it runs"),
        ("incident", "look for what is wrong now"),
    ):
        stage.add_argument(f"--{name}", dest="stage", action="store_const", const=name, help=about)
    add = parser.add_argument
    add("--constraints", type=Path, metavar="FILE", help="the versions that should be installed")
    add("--warm", type=Path, metavar="MANIFEST", help="the programs that should be in the cache")
    add("--cache", metavar="DIR|URL", help="the cache (default: your own)")
    add("--checkpoints", type=Path, metavar="DIR", help="a folder that must be writable")
    add("--metrics", metavar="URL", help="where the process exports its metrics")
    add("--prometheus", metavar="URL", help="the Prometheus that scrapes it")
    add("--alertmanager", metavar="URL", help="the Alertmanager that Prometheus notifies")
    add("--json", action="store_true", help="print JSON")


def handle(options: argparse.Namespace) -> int:
    from firstlight.ops import doctor
    from firstlight.ops.checks import Given
    from firstlight.present.plain_text import printable

    given = Given(
        options.constraints,
        options.warm,
        options.cache,
        options.checkpoints,
        options.metrics,
        options.prometheus,
        options.alertmanager,
    )
    stage = doctor.Stage(options.stage or "any")
    examined = doctor.examine(stage, given)
    if options.json:
        print(doctor.as_json(stage, examined), end="")
    else:
        for line in doctor.as_text(examined).splitlines():
            print(printable(line))
    return doctor.exit_code(examined)
