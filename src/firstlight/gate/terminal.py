"""A gate's report on the terminal, with tables of its comparisons, counts and thresholds."""

from __future__ import annotations

from collections.abc import Mapping

from firstlight.gate.decision import GateReport
from firstlight.gate.explain import Explanation
from firstlight.gate.outputs import HEADLINES, changed_counts, explained, is_judged, shown_count
from firstlight.present.terminal import Terminal, escape
from firstlight.report.comparison_table import comparison_table
from firstlight.statistics.calibration import Thresholds, min_results

_STYLES = {"pass": "green", "regression": "bold red"}


def print_gate(report: GateReport, sides: Mapping[str, str]) -> None:
    """The decisive comparisons, the counts that changed, the control, and the verdict."""
    console = Terminal()
    for name, what in sides.items():
        console.print(f"{name}: {escape(what)}")
    console.print()
    # The control last: it says whether the others may be believed.
    control = [c for c in report.comparisons if c.case == report.control and c.gated]
    if rows := [*report.decisive, *control]:
        console.print(comparison_table(rows))
    if counts := changed_counts(report):
        console.table(
            "Exact counts that changed",
            ("case", "count", "verdict", "base", "head"),
            [
                (
                    *(c.case, c.name, c.verdict if c.gated else f"{c.verdict} (not gated)"),
                    *map(shown_count, (c.base, c.head)),
                )
                for c in counts
            ],
            texts=3,
        )
    if same := sum(c.verdict == "same" and c.gated for c in report.counts):
        console.print(f"{same} exact counts are the same on both sides.")
    console.print()
    style = _STYLES.get(report.verdict, "yellow")
    console.print(f"The gate {HEADLINES[report.verdict]}.", style=style)
    for reason in report.reasons:
        console.print(f"· {escape(reason)}")
    if is_judged(report):
        console.print(
            f"{report.rounds} rounds, error rate {report.alpha:.0%} at this look. "
            f"Calibration: {escape(report.calibration)}.",
            style="dim",
        )


def print_explanation(explanation: Explanation) -> None:
    """What moved in a case."""
    console = Terminal()
    console.print(f"\nWhat moved in {escape(explanation.case)}:")
    for line in explained(explanation):
        console.print(f"· {escape(line)}")


def print_thresholds(thresholds: Thresholds, report: GateReport) -> None:
    """What a gate like `report` would have to exceed on this machine."""
    rows = []
    for c in (c for c in report.comparisons if c.gated):
        own = sum((r.case, r.quantity) == (c.case, c.quantity) for r in thresholds.results)
        found = thresholds.of(c.case, c.quantity, report.rounds)
        limit = f"{(found.ratio - 1) * 100:.1f} %" if found else ""
        source = found.source if found else f"{min_results(thresholds.alpha) - own} more are needed"
        rows.append((c.case, c.quantity, source, str(own), limit))
    columns = ("case", "quantity", "source", "A/A ratios", "threshold")
    Terminal().table("Thresholds", columns, rows, texts=3)
