"""`firstlight gate`: did it get worse? Two sides, measured interleaved, and a verdict for CI."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstlight.cli.gate_arguments import add_cases, add_outputs, add_rules, add_sides
from firstlight.cli.run import signals_interrupt

if TYPE_CHECKING:
    from firstlight.gate.decision import GateReport
    from firstlight.gate.directory import GateDirectory
    from firstlight.gate.explain import Explanation
    from firstlight.gate.planning import Gate, Request
    from firstlight.gate.sides import Side

#: Options for the output: they may be given again with --resume.
_PRESENTATION = (
    "json",
    "markdown",
    "junit",
    "annotations",
    "explain",
    "explain_all",
    "max_minutes",
)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "gate",
        description="Measure two sides interleaved in one job and decide: pass, regression or "
        "inconclusive.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="SUITE|WORKLOAD|FILE.py",
        help="quick (default), the name of a workload, or a file with @firstlight.bench functions",
    )
    add_sides(parser.add_argument_group("sides"))
    add_cases(parser.add_argument_group("cases"))
    add_rules(parser.add_argument_group("decision"))
    add_outputs(parser.add_argument_group("output"))
    parser.set_defaults(handle=handle)


EPILOG = """\
examples:
  firstlight gate --base main bench_mine.py         the working tree against main
  firstlight gate --base v1.2 --head v1.3 bench_mine.py --python .venv/bin/python \\
      --setup 'python -m venv .venv && .venv/bin/pip install .'
  firstlight gate --base-env jax-0.10 --head-env jax-0.11 mlp_train --explain

