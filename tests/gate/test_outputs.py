"""What a gate writes for others: hostile names survive every format, and steer none of them."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from firstlight.compare.hlo import ProgramChange
from firstlight.compare.verdicts import Comparison, CountChange
from firstlight.gate.breakage import Flakiness
from firstlight.gate.decision import GateReport
from firstlight.gate.explain import Explanation, FunctionChange
from firstlight.gate.outputs import (
    CaseLine,
    effect,
    failing_cases,
    github_annotations,
    junit,
    markdown,
    print_gate,
)
from firstlight.present.plain_text import xml_text
from firstlight.records import Estimate
from firstlight.statistics.effects import Effect

HOSTILE = (
    "a|b",
    "<script>alert(1)</script>",
    "`code` *bold* _it_ [link](http://evil.example) ![i](x)",
    "@somebody #123 www.evil.example",
    "line\nbreak\r::error::x",
    "100% a,b:c %25 %0A %3A",
    "\"&quot;'",
    "\x1b[31mred\x00\ufffe",
    "\\|escaped",
    "~~gone~~ $x$ <!-- comment -->",
)


def comparison(case: str, verdict: str = "regression", **changes: Any) -> Comparison:
    found = Comparison(
        case=case,
        quantity="cold_seconds",
        gated=True,
        base=Estimate(1.0, 0.9, 1.1, 12, 0.95),
        head=Estimate(1.3, 1.2, 1.4, 12, 0.95),
        effect=Effect(1.3, 1.25, 1.35, 0.95, 0.0005, 12, True),
        p_adjusted=0.001,
        threshold=1.03,
        threshold_source="the minimum effect",
        verdict=verdict,
        reason="too noisy" if verdict == "inconclusive" else None,
    )
    return replace(found, **changes)


def report(*comparisons: Comparison, **changes: Any) -> GateReport:
    values: dict[str, Any] = {
        "verdict": "regression",
        "exit_code": 1,
        "reasons": tuple(f"{c.case}: slower." for c in comparisons),
        "comparisons": comparisons,
        "counts": (),
        "control": "control",
        "control_moved": False,
        "undecided": (),
        "broken": {},
        "rounds": 12,
        "alpha": 0.05,
        "minimum_effect": 0.03,
        "resolution": 0.1,
        "calibration": "none",
    }
    return GateReport(**{**values, **changes})


class Page(HTMLParser):
    """Text and tags of rendered Markdown, cells of tables apart."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.items: list[str] = []
        self._into: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag in ("td", "li"):
            self._into = self.cells if tag == "td" else self.items
            self._into.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "li"):
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data


def rendered(text: str) -> Page:
    """Rendered by an independent implementation of GitHub's dialect."""
    import markdown_it

    reader = markdown_it.MarkdownIt("gfm-like", {"linkify": False, "html": True})
    return Page(reader.render(text))


def plain(name: str) -> str:
    """A name as it may appear: on one line, without control characters."""
    from firstlight.present.plain_text import printable

    return " ".join(printable(name).replace("\ufffe", "\ufffd").split())


# --- Markdown -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_read_in_markdown_as_it_is_written(name: str) -> None:
    page = rendered(markdown(report(comparison(name)), {"base": name, "head": "x"}))
    assert page.cells[:6] == [
        plain(name),
        "cold_seconds",
        "1.00 s",
        "1.30 s",
        "+30.0 % [+25.0 %, +35.0 %]",
        "✗ regression",
    ]
    assert page.items[0] == f"base: {plain(name)}"
    allowed = "h3 h4 ul li code table thead tbody tr th td p details summary strong"
    assert page.tags <= set(allowed.split())
    sentence = page.items[2].replace("\u200b", "")
    assert sentence == f"{plain(name)}: slower."


def test_versions_are_legible_in_the_source_and_addresses_are_no_links() -> None:
    text = markdown(report(), {"base": "v1 (31de15b75), torch 2.13.0+cpu", "head": "WWW.evil.org"})
    assert "<code>v1 (31de15b75), torch 2.13.0+cpu</code>" in text
    assert "<code>WWW&#46;evil.org</code>" in text


