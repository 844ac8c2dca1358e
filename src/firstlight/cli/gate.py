"""`firstlight gate`: did it get worse? Two sides, measured interleaved, and a verdict for CI."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli import values

if TYPE_CHECKING:
    from firstlight.cli.values import Commands, Options
    from firstlight.gate.decision import GateReport
    from firstlight.gate.directory import GateDirectory
    from firstlight.gate.explain import Explanation
    from firstlight.gate.planning import Gate

EPILOG = """\
examples:
  firstlight gate --base main bench_mine.py         the working tree against main
  firstlight gate --base v1.2 --head v1.3 bench_mine.py --python .venv/bin/python \\
      --setup 'python -m venv .venv && .venv/bin/pip install .'
  firstlight gate --base-env jax-0.10 --head-env jax-0.11 mlp_train --explain

exit codes: 0 pass; 1 regression (slower, a count grew, or only the head is broken); 2 wrong usage,
or nothing could be measured; 3 inconclusive; 130 interrupted"""


def add_to(commands: Commands) -> None:
    parser = values.add_command(
        commands,
        "gate",
        handle,
        "Measure two sides interleaved in one job and decide: pass, regression or inconclusive.",
        EPILOG,
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="SUITE|WORKLOAD|FILE.py",
        help="quick (default), the name of a workload, or a file with @firstlight.bench functions",
    )
    _add_sides(parser.add_argument_group("sides"))
    add_gate_cases(parser.add_argument_group("cases"))
    _add_rules(parser.add_argument_group("decision"))
    _add_outputs(parser.add_argument_group("output"))


def _add_sides(group: Options) -> None:
    add = group.add_argument
    add("--base", metavar="REV", help="the revision to compare with, such as main")
    add("--head", metavar="REV", help="the revision under test; . is the working tree (default)")
    add("--setup", metavar="CMD", help="shell command to run at the top of each checkout")
    add("--python", metavar="PATH", help="interpreter, relative to each checkout (default: this)")
    shared = "take FILE.py for both sides from this one (default: each side uses its own)"
    add("--bench-from", choices=("base", "head"), help=shared)
    add("--base-env", metavar="ENV", help="a virtual environment (or its python)")
    add("--head-env", metavar="ENV", help="the virtual environment under test")


def add_gate_cases(group: Options) -> None:
    values.add_case_options(group, "time limit per process (default: 120)")
    turns = "warm calls per process, alternating with the other side (default: 0.4)"
    group.add_argument("--warm-seconds", type=values.seconds, metavar="SECONDS", help=turns)
    drawn = "seed of the random order (default: drawn, recorded)"
    group.add_argument("--seed", type=int, metavar="N", help=drawn)


def _add_rules(group: Options) -> None:
    add = group.add_argument
    rounds = "number of rounds (default: 12, then up to 96 while a case is undecided)"
    add("--rounds", type=values.processes, metavar="N", help=rounds)
    late = "start no round that would end after M minutes (default: 30)"
    add("--max-minutes", type=values.minutes, default=30.0, metavar="M", help=late)
    going = "do not stop at a clear regression while other cases are undecided"
    add("--keep-going", action="store_true", help=going)
    add(
        "--alpha",
        type=values.share,
        default=0.05,
        metavar="SHARE",
        help="false-alarm rate (default: 0.05)",
    )
    small = "smaller changes do not count (default: 0.03, or 3%%)"
    add("--minimum-effect", type=values.share, metavar="SHARE", help=small)
    gated = "gate on this (repeatable; default: cold_seconds, compile, warm_call_seconds)"
    add("--gate-on", action="append", metavar="QUANTITY", help=gated)
    add("--no-counts", action="store_true", help="ignore exact counts (compiles, equations)")
    control = "a case that the change cannot touch (default: NumPy under this Python), or none"
    add("--control", metavar="CASE", help=control)
    file = "from `firstlight calibrate` (default: this machine's, if there is one)"
    add("--calibration", metavar="FILE", help=file)
    add("--no-calibration", action="store_true", help="use no calibration")


def _add_outputs(group: Options) -> None:
    """These may be given again with --resume."""
    add = group.add_argument
    add("--out", type=Path, metavar="DIR", help="output directory; must be new")
    add("--resume", type=Path, metavar="DIR", help="finish an interrupted gate as planned")
    add("--explain", action="store_true", help="for failing cases: phase, function, HLO diff")
    add("--explain-all", action="store_true", help="the same for every case")
    add("--json", action="store_true", help="print the report as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write a summary for a pull request")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    github = "print GitHub annotations (default: if GITHUB_ACTIONS is set)"
    add("--annotations", action="store_true", help=github)


def handle(options: argparse.Namespace) -> int:
    from firstlight.gate.directory import GateDirectory, GatePlan
    from firstlight.gate.planning import Request, plan_gate, sides_of
    from firstlight.present.quantities import duration

    resumed = GatePlan.load(options.resume) if options.resume is not None else None
    request = resumed.options if resumed else Request.of(vars(options))
    if request.setup and not request.python:
        say("Note: --setup without --python: both sides run under this interpreter.")
    began = time.monotonic()
    with values.signals_interrupt(), sides_of(request) as sides:
        if resumed is not None:
            resumed.require_same(sides)
        gate = plan_gate(request, sides)
        directory = GateDirectory.open(options.resume) if resumed else create(gate, options.out)
        try:
            report = measure(gate, directory, time.monotonic() + 60 * options.max_minutes)
            explanations = _explanations(gate, report, directory, options)
        except KeyboardInterrupt:
            directory.publish_sides()
            say("Interrupted: what was measured is kept. Finish it with:")
            say(f"  firstlight gate --resume {directory.path}")
            return 130
        finally:
            directory.close()
    present(gate, report, directory, options, explanations)
    if not options.json:
        print(f"\nTook {duration(time.monotonic() - began)}. Everything: {directory.path}")
    return report.exit_code


def create(gate: Gate, path: Path | None) -> GateDirectory:
    from firstlight.gate.directory import GateDirectory, GatePlan
    from firstlight.records import stamp

    plan = GatePlan.of(gate)
    default = Path("firstlight-gates") / f"{stamp(plan.created_at)}-{gate.name}"
    return GateDirectory.create(path or default, plan, gate)


def measure(gate: Gate, directory: GateDirectory, deadline: float | None = None) -> GateReport:
    """Measure and decide, with progress on stderr."""
    from firstlight.gate.job import carry_out
    from firstlight.present.progress import Progress

    for name, reason in gate.selection.skipped.items():
        say(f"Skipped: {name}, because {reason}.")
    for side, why in gate.selection.unimportable.items():
        say(f"The benchmark file of {side} cannot be imported: {why}.")
    with closing(Progress(sys.stderr)) as progress:
        return carry_out(gate, directory, progress.before, deadline)


def _explanations(
    gate: Gate, report: GateReport, directory: GateDirectory, options: argparse.Namespace
) -> list[Explanation]:
    from firstlight.gate.explain import explain
    from firstlight.gate.outputs import failing_cases, markdown
    from firstlight.records import write_text

    names = set(failing_cases(report)) if options.explain else set()
    if options.explain_all:
        names = {c.case for c in report.comparisons} - {report.control}
    if not names:
        return []
    say("Explaining, with processes that are not timed.")
    folder = directory.path / "explain"
    found = [
        explain(report, case, gate.settings, gate.sides, folder)
        for case in gate.selection.cases
        if case.id in names
    ]
    write_text(directory.path / "gate.md", markdown(report, gate.side_words, found))
    return found


def present(
    gate: Gate,
    report: GateReport,
    directory: GateDirectory,
    options: argparse.Namespace,
    explanations: list[Explanation],
) -> None:
    """Write every requested output, and what GitHub reads."""
    import json
    import secrets

    from firstlight.gate.outputs import github_annotations, junit, print_explanation, print_gate
    from firstlight.records import to_json, write_text

    summary = (directory.path / "gate.md").read_text("utf-8")
    if options.markdown:
        write_text(options.markdown, summary)
    if options.junit:
        write_text(options.junit, junit(report))
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(step, "a", encoding="utf-8") as file:
            file.write(summary + "\n")
    if options.json:
        print(json.dumps({**to_json(report), "directory": str(directory.path)}, indent=1))
        return
    on_github = options.annotations or bool(os.environ.get("GITHUB_ACTIONS"))
    token = secrets.token_hex(16)
    # Names of cases are printed below: on GitHub none of them may act as a command.
    if on_github:
        print(f"::stop-commands::{token}")
    print_gate(report, gate.side_words)
    for explanation in explanations:
        print_explanation(explanation)
    sys.stdout.flush()
    if on_github:
        print(f"::{token}::", *github_annotations(report, gate.places), sep="\n")


def say(text: str) -> None:
    from firstlight.present.plain_text import printable

    print(printable(text), file=sys.stderr)
