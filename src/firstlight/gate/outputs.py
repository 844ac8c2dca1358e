"""A gate's report for machines and reviewers: Markdown, JUnit XML, GitHub annotations.

Names of cases and messages come from users' files. Each format has its own way to be misled by
them, so each has its own escaping, and nothing is inserted without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from xml.etree import ElementTree

from firstlight.compare.verdicts import Comparison, CountChange, change, may_be_slower
from firstlight.gate.breakage import Flakiness, flaky_sentence
from firstlight.gate.decision import GateReport, control_sentences
from firstlight.gate.explain import Explanation
from firstlight.present.plain_text import xml_text
from firstlight.present.quantities import plain_seconds

HEADLINES = {
    "pass": "passed: nothing got worse",
    "regression": "failed: something got worse",
    "infrastructure": "could not be carried out",
    "inconclusive": "is inconclusive: it proves neither a regression nor its absence",
}
#: Functions and programs that a summary names; the rest is in the files.
_MAX_SHOWN = 5
_MARKS = {"regression": "✗", "improvement": "↑", "same": "✓", "inconclusive": "?"}


@dataclass(frozen=True)
class CaseLine:
    """Where a case is written, for annotations: a path in the repository and a line."""

    file: str
    line: int


def decisive(report: GateReport) -> list[Comparison]:
    """The comparisons that the verdict rests on, without the control."""
    return [c for c in report.comparisons if c.gated and c.case != report.control]


def changed_counts(report: GateReport) -> list[CountChange]:
    return [c for c in report.counts if c.verdict != "same" and c.case != report.control]


def failing_cases(report: GateReport) -> list[str]:
    """Cases with a regression, in the order of the report."""
    found: list[Comparison | CountChange] = [*decisive(report)]
    found += [c for c in changed_counts(report) if c.gated]
    return list(dict.fromkeys(c.case for c in found if c.verdict == "regression"))


def measured_cases(report: GateReport) -> list[str]:
    return list(dict.fromkeys(c.case for c in report.comparisons))


# --- Markdown -------------------------------------------------------------------------------------


def markdown(
    report: GateReport,
    sides: Mapping[str, str] | None = None,
    explanations: Sequence[Explanation] = (),
) -> str:
    """A summary for a pull request; `sides` says what base and head are."""
    lines = [f"### Firstlight gate {HEADLINES[report.verdict]}", ""]
    lines += [f"- {name}: {code(what)}" for name, what in (sides or {}).items()]
    lines += ["", *_markdown_table(decisive(report))]
    counts = changed_counts(report)
    if counts:
        lines += ["", "| case | count | base | head | |", "|---|---|---:|---:|---|"]
        lines += [
            f"| {code(c.case)} | {code(c.name)} | {_whole(c.base)} | {_whole(c.head)} "
            f"| {_MARKS[c.verdict]} {c.verdict}{'' if c.gated else ' (not gated)'} |"
            for c in counts
        ]
    if report.reasons:
        lines += ["", *(f"- {text(reason)}" for reason in report.reasons)]
    for explanation in explanations:
        lines += ["", f"#### What moved in {code(explanation.case)}", ""]
        lines += [f"- {text(line)}" for line in explained(explanation)]
    lines += ["", *_markdown_details(report)]
    return "\n".join(lines) + "\n"


def explained(explanation: Explanation) -> list[str]:
    """An explanation in sentences: phases, functions, programs."""
    lines = []
    for phase in explanation.phases:
        shift = phase.head.median - phase.base.median
        moved = f"{'+' if shift > 0 else '−'}{plain_seconds(abs(shift))}"
        lines.append(f"phase {phase.quantity}: {_medians(phase)} ({moved}), {effect(phase)}")
    for f in explanation.functions[:_MAX_SHOWN]:
        times = f", {f.base_times} → {f.head_times} times" if f.base_times != f.head_times else ""
        lines.append(
            f"function {f.function}, {f.phase}: {plain_seconds(f.base_seconds)} → "
            f"{plain_seconds(f.head_seconds)}{times}"
        )
    programs = [p for p in explanation.programs if p.status != "same"]
    same = len(explanation.programs) - len(programs)
    ranked = sorted(programs, key=lambda p: -abs(p.total[1] - p.total[0]))
    for p in ranked[:_MAX_SHOWN]:
        kinds = ", ".join(f"{k} {a} → {b}" for k, (a, b) in list(p.instructions.items())[:12])
        counted = f"{p.total[0]} → {p.total[1]} instructions" + (f" ({kinds})" if kinds else "")
        lines.append(f"program {p.name} ({p.status}): {counted}")
    if explanation.programs:
        lines.append(f"{same} of {len(explanation.programs)} compiled programs are the same")
    if explanation.folder:
        lines.append(f"programs and differences: {explanation.folder}")
    if explanation.problem:
        lines.append(explanation.problem)
    return lines


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
    others = [c for c in report.comparisons if not c.gated and c.case != report.control]
    control = [c for c in report.comparisons if c.case == report.control]
    if not is_judged(report):
        return []
    lines = ["<details><summary>How it was decided</summary>", "", rule_of(report), ""]
    for title, rows in (("Control", control), ("Measured, but not gated", others)):
        if rows:
            lines += [f"{title}:", "", *_markdown_table(rows), ""]
    return [*lines, "</details>"]


def is_judged(report: GateReport) -> bool:
    """Whether times were judged, so that it matters by which rule."""
    return report.rounds > 0 and report.verdict != "infrastructure"


def rule_of(report: GateReport) -> str:
    """What the verdict means, in plain sentences."""
    return (
        f"{report.rounds} rounds or more a case, both sides in each, in random order. Without any "
        f"change, a gate that stops here claims one with a probability of {report.alpha:.0%} at "
        "most (exact sign-flip test, Holm over all gated comparisons). Changes under "
        f"{report.minimum_effect:.0%} do not count; what could still be "
        f"{report.resolution:.0%} slower is inconclusive. "
        f"Calibration: {text(report.calibration)}."
    )


def effect(found: Comparison) -> str:
    """The change with its interval; as a factor where a percentage would have too many digits."""
    e = found.effect
    shown = change if max(e.high, 1 / e.low) < 4 else _factor
    return f"{shown(e.ratio)} [{shown(e.low)}, {shown(e.high)}]"


def _medians(found: Comparison) -> str:
    return f"{plain_seconds(found.base.median)} → {plain_seconds(found.head.median)}"


def _factor(ratio: float) -> str:
    return f"×{ratio:.3g}"


def _whole(value: int | None) -> str:
    return "varies" if value is None else str(value)


def code(value: str) -> str:
    """Text as code: every sign that Markdown or HTML could read is written as its number."""
    safe = "".join(c if c.isalnum() or c in " ,/-.()+" else f"&#{ord(c)};" for c in one_line(value))
    return f"<code>{_no_address(safe)}</code>"


def text(value: str) -> str:
    """Text in a sentence. The invisible space keeps @names and #numbers from calling anybody."""
    escaped = []
    for c in one_line(value):
        if c in "@#":
            escaped.append(f"&#{ord(c)};\u200b")
        elif c in "\\`*_{}[]<>&|~$!":
            escaped.append(f"&#{ord(c)};")
        else:
            escaped.append(c)
    return _no_address("".join(escaped).replace("://", "&#58;//"))


