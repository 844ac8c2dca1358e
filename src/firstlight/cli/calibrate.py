"""`firstlight calibrate`: gates between equal sides, to measure the noise of this machine."""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstlight.cli import gate as gate_command
from firstlight.cli import values
from firstlight.cli.gate_arguments import add_cases
from firstlight.cli.run import signals_interrupt

if TYPE_CHECKING:
    from firstlight.gate.decision import GateReport
    from firstlight.gate.sides import Side
    from firstlight.statistics.calibration import Thresholds

#: Gate options that an A/A gate does not have.
_GATE_DEFAULTS: dict[str, Any] = {
    "base": None,
    "head": None,
    "base_env": None,
    "head_env": None,
    "bench_from": None,
    "minimum_effect": None,
    "gate_on": None,
    "no_counts": False,
    "keep_going": False,
    "control": None,
    "calibration": None,
    "no_calibration": True,
    "resume": None,
    "explain": False,
    "explain_all": False,
    "json": False,
    "markdown": None,
    "junit": None,
    "annotations": False,
    "seed": None,
    "out": None,
}


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "calibrate",
        description="Run A/A gates: the same side twice. Their ratios become the thresholds that "
        "`firstlight gate` uses on this class of machine. 5 % takes at least 19 gates.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("target", nargs="?", metavar="SUITE|WORKLOAD|FILE.py", help="as for `firstlight gate`")
    add("--gates", type=values.processes, default=20, metavar="K", help="A/A gates (default 20)")
    add(
        "--rounds",
        type=values.processes,
        default=12,
        metavar="N",
        help="rounds per gate (default 12)",
    )
    add("--max-minutes", type=values.minutes, metavar="M", help="start no gate after this time")
    add("--alpha", type=values.share, default=0.05, help="false-alarm rate of the thresholds")
    add("--file", type=Path, metavar="FILE", help="calibration to add to (default: this machine's)")
    add("--keep", type=Path, metavar="DIR", help="directory for the gates; must be new")
    sides = parser.add_argument_group("sides (default: this interpreter twice)")
    sides.add_argument("--rev", metavar="REV", help="two checkouts of one revision")
    sides.add_argument("--setup", metavar="CMD", help="as for `firstlight gate`")
    sides.add_argument("--python", metavar="PATH", help="as for `firstlight gate`")
    sides.add_argument("--env", type=Path, metavar="ENV", help="one virtual environment twice")
    add_cases(parser.add_argument_group("cases"))
    parser.set_defaults(handle=handle)


EPILOG = """\
examples:
  firstlight calibrate mlp_train -b small
  firstlight calibrate bench_mine.py --rev main --gates 4      a few every night: they add up

exit codes: 0 done, 2 wrong usage or nothing could be measured, 130 interrupted (every finished
gate is kept)"""


def handle(options: argparse.Namespace) -> int:
    from firstlight.compare.conditions import machine_class
    from firstlight.gate.calibrating import default_path
    from firstlight.measure.host import describe_host
    from firstlight.present.quantities import duration
    from firstlight.records import now, stamp
    from firstlight.statistics.calibration import Thresholds, load_thresholds

    machine = machine_class(describe_host())
    path = options.file or default_path(machine)
    thresholds = Thresholds(machine, options.alpha)
    if path.exists():
        thresholds = load_thresholds(path, machine)
    name = Path(options.target or "quick").stem
    folder = options.keep or Path("firstlight-gates") / f"{stamp(now())}-calibrate-{name}"
    began = time.monotonic()
    reports: list[GateReport] = []
    try:
        with signals_interrupt():
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
    from firstlight.gate.calibrating import ratios, require_whole
    from firstlight.gate.planning import plan_gate
    from firstlight.records import now
    from firstlight.statistics.calibration import save_thresholds

    asked = {**_GATE_DEFAULTS, **vars(options), "out": folder, "max_minutes": 1e4}
    whole = argparse.Namespace(**asked)
    with _sides(whole) as sides:
        gate = plan_gate(replace(gate_command.request_of(whole), ratios_only=True), sides)
        directory = gate_command.create_directory(whole, gate)
        try:
            report, _ = gate_command.carry_out(gate, directory, whole)
        finally:
            directory.close()
    require_whole(report, options.rounds)
    thresholds = thresholds.with_results(ratios(report, now()))
    save_thresholds(path, thresholds)
    return report, thresholds


def _sides(options: argparse.Namespace) -> AbstractContextManager[tuple[Side, Side]]:
    from firstlight.gate.sides import same_side_twice

    if options.rev:
        options.base = options.head = options.rev
    elif options.env:
        options.base_env = options.head_env = options.env
    else:
        return same_side_twice()
    return gate_command.sides_of(options)


def print_calibration(thresholds: Thresholds, path: Path, reports: list[GateReport]) -> None:
    """Print the thresholds now in the file, and what these gates claimed without them."""
    from firstlight.gate.calibrating import thresholds_by_case
    from firstlight.gate.terminal import print_thresholds
    from firstlight.statistics.calibration import min_results

    print_thresholds(thresholds_by_case(thresholds, reports[-1]), min_results(thresholds.alpha))
    claims = sum(any(c.verdict == "regression" for c in r.comparisons if c.gated) for r in reports)
    print(
        f"{len(reports)} A/A gates: {claims} claimed a regression without any calibration.\n"
        f"Calibration of {thresholds.machine_class}: {path}"
    )
