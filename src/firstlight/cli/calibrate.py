"""`firstlight calibrate`: gates between equal sides, to measure the noise of this machine.

Every ratio comes from a whole gate of its own: fresh scratch space, fresh caches, fresh order.
Cutting one long recording into pieces, or drawing rounds from it anew, would be quicker, and would
miss what is the same within a job and different in the next; that is what a threshold is for.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli import gate as gate_command
from firstlight.cli import values

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.gate.decision import GateReport
    from firstlight.statistics.calibration import Thresholds

EPILOG = """\
examples:
  firstlight calibrate mlp_train -b small
  firstlight calibrate bench_mine.py --rev main --gates 4      a few every night: they add up

exit codes: 0 done; 2 wrong usage, or nothing could be measured; 130 interrupted (finished gates
are kept)"""


def add_to(commands: Commands) -> None:
    parser = values.add_command(
        commands,
        "calibrate",
        handle,
        "Run A/A gates: the same side twice. Their ratios become the thresholds that\n"
        "`firstlight gate` uses on this class of machine. A false-alarm rate of 5 % needs at\n"
        "least 19 gates.",
        EPILOG,
    )
    add = parser.add_argument
    add("target", nargs="?", metavar="SUITE|WORKLOAD|FILE.py", help="as for `firstlight gate`")
    number = values.processes
    add("--gates", type=number, default=20, metavar="K", help="A/A gates (default: 20)")
    add("--rounds", type=number, default=12, metavar="N", help="rounds per gate (default: 12)")
    add(
        "--max-minutes",
        type=values.minutes,
        metavar="M",
        help="start no gate that would end after M minutes",
    )
    alpha = "false-alarm rate of the thresholds (default: 0.05)"
    add("--alpha", type=values.share, default=0.05, metavar="SHARE", help=alpha)
    add("--file", type=Path, metavar="FILE", help="calibration to add to (default: this machine's)")
    add("--keep", type=Path, metavar="DIR", help="directory for the gates; must be new")
    add = parser.add_argument_group("sides (default: this interpreter twice)").add_argument
    add("--rev", metavar="REV", help="two checkouts of one revision")
    add("--setup", metavar="CMD", help="as for `firstlight gate`")
    add("--python", metavar="PATH", help="as for `firstlight gate`")
    add("--env", metavar="ENV", help="one virtual environment twice")
    gate_command.add_gate_cases(parser.add_argument_group("cases"))


def handle(options: argparse.Namespace) -> int:
    from firstlight.compare.conditions import machine_class
    from firstlight.gate.planning import calibration_path
    from firstlight.measure.host import describe_host
    from firstlight.present.quantities import duration
    from firstlight.records import now, stamp
    from firstlight.statistics.calibration import Thresholds, load_thresholds

    machine = machine_class(describe_host())
    path = options.file or calibration_path(machine)
    known = path.exists()
    thresholds = load_thresholds(path, machine) if known else Thresholds(machine, options.alpha)
    name = Path(options.target or "quick").stem
    folder = options.keep or Path("firstlight-gates") / f"{stamp(now())}-calibrate-{name}"
    began = time.monotonic()
    reports: list[GateReport] = []
    try:
        with values.signals_interrupt():
            for number in range(options.gates):
                if _is_late(options.max_minutes, time.monotonic() - began, number):
                    break
                gate_command.say(f"A/A gate {number + 1} of {options.gates}")
                report, thresholds = one_gate(options, folder / f"{number:03d}", thresholds, path)
                reports.append(report)
    finally:
        if reports:
            print_calibration(thresholds, path, reports)
            print(f"\nTook {duration(time.monotonic() - began)}. Gates: {folder}")
    return 0


def _is_late(max_minutes: float | None, spent: float, done: int) -> bool:
    """Return whether another gate like those so far would end too late."""
    return max_minutes is not None and done > 0 and spent * (done + 1) / done > 60 * max_minutes


def one_gate(
    options: argparse.Namespace, folder: Path, thresholds: Thresholds, path: Path
) -> tuple[GateReport, Thresholds]:
    """Run one A/A gate and add its ratios to the file before the next begins."""
    from firstlight.errors import FirstlightError
    from firstlight.gate.planning import Request, plan_gate, sides_of
    from firstlight.gate.sides import same_side_twice
    from firstlight.records import now
    from firstlight.statistics.calibration import AAResult, save_thresholds

    request = replace(Request.of(vars(options)), no_calibration=True)
    if options.rev:
        request = replace(request, base=options.rev, head=options.rev)
    elif options.env:
        request = replace(request, base_env=options.env, head_env=options.env)
    same = not (options.rev or options.env)
    with same_side_twice() if same else sides_of(request) as sides:
        gate = plan_gate(request, sides, ratios_only=True)
        directory = gate_command.create(gate, folder)
        try:
            report = gate_command.measure(gate, directory)
        finally:
            directory.close()
    # The ratios of a gate that did not come to its end mean something else.
    for case, why in report.broken.items():
        raise FirstlightError(f"{case} cannot be calibrated: {why}.")
    if report.rounds < options.rounds:
        raise FirstlightError(f"the gate ended after {report.rounds} of {options.rounds} rounds.")
    finished = now()
    found = [
        AAResult(c.case, c.quantity, c.effect.ratio, c.effect.n, finished)
        for c in report.comparisons
    ]
    thresholds = thresholds.with_results(found)
    save_thresholds(path, thresholds)
    return report, thresholds


def print_calibration(thresholds: Thresholds, path: Path, reports: list[GateReport]) -> None:
    """Print the thresholds now in the file, and what these gates claimed without them."""
    from firstlight.gate.outputs import print_thresholds

    print_thresholds(thresholds, reports[-1])
    claims = sum(any(c.verdict == "regression" for c in r.comparisons if c.gated) for r in reports)
    print(
        f"{len(reports)} A/A gates: {claims} claimed a regression without any calibration.\n"
        f"Calibration of {thresholds.machine_class}: {path}"
    )
