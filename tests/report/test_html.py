"""The page shows what the run holds, nothing that may not be shown, and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from typing import Any

import pytest
from document import Node, parse
from synthetic import Plan, make_run, rich

from firstlight.records import PHASES, CaseSummary, Run, Sample, from_json, to_json
from firstlight.report.html import render

DIGIT = re.compile(r"\d")


@pytest.fixture(scope="module")
def run() -> tuple[Run, list[Sample]]:
    return rich()


@pytest.fixture(scope="module")
def page(run: tuple[Run, list[Sample]]) -> str:
    return render(*run)


@pytest.fixture(scope="module")
def tree(page: str) -> Node:
    return parse(page)


def row_of(tree: Node, case: str) -> dict[str, Node]:
    """The cells of a case in the table, by key."""
    table = tree.all("table", id="cases")[0]
    row = table.all("tr", data_case=case)[0]
    return {cell.attributes["data-key"]: cell for cell in row.all("td")}


def value(cell: Node) -> float:
    return float(cell.attributes["data-value"])


def one(run: Run, pattern: str) -> CaseSummary:
    return next(c for c in run.cases if pattern in c.case)


def changed(run: Run, pattern: str, **changes: Any) -> Run:
    cases = tuple(replace(c, **changes) if pattern in c.case else c for c in run.cases)
    return replace(run, cases=cases)


def test_every_number_of_a_valid_case_is_in_the_table_exactly(
    run: tuple[Run, list[Sample]], tree: Node
) -> None:
    for case in run[0].cases:
        if case.status != "ok":
            continue
        cells = row_of(tree, case.case)
        assert case.cold_seconds and case.warm_call_seconds and case.throughput_calls_per_second
        assert value(cells["cold"]) == case.cold_seconds.median
        assert value(cells["n"]) == case.cold_seconds.n
        assert value(cells["warm"]) == case.warm_call_seconds.median
        assert cells["class"].text == case.warm_call_seconds.steady_class
        assert value(cells["throughput"]) == case.throughput_calls_per_second.median
        assert value(cells["host"]) == case.peak_host_bytes
        assert value(cells["unattributed"]) == case.unattributed_seconds
        for phase in PHASES:
            seconds = case.phases_seconds[phase]
            cell = cells[f"phase-{phase}"]
            assert (value(cell) if "data-value" in cell.attributes else None) == seconds
        if case.break_even_calls is not None:
            shown = cells["break-even"].attributes["data-value"]
            assert shown == str(case.break_even_calls.calls)


def test_the_table_shows_medians_and_intervals_in_readable_units() -> None:
    run, samples = make_run([Plan("w", "s", "numpy")])
    case = run.cases[0]
    assert case.cold_seconds
    cold = replace(case.cold_seconds, median=0.21344, low=0.2087, high=0.21762)
    tree = parse(render(changed(run, "numpy", cold_seconds=cold), samples))
    shown = row_of(tree, case.case)["cold"].text.replace("\u202f", " ")
    assert shown == "213 ms [209, 218]"


def test_totals_beside_the_bars_are_those_of_the_summary() -> None:
    run, samples = make_run([Plan("w", "s", "numpy")])
    case = run.cases[0]
    assert case.cold_seconds
    cold = replace(case.cold_seconds, median=1.2345, low=1.2, high=1.3)
    page = render(changed(run, "numpy", cold_seconds=cold), samples).replace("\u202f", " ")
    assert page.count("1.23 s [1.20, 1.30]") >= 4  # bars and strips, for wide and narrow paper


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed", "reason": "the program raised"},
        {"status": "skipped", "reason": "not installed"},
        {"protocol": None},
    ],
    ids=["failed", "skipped", "without a protocol"],
)
def test_no_number_is_shown_of_a_case_that_is(changes: dict[str, Any]) -> None:
    run, samples = make_run([Plan("w", "s", "numpy"), Plan("w", "s", "jax-jit")])
    name = "w[s]/jax-jit/none"
    run = changed(run, "jax-jit", **changes)
    assert one(run, "jax-jit").cold_seconds is not None  # the record has what must not be shown
    tree = parse(render(run, samples))
    for key, cell in row_of(tree, name).items():
        assert key == "status" or not DIGIT.search(cell.text), key
        assert "data-value" not in cell.attributes
    for element in tree.all(data_case=name):
        assert not DIGIT.search(element.text), element.text
        assert not element.all("circle")
    assert "jax-jit" in tree.all("article")[0].text  # it is named, with its status
    assert not tree.all("article")[0].all("svg", class_="ribbon")


def test_a_case_that_is_not_valid_is_marked_with_reason_and_stderr(
    run: tuple[Run, list[Sample]], tree: Node
) -> None:
    for case in run[0].cases:
        if case.status == "ok":
            continue
        items = tree.all("li", data_case=case.case)
        trouble = next(i for i in items if i.all("span", class_="badge"))
        assert trouble.all("span", class_="badge")[0].text == case.status
        assert case.reason and case.reason in trouble.text
        if case.stderr_tail:
            (tail,) = trouble.all("details")[0].all("pre")
            assert tail.children == [case.stderr_tail]
        assert row_of(tree, case.case)["status"].all("span", class_="badge")


def test_an_unproven_case_shows_its_number_with_the_flag_beside_it(tree: Node) -> None:
    name = "ode_gradient[medium]/jax-jit/warm"
    rows = [g for g in tree.all("g", data_case=name) if "doubtful" in g.attributes["class"]]
    totals = [t for g in rows for t in g.all("text", class_="flagged")]
    assert totals and all("⚠" in t.text for t in totals)


def test_each_timed_process_is_a_dot_and_none_is_thinned_away(
    run: tuple[Run, list[Sample]], tree: Node
) -> None:
    for case in run[0].cases:
        own = [s for s in run[1] if s.case == case.case and s.kind == "timed"]
        expected = len(own) if case.status in ("ok", "unproven") else 0
        rows = [g for g in tree.all("g", data_case=case.case) if g.all("g", class_="dots")]
        dots = [len(g.all("g", class_="dots")[0].all("circle")) for g in rows]
        assert dots == ([expected] * 2 if expected else [])  # once for each width of paper


def test_a_phase_that_a_framework_does_not_have_is_not_drawn_and_not_zero(tree: Node) -> None:
    for name, has in (
        ("mlp_train[small]/numpy/none", False),
        ("mlp_train[small]/jax-jit/none", True),
    ):
        bars = [g for g in tree.all("g", data_case=name) if g.all("rect", class_="seg")]
        assert all(bool(g.all("rect", class_="p-compile")) is has for g in bars)
        assert (row_of(tree, name)["phase-compile"].text == "—") is not has


def test_all_text_of_the_record_is_escaped(run: tuple[Run, list[Sample]]) -> None:
    evil = "<script>alert(1)</script>\"'><x-evil onload=alert(1)>&amp;"
    kept = {"status", "kind", "schema", "class", "calls", "low", "high", "samples_sha256"}

    def spoil(data: Any, key: str = "") -> Any:
        if isinstance(data, dict):
            fixed = key in ("phases_seconds", "peak_host_bytes_by_phase", "peak_host_bytes")
            rename = key in ("host", "settings", "compiler_bytes", "parameters") or fixed
            return {
                (f"{k}{evil}" if rename and k != "import" else k): spoil(v, k)
                for k, v in data.items()
            }
        if isinstance(data, list):
            return [spoil(v, key) for v in data]
        return f"{data}{evil}" if isinstance(data, str) and key not in kept else data

    spoilt = from_json(Run, spoil(to_json(run[0])))
    samples = [replace(s, case=f"{s.case}{evil}") for s in run[1]]
    tree = parse(render(spoilt, samples))
    assert len(tree.all("script")) == 1
    assert not tree.all("x-evil")
    assert not [n for n in tree.walk() for name in n.attributes if name.startswith("on")]
    assert evil in tree.all("pre")[0].text
    assert tree.all("g", data_case=f"{run[0].cases[0].case}{evil}")


def test_the_page_asks_for_nothing_from_elsewhere(page: str, tree: Node) -> None:
    assert "http://" not in page and "https://" not in page and "@import" not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) == {"#hatch"}
    for node in tree.walk():
        assert node.tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in node.attributes and "srcset" not in node.attributes
        assert node.attributes.get("href", "#").startswith("#")
    policy = next(n for n in tree.all("meta") if n.attributes.get("http-equiv"))
    assert policy.attributes["content"].startswith("default-src 'none'")


@pytest.mark.parametrize("tag", ["script", "style"])
def test_the_browser_runs_the_script_and_style_of_this_page_and_no_other(
    page: str, tree: Node, tag: str
) -> None:
    """The policy lists them by hash, and the page needs nothing else."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = next(n for n in tree.all("meta") if n.attributes.get("http-equiv"))
    assert f"{tag}-src 'sha256-{digest}';" in policy.attributes["content"]
    assert "unsafe" not in policy.attributes["content"]
    named = [n.attributes for n in tree.all() if n.attributes]
    assert not any(a == "style" or a.startswith("on") for one in named for a in one)


