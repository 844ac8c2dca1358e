"""A gate's report on the terminal, as Markdown, as JUnit XML, as GitHub annotations.

Names of cases and messages come from users' files. Each format has its own way to be misled by
them, so each has its own escaping, and nothing is inserted without it.
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
#: Functions and programs that a summary names; the rest is in the files.
_MAX_SHOWN = 5
_STYLES = {"pass": "green", "regression": "bold red"}
_MARKS = {"regression": "✗", "improvement": "↑", "same": "✓", "inconclusive": "?"}


@dataclass(frozen=True)
class CaseLine:
    """Where a case is written, for annotations: a path in the repository and a line."""

    file: str
    line: int


def changed_counts(report: GateReport) -> list[CountChange]:
    return [c for c in report.counts if c.verdict != "same" and c.case != report.control]


def failing_cases(report: GateReport) -> list[str]:
    """Cases with a regression, in the order of the report."""
    found: list[Comparison | CountChange] = [*report.decisive, *report.gated_counts]
    return list(dict.fromkeys(c.case for c in found if c.verdict == "regression"))


def is_judged(report: GateReport) -> bool:
    """Whether times were judged, so that it matters by which rule."""
    return report.rounds > 0 and report.verdict != "infrastructure"


def effect(found: Comparison) -> str:
    """The change with its interval; as a factor where a percentage would have too many digits."""
    e = found.effect
    ends = (e.ratio, e.low, e.high)
    percent = max(e.high, 1 / e.low) < 4
    ratio, low, high = (change(end) if percent else f"×{end:.3g}" for end in ends)
    return f"{ratio} [{low}, {high}]"


def shown_count(value: int | None) -> str:
    return "varies" if value is None else str(value)


def _medians(found: Comparison) -> str:
    return f"{plain_seconds(found.base.median)} → {plain_seconds(found.head.median)}"


def explained(explanation: Explanation) -> list[str]:
    """An explanation in sentences: phases, functions, programs."""
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


# --- Markdown -------------------------------------------------------------------------------------


def markdown(
    report: GateReport,
    sides: Mapping[str, str] | None = None,
    explanations: Sequence[Explanation] = (),
) -> str:
    """A summary for a pull request; `sides` says what base and head are."""
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
        lines += ["", f"#### What moved in {code(explanation.case)}", ""]
        lines += [f"- {text(line)}" for line in explained(explanation)]
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
        f"{report.rounds} rounds or more per case, both sides in each, in random order. Without "
        f"any change, a gate that stops here claims one with a probability of at most "
        f"{report.alpha:.0%} (exact sign-flip test, Holm over all gated comparisons). Changes "
        f"under {report.minimum_effect:.0%} do not count; what could still be "
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
    """Text as code: every sign that Markdown or HTML could read is written as its number."""
    safe = "".join(c if c.isalnum() or c in " ,/-.()+" else f"&#{ord(c)};" for c in one_line(value))
    return f"<code>{_no_address(safe)}</code>"


def text(value: str) -> str:
    """Text in a sentence. The invisible space keeps @names and #numbers from calling anybody."""
    signs = {c: f"&#{ord(c)};" for c in "\\`*_{}[]<>&|~$!"}
    signs |= {c: f"&#{ord(c)};\u200b" for c in "@#"}
    escaped = "".join(signs.get(c, c) for c in one_line(value))
    return _no_address(escaped.replace("://", "&#58;//"))


def _no_address(escaped: str) -> str:
    """GitHub makes a link of whatever begins like an address."""
    return re.sub(r"(?i)(www)\.", r"\1&#46;", escaped)


def one_line(value: str) -> str:
    return " ".join(xml_text(value).split())


# --- JUnit ----------------------------------------------------------------------------------------


def junit(report: GateReport) -> str:
    """One test per decisive comparison, gated count and broken case, timed by head's median."""
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
    """A process that broke and then did not is nothing to fail for, and nothing to hide."""
    return "regression" if found.verdict == "regression" else "inconclusive"


# --- GitHub annotations ---------------------------------------------------------------------------


def github_annotations(
    report: GateReport, places: Mapping[str, CaseLine] | None = None
) -> list[str]:
    """Workflow commands: an error for each regression, a warning for what proves nothing."""
    by_head = report.broken_by_head
    rows: list[tuple[str, str, str, str]] = [
        *((c.case, c.quantity, c.verdict, _said(c)) for c in report.decisive if may_be_slower(c)),
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


def _said(found: Comparison) -> str:
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
    """As the runner decodes it: percent first, then what would end the line."""
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