exit codes: 0 pass, 1 regression (slower, a count grew, or only the head is broken), 2 wrong usage
or nothing could be measured, 3 inconclusive, 130 interrupted"""


def handle(options: argparse.Namespace) -> int:
    options, resumed = _resumed(options)
    began = time.monotonic()
    with signals_interrupt(), sides_of(options) as sides:
        from firstlight.gate.directory import GateDirectory, require_same_sides
        from firstlight.gate.planning import plan_gate
        from firstlight.present.quantities import duration

        if resumed is not None:
            require_same_sides(resumed, sides)
        gate = plan_gate(request_of(options), sides)
        directory = (
            create_directory(options, gate)
            if resumed is None
            else GateDirectory.open(options.resume)
        )
        try:
            report, explanations = carry_out(gate, directory, options)
        except KeyboardInterrupt:
            directory.publish_sides()
            say(
                "Interrupted: what was measured is kept. Finish it with:\n"
                f"  firstlight gate --resume {directory.path}"
            )
            return 130
        finally:
            directory.close()
    present(gate, report, directory, options, explanations)
    if not options.json:
        print(f"\nTook {duration(time.monotonic() - began)}. Everything: {directory.path}")
    return report.exit_code


def _resumed(options: argparse.Namespace) -> tuple[argparse.Namespace, dict[str, Any] | None]:
    """Return the options of the interrupted gate, with the new output options."""
    if options.resume is None:
        return options, None
    from firstlight.gate.directory import load_plan

    plan = load_plan(options.resume)
    stored = dict(plan["options"])
    for name in ("base_env", "head_env", "calibration"):
        stored[name] = Path(stored[name]) if stored[name] else None
    stored["affinity"] = tuple(stored["affinity"]) if stored["affinity"] else None
    asked = {name: getattr(options, name) for name in _PRESENTATION}
    return argparse.Namespace(**stored, **asked, resume=options.resume, out=None), plan


def sides_of(options: argparse.Namespace) -> AbstractContextManager[tuple[Side, Side]]:
    """Return the two sides named on the command line."""
    from firstlight.gate.selection import path_in_repository
    from firstlight.gate.sides import SetupError, from_environments, from_revisions

    environments = (options.base_env, options.head_env)
    if any(environments):
        if not all(environments) or options.base or options.head:
            raise SetupError("give both --base-env and --head-env, and no revisions with them.")
        if options.setup or options.python or options.bench_from:
            raise SetupError("--setup, --python and --bench-from apply only to revisions.")
        return from_environments(*environments)
    if not options.base:
        raise SetupError(
            "nothing to compare with. Give --base REV (and --head REV), or --base-env ENV and "
            "--head-env ENV."
        )
    shared = None
    if options.bench_from:
        if not (options.target or "").endswith(".py"):
            raise SetupError("--bench-from needs a FILE.py.")
        shared = (options.bench_from, path_in_repository(Path(options.target)))
    if options.setup and not options.python:
        say("Note: --setup without --python: both sides run under this interpreter.")
    return from_revisions(
        Path.cwd(), options.base, options.head or ".", options.setup, options.python, shared
    )


def request_of(options: argparse.Namespace) -> Request:
    """Return the request. A seed is drawn unless given, and kept for a resumption."""
    import secrets

    from firstlight.compare.quantities import GATED
    from firstlight.compare.verdicts import MINIMUM_EFFECT
    from firstlight.gate.planning import Request
    from firstlight.gate.selection import Wanted

    if options.seed is None:
        options.seed = secrets.randbelow(2**31)
    target = options.target or "quick"
    return Request(
        wanted=Wanted(target, options.backend, options.cache, options.pattern),
        seed=options.seed,
        rounds=options.rounds,
        alpha=options.alpha,
        minimum_effect=options.minimum_effect or MINIMUM_EFFECT,
        gate_on=tuple(options.gate_on or GATED),
        exact_counts=not options.no_counts,
        # The plan of a gate started by an earlier version lacks this option.
        fail_fast=not getattr(options, "keep_going", False),
        control=options.control,
        calibration=options.calibration,
        use_calibration=not options.no_calibration,
        timeout_seconds=options.timeout,
        warm_seconds=options.warm_seconds,
        affinity=options.affinity,
    )


def create_directory(options: argparse.Namespace, gate: Gate) -> GateDirectory:
    from firstlight.gate.directory import SCHEMA, GateDirectory, side_plan
    from firstlight.measure.host import harness, noise_warnings
    from firstlight.records import now, stamp, to_json

    warnings, measured_by = noise_warnings(gate.host), harness()
    created = now()
    kept = {k: v for k, v in vars(options).items() if k not in (*_PRESENTATION, "out", "resume")}
    kept.pop("handle", None)
    for side in gate.sides:  # a branch may move before the gate is resumed; its commit does not
        if side.description["kind"] == "revision" and not side.description["uncommitted"]:
            kept[side.name] = side.description["commit"]
    plan = {
        "schema": SCHEMA,
        "schema_version": 1,
        "created_at": created,
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in kept.items()},
        "sides": {side.name: to_json(side.description) for side in gate.sides},
        "looks": [{"rounds": look.rounds, "alpha": look.alpha} for look in gate.rules.looks],
        "control": gate.rules.control,
        "cases": [pair.id for pair in gate.selection.cases],
        "skipped": dict(gate.selection.skipped),
        "incomparable": dict(gate.selection.incomparable),
        "new": list(gate.selection.new),
        "harness": measured_by,
    }
    pairs = list(gate.selection.cases)
    shared = (pairs, gate.settings, Path(gate.target).stem, gate.host, warnings, measured_by)
    plans = {side.name: side_plan(side, *shared) for side in gate.sides}
    path = options.out
    if path is None:
        path = Path("firstlight-gates") / f"{stamp(created)}-{Path(gate.target).stem}"
    return GateDirectory.create(path, plan, plans)


def carry_out(
    gate: Gate, directory: GateDirectory, options: argparse.Namespace
) -> tuple[GateReport, list[Explanation]]:
    """Measure, decide, explain; everything is on disk when this returns."""
    from firstlight.gate.breakage import last_attempts
    from firstlight.gate.job import measure_and_judge, not_comparable, require_some, with_notes
    from firstlight.gate.measuring import Pair
    from firstlight.gate.outputs import failing_cases, markdown, measured_cases
    from firstlight.gate.provenance import require_own_code
    from firstlight.present.progress import Progress
    from firstlight.records import write_json

    for name, reason in gate.selection.skipped.items():
        say(f"Skipped: {name}, because {reason}.")
    for side, why in gate.selection.unimportable.items():
        say(f"The benchmark file of {side} cannot be imported: {why}.")
    deadline = time.monotonic() + 60 * options.max_minutes
    progress = Progress(sys.stderr)
    done = directory.samples()
    pairs, keep = gate.selection.cases, directory.keepers()
    try:
        with Pair(pairs, gate.settings, gate.sides, keep, done) as pair:
            pair.prepare(progress.before)
            require_own_code(gate.sides, pair.modules)
            checked = {side: last_attempts(v) for side, v in directory.samples().items()}
            different = not_comparable(directory.runs(checked), checked, [p.id for p in pairs])
            require_some(different, [p.id for p in pairs if p.id != gate.rules.control])
            pair.leave_out(different)
            report = measure_and_judge(
                pair, gate.rules, directory.samples, progress.before, deadline, different
            )
    finally:
        progress.close()
    directory.publish_sides(os.getloadavg() if hasattr(os, "getloadavg") else None)
    new = [f"{name}: new in head, nothing to compare with." for name in gate.selection.new]
    incomparable = {**gate.selection.incomparable, **different}
    report = with_notes(report, incomparable, new, gate.selection.unimportable)
    write_json(directory.path / "gate.json", report)  # before explaining, which may be stopped
    found: list[Explanation] = []
    names = failing_cases(report) if options.explain else []
    if options.explain_all:
        names = [c for c in measured_cases(report) if c != report.control]
    if names:
        from firstlight.gate.explain import explain

        say("Explaining, with processes that are not timed.")
        chosen = [case for case in pairs if case.id in names]
        folder = directory.path / "explain"
        found = [explain(report, c, gate.settings, gate.sides, folder) for c in chosen]
    directory.write("gate.md", markdown(report, gate.side_words, found))
    return report, found


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

    from firstlight.gate.outputs import github_annotations, junit, markdown
    from firstlight.records import to_json, write_text

    summary = markdown(report, gate.side_words, explanations)
    if options.markdown:
        write_text(options.markdown, summary)
    if options.junit:
        write_text(options.junit, junit(report))
    step = os.environ.get("GITHUB_STEP_SUMMARY")
    if step:
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
    print_report(gate, report, explanations)
    if on_github:
        print(f"::{token}::")
        for line in github_annotations(report, gate.places):
            print(line)


def print_report(gate: Gate, report: GateReport, explanations: list[Explanation]) -> None:
    from firstlight.gate.terminal import print_explanation, print_gate

    print_gate(report, gate.side_words)
    for explanation in explanations:
        print_explanation(explanation)
    sys.stdout.flush()


def say(text: str) -> None:
    from firstlight.present.plain_text import printable

    print(printable(text), file=sys.stderr)
