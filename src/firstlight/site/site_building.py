"""Builds the site: verify and draw every snapshot, then the list and trends, then swap it in.

A build writes into a folder beside the site and renames it when complete, so a killed build leaves
the old site unchanged. Pages of snapshots are taken over from the last build if the snapshot's
bytes, our code, the trusted keys and the options are the same.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.records import Run, Sample, slug, to_json
from firstlight.site import listing, trend_pages
from firstlight.site.admission import Refused, admit, fingerprint, status
from firstlight.site.changes import changes, departures, newest_first, summaries
from firstlight.site.changes_page import changes_page
from firstlight.site.compare_page import compare_page, pair_page
from firstlight.site.comparisons import Comparer, SnapshotPair, pairs_of
from firstlight.site.feed import feed
from firstlight.site.folder import SiteFolder
from firstlight.site.frame import FEED, assets
from firstlight.site.snapshot_facts import Facts, facts_of
from firstlight.site.snapshot_page import served, snapshot_page
from firstlight.site.trends import Series, TrendPoints, moment
from firstlight.snapshot.archive import write_archive
from firstlight.snapshot.catalogue import Catalogue
from firstlight.snapshot.contents import MAKERS, code_sha256
from firstlight.snapshot.layout import INDEX, LIMITS, SIGNATURE
from firstlight.snapshot.opening import Snapshot, open_snapshot
from firstlight.snapshot.storage import Store, open_store
from firstlight.snapshot.strict_json import canonical, compact
from firstlight.snapshot.trust import TrustedKeys
from firstlight.snapshot.verification import Verification

#: The rooms whose code makes the page of a snapshot.
_MAKERS = (*MAKERS, "compare", "replication", "site")


class SiteOptionError(FirstlightError):
    """An option of the site, or the place of its snapshots, cannot be used."""


@dataclass(frozen=True)
class Options:
    title: str = "Firstlight"
    files: str | None = None  # URL of the snapshots' files; None to copy them into the site
    url: str | None = None  # the site's address, for the feed
    repository: str | None = None  # commits are linked to REPOSITORY/compare/BASE...HEAD


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    out: Path
    shown: int
    reused: int  # pages taken over from the last build
    refused: tuple[Refused, ...]
    cases: int


Watch = Callable[[int, int], None]
#: What drawing a stranger's records may raise. One odd snapshot must not break the whole site.
_ODD = (FirstlightError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


def build(
    place: str, out: Path, options: Options | None = None, watch: Watch | None = None
) -> Built:
    """Build the site of the snapshots at `place` into `out`.

    `watch(number, total)` is called before each snapshot. An existing `out` is replaced if it is a
    site, and refused if it is anything else.
    """
    options = options or Options()
    require_web_address("--files", options.files, or_relative=True)
    require_web_address("--url", options.url)
    require_web_address("--repository", options.repository)
    store = open_store(place)
    entries, unlisted = Catalogue(store).look()
    ids = sorted({*(entry.id for entry in entries), *unlisted})
    if not ids:
        raise SiteOptionError(f"{place}: no snapshots there. `firstlight publish` makes them.")
    with SiteFolder(out) as folder:
        made = _SiteBuild(store, folder, options)
        for number, snapshot_id in enumerate(ids):
            if watch:
                watch(number, len(ids))
            made.add_snapshot(snapshot_id)
        cases = made.finish()
        folder.swap_in()
    return Built(out, len(made.entries), made.reused, tuple(made.refused), cases)


def require_web_address(option: str, address: str | None, or_relative: bool = False) -> None:
    """Refuse an address that is not http(s) or, with `or_relative`, a relative path."""
    if address is None or address.startswith(("https://", "http://")):
        return
    if not or_relative:
        raise SiteOptionError(
            f"{option} {address!r}: give an address that begins with https:// or http://."
        )
    if ":" in address or address.startswith("//") or not address:
        raise SiteOptionError(
            f"{option} {address!r}: give an address that begins with https:// or http://, or a "
            "relative path."
        )


class _SiteBuild:
    """A build in progress."""

    def __init__(self, store: Store, folder: SiteFolder, options: Options) -> None:
        self.entries: list[Facts] = []
        self.refused: list[Refused] = []
        self.reused = 0
        self._store, self._folder, self._options = store, folder, options
        self._trends = TrendPoints()
        self._facts: dict[str, Facts] = {}
        self._record: dict[str, Facts] = {}
        self._circumstances = {
            "code_sha256": code_sha256(*_MAKERS),
            "trusted": _trusted(),
            "options": to_json(options),
        }
        self._earlier = folder.earlier(self._circumstances)

    def add_snapshot(self, snapshot_id: str) -> None:
        """Make or take over the page of a snapshot; note its facts, or that it is refused."""
        mark = fingerprint(self._store.source(snapshot_id), snapshot_id)
        known = self._earlier.get(snapshot_id)
        if mark is not None and known is not None and known["fingerprint"] == mark:
            facts = self._folder.take_over(f"snapshots/{snapshot_id}")
            if facts is not None:
                self.reused += 1
                self._note(facts, known["verification"], mark)
                return
        self._make(snapshot_id, mark)

    def _make(self, snapshot_id: str, mark: str | None) -> None:
        found = admit(self._location(snapshot_id), snapshot_id)
        if isinstance(found, Refused):
            self.refused.append(found)
            return
        try:
            files, facts = self._files_of(open_snapshot(self._location(snapshot_id)), found)
        except _ODD as error:
            # It verifies, but a record in it has an unknown shape.
            reason = f"it cannot be shown: {type(error).__name__}: {error}"
            self.refused.append(Refused(snapshot_id, reason))
            return
        for path, data in files.items():
            self._folder.write(f"snapshots/{snapshot_id}/{path}", data)
        # The location is private, and would make the bytes depend on it.
        public = {name: value for name, value in to_json(found).items() if name != "location"}
        self._note(facts, public, mark)

    def _location(self, snapshot_id: str) -> str:
        return f"{self._store.name.rstrip('/')}/{snapshot_id}"

    def _files_of(self, snapshot: Snapshot, found: Verification) -> tuple[dict[str, bytes], Facts]:
        samples = [snapshot.samples(number) for number in range(len(snapshot.runs))]
        # With sorted keys, as the next build will read it from the file.
        facts: Facts = json.loads(compact(facts_of(snapshot, samples)))
        for run in facts["runs"]:
            moment(run["created_at"])  # raises here rather than in the trends
        title, url = self._options.title, self._options.files
        files = {
            "index.html": snapshot_page(title, snapshot, samples, found, url),
            "data.json": compact(facts),
        }
        return files | (_raw_files(snapshot, found.unchecked_files) if url is None else {}), facts

    def _note(self, facts: Facts, found: Facts, mark: str | None) -> None:
        signature = str(found["signature"])
        known = status(signature, found["signer_name"])
        self.entries.append(listing.entry(facts, known, signature == "trusted"))
        self._trends.add(facts, signature)
        self._facts[facts["id"]] = facts
        self._record[facts["id"]] = {"fingerprint": mark, "verification": found}

    def finish(self) -> int:
        """Write the pages about all snapshots; returns the number of cases with a trend."""
        title, write = self._options.title, self._folder.write
        entries = listing.newest_first(self.entries)
        write("snapshots.html", listing.list_page(title, entries, len(self.refused)))
        compared = self._write_comparisons()
        by_case = {case: self._trends.series(case) for case in self._trends.cases()}
        for case, series in by_case.items():
            write(f"trends/{slug(case)}.html", trend_pages.case_page(title, case, series))
        rows = [trend_pages.index_row(case, series) for case, series in by_case.items()]
        write("trends/index.html", trend_pages.index_page(title, rows))
        self._write_changes(by_case, compared)
        for path, data in {**assets(), **listing.data_files(title, entries)}.items():
            write(path, data)
        record = {
            "schema": "firstlight.site.build",
            "schema_version": 1,
            "circumstances": self._circumstances,
            "snapshots": self._record,
        }
        write("build.json", canonical(record))
        return len(rows)

    def _write_comparisons(self) -> list[SnapshotPair]:
        """Write a page for every pair, and the list; returns the pairs that have a page."""
        comparer, made, facts = Comparer(self._measured), [], self._facts
        for pair in pairs_of([*facts.values()]):
            # Both snapshots are as they were, so the page of the last build is still right.
            if {pair.base, pair.head} <= self._earlier.keys() and self._folder.keep(pair.path):
                made.append(pair)
                continue
            try:
                report = comparer.report(pair)
            except _ODD:
                continue
            if report is not None:
                text = pair_page(self._options.title, facts[pair.base], facts[pair.head], report)
                self._folder.write(pair.path, text)
                made.append(pair)
        self._folder.write("compare.html", compare_page(self._options.title, made, facts))
        return made

    def _measured(self, snapshot_id: str) -> list[tuple[Run, list[Sample]]]:
        snapshot = open_snapshot(self._location(snapshot_id))
        return [(run, snapshot.samples(number)) for number, run in enumerate(snapshot.runs)]

    def _write_changes(
        self, by_case: Mapping[str, list[Series]], compared: Sequence[SnapshotPair]
    ) -> None:
        """Write the first page and the feed."""
        options, found = self._options, by_case.items()
        steps = newest_first([c for case, series in found for c in changes(case, series)])
        curves = [curve for series in by_case.values() for own in series for curve in own.curves]
        departing = [d for case, series in found for d in departures(case, series)]
        page = changes_page(
            options.title, steps, summaries(curves), departing, self.refused, options.repository,
            {*compared},
        )  # fmt: skip
        self._folder.write("index.html", page)
        newest = max((curve.points[-1].moment for curve in curves), default=0.0)
        self._folder.write(FEED, feed(options.title, steps, newest, options.url))


def _trusted() -> dict[str, str]:
    """The trusted keys and time-stamping authorities, as of today."""
    keys, today = TrustedKeys.of_user(), datetime.now(UTC)
    found = {i: f"{k.name}, {k.standing(None, today)}" for i, k in keys.all().items()}
    return found | {i: name for i, (_, name) in keys.authorities().items()}


def _raw_files(snapshot: Snapshot, unchecked: Collection[str]) -> dict[str, bytes]:
    """The files that a browser does not execute, and the archive of all files.

    No unchecked file is served, so with unchecked files there is no archive either.
    """
    every = {path: snapshot.read(path) for path in snapshot.files}
    found = {f"files/{path}": data for path, data in every.items() if served(path, unchecked)}
    if unchecked:
        return found
    every[INDEX] = snapshot.source.read(INDEX, LIMITS.index_bytes)
    if snapshot.signer is not None:
        every[SIGNATURE] = snapshot.source.read(SIGNATURE, 1 << 14)
    archive = io.BytesIO()
    write_archive(archive, snapshot.id, every)
    found[f"files/{snapshot.id}.tar"] = archive.getvalue()
    return found
