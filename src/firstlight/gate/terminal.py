"""A gate's report as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from firstlight.gate.decision import GateReport
from firstlight.gate.explain import Explanation
from firstlight.gate.outputs import HEADLINES, changed_counts, decisive, explained, is_judged
from firstlight.present.terminal import Terminal, escape
from firstlight.report.comparison_table import comparison_table
from firstlight.statistics.calibration import Threshold

_STYLES = {"regression": "bold red", "improvement": "green", "same": "", "inconclusive": "yellow"}
_VERDICT_STYLES = {"pass": "green", "regression": "bold red"}


def print_gate(
    report: GateReport, sides: Mapping[str, str], console: Console | None = None
) -> None:
    """The decisive comparisons, the counts that changed, the control, and the verdict."""
    console = console or Terminal()
    for name, what in sides.items():
        console.print(f"{name}: {escape(what)}")
    console.print()
    rows = decisive(report)
    # The control last: it says whether the others may be believed.
    control = [c for c in report.comparisons if c.case == report.control and c.gated]
    if rows or control:
        console.print(comparison_table([*rows, *control]))
    counts = changed_counts(report)
    if counts:
        console.print(_counts(report))
    same = sum(1 for c in report.counts if c.verdict == "same" and c.gated)
    if same:
        console.print(f"{same} exact counts are the same on both sides.")
    console.print()
    style = _VERDICT_STYLES.get(report.verdict, "yellow")
    console.print(f"The gate {HEADLINES[report.verdict]}.", style=style)
    for reason in report.reasons:
        console.print(f"· {escape(reason)}")
    if not is_judged(report):
        return
    console.print(
        f"{report.rounds} rounds, error rate {report.alpha:.0%} at this look. "
        f"Calibration: {escape(report.calibration)}.",
        style="dim",
    )


def _counts(report: GateReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("case", "count", "base", "head", "verdict"):
        table.add_column(name, justify="right" if name in ("base", "head") else "left")
    for c in changed_counts(report):
        values = ["varies" if v is None else str(v) for v in (c.base, c.head)]
        verdict = c.verdict if c.gated else f"{c.verdict} (not gated)"
        style = _STYLES[c.verdict] if c.gated else "dim"
        table.add_row(escape(c.case), escape(c.name), *values, verdict, style=style)
    return table


def print_explanation(explanation: Explanation, console: Console | None = None) -> None:
    """What moved in a case."""
    console = console or Terminal()
    console.print()
    console.print(f"What moved in {escape(explanation.case)}:")
    for line in explained(explanation):
        console.print(f"· {escape(line)}")


def print_thresholds(
    rows: Sequence[tuple[str, str, int, Threshold | None]],
    least: int,
    console: Console | None = None,
) -> None:
    """What a gate on this machine would have to exceed."""
    console = console or Terminal()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("case", "quantity", "A/A ratios", "threshold", ""):
        table.add_column(name, justify="right" if name in ("A/A ratios", "threshold") else "left")
    for case, quantity, number, found in rows:
        limit = f"{(found.ratio - 1) * 100:.1f} %" if found else ""
        source = found.source if found else f"{least - number} more are needed"
        table.add_row(escape(case), escape(quantity), str(number), limit, escape(source))
    console.print(table)