def test_every_link_leads_to_a_place_and_no_id_is_used_twice(tree: Node) -> None:
    ids = [n.attributes["id"] for n in tree.walk() if "id" in n.attributes]
    assert len(ids) == len(set(ids))
    assert {n.attributes["href"][1:] for n in tree.all("a")} <= set(ids)


def test_pictures_tables_and_language_have_names(tree: Node) -> None:
    assert tree.all("html")[0].attributes["lang"] == "en"
    assert len(tree.all("h1")) == 1
    for svg in tree.all("svg"):
        assert svg.attributes.get("aria-label") or svg.attributes.get("aria-hidden") == "true"
    for table in tree.all("table"):
        assert table.all("caption")


def test_each_figure_has_its_protocol_beside_it(tree: Node) -> None:
    figures = [f for f in tree.all("figure") if "ribbon-box" not in f.attributes.get("class", "")]
    lines = tree.all("p", class_="essentials")
    pairs = tree.all("div", class_="pair")
    assert len(lines) == len(figures) - len(pairs)  # a pair of figures shares one line
    for line in lines:
        for word in ("cache", "fresh" if "fresh" in line.text else "persistent", "float32", "n 30"):
            assert word in line.text


def test_thinned_calls_are_declared_and_all_drawn_calls_are_not() -> None:
    few = make_run([Plan("w", "s", "numpy", processes=6, calls=50)])
    many = make_run([Plan("w", "s", "numpy", processes=200, calls=700)])
    assert "calls per process are drawn" not in render(*few)
    assert "At most 300 calls per process are drawn" in render(*many)