@pytest.mark.parametrize("changes", [{"verdict": "infrastructure"}, {"rounds": 0}])
def test_a_gate_that_judged_no_time_does_not_say_by_which_rule(
    changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Calibration: none" in markdown(report())
    assert "Calibration" not in markdown(report(**changes))
    for shown, has_rule in ((report(), True), (report(**changes), False)):
        print_gate(shown, {})
        assert ("error rate" in capsys.readouterr().out) is has_rule


def test_no_mention_or_reference_is_created() -> None:
    text = markdown(report(comparison("@somebody #123")))
    assert not re.search(r"[@#]\w", text.replace("&#", "&"))
    assert not re.search(r"(&#64;|&#35;)\w", re.sub(r"<code>.*?</code>", "", text))


def test_counts_that_changed_and_those_that_vary_are_in_the_summary() -> None:
    counts = (
        CountChange("a", "compiles", True, 3, 4, "regression", "compiles: 3 before, 4 now"),
        CountChange("a", "traces", False, None, 2, "inconclusive", "varies"),
        CountChange("a", "lowerings", False, 2, 2, "same"),
    )
    page = rendered(markdown(report(counts=counts)))
    assert page.cells == [
        *("a", "compiles", "3", "4", "✗ regression"),
        *("a", "traces", "varies", "2", "? inconclusive (not gated)"),
    ]


def test_the_control_and_what_is_not_gated_are_among_the_details() -> None:
    found = (comparison("a"), comparison("control", "same"), comparison("b", "same", gated=False))
    text = markdown(report(*found))
    before, details = text.split("<details>")
    assert "control" not in before.replace("control case", "").split("- ")[0]
    assert "Control:" in details and "Measured, but not gated:" in details


def test_an_explanation_names_phase_function_and_instructions() -> None:
    explanation = Explanation(
        case="a",
        phases=(comparison("a", quantity="compile"),),
        functions=(FunctionChange("<lambda>", "compile", 0.5, 0.8, 1, 3),),
        programs=(
            ProgramChange("jit_f", "changed", {"fusion": (3, 9)}, (10, 16), "-a\n+b"),
            ProgramChange("jit_g", "same", {}, (5, 5), ""),
        ),
        folder=None,
    )
    page = rendered(markdown(report(comparison("a")), None, [explanation]))
    assert "phase compile: 1.00 s → 1.30 s (+300 ms), +30.0 % [+25.0 %, +35.0 %]" in page.items
    assert "function <lambda>, compile: 500 ms → 800 ms, 1 → 3 times" in page.items
    assert "program jit_f (changed): 10 → 16 instructions (fusion 3 → 9)" in page.items
    assert "1 of 2 compiled programs are the same" in page.items


def test_large_changes_are_reported_as_factors() -> None:
    huge = comparison("a", effect=Effect(300.0, 250.0, 333.3, 0.95, 0.001, 12, True))
    assert effect(huge) == "×300 [×250, ×333]"
    assert effect(comparison("a")) == "+30.0 % [+25.0 %, +35.0 %]"


# --- JUnit ----------------------------------------------------------------------------------------


def require_junit_structure(root: ElementTree.Element) -> None:
    """The relevant rules of the schema that Jenkins and others share."""
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite" and suite.get("name")
        tests = suite.findall("testcase")
        assert suite.get("tests") == str(len(tests))
        for attribute, tag in (
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            assert suite.get(attribute) == str(len(suite.findall(f"testcase/{tag}")))
        for test in tests:
            assert set(test.attrib) == {"classname", "name", "time"}
            assert float(test.attrib["time"]) >= 0
            assert {child.tag for child in test} <= {"skipped", "error", "failure"}
            assert len(test) <= 1
        order = [child.tag for child in suite]
        assert order == ["testcase"] * len(tests) + ["system-out"]


@pytest.mark.parametrize("name", HOSTILE)
def test_junit_is_well_formed_for_any_name_of_a_case(name: str) -> None:
    root = ElementTree.fromstring(junit(report(comparison(name), broken={name: name})).encode())
    require_junit_structure(root)
    tests = root.findall(".//testcase")
    kept = xml_text(name).replace("\r", "\ufffd")
    assert [t.get("classname") for t in tests] == [kept, kept]


def flaky(case: str, verdict: str) -> Flakiness:
    return Flakiness(case, 1, 13, 2, 14, 1, 2, "crashed: signal 11", 1.0, verdict)


def test_junit_says_failure_error_and_skipped_for_what_they_are() -> None:
    counts = (
        CountChange("a", "compiles", True, 3, 4, "regression", "compiles: 3 before, 4 now"),
        CountChange("b", "compiles", True, 3, 3, "same"),
        CountChange("b", "traces", False, 3, 9, "regression", "traces: 3 before, 9 now"),
    )
    found = report(
        comparison("a"),
        comparison("b", "inconclusive"),
        comparison("c", "same"),
        comparison("c", "regression", gated=False, quantity="trace"),
        comparison("control", "same"),
        counts=counts,
        broken={"d": "crashed in 1 of 12 processes", "e": "head crashed"},
        broken_by_head=("e",),
        flaky=(flaky("b", "flaky"), flaky("c", "regression")),
    )
    root = ElementTree.fromstring(junit(found).encode())
    require_junit_structure(root)
    outcomes = {
        (t.get("classname"), t.get("name")): t[0].tag if len(t) else "passed"
        for t in root.iter("testcase")
    }
    assert outcomes == {
        ("a", "cold_seconds"): "failure",
        ("b", "cold_seconds"): "skipped",
        ("c", "cold_seconds"): "passed",
        ("a", "compiles"): "failure",
        ("b", "compiles"): "passed",
        ("d", "measurable"): "error",
        ("e", "measurable"): "failure",
        ("b", "stable"): "skipped",
        ("c", "stable"): "failure",
    }


# --- GitHub ---------------------------------------------------------------------------------------


def understood(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as parsed by GitHub's runner."""
    match = re.fullmatch(r"::(\w+) ([^\n\r]*?)::([^\n\r]*)", line)
    assert match, line

    def decoded(value: str, *more: tuple[str, str]) -> str:
        for code, sign in (*more, ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            value = value.replace(code, sign)
        return value

    properties = dict(part.split("=", 1) for part in match[2].split(","))
    special = (("%3A", ":"), ("%2C", ","))
    named = {key: decoded(value, *special) for key, value in properties.items()}
    return match[1], named, decoded(match[3])


@pytest.mark.parametrize("name", HOSTILE)
def test_an_annotation_is_one_command_for_any_name_of_a_case(name: str) -> None:
    places = {name: CaseLine("bench,odd:name%.py", 7)}
    [line] = github_annotations(report(comparison(name)), places)
    level, properties, message = understood(line)
    assert level == "error"
    assert properties["title"] == f"{name}: cold_seconds"
    assert (properties["file"], properties["line"]) == ("bench,odd:name%.py", "7")
    assert message == "1.00 s → 1.30 s, +30.0 % [+25.0 %, +35.0 %]"


def test_undecided_and_broken_cases_are_annotated_and_good_or_faster_ones_are_not() -> None:
    found = report(
        comparison("a", "inconclusive"),
        comparison("b", "same"),
        comparison("c", "improvement"),
        comparison("control", "regression"),
        comparison("f", "inconclusive", effect=Effect(0.6, 0.5, 0.7, 0.95, 0.03, 12, True)),
        broken={"d": "crashed", "e": "crashed"},
        broken_by_head=("e",),
        flaky=(flaky("b", "flaky"), flaky("c", "regression")),
        control_moved=True,
    )
    levels = [
        (level, named["title"]) for level, named, _ in map(understood, github_annotations(found))
    ]
    assert levels == [
        ("warning", "a: cold_seconds"),
        ("warning", "d: broken"),
        ("error", "e: broken"),
        ("warning", "b: flaky"),
        ("error", "c: flaky"),
        ("warning", "control: control"),
    ]


def test_failing_cases_are_those_with_a_gated_regression() -> None:
    counts = (
        CountChange("b", "compiles", True, 1, 2, "regression", "x"),
        CountChange("c", "traces", False, 1, 2, "regression", "x"),
    )
    found = report(comparison("a"), comparison("control"), counts=counts)
    assert failing_cases(found) == ["a", "b"]
