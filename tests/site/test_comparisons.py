"""Comparisons on the site: which pairs have a page, and that they equal the command line's."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from site_store import World, make_run

from firstlight.cli.compare import load
from firstlight.compare.runs import compare_runs
from firstlight.compare.verdicts import change
from firstlight.site import comparisons, site_building
from firstlight.site.comparisons import Comparer, SnapshotPair, pairs_of
from firstlight.site.site_building import build
from firstlight.snapshot.opening import open_snapshot
from firstlight.snapshot.publishing import publish
from firstlight.snapshot.storage import LocalStore


def pair(world: World, base: str, head: str) -> SnapshotPair:
    return SnapshotPair(world.ids[base], world.ids[head])


def cells(page: str, case: str) -> list[list[str]]:
    """The first table of a case, as text."""
    section = page.split(f"<h2>{html.escape(case)}</h2>")[1].split("</table>")[0]
    body = section.split("<tbody>")[1]
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.split("</t[hd]>", row)[:-1]]
        for row in body.split("</tr>")[:-1]
    ]


@pytest.mark.parametrize(
    ("base", "head", "unit", "verdicts"),
    [
        ("nightly 0", "nightly 11", "process", {"regression", "same", "inconclusive"}),
        ("nightly 1", "nightly 2", "process", {"same", "inconclusive"}),
        ("seven base", "four head", "run", {"regression", "same", "inconclusive"}),
    ],
)
def test_a_comparison_equals_that_of_the_command_line(
    world: World, base: str, head: str, unit: str, verdicts: set[str]
) -> None:
    """The site reduces every sample to one call and one batch; the command uses all of them."""
    expected = compare_runs(*(load(str(world.store / world.ids[side])) for side in (base, head)))

    def runs(snapshot_id: str) -> Any:
        snapshot = open_snapshot(world.store / snapshot_id)
        return [(run, snapshot.samples(number)) for number, run in enumerate(snapshot.runs)]

    found = Comparer(runs).report(pair(world, base, head))
    assert found is not None and found.unit == unit
    assert found.comparisons == expected.comparisons and found.counts == expected.counts
    assert {c.verdict for c in found.comparisons} <= verdicts
    page = (world.site / pair(world, base, head).path).read_text()
    for case in dict.fromkeys(c.case for c in expected.comparisons):
        shown = [c for c in expected.comparisons if c.case == case and c.gated]
        rows = cells(page, case)
        assert [row[3] for row in rows if not row[6].startswith("(")] == [
            change(c.effect.ratio) for c in shown
        ]
        assert [row[6].split(":")[0] for row in rows if not row[6].startswith("(")] == [
            c.verdict for c in shown
        ]


def test_only_comparable_pairs_have_pages_and_all_are_listed(world: World) -> None:
    pages = {str(path.relative_to(world.site)) for path in world.site.glob("compare/*.html")}
    nightly = {f"nightly {i}" for i in range(12)}
    alike = [*sorted(nightly, key=lambda name: int(name[8:])), "seven base", "four head"]
    offered = {pair(world, b, h).path for i, h in enumerate(alike) for b in alike[:i]}
    assert pages == offered
    linked = set(re.findall(r'href="(compare/[^"]*)"', (world.site / "compare.html").read_text()))
    assert linked == pages
    told = (world.site / pair(world, "nightly 0", "nightly 11").path).read_text()
    assert "jax 0.10.2 → 0.11.0" in told
    changes = (world.site / "index.html").read_text()
    assert f'href="{pair(world, "nightly 5", "nightly 6").path}"' in changes


def facts(number: int, series: str) -> dict[str, Any]:
    when = f"2026-{number:08d}"
    return {
        "id": f"{number:064x}",
        "measured": when,
        "runs": [{"cases": {"a": {"series": series}}}],
    }


def test_the_number_of_comparisons_is_bounded_and_includes_direct_predecessors() -> None:
    some = [facts(i, "even" if i % 2 == 0 else "odd") for i in range(3000)]
    found = pairs_of(some)
    assert len(found) <= 2 * comparisons.MAX_PAIRS
    assert {SnapshotPair(some[i - 2]["id"], some[i]["id"]) for i in range(2, 3000)} <= {*found}
    few = pairs_of(some[:40])
    assert len(few) == 2 * (20 * 19 // 2) and few[0].head == some[39]["id"]


def test_a_new_snapshot_is_compared_without_repeating_old_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, compared = LocalStore(tmp_path / "store"), []

    class Watched(Comparer):
        def report(self, pair: SnapshotPair) -> Any:
            compared.append(pair.head)
            return super().report(pair)

    monkeypatch.setattr(site_building, "Comparer", Watched)
    ids = []
    for number in range(3):
        ids.append(publish([make_run(tmp_path / f"run{number}", number)], store).id)
        build(str(tmp_path / "store"), tmp_path / "site")
    assert compared == [ids[1], ids[2], ids[2]]
    assert len([*(tmp_path / "site").glob("compare/*.html")]) == 3
