"""The page of a trace: complete, escaped, offline, and working in a real browser."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import trace_samples as samples

from firstlight.trace.read.model import (
    Constant,
    Difference,
    ImportedPackage,
    Reason,
    SourceLine,
    Span,
    Thread,
    Trace,
)
from firstlight.trace.read.recompiles import differences
from firstlight.trace.show.html import render
from firstlight.trace.show.page_timeline import merged
from firstlight.trace.what_if import Spread, Variant, WhatIf
from real_browser import witness

NASTY = "<script>alert(1)</script>\"'&\x1b[31m\u202e"


class Reader(HTMLParser):
    """Collects all text, and checks that tags are nested correctly."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br", "wbr", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def nasty() -> Trace:
    """A trace in which every text of the program is an attack."""
    place = SourceLine(f"/tmp/{NASTY}.py", 3, NASTY)
    argument = replace(samples.signature().arguments[0], path=NASTY, dtype=NASTY)
    signature = samples.signature(arguments=(argument,), static={NASTY: NASTY}, tree=NASTY)
    one = samples.compiled(NASTY, signature=signature, site=place, user_site=place)
    constant = Constant(NASTY, NASTY, NASTY, (NASTY,), 9_000_000, place)
    one = replace(one, stack=(place, place), constants=(constant,))
    other = replace(
        one,
        begin_seconds=2.0,
        recompile_reason=Reason.STATIC,
        recompile_differences=(Difference(Reason.STATIC, NASTY, NASTY, "other"),),
        signature=samples.signature(static={NASTY: "other"}),
    )
    function = samples.function(NASTY, one, other, place=place, module=NASTY)
    process = samples.process(
        command=(NASTY,),
        rank=NASTY,
        python=NASTY,
        jax_version=NASTY,
        problems=(NASTY,),
        unfinished=NASTY,
        timeline=(Span(NASTY, 0.0, 2.0, NASTY),),
        first_result_site=place,
        threads=(Thread(1, NASTY, (Span("compile", 0.0, 2.0, NASTY),)),),
        imports=(ImportedPackage(NASTY, 1.0, 1.0, 1, 0.0),),
    )
    finding = samples.finding(
        kind=NASTY,
        title=NASTY,
        function=NASTY,
        place=SourceLine(NASTY, 12),
        remedy=NASTY,
        evidence={NASTY: [NASTY, {NASTY: NASTY}]},
    )
    region = {"process": 0, "event": "torch_x", NASTY: NASTY}
    return samples.trace(
        function,
        processes=(process, replace(process, number=1)),
        findings=(finding,),
        torch_regions=(region,),
    )


def what_if() -> WhatIf:
    spread = Spread(1.0, 0.9, 1.2)
    base = Variant("as it is", "", 3, 0, Spread(2.0, 1.9, 2.1), spread, spread)
    return WhatIf(3, (base, Variant("level 0", "XLA_FLAGS=x", 3, 1, spread, None, spread)))


def test_the_page_shows_the_verdict_first_and_everything_after() -> None:
    reader = read(render(samples.trace(), what_if()))
    text = reader.text
    order = [text.index(words) for words in ("to improve", "The whole run", "Click a heading")]
    assert order == sorted(order)
    for words in (
        "1.10 s",
        "Pad the first dimension",
        "f32[9,4]",
        "train.py:40",
        "numpy",
        "level 0",
    ):
        assert words in text


def test_text_of_the_program_is_never_markup() -> None:
    page = render(nasty())
    reader = read(page)
    assert [attributes for tag, attributes in reader.tags if tag == "script"] == [{}]
    assert "alert(1)" in reader.text  # shown, not run
    assert "\x1b" not in page and "\u202e" not in page


def test_the_page_asks_for_nothing_from_anywhere() -> None:
    reader = read(render(samples.trace()))
    for _, attributes in reader.tags:
        assert not (attributes.get("href") or "#").startswith(("http", "//"))
        assert "src" not in attributes
    policy = [a["content"] for t, a in reader.tags if a.get("http-equiv")]
    assert policy and "default-src 'none'" in str(policy[0])


def test_a_name_that_is_not_valid_text_can_be_written() -> None:
    odd = samples.function("f\udcff", place=SourceLine("/tmp/\udcff.py", 1))
    assert render(samples.trace(odd)).encode("utf-8")


def test_an_empty_trace_has_a_page() -> None:
    bare = samples.process(
        timeline=(),
        phases_seconds={},
        imports=(),
        waits=(),
        short_waits=0,
        jax_version=None,
        first_result_seconds=None,
        wall_seconds=None,
    )
    empty = Trace((bare,), (), (), None, 0, 0)
    text = read(render(empty)).text
    assert "Nothing is known of JAX" in text and "as after a kill" in text
    ended = replace(empty, processes=(replace(bare, wall_seconds=0.1),))
    assert "JAX was not imported" in read(render(ended)).text


def test_a_long_timeline_is_thinned_and_keeps_its_ends_and_total() -> None:
    spans = [
        Span("compile" if n % 2 else "rest", n * 1e-4, (n + 1) * 1e-4, "") for n in range(9999)
    ]
    long = Span("wait", 9999e-4, 5.0, "")
    kept = merged([*spans, long], 5.0)
    assert len(kept) <= 900
    assert kept[0].begin_seconds == 0.0 and kept[-1] == long
    assert all(a.end_seconds == b.begin_seconds for a, b in pairwise(kept))


