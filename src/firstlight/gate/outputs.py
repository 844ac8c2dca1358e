"""The report of a gate for the terminal, and as Markdown, JUnit XML and GitHub annotations.

Names of cases and messages come from users' files, so everything inserted is escaped for the
format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from firstlight.compare.verdicts import Comparison, CountChange, change, may_be_slower
from firstlight.gate.breakage import Flakiness, flaky_sentence
from firstlight.gate.decision import GateReport
from firstlight.gate.explain import Explanation
from firstlight.present.plain_text import xml_text
from firstlight.present.quantities import plain_seconds
from firstlight.present.terminal import Terminal, escape
from firstlight.report.comparison_table import comparison_table
from firstlight.statistics.calibration import Thresholds, min_results

HEADLINES = {
    "pass": "passed: nothing got worse",
    "regression": "failed: something got worse",
    "infrastructure": "could not be carried out",
    "inconclusive": "is inconclusive: it proves neither a regression nor its absence",
}
#: Functions and programs listed in a summary; the files have all of them.
_MAX_SHOWN = 5
_STYLES = {"pass": "green", "regression": "bold red"}
_MARKS = {"regression": "✗", "improvement": "↑", "same": "✓", "inconclusive": "?"}


@dataclass(frozen=True)
class CaseLine:
    """Where a case is defined: a path in the repository and a line, for annotations."""

    file: str
    line: int


def changed_counts(report: GateReport) -> list[CountChange]:
    return [c for c in report.counts if c.verdict != "same" and c.case != report.control]


def failing_cases(report: GateReport) -> list[str]:
    """Cases with a regression, in the order of the report."""
    found: list[Comparison | CountChange] = [*report.decisive, *report.gated_counts]
    return list(dict.fromkeys(c.case for c in found if c.verdict == "regression"))


def is_judged(report: GateReport) -> bool:
    """Whether times were judged, so that the rule should be shown."""
    return report.rounds > 0 and report.verdict != "infrastructure"


def effect(found: Comparison) -> str:
    """The change with its interval: in per cent, or as a factor if it is large."""
    e = found.effect
    ends = (e.ratio, e.low, e.high)
    percent = max(e.high, 1 / e.low) < 4
    ratio, low, high = (change(end) if percent else f"×{end:.3g}" for end in ends)
    return f"{ratio} [{low}, {high}]"


def shown_count(value: int | None) -> str:
    return "varies" if value is None else str(value)


def _medians(found: Comparison) -> str:
    return f"{plain_seconds(found.base.median)} → {plain_seconds(found.head.median)}"


def explanation_lines(explanation: Explanation) -> list[str]:
    """An explanation in words, one line per phase, function and program."""
    lines = []
    for phase in explanation.phases:
        shift = phase.head.median - phase.base.median
        moved = f"{'+' if shift > 0 else '−'}{plain_seconds(abs(shift))}"
        lines.append(f"phase {phase.quantity}: {_medians(phase)} ({moved}), {effect(phase)}")
    for f in explanation.functions[:_MAX_SHOWN]:
        times = f", {f.base_times} → {f.head_times} times" if f.base_times != f.head_times else ""
        seconds = f"{plain_seconds(f.base_seconds)} → {plain_seconds(f.head_seconds)}"
        lines.append(f"function {f.function}, {f.phase}: {seconds}{times}")
    changed = [p for p in explanation.programs if p.status != "same"]
    for p in sorted(changed, key=lambda p: -abs(p.total[1] - p.total[0]))[:_MAX_SHOWN]:
        kinds = ", ".join(f"{k} {a} → {b}" for k, (a, b) in list(p.instructions.items())[:12])
        counted = f"{p.total[0]} → {p.total[1]} instructions" + (f" ({kinds})" if kinds else "")
        lines.append(f"program {p.name} ({p.status}): {counted}")
    if every := len(explanation.programs):
        lines.append(f"{every - len(changed)} of {every} compiled programs are the same")
    if explanation.folder:
        lines.append(f"programs and differences: {explanation.folder}")
    return [*lines, explanation.problem] if explanation.problem else lines


# --- terminal -------------------------------------------------------------------------------------


def print_gate(report: GateReport, sides: Mapping[str, str]) -> None:
    """Print the decisive comparisons, the counts that changed, the control, and the verdict."""
    console = Terminal()
    for name, what in sides.items():
        console.print(f"{name}: {escape(what)}")
    console.print()
    # The control last: it tells whether the others are credible.
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
    """Print what changed in a case."""
    console = Terminal()
    console.print(f"\nWhat changed in {escape(explanation.case)}:")
    for line in explanation_lines(explanation):
        console.print(f"· {escape(line)}")


def print_thresholds(thresholds: Thresholds, report: GateReport) -> None:
    """Print the thresholds of a gate like `report` on this machine."""
    rows = []
    for c in (c for c in report.comparisons if c.gated):
        own = sum((r.case, r.quantity) == (c.case, c.quantity) for r in thresholds.results)
        found = thresholds.of(c.case, c.quantity, report.rounds)
        limit = f"{(found.ratio - 1) * 100:.1f} %" if found else ""
        source = found.source if found else f"{min_results(thresholds.alpha) - own} more are needed"
        rows.append((c.case, c.quantity, source, str(own), limit))
    columns = ("case", "quantity", "source", "A/A ratios", "threshold")
    Terminal().table("Thresholds", columns, rows, texts=3)


# --- Markdown -------------------------------------------------------------------------------------


def markdown(
    report: GateReport,
    sides: Mapping[str, str] | None = None,
    explanations: Sequence[Explanation] = (),
) -> str:
    """A summary for a pull request; `sides` describes base and head."""
    lines = [f"### Firstlight gate {HEADLINES[report.verdict]}", ""]
    lines += [f"- {name}: {code(what)}" for name, what in (sides or {}).items()]
    lines += ["", *_markdown_table(report.decisive)]
    if counts := changed_counts(report):
        lines += ["", "| case | count | base | head | |", "|---|---|---:|---:|---|"]
        lines += [
            f"| {code(c.case)} | {code(c.name)} | {shown_count(c.base)} | {shown_count(c.head)} "
            f"| {_MARKS[c.verdict]} {c.verdict}{'' if c.gated else ' (not gated)'} |"
            for c in counts
        ]
    if report.reasons:
        lines += ["", *(f"- {text(reason)}" for reason in report.reasons)]
    for explanation in explanations:
        lines += ["", f"#### What changed in {code(explanation.case)}", ""]
        lines += [f"- {text(line)}" for line in explanation_lines(explanation)]
    if is_judged(report):
        lines += ["", *_markdown_details(report)]
    return "\n".join(lines) + "\n"


def _markdown_table(rows: Sequence[Comparison]) -> list[str]:
    if not rows:
        return []
    head = ["| case | quantity | base | head | change | |", "|---|---|---:|---:|---:|---|"]
    return head + [
        f"| {code(c.case)} | {code(c.quantity)} | {plain_seconds(c.base.median)} "
        f"| {plain_seconds(c.head.median)} | {effect(c)} | {_MARKS[c.verdict]} {c.verdict} |"
        for c in rows
    ]


def _markdown_details(report: GateReport) -> list[str]:
    rule = (
        f"At least {report.rounds} rounds per case, each with both sides in random order. If "
        f"nothing changed, a gate that stops here claims a change with a probability of at most "
        f"{report.alpha:.0%} (exact sign-flip test, Holm over all gated comparisons). Changes "
        f"under {report.minimum_effect:.0%} do not count; a case that may still be "
        f"{report.resolution:.0%} slower is inconclusive. Calibration: {text(report.calibration)}."
    )
    lines = ["<details><summary>How it was decided</summary>", "", rule, ""]
    control = [c for c in report.comparisons if c.case == report.control]
    others = [c for c in report.comparisons if not c.gated and c.case != report.control]
    for title, rows in (("Control", control), ("Measured, but not gated", others)):
        if rows:
            lines += [f"{title}:", "", *_markdown_table(rows), ""]
    return [*lines, "</details>"]


def code(value: str) -> str:
    """Text as code: characters with a meaning in Markdown or HTML become numeric references."""
    safe = "".join(c if c.isalnum() or c in " ,/-.()+" else f"&#{ord(c)};" for c in one_line(value))
    return f"<code>{_no_address(safe)}</code>"


def text(value: str) -> str:
    """Text in a sentence; an invisible space keeps @names and #numbers from becoming mentions."""
    signs = {c: f"&#{ord(c)};" for c in "\\`*_{}[]<>&|~$!"}
    signs |= {c: f"&#{ord(c)};\u200b" for c in "@#"}
    escaped = "".join(signs.get(c, c) for c in one_line(value))
    return _no_address(escaped.replace("://", "&#58;//"))


