"""`firstlight ops build`: alert rules with their tests, dashboards, manifests, runbooks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_actions, minutes

if TYPE_CHECKING:
    from firstlight.cli.values import Commands

EPILOG = """\
examples:
  firstlight ops build --out ops
  firstlight ops build --out ops --objective warm_latency=99.5 --runbooks https://wiki.lab/runbooks
  promtool test rules ops/prometheus/rules_test.yml

exit codes: 0 written; 2 wrong usage, or Prometheus does not answer"""


def add_to(commands: Commands) -> None:
    about = "Write alert rules, dashboards and runbooks for your services; show a dashboard."
    action = add_actions(commands, "ops", about, EPILOG)
    about = "write alert rules and their tests, dashboards, manifests and runbooks"
    add = action("build", about, handle)
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    add(
        "--objective",
        action="append",
        default=[],
        type=_objective,
        metavar="NAME=PERCENT",
        help="change an objective, such as availability=99.95 (repeatable)",
    )
    add(
        "--page-burn",
        type=float,
        metavar="RATE",
        help="page at this burn rate over an hour, such as 3 (default: 14.4, or 6 over six hours)",
    )
    add(
        "--runbooks",
        default="runbooks",
        metavar="URL",
        help="address of the runbooks, for links in alerts (default: runbooks)",
    )
    add(
        "--speed", type=int, default=1, metavar="N", help="divide all times by N, to try out alerts"
    )
    add = action("show", "draw a dashboard from Prometheus, without Grafana", handle_show)
    add("dashboard", choices=("executive", "on-call", "debug"), help="the dashboard to draw")
    add(
        "--prometheus",
        default="http://127.0.0.1:9090",
        metavar="URL",
        help="the Prometheus to query (default: http://127.0.0.1:9090)",
    )
    about = "how far back (default: 60)"
    add("--minutes", type=minutes, default=60.0, metavar="M", help=about)
    about = "the page to write (default: dashboard.html)"
    add("--out", type=Path, default=Path("dashboard.html"), metavar="FILE", help=about)


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
    try:
        return name, float(percent)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=PERCENT") from None
