"""`firstlight incident collect`: collect the current state, as the start of a postmortem."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_actions

if TYPE_CHECKING:
    from firstlight.cli.values import Commands


def add_to(commands: Commands) -> None:
    about = "Collect the current state of a process and its alerts, as the start of a postmortem."
    action = add_actions(commands, "incident", about)
    about = "write down versions, alerts, cache hits, recompiles and programs"
    add = action("collect", about, handle)
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    add("--prometheus", metavar="URL", help="the Prometheus to query")
    add("--cache", metavar="DIR|URL", help="the compilation cache (default: your own)")
    add("--warm", type=Path, metavar="MANIFEST", help="the programs that should be in the cache")
    add("--constraints", type=Path, metavar="FILE", help="the versions that should be installed")


def handle(options: argparse.Namespace) -> int:
    import time

    from firstlight.ops.checks import Given
    from firstlight.ops.incident import collect

    given = Given(
        constraints=options.constraints,
        manifest=options.warm,
        cache=options.cache,
        prometheus_url=options.prometheus,
    )
    for path in collect(options.out, given, time.time()):
        print(path)
    return 0
