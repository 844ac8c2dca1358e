"""`firstlight replicate SNAPSHOT`: measure a snapshot again on this machine and report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command
from firstlight.present.plain_text import printable
from firstlight.present.quantities import counted
from firstlight.records import OutputError, now, stamp

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.replication.repeating import Job, Task
    from firstlight.replication.report import Replication

EPILOG = """\
examples:
  firstlight replicate results/3f0c…                        measure all of it again
  firstlight replicate https://example.org/3f0c….tar -b numpy --key my-key.pem
  firstlight replicate results/3f0c… --file bench_mine.py   the publisher's program, after review
  firstlight replicate --check firstlight-replications/3f0c…
  firstlight replicate --check firstlight-replications/3f0c… results/3f0c…   also against it

Nothing in the snapshot is executed: its cases are looked up by name in this installation, and the
publisher's file is run only if you name it here and its hash matches the recorded one.

exit codes: 0 every case agrees; 1 a case differs (with --check: a claim does not hold); 2 refused,
or a machine problem; 3 none differs, but not all agree; 130 interrupted"""


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "replicate",
        handle,
        "Verify a snapshot, measure its cases again with the same protocol, and compare.",
        EPILOG,
    )
    add = parser.add_argument
    add(
        "snapshot",
        nargs="?",
        metavar="SNAPSHOT",
        help="a directory, a .tar, a .tar.gz, or a URL; with --check: the one the report is about",
    )
    add("--out", type=Path, metavar="DIR", help="folder for the report; must be empty or new")
    add("--id", metavar="ID", help="the id it must have, from a paper or a colleague")
    add("-b", dest="pattern", metavar="REGEX", help="only cases whose name matches")
    file = "a benchmark file measured by the snapshot; its hash must match (repeatable)"
    add("--file", action="append", default=[], type=Path, metavar="PATH", help=file)
    add("--key", type=Path, metavar="FILE", help="sign the report with this private key")
    add("--passphrase-file", type=Path, metavar="FILE", help="its first line unlocks the key")
    add(
        "--check",
        type=Path,
        metavar="REPORT",
        help="measure nothing: check the report in this folder against its runs, and against "
        "SNAPSHOT if given",
    )
    add("--json", action="store_true", help="print the report as JSON")


def handle(options: argparse.Namespace) -> int:
    if options.check is not None:
        return check(options)
    if options.snapshot is None:
        options.parser.error("give the SNAPSHOT to measure again")
    from firstlight.cli.publish import signing_key
    from firstlight.replication.repeating import make_public, prepare, report_of, write_report
    from firstlight.replication.report import PAGE
    from firstlight.snapshot.redaction import Owner

    key = signing_key(options.key, options.passphrase_file)
    job = prepare(options.snapshot, options.file, options.id, options.pattern)
    created_at = now()
    name = f"{job.snapshot.id[:12]}-{stamp(created_at)}"
    out = options.out or Path("firstlight-replications") / name
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out} exists and is not empty. Nothing is overwritten: name another.")
    announce(job)
    owner = Owner.of_process()
    measured = {}
    for task in job.tasks:
        if task.selection.cases:
            if not measure_task(task, out / task.folder):
                print(
                    f"Interrupted: no report. What was measured is in {out / task.folder}.",
                    file=sys.stderr,
                )
                return 130
            measured[task.number] = make_public(out / task.folder, owner)
    report = report_of(job, measured, created_at, owner)
    data = write_report(out, report, key)
    if options.json:
        print(data.decode(), end="")
    else:
        print_replication(report, signed=key is not None)
        print(f"Report: {out / PAGE}")
    return report.exit_code


def announce(job: Job) -> None:
    """Print what will run, before anything does."""
    cases = sum(len(task.selection.cases) for task in job.tasks)
    print(f"Verified: {job.snapshot.id}", file=sys.stderr)
    processes = counted(job.processes, "process", "processes")
    print(f"Measuring {counted(cases, 'case')} again in {processes}.", file=sys.stderr)
    for task in job.tasks:
        for case, why in task.selection.left_out.items():
            print(f"  not measured: {printable(case)}: {printable(why)}", file=sys.stderr)
        for note in task.notes:
            print(f"  not the same: {printable(note)}", file=sys.stderr)


def measure_task(task: Task, folder: Path) -> bool:
    """Measure the run of a task into `folder` as `firstlight run` would; False if interrupted."""
    from firstlight.cli.run import measure
    from firstlight.measure.planning import plan_of
    from firstlight.records.run_directory import RunDirectory
    from firstlight.runs import conclude

    plan = plan_of(task.target, task.selection.cases, task.settings)
    directory = RunDirectory.create(folder, plan)
    try:
        interrupted = measure(directory, plan)
        conclude(directory, plan)
    finally:
        directory.close()
    return not interrupted


def print_replication(report: Replication, signed: bool) -> None:
    from firstlight.compare.verdicts import change
    from firstlight.replication.page import case_reasons

    for case, reasons in zip(report.cases, case_reasons(report), strict=True):
        print(f"{case.verdict:<15} {printable(case.case)}")
        for delta in case.deltas:
            if delta.judged:
                e = delta.effect
                span = f"{change(e.ratio)} [{change(e.low)}, {change(e.high)}]"
                print(f"{'':<15}   {delta.quantity} {span}")
        for reason in reasons:
            print(f"{'':<15}   {printable(reason)}")
    for ratio in report.ratios:
        print(
            f"{ratio.verdict:<15} {printable(ratio.case)} over {printable(ratio.against)}: "
            f"{ratio.quantity} {ratio.published.ratio:.3g}×, here {ratio.here.ratio:.3g}× "
            f"(order: {ratio.order})"
        )
    print(f"\n{report.totals()}; {'signed' if signed else 'not signed'}.")


def check(options: argparse.Namespace) -> int:
    """Print which claims of a report hold; return 1 if one does not."""
    from firstlight.replication.report_checking import check_report

    found = check_report(options.check, snapshot=options.snapshot, expected_id=options.id)
    if options.json:
        print(json.dumps(vars(found), indent=1))
        return 1 if found.findings else 0
    print(f"Replication of {printable(found.snapshot) or 'an unknown snapshot'}")
    shown = {"ok": found.holds, "unknown": found.unknown, "FINDING": found.findings}
    for word, texts in shown.items():
        for text in texts:
            print(f"  {word:<10} {printable(text)}")
    return 1 if found.findings else 0