def test_a_diff_of_signatures_names_each_part_that_changed() -> None:
    before = samples.signature()
    after = samples.signature(
        (9, 4), static={"n": "4"}, context={"x64": True}, function_object=2, tree="other"
    )
    found = {(d.kind, d.field): (d.before, d.after) for d in differences(before, after)}
    assert found == {
        (Reason.NEW_FUNCTION, None): ("object 1", "object 2"),
        (Reason.TREE, None): ("({'x': *})", "other"),
        (Reason.STATIC, "n"): ("3", "4"),
        (Reason.SHAPE, "x"): ("f32[8,4]", "f32[9,4]"),
        (Reason.CONTEXT, "x64"): ("False", "True"),
    }
    assert list(differences(before, before)) == []


def test_similar_recompiles_are_one_block_with_all_their_shapes() -> None:
    """Eleven sizes at one line, and one other reason."""
    sizes = [samples.again(2.0 + n, (n, 4)) for n in range(9, 20)]
    other = replace(sizes[-1], begin_seconds=30.0, recompile_reason="dtype")
    reader = read(
        render(samples.trace(samples.function("step", samples.compiled(), *sizes, other)))
    )
    assert [a.get("class") for t, a in reader.tags if t == "div"].count("pairing") == 2
    text = " ".join(reader.text.split())
    assert "shape 11 times, took 6.05 s in total, at 11.0 s, 12.0 s, 13.0 s and 8 more" in text
    assert "f32[9,4], f32[10,4], f32[11,4], f32[12,4], f32[13,4], f32[14,4] and 5 more" in text
    assert text.count("1 more argument is the same") == 2  # n, in both


# --- in a browser ---------------------------------------------------------------------------------

WITNESS = """<script>
const seen = { errors: [] };
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => seen.errors.push(event.blockedURI));
console.error = console.warn = (...words) => seen.errors.push(words.join(" "));
addEventListener("load", () => {
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  const rows = () => [...document.querySelectorAll("#functions-table tbody tr")]
    .filter((row) => row.checkVisibility());
  const wider = [...document.querySelectorAll("body *")].filter((element) =>
    !element.closest(".scroll, .links, pre, .themes, .defs") &&
    element.getBoundingClientRect().right > innerWidth + 1);
  const table = document.getElementById("functions-table").closest(".scroll");
  Object.assign(seen, {
    clipped: table.scrollWidth - table.clientWidth,
    width: innerWidth, scrollWidth: document.documentElement.scrollWidth, rows: rows().length,
    wider: wider.map((e) => e.tagName + " " + e.className + " " + e.textContent).slice(0, 5),
  });
  const box = document.getElementById("filter");
  const search = (words) => { box.value = words; box.dispatchEvent(new Event("input")); };
  search("TRAIN.py:40 step"); seen.found = rows().map((row) => row.cells[0].textContent);
  search("nothing like this"); seen.none = rows().length;
  search("");
  const values = (key) => rows()
    .map((row) => row.querySelector(`[data-key="${key}"]`).dataset.value);
  const press = (key) =>
    document.querySelector(`#functions-table th[data-key="${key}"] button`).click();
  press("total"); seen.descending = values("total");
  press("total"); seen.ascending = values("total");
  press("name"); seen.names = values("name");
  const lanes = document.querySelector(".lanes"), before = lanes.clientWidth;
  document.querySelector('[data-zoom="2"]').click(); seen.zoomed = lanes.clientWidth / before;
  document.querySelector('[data-zoom="0"]').click(); seen.back = lanes.clientWidth / before;
  parent.postMessage(seen, "*");
});
</script>"""


FAR_AWAY = "/v/lib/python3.11/site-packages/numpyro/infer/hmc_util_with_a_long_name.py"


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_sorting_searching_and_zooming_work_and_nothing_is_too_wide(
    chromium: str, tmp_path: Path, width: int
) -> None:
    long = samples.compiled(took=(12.3, 1.0, 400.0), equations=12345, constant_bytes=14_400_000)
    functions = [
        samples.function("step", samples.compiled(), samples.again(2.0, (9, 4))),
        samples.function("loss", samples.compiled("loss", took=(0.1, 0.2, 2.0)), line=30),
        samples.function(
            "a_function_with_a_very_long_name_" * 3, long, place=SourceLine(FAR_AWAY, 1234)
        ),
        samples.function("add", samples.compiled("add", took=(0.0, 0.0, 0.01)), library=True),
    ]
    seen = witness(chromium, tmp_path, render(samples.trace(*functions), what_if()), width, WITNESS)
    assert seen["errors"] == []
    assert seen["width"] == width and seen["scrollWidth"] <= width
    assert seen["wider"] == []
    assert width < 1280 or seen["clipped"] == 0  # all columns of the functions are visible
    assert (seen["rows"], seen["found"], seen["none"]) == (4, ["step"], 0)
    numbers = [float(value) for value in seen["descending"]]
    assert numbers == sorted(numbers, reverse=True) and numbers[1] == pytest.approx(2.3)
    assert [float(value) for value in seen["ascending"]] == numbers[::-1]
    assert seen["names"] == sorted(seen["names"])
    assert seen["zoomed"] == pytest.approx(2.0, rel=0.02) and seen["back"] == pytest.approx(1.0)


def test_injected_markup_runs_nothing_in_a_browser(chromium: str, tmp_path: Path) -> None:
    attack = render(nasty()).replace("alert(1)", "console.error(1)")
    seen = witness(chromium, tmp_path, attack, 1280, WITNESS)
    assert seen["errors"] == [] and seen["wider"] == []
