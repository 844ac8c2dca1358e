"""`firstlight incident collect`: collect the current state, as the start of a postmortem."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstlight.cli.values import Commands


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("incident")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    about = "write down versions, alerts, cache hits, recompiles and programs"
    collect = actions.add_parser(
        "collect", help=about, description=f"{about[0].upper()}{about[1:]}."
    )
    add = collect.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where to write")
    add("--prometheus", metavar="URL", help="the Prometheus to query")
    add("--cache", metavar="DIR|URL", help="the compilation cache (default: your own)")
    add("--warm", type=Path, metavar="MANIFEST", help="a manifest of what the cache should hold")
    add("--constraints", type=Path, metavar="FILE", help="pinned versions")
    collect.set_defaults(handle=handle, parser=collect)


def handle(options: argparse.Namespace) -> int:
    import time

    from firstlight.ops.checks import Targets
    from firstlight.ops.incident import collect

    targets = Targets(
        constraints=options.constraints,
        manifest=options.warm,
        cache=options.cache,
        prometheus_url=options.prometheus,
    )
    for path in collect(options.out, targets, time.time()):
        print(path)
    return 0
