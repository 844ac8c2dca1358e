"""The files of a site: what is shown, what is refused, and that rebuilding is safe."""

from __future__ import annotations

import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from site_store import CASES, HOSTILE, World, make_run

from firstlight.cli import main
from firstlight.records import slug
from firstlight.site import site_building
from firstlight.site.folder import SiteFolderError
from firstlight.site.site_building import Options, SiteOptionError, build
from firstlight.site.snapshot_facts import facts_of
from firstlight.snapshot.layout import id_of, index_bytes
from firstlight.snapshot.opening import Snapshot
from firstlight.snapshot.publishing import publish
from firstlight.snapshot.storage import LocalStore
from firstlight.snapshot.strict_json import canonical
from firstlight.snapshot.verifying import verify

pytestmark = pytest.mark.slow


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="session")
def small_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("small")
    for i in range(2):
        publish([make_run(place / f"run-{i}", i)], LocalStore(place / "store"))
    return place / "store"


@pytest.fixture
def small(small_once: Path, tmp_path: Path) -> Path:
    """The test's own copy of a store with two snapshots."""
    return Path(shutil.copytree(small_once, tmp_path / "small"))


class Links(HTMLParser):
    """The links, scripts and event handlers of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts: list[str | None] = []
        self.handlers: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        plain = dict(attrs)
        self.handlers += [name for name in plain if name.startswith("on")]
        if tag == "script":
            self.scripts.append(plain.get("src"))
        self.found += [v for k, v in plain.items() if k in ("href", "src") and v]


def pages(site: Path) -> dict[str, Links]:
    return {
        str(p.relative_to(site)): Links(p.read_text("utf-8")) for p in sorted(site.rglob("*.html"))
    }


def test_every_link_is_relative_and_points_to_a_file_of_the_site(world: World) -> None:
    checked = 0
    for name, links in pages(world.site).items():
        for link in links.found:
            parts = urlsplit(link)
            assert not parts.scheme and not parts.netloc and not parts.path.startswith("/"), link
            if parts.path:
                target = (world.site / name).parent / unquote(parts.path)
                assert target.resolve().is_file(), f"{name}: {link}"
                assert world.site.resolve() in target.resolve().parents
                checked += 1
    assert checked > 300


def test_no_page_has_an_inline_script_or_an_event_handler(world: World) -> None:
    found = pages(world.site)
    for name, links in found.items():
        assert None not in links.scripts and links.handlers == [], name
        assert "img" not in links.tags and "iframe" not in links.tags, name
    text = (world.site / f"snapshots/{world.ids['hostile']}/index.html").read_text()
    assert html.escape(HOSTILE) in text and "</script><script>" not in text


def test_a_damaged_snapshot_is_listed_with_its_reason_and_not_shown(
    world: World,
) -> None:
    damaged = world.ids["damaged"]
    assert [r.id for r in world.built.refused] == [damaged]
    assert world.built.shown == len(world.ids) - 1
    index = (world.site / "index.html").read_text()
    assert damaged in index and "tables/cases.csv is not the file" in index
    for name, data in files_of(world.site).items():
        if name != "index.html":
            assert damaged.encode() not in data, name


def test_unchecked_files_are_listed_but_not_served(small: Path, tmp_path: Path) -> None:
    """A snapshot that claims another Firstlight made it, with a citation that cannot be checked."""
    genuine = next(p for p in small.iterdir() if (p / "index.json").is_file())
    files = {k: v for k, v in files_of(genuine).items() if k != "index.json"}
    about = json.loads(files["manifest.json"])
    about["made_by"]["code_sha256"] = "0" * 64
    files |= {"manifest.json": canonical(about), "CITATION.cff": b"title: Ten times faster\n"}
    index = index_bytes(files, None)
    for path, data in {**files, "index.json": index}.items():
        (target := tmp_path / "store" / id_of(index) / path).parent.mkdir(
            parents=True, exist_ok=True
        )
        target.write_bytes(data)
    build(str(tmp_path / "store"), tmp_path / "site")
    handed_out = {*files_of(tmp_path / "site" / "snapshots" / id_of(index))}
    assert "files/tables/cases.csv" in handed_out and "files/runs/001/samples.jsonl" in handed_out
    assert "files/CITATION.cff" not in handed_out and not any(".tar" in f for f in handed_out)
    page = (tmp_path / "site" / "snapshots" / id_of(index) / "index.html").read_text()
    assert "CITATION.cff <small>not checked</small>" in page
    assert not any(b"Ten times" in data for data in files_of(tmp_path / "site").values())


def test_the_list_shows_which_snapshots_are_signed(world: World) -> None:
    entries = [
        entry
        for piece in sorted(world.site.glob("data/list-*.json"))
        for entry in json.loads(piece.read_text())
    ]
    by_title = {entry["title"]: entry["signature"] for entry in entries}
    assert by_title["nightly 11"] == "signed, key not known"
    assert by_title["nightly 10"] == "not signed"
    page = (world.site / f"snapshots/{world.ids['nightly 11']}/index.html").read_text()
    assert "signed with the key" in page and "not among your trusted keys" in page


def test_the_list_shows_that_a_machine_was_loaded(world: World) -> None:
    """The load is that of the run that was made up for it."""
    rows = (world.site / "snapshots.html").read_text().split("<tr>")
    (loaded,) = (row for row in rows if "loaded machine" in row)
    assert "other machine" in loaded
    assert '2 of 2</span> <span class="badge">loaded machine, 90%</span></td>' in loaded


def test_no_two_landmarks_of_a_page_have_the_same_name(world: World) -> None:
    page = (world.site / "snapshots" / world.ids["seven base"] / "index.html").read_text()
    names = re.findall(r'<(?:aside|nav)[^>]*aria-label="([^"]*)"', page)
    assert len(names) == 8 and len({*names}) == 8  # the navigation, and seven runs' warnings


def test_the_list_is_split_into_pieces_and_its_page_has_only_the_newest(world: World) -> None:
    pieces = sorted(world.site.glob("data/list-*.json"))
    sizes = [len(json.loads(piece.read_text())) for piece in pieces]
    assert sizes == [4, 4, 4, 4]
    rows = re.findall(r"<tr><td>(\d{4}-\d\d-\d\d)", (world.site / "snapshots.html").read_text())
    assert len(rows) == 5 and rows == sorted(rows, reverse=True)


def test_only_files_that_no_browser_executes_are_served_and_the_archive_verifies(
    world: World,
) -> None:
    folder = world.site / "snapshots" / world.ids["hostile"] / "files"
    kinds = {p.suffix for p in folder.rglob("*") if p.is_file()}
    assert kinds == {".json", ".jsonl", ".csv", ".cff", ".md", ".tar"}
    original = world.store / world.ids["hostile"]
    for path in folder.rglob("*.json*"):
        assert path.read_bytes() == (original / path.relative_to(folder)).read_bytes()
    found = verify(folder / f"{world.ids['hostile']}.tar", world.ids["hostile"])
    assert found.findings == ()


def test_the_same_snapshots_give_the_same_bytes(small: Path, tmp_path: Path) -> None:
    build(str(small), tmp_path / "one")
    copy = shutil.copytree(small, tmp_path / "elsewhere")
    build(str(copy), tmp_path / "two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_pages_of_unchanged_snapshots_are_reused_with_the_same_result(
    small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "site"
    assert build(str(small), out).reused == 0
    publish([make_run(tmp_path / "third", 5)], LocalStore(small))
    again = build(str(small), out)
    assert (again.shown, again.reused) == (3, 2)
    build(str(small), tmp_path / "fresh")
    assert files_of(out) == files_of(tmp_path / "fresh")
    assert build(str(small), out, Options(title="Other")).reused == 0


def test_a_snapshot_damaged_since_the_last_build_is_refused(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    first = build(str(small), out)
    victim = next(p for p in small.iterdir() if len(p.name) == 64)
    page = victim / "validation.html"
    page.write_bytes(page.read_bytes().replace(b"Firstlight", b"Firstlighx", 1))
    second = build(str(small), out)
    assert first.refused == () and [r.id for r in second.refused] == [victim.name]
    assert not (out / "snapshots" / victim.name).exists()


def test_a_failed_build_leaves_the_old_site_unchanged(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "site"
    build(str(small), out)
    before = files_of(out)

    def fail(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(site_building, "compare_page", fail)
    with pytest.raises(KeyboardInterrupt):
        build(str(small), out, Options(title="never seen"))
    assert files_of(out) == before
    assert sorted(p.name for p in tmp_path.iterdir() if "site" in p.name) == ["site"]


def test_a_folder_that_is_no_site_is_never_replaced(small: Path, tmp_path: Path) -> None:
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter.tex").write_text("years of work")
    with pytest.raises(SiteFolderError, match="is not a site"):
        build(str(small), mine)
    assert (mine / "chapter.tex").read_text() == "years of work"


def test_raw_files_can_be_linked_elsewhere_but_never_to_a_script(
    small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "site"
    build(str(small), out, Options(files="https://example.org/results/"))
    assert not list(out.rglob("*.tar"))
    page = next(out.glob("snapshots/*/index.html")).read_text()
    assert re.search(r'href="https://example.org/results/[0-9a-f]{64}/manifest.json"', page)
    for bad in ("javascript:alert(1)", "//example.org", "data:text/html,x", ""):
        with pytest.raises(SiteOptionError):
            build(str(small), tmp_path / "never", Options(files=bad))


def test_one_odd_snapshot_does_not_break_the_site(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = make_run(tmp_path / "odd", 7)
    huge = make_run(tmp_path / "huge", 8, factor=1e6)
    ids = [publish([run], LocalStore(small)).id for run in (odd, huge)]
    assert all(verify(small / name).findings == () for name in ids)

    def facts(snapshot: Snapshot, samples: Any) -> dict[str, Any]:
        if snapshot.id == ids[0]:  # as if one of its records had an unexpected shape
            raise AttributeError("'str' object has no attribute 'get'")
        return facts_of(snapshot, samples)

    monkeypatch.setattr("firstlight.site.site_building.facts_of", facts)
    built = build(str(small), tmp_path / "site")
    assert ids[0] in [r.id for r in built.refused]
    assert built.shown + len(built.refused) == 4 and built.shown >= 2
    trend = (tmp_path / "site" / "trends" / f"{slug(CASES[1].id)}.html").read_text()
    assert "<svg" in trend and not re.search(r'(?:d|cx|cy|x|y)="[^"]*(?:nan|inf)', trend)


def test_a_place_without_snapshots_makes_no_site(tmp_path: Path) -> None:
    with pytest.raises(SiteOptionError, match="no snapshots there"):
        build(str(tmp_path / "nowhere"), tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_url_is_read_like_a_directory(small: Path, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path, data in files_of(small).items():
        memory.pipe_file(f"/site-results/{path}", data)
    build(str(small), tmp_path / "here")
    build("memory://site-results", tmp_path / "there")
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def test_the_command_reports_refused_snapshots_and_exits_with_1(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", str(small), "--out", str(tmp_path / "site")]) == 0
    assert "2 snapshots" in capsys.readouterr().out
    victim = next(p for p in small.iterdir() if len(p.name) == 64)
    (victim / "index.json").write_text("{}")
    assert main(["site", str(small), "--out", str(tmp_path / "site"), "--json"]) == 1
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["shown"] == 1 and told["refused"][0]["id"] == victim.name
