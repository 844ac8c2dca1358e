"""The options of `firstlight gate`, group by group; `calibrate` shares the choice of cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firstlight.cli import values


def add_sides(group: Any) -> None:
    add = group.add_argument
    add("--base", metavar="REV", help="the revision to compare with, such as main")
    add("--head", metavar="REV", help="the revision under test; . is the working tree (default)")
    add("--setup", metavar="CMD", help="shell command to run at the top of each checkout")
    add("--python", metavar="PATH", help="interpreter, relative to each checkout (default: this)")
    add(
        "--bench-from",
        choices=("base", "head"),
        help="take FILE.py from one side for both (default: each side uses its own)",
    )
    add("--base-env", type=Path, metavar="ENV", help="a virtual environment (or its python)")
    add("--head-env", type=Path, metavar="ENV", help="the virtual environment under test")


def add_cases(group: Any) -> None:
    add = group.add_argument
    add("-b", dest="pattern", metavar="REGEX", help="only cases whose name contains a match")
    add("--backend", action="append", metavar="NAME", help="only this backend (repeatable)")
    add(
        "--cache",
        action="append",
        choices=("none", "cold", "warm"),
        help="persistent compilation cache policy (repeatable; as for `run`)",
    )
    add("--affinity", type=values.cpus, metavar="CPUS", help="pin the workers, as in 0,2-3")
    add(
        "--timeout",
        type=values.seconds,
        metavar="SECONDS",
        help="limit for one process (default 120)",
    )
    add(
        "--warm-seconds",
        type=values.seconds,
        metavar="SECONDS",
        help="warm calls per process, alternating with the other side (default 0.4)",
    )
    add("--seed", type=int, metavar="N", help="seed of the random order (default: drawn, recorded)")


def add_rules(group: Any) -> None:
    add = group.add_argument
    add(
        "--rounds",
        type=values.processes,
        metavar="N",
        help="exactly N rounds (default: 12, then up to 96 while a case is undecided)",
    )
    add(
        "--max-minutes",
        type=values.minutes,
        default=30.0,
        metavar="M",
        help="start no round that would end later (default 30)",
    )
    add(
        "--keep-going",
        action="store_true",
        help="do not stop at a regression beyond doubt while other cases are undecided",
    )
    add("--alpha", type=values.share, default=0.05, help="false-alarm rate (default 0.05)")
    add(
        "--minimum-effect",
        type=values.share,
        metavar="SHARE",
        help="smaller changes do not count (default 0.03 or 3%%)",
    )
    add(
        "--gate-on",
        action="append",
        metavar="QUANTITY",
        help="gate on this (repeatable; default cold_seconds, compile, warm_call_seconds)",
    )
    add("--no-counts", action="store_true", help="ignore exact counts (compiles, equations)")
    add(
        "--control",
        metavar="CASE",
        help="a case that the change cannot touch (default: NumPy under this Python), or none",
    )
    add(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="from `firstlight calibrate` (default: this machine's, if there is one)",
    )
    add("--no-calibration", action="store_true", help="use no calibration")


def add_outputs(group: Any) -> None:
    add = group.add_argument
    add("--out", type=Path, metavar="DIR", help="output directory; must be new")
    add("--resume", type=Path, metavar="DIR", help="finish an interrupted gate as planned")
    add("--explain", action="store_true", help="for failing cases: phase, function, HLO diff")
    add("--explain-all", action="store_true", help="the same for every case")
    add("--json", action="store_true", help="print the report as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write a summary for a pull request")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    add(
        "--annotations",
        action="store_true",
        help="print GitHub annotations (default where GITHUB_ACTIONS is set)",
    )