def test_a_run_of_a_hundred_cases_stays_under_three_megabytes() -> None:
    backends = ("numpy", "jax-eager", "jax-jit", "torch-eager", "torch-compile")
    plans = [Plan(f"work_{i}", "large", b, calls=300) for i in range(20) for b in backends]
    page = render(*make_run(plans))
    assert len(page.encode()) < 3_000_000
    assert page.count("<circle") >= 100 * 30
    assert page.count('<details class="workload"') == 20


def test_numbers_that_are_not_finite_never_reach_the_page(run: tuple[Run, list[Sample]]) -> None:
    nan, infinity = float("nan"), float("inf")
    spoilt, samples = run
    numpy = one(spoilt, "mlp_train[small]/numpy")
    assert numpy.cold_seconds and numpy.warm_call_seconds
    spoilt = changed(
        spoilt,
        "mlp_train[small]/numpy",
        cold_seconds=replace(numpy.cold_seconds, low=nan, high=infinity),
        warm_call_seconds=replace(numpy.warm_call_seconds, median=nan),
        phases_seconds={**numpy.phases_seconds, "import": infinity},
        unattributed_seconds=nan,
    )
    tree = parse(render(spoilt, samples))
    drawn = [n for n in tree.walk() if n.tag in ("path", "rect", "circle", "text", "td")]
    shown = " ".join(f"{n.text} {' '.join(n.attributes.values())}" for n in drawn)
    assert not re.search(r"\b(nan|inf)\b", shown, re.IGNORECASE)


def test_a_run_that_was_interrupted_or_is_noisy_says_so_before_any_number() -> None:
    run, samples = make_run([Plan("w", "s", "numpy")], complete=False, warnings=("a busy machine",))
    page = render(run, samples)
    assert page.index("incomplete: interrupted") < page.index("a busy machine")
    assert page.index("a busy machine") < page.index("<h2>The answer")


def test_the_header_names_machine_software_and_commit(tree: Node) -> None:
    words = tree.all("header")[0].text.replace("\u202f", " ")
    for expected in (
        "Made-up CPU @ 3.0 GHz, 8 cores, 31.2 GiB memory, Debian GNU/Linux 12",
        "Python 3.11.9, jax 0.10.2, jaxlib 0.10.2, torch 2.13.0, numpy 2.4.6",
        "Firstlight 0.1.0 (commit 0123456789ab, changed since)",
        "16 cases of 3 workloads",
        "4 cases not valid",
    ):
        assert expected in words


@pytest.mark.parametrize("backend", ["mlx-compile", "tinygrad", "a b/c"])
def test_an_unknown_backend_has_its_own_look(backend: str) -> None:
    run, samples = make_run([Plan("w", "s", "numpy"), Plan("w", "s", backend)])
    tree = parse(render(run, samples))
    assert tree.all("g", data_case=f"w[s]/{backend}/none")
    assert tree.all("path", class_="b-other-0")


def test_an_empty_run_is_a_page_too() -> None:
    run, samples = make_run([])
    assert "The run has no cases." in parse(render(run, samples)).text


def test_a_run_without_its_samples_still_shows_the_summaries(
    run: tuple[Run, list[Sample]],
) -> None:
    tree = parse(render(run[0], []))
    assert not tree.all("g", class_="dots")[0].all("circle")
    assert value(row_of(tree, run[0].cases[0].case)["cold"]) > 0