def _no_address(escaped: str) -> str:
    """GitHub makes a link of whatever begins like an address."""
    return re.sub(r"(?i)(www)\.", r"\1&#46;", escaped)


def one_line(value: str) -> str:
    return " ".join(xml_text(value).split())


# --- JUnit ----------------------------------------------------------------------------------------


def junit(report: GateReport) -> str:
    """JUnit XML: one test for each decisive comparison, each gated count, each broken case.

    `time` is the head's median in seconds. A regression is a failure, and so is a case that head
    alone broke; any other broken case is an error, and what stayed undecided is skipped.
    """
    suite = ElementTree.Element("testsuite", name="firstlight gate")
    for found in decisive(report):
        test = _test(suite, found.case, found.quantity, found.head.median)
        words = f"{found.quantity}: {effect(found)}, beyond {change(found.threshold)} counts"
        _outcome(test, found.verdict, found.reason or words, words)
    for count in report.counts:
        if count.gated and count.case != report.control:
            test = _test(suite, count.case, count.name)
            _outcome(test, count.verdict, count.reason or "", count.reason or "")
    for case, why in report.broken.items():
        kind = "failure" if case in report.broken_by_head else "error"
        ElementTree.SubElement(
            _test(suite, case, "measurable"), kind, message=xml_text(why), type="broken"
        )
    for flaky in report.flaky:
        words = flaky_sentence(flaky)
        _outcome(_test(suite, flaky.case, "stable"), _as_outcome(flaky), words, words)
    if report.control_moved:
        test = _test(suite, str(report.control), "control")
        ElementTree.SubElement(test, "skipped", message="the control case moved")
    _count(suite)
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
    if verdict == "regression":
        failure = ElementTree.SubElement(
            test, "failure", message=xml_text(message), type="regression"
        )
        failure.text = xml_text(body)
    elif verdict == "inconclusive":
        ElementTree.SubElement(test, "skipped", message=xml_text(message))


def _as_outcome(found: Flakiness) -> str:
    """A process that broke and then did not is nothing to fail for, and nothing to hide."""
    return "regression" if found.verdict == "regression" else "inconclusive"


def _count(suite: ElementTree.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))


# --- GitHub annotations ---------------------------------------------------------------------------


def github_annotations(
    report: GateReport, places: Mapping[str, CaseLine] | None = None
) -> list[str]:
    """Workflow commands: an error for each regression, a warning for what proves nothing."""
    lines, by_head = [], report.broken_by_head
    rows: Iterable[tuple[str, str, str, str]] = (
        *((c.case, c.quantity, c.verdict, _said(c)) for c in decisive(report) if may_be_slower(c)),
        *((c.case, c.name, c.verdict, c.reason or "") for c in changed_counts(report) if c.gated),
        *(
            (case, "broken", "regression" if case in by_head else "inconclusive", why)
            for case, why in report.broken.items()
        ),
        *((f.case, "flaky", _as_outcome(f), flaky_sentence(f)) for f in report.flaky),
    )
    for case, what, verdict, message in rows:
        level = {"regression": "error", "inconclusive": "warning"}.get(verdict)
        if level is not None:
            lines.append(_command(level, case, what, message, (places or {}).get(case)))
    if report.control_moved:
        moved = control_sentences(report)[0]
        lines.append(_command("warning", str(report.control), "control", moved, None))
    return lines


def _said(found: Comparison) -> str:
    words = f"{_medians(found)}, {effect(found)}"
    return f"{words}: {found.reason}" if found.reason else words


def _command(level: str, case: str, what: str, message: str, place: CaseLine | None) -> str:
    properties = {"title": f"{case}: {what}"}
    if place is not None:
        file = str(PurePosixPath(place.file))
        properties = {"file": file, "line": str(place.line), **properties}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {listed}::{_data(message)}"


def _data(value: str) -> str:
    """As the runner decodes it: percent first, then what would end the line."""
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
