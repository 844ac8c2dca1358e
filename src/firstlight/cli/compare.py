"""`firstlight compare BASE HEAD`: runs or snapshots measured in separate jobs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli import values

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.compare.runs import Measured, RunsReport


def add_to(commands: Commands) -> None:
    parser = values.add_command(
        commands,
        "compare",
        handle,
        "Compare runs or snapshots measured in separate jobs.",
        EPILOG,
    )
    add = parser.add_argument
    add("base", nargs="+", metavar="BASE", help="run directories or snapshots; BASE HEAD is enough")
    add("--head", nargs="+", metavar="HEAD", help="the other side, if there are several per side")
    add("--anyway", action="store_true", help="compare even what is not comparable, with a warning")
    add("--all", action="store_true", help="show every phase of every case, not only what decides")
    add("--json", action="store_true", help="print the whole comparison as JSON")
    add(
        "--minimum-effect",
        type=values.share,
        default=0.03,
        metavar="SHARE",
        help="smaller changes do not count (default: 0.03, or 3%%)",
    )


EPILOG = """\
examples:
  firstlight compare monday/ tuesday/
  firstlight compare base-*/ --head head-*/         five or more runs per side

Jobs drift apart by more than their intervals suggest. With enough runs per side, each run counts
as one value (five runs are enough for two or three cases; the output says how many are needed).
With fewer, only changes above 15 % count. To compare within one job, use `firstlight gate`.

exit codes: 0 compared, with any result; 2 not comparable, or wrong usage"""


def handle(options: argparse.Namespace) -> int:
    from firstlight.compare.runs import NotComparableError, compare_runs

    base, head = options.base, options.head
    if head is None:
        if len(base) != 2:
            raise NotComparableError(
                f"{len(base)} given. Give two runs, BASE and HEAD, or several of each: "
                "firstlight compare BASE … --head HEAD …"
            )
        base, head = base[:1], base[1:]
    sides = [[measured for name in side for measured in load(name)] for side in (base, head)]
    report = compare_runs(*sides, anyway=options.anyway, minimum_effect=options.minimum_effect)
    if options.json:
        import json

        from firstlight.records import to_json

        print(json.dumps(to_json(report), indent=1, allow_nan=False))
    else:
        print_report(report, options.all)
    return 0


def load(name: str) -> list[Measured]:
    """Return the run in a directory, or all runs of a snapshot."""
    from firstlight.compare.runs import Measured
    from firstlight.snapshot.storage import full_location
    from firstlight.statistics.run_summaries import load as load_run

    name = full_location(name)
    path = Path(name)
    files = ("run.json", "plan.json")
    if path.name in files or any((path / file).exists() for file in files):
        run, samples = load_run(path)
        return [Measured(name, run, samples)]
    if path.exists() or "://" in name:
        return _load_snapshot(name)
    from firstlight.records import RecordError

    raise RecordError(f"{name}: no such run or snapshot.")


def _load_snapshot(name: str) -> list[Measured]:
    from firstlight.compare.runs import Measured
    from firstlight.snapshot.errors import ChangedSnapshotError
    from firstlight.snapshot.opening import open_snapshot
    from firstlight.snapshot.verifying import verify

    found = verify(name).findings
    if found:
        listed = "".join(f"\n  {finding.check}: {finding.message}" for finding in found[:5])
        raise ChangedSnapshotError(
            f"{name}: does not verify, so it is not compared (firstlight verify lists everything):"
            f"{listed}"
        )
    snapshot = open_snapshot(name)
    several = len(snapshot.runs) > 1
    return [
        Measured(f"{name}#{number + 1}" if several else name, run, snapshot.samples(number))
        for number, run in enumerate(snapshot.runs)
    ]


def print_report(report: RunsReport, every: bool) -> None:
    from firstlight.present.terminal import Terminal, escape
    from firstlight.report.comparison_table import comparison_table

    console = Terminal()
    headline = ("cold_seconds", "warm_call_seconds")  # also where it could not be judged
    shown = [c for c in report.comparisons if every or c.gated or c.quantity in headline]
    title = f"{_names(report.base)} → {_names(report.head)}"
    console.print(comparison_table(shown, escape(title)))
    for count in report.counts:
        if count.verdict != "same" and (count.gated or every):
            console.print(f"  {escape(count.case)}: {escape(count.reason or '')}")
    for case, why in report.left_out.items():
        console.print(f"  Not compared: {escape(case)}: {escape(why)}")
    if report.changed:
        console.print(f"Changed: {escape('; '.join(report.changed))}.")
    for difference in report.overridden:
        console.print(f"Compared anyway: {escape(difference)}", style="red")
    for warning in report.warnings:
        console.print(f"Note: {escape(warning)}.", style="yellow")
    console.print(_protocol(report, every), style="dim")


def _names(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _protocol(report: RunsReport, every: bool) -> str:
    unit = "Medians of runs" if report.unit == "run" else "Processes"
    others = "" if every else " --all shows every phase."
    return (
        f"{unit} compared unpaired: Hodges-Lehmann ratio with its exact interval of at least 95 %, "
        f"Mann-Whitney p, Holm-adjusted over the rows that decide.{others}"
    )