def _no_address(escaped: str) -> str:
    """Prevent GitHub from making a link of text that begins like an address."""
    return re.sub(r"(?i)(www)\.", r"\1&#46;", escaped)


def one_line(value: str) -> str:
    return " ".join(xml_text(value).split())


# --- JUnit ----------------------------------------------------------------------------------------


def junit(report: GateReport) -> str:
    """One test per decisive comparison, gated count and broken case; its time is head's median."""
    suite = ElementTree.Element("testsuite", name="firstlight gate")
    for found in report.decisive:
        words = f"{found.quantity}: {effect(found)}, beyond {change(found.threshold)} counts"
        test = _test(suite, found.case, found.quantity, found.head.median)
        _outcome(test, found.verdict, found.reason or words, words)
    for count in report.gated_counts:
        reason = count.reason or ""
        _outcome(_test(suite, count.case, count.name), count.verdict, reason, reason)
    for case, why in report.broken.items():
        kind = "failure" if case in report.broken_by_head else "error"
        test = _test(suite, case, "measurable")
        ElementTree.SubElement(test, kind, message=xml_text(why), type="broken")
    for flaky in report.flaky:
        words = flaky_sentence(flaky)
        _outcome(_test(suite, flaky.case, "stable"), _as_outcome(flaky), words, words)
    if report.control_moved:
        test = _test(suite, str(report.control), "control")
        ElementTree.SubElement(test, "skipped", message="the control case moved")
    suite.set("tests", str(len(suite)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    out = ElementTree.SubElement(suite, "system-out")
    out.text = xml_text("\n".join([f"verdict: {report.verdict}", *report.reasons]))
    root = ElementTree.Element("testsuites", dict(suite.attrib))
    root.append(suite)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _test(
    suite: ElementTree.Element, case: str, name: str, seconds: float = 0.0
) -> ElementTree.Element:
    attributes = {"classname": xml_text(case), "name": xml_text(name), "time": f"{seconds:.9f}"}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _outcome(test: ElementTree.Element, verdict: str, message: str, body: str) -> None:
    message = xml_text(message)
    if verdict == "regression":
        failure = ElementTree.SubElement(test, "failure", message=message, type="regression")
        failure.text = xml_text(body)
    elif verdict == "inconclusive":
        ElementTree.SubElement(test, "skipped", message=message)


def _as_outcome(found: Flakiness) -> str:
    """A flaky case as the verdict on a test: not a failure, but not hidden either."""
    return "regression" if found.verdict == "regression" else "inconclusive"


# --- GitHub annotations ---------------------------------------------------------------------------


def github_annotations(
    report: GateReport, places: Mapping[str, CaseLine] | None = None
) -> list[str]:
    """Workflow commands: an error per regression, a warning per inconclusive result."""
    by_head = report.broken_by_head
    rows: list[tuple[str, str, str, str]] = [
        *((c.case, c.quantity, c.verdict, _words(c)) for c in report.decisive if may_be_slower(c)),
        *((c.case, c.name, c.verdict, c.reason or "") for c in report.gated_counts),
        *(
            (case, "broken", "regression" if case in by_head else "inconclusive", why)
            for case, why in report.broken.items()
        ),
        *((f.case, "flaky", _as_outcome(f), flaky_sentence(f)) for f in report.flaky),
    ]
    levels = {"regression": "error", "inconclusive": "warning"}
    lines = [
        _command(levels[verdict], f"{case}: {what}", message, (places or {}).get(case))
        for case, what, verdict, message in rows
        if verdict in levels
    ]
    if report.control_moved:
        moved = report.control_sentences[0]
        lines.append(_command("warning", f"{report.control}: control", moved, None))
    return lines


def _words(found: Comparison) -> str:
    words = f"{_medians(found)}, {effect(found)}"
    return f"{words}: {found.reason}" if found.reason else words


def _command(level: str, title: str, message: str, place: CaseLine | None) -> str:
    where = {"file": place.file, "line": str(place.line)} if place else {}
    properties = {**where, "title": title}
    listed = ",".join(
        f"{name}={_data(value).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in properties.items()
    )
    return f"::{level} {listed}::{_data(message)}"


def _data(value: str) -> str:
    """Escape as the runner expects: percent signs first, then line ends."""
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
