"""`firstlight ops build`: alert rules with their tests, dashboards, manifests, runbooks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstlight.cli.values import Commands

EPILOG = """\
examples:
  firstlight ops build --out ops
  firstlight ops build --out ops --objective warm_latency=99.5 --runbooks https://wiki.lab/runbooks
  promtool test rules ops/prometheus/rules_test.yml

exit codes: 0 written; 2 wrong usage."""


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "ops", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    about = "write alert rules and their tests, dashboards, manifests and runbooks"
    build = actions.add_parser("build", help=about, description=f"{about[0].upper()}{about[1:]}.")
    add = build.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where to write")
    add(
        "--objective",
        action="append",
        default=[],
        type=_objective,
        metavar="NAME=PERCENT",
        help="another objective, such as availability=99.95",
    )
    add(
        "--page-burn",
        type=float,
        metavar="RATE",
        help="page at this burn rate over an hour, such as 3",
    )
    add("--runbooks", default="runbooks", metavar="URL", help="where the runbooks are published")
    add(
        "--speed", type=int, default=1, metavar="N", help="divide all times by N, to try out alerts"
    )
    build.set_defaults(handle=handle, parser=build)
    about = "draw a dashboard from Prometheus, without Grafana"
    show = actions.add_parser("show", help=about, description=f"{about[0].upper()}{about[1:]}.")
    add = show.add_argument
    add("dashboard", choices=("executive", "on-call", "debug"))
    add(
        "--prometheus",
        default="http://127.0.0.1:9090",
        metavar="URL",
        help="default: http://127.0.0.1:9090",
    )
    add("--minutes", type=float, default=60.0, help="how far back (default: 60)")
    add("--out", type=Path, default=Path("dashboard.html"), metavar="FILE")
    show.set_defaults(handle=handle_show, parser=show)


def handle(options: argparse.Namespace) -> int:
    from firstlight.ops.building import build
    from firstlight.ops.objectives import with_percentages
    from firstlight.ops.rules import Settings

    if options.speed < 1:
        options.parser.error("--speed: at least 1")
    objectives = with_percentages(dict(options.objective))
    settings = Settings(objectives, options.runbooks, options.page_burn, options.speed)
    for path in build(options.out, settings):
        print(path)
    return 0


def handle_show(options: argparse.Namespace) -> int:
    from firstlight import whole_files
    from firstlight.ops.dashboard_page import page
    from firstlight.ops.dashboards import DASHBOARDS
    from firstlight.ops.prometheus_api import Prometheus

    chosen = next(d for d in DASHBOARDS if d.name == options.dashboard)
    whole_files.write_text(
        options.out, page(chosen, Prometheus(options.prometheus), options.minutes)
    )
    print(options.out)
    return 0


def _objective(text: str) -> tuple[str, float]:
    name, _, percent = text.partition("=")
    return name, float(percent)
