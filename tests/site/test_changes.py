"""The first page and the feed: what changed, by how much, between which commits."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from site_store import World, make_run

from firstlight.site.changes import Change, changes, departures, newest_first, summaries
from firstlight.site.changes_page import between, changes_page
from firstlight.site.comparisons import SnapshotPair
from firstlight.site.feed import feed
from firstlight.site.site_building import Options, SiteOptionError, build
from firstlight.site.trend_chart import draw
from firstlight.site.trend_pages import mark_of
from firstlight.site.trends import Curve, Point, Series, marked_steps
from firstlight.snapshot.publishing import PublishOptions, publish
from firstlight.snapshot.storage import LocalStore

DAY = 86400.0
FIVE = (1.0, 1.01, 0.99, 1.02, 0.98)
ATOM = {"a": "http://www.w3.org/2005/Atom"}


def points(levels: Sequence[float], start: float = 0.0, gap: float = DAY) -> list[Point]:
    """Five runs of each level, one every `gap` seconds, each of another commit."""
    values = [level * noise for level in levels for noise in FIVE]
    return [
        Point(f"{i:064x}", start + i * gap, v, v, v, 6, {"commit": f"{i + 10 * 16**11:012x}"})
        for i, v in enumerate(values)
    ]


def series(case_points: list[Point], quantity: str = "cold_seconds") -> Series:
    curve = Curve(quantity, tuple(case_points), tuple(marked_steps(case_points)))
    return Series("key", "a machine", {}, (curve,))


def steps_of(**cases: Series) -> list[Change]:
    return newest_first([c for case, own in cases.items() for c in changes(case, [own])])


def test_steps_are_listed_newest_first_and_largest_first_within_a_run() -> None:
    found = steps_of(
        old=series(points([1, 2], start=-100 * DAY)),
        small=series(points([1, 1.2])),
        large=series(points([1, 0.5])),
    )
    assert [c.case for c in found] == ["large", "small", "old"]
    assert [round(c.step.effect.ratio, 2) for c in found] == [0.5, 1.2, 2.0]
    # A step is known from the fifth run of its level on.
    assert [c.seen - c.after.moment for c in found] == [4 * DAY] * 3


def test_a_summary_counts_every_case_once_with_the_mean_of_its_net_changes() -> None:
    """Closed form: 2 up, then 1.5 up is 3; the geometric mean of 3 and 1.2 is √3.6."""
    owned = [
        series(points([1, 2, 3])),
        series(points([1, 1.2])),
        series(points([1, 0.5])),
        series(points([1, 1])),
        series(points([1])),
        series(points([1, 9], start=-400 * DAY)),  # not measured recently
    ]
    (found,) = summaries([curve for own in owned for curve in own.curves])
    assert found.slower.ratios == pytest.approx((1.2, 3.0), rel=0.02)
    assert found.slower.mean == pytest.approx(math.sqrt(3.6), rel=0.02)
    assert found.faster.ratios == pytest.approx((0.5,), rel=0.02)
    assert (found.unchanged, found.too_short) == (1, 1)


def test_too_few_deviating_runs_are_a_departure_not_a_step() -> None:
    quiet = points([1, 1])
    far = [Point(f"{i:064x}", (20 + i) * DAY, 1.3 + i / 100, 1, 2, 6, {}) for i in range(2)]
    (found,) = departures("case", [series([*quiet, *far])])
    assert found.runs == 2 and found.ratio == pytest.approx(1.305)
    assert not list(changes("case", [series([*quiet, *far])]))
    near = [Point("n", 20 * DAY, 1.14, 1, 2, 6, {})]  # within the drift between two jobs
    assert not list(departures("case", [series([*quiet, *near])]))


def test_the_commits_of_a_step_are_those_of_the_runs_around_it() -> None:
    (found,) = steps_of(case=series(points([1, 2])))
    before, after = "a00000000004", "a00000000005"
    assert (found.before.versions["commit"], found.after.versions["commit"]) == (before, after)
    linked = between(found, "https://github.com/me/project/")
    assert f'href="https://github.com/me/project/compare/{before}...{after}"' in linked
    assert "href" not in between(found, None) and "a00000000…a00000000" in between(found, None)


def test_an_invalid_commit_is_text_and_never_part_of_a_url() -> None:
    own = points([1, 2])
    bad = [
        Point(p.snapshot, p.moment, p.median, p.low, p.high, 6, {"commit": f'"><script>{i}'})
        for i, p in enumerate(own)
    ]
    (found,) = steps_of(case=series(bad))
    text = between(found, "https://example.org")
    assert "<script" not in text and "href" not in text


def test_a_site_without_steps_explains_how_many_runs_a_step_needs() -> None:
    text = changes_page("site", [], [], [], [], None, ()).decode()
    assert "a trend needs ten" in text


def test_the_feed_is_atom_with_stable_identifiers() -> None:
    """RFC 4287: id, title and updated, of the feed and of every entry; an author; a self link."""
    first = series(points([1, 2]))
    found = steps_of(hostile=series(points([1, 0.5], gap=60)), case=first)
    root = ElementTree.fromstring(feed("Our site", found, 0.0, "https://perf.example.org"))
    assert root.tag == "{http://www.w3.org/2005/Atom}feed"
    assert root.find("a:author/a:name", ATOM) is not None
    assert root.find("a:link[@rel='self']", ATOM).get("href") == (  # type: ignore[union-attr]
        "https://perf.example.org/feed.xml"
    )
    entries = root.findall("a:entry", ATOM)
    assert len(entries) == 2
    for element in (root, *entries):
        for name in ("id", "title", "updated"):
            assert element.findtext(f"a:{name}", namespaces=ATOM)
        moment = datetime.fromisoformat(str(element.findtext("a:updated", namespaces=ATOM)))
        assert moment.tzinfo is not None
    ids = [entry.findtext("a:id", namespaces=ATOM) for entry in entries]
    assert len(set(ids)) == 2 and all(str(i).startswith("urn:uuid:") for i in ids)
    # A step keeps its id when others are added.
    alone = ElementTree.fromstring(feed("Our site", steps_of(case=first), 0.0, None))
    assert alone.findtext("a:entry/a:id", namespaces=ATOM) in ids
    title = entries[0].findtext("a:title", namespaces=ATOM)
    assert title == "+100.0 % first result: case"


@pytest.mark.slow
def test_the_first_page_and_the_feed_have_the_steps(world: World) -> None:
    page = (world.site / "index.html").read_text()
    assert "jax 0.10.2 → 0.11.0" in page
    assert SnapshotPair(world.ids["nightly 5"], world.ids["nightly 6"]).path in page
    root = ElementTree.parse(world.site / "feed.xml").getroot()
    words = [html.unescape(t.text or "") for t in root.iter(f"{{{ATOM['a']}}}summary")]
    assert any("jax 0.10.2 → 0.11.0" in text for text in words)


@pytest.mark.parametrize("option", ["url", "repository"])
def test_addresses_must_be_http_urls(tmp_path: Path, option: str) -> None:
    store = LocalStore(tmp_path / "store")
    publish([make_run(tmp_path / "run", 0)], store, PublishOptions(title="one"), None)
    with pytest.raises(SiteOptionError, match=f"--{option}"):
        build(str(tmp_path / "store"), tmp_path / "out", Options(**{option: "javascript:x"}))


def test_runs_minutes_apart_are_separate_and_labelled_by_commit_in_the_chart_by_run() -> None:
    (curve,) = series(points([1, 1, 1], gap=25.0)).curves
    by_run, by_time = draw(curve, mark_of("a/numpy/none"), "label", "../").split(
        '<div class="by-time">'
    )
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', by_run)]
    gaps = {round(b - a, 1) for a, b in pairwise(places)}
    assert len(places) == 15 and max(gaps) - min(gaps) < 0.2 and min(gaps) > 50
    assert "a000000" in by_run and "a000000" not in re.sub("<title>.*?</title>", "", by_time)
    assert len(re.findall(r'<circle cx="([\d.]+)"', by_time)) == 15


def test_a_chart_is_no_image_and_its_links_are_out_of_the_tab_order() -> None:
    (curve,) = series(points([1, 2])).curves
    text = draw(curve, mark_of("a/numpy/none"), "label", "../")
    assert "<a " in text and 'role="img"' not in text
    assert (
        re.findall(r"<svg[^>]*>(<g aria-hidden=\"true\">)?", text) == ['<g aria-hidden="true">'] * 4
    )
    assert len(re.findall("<a ", text)) == len(re.findall('tabindex="-1"', text))
