"""Lists thousands of snapshots quickly: `catalogue/entries/<id>.json` is written once, with the
snapshot; `catalogue/all.jsonl` collects the entries and is rewritten now and then.

Both are only caches. A listing starts from the folders, takes their entries from `all.jsonl`, reads
the few that are missing there one by one, and makes the rest from the snapshots. So concurrent
publishers may overwrite each other's lines without harm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from firstlight.records import to_json
from firstlight.snapshot.errors import SnapshotError, UnusableSnapshotError
from firstlight.snapshot.keys import PublicKey
from firstlight.snapshot.layout import (
    INDEX,
    LIMITS,
    MANIFEST,
    VALIDATION,
    id_of,
    parse_index,
    require_version,
)
from firstlight.snapshot.opening import machine, read_checked
from firstlight.snapshot.storage import Store, open_store
from firstlight.snapshot.strict_json import compact, decoded, parse, parse_object

ALL = "catalogue/all.jsonl"
_MAX_BYTES, _MAX_ENTRY_BYTES = 256 << 20, 1 << 18
#: On average at most so many entries are missing in `all.jsonl`.
_MAX_LOOSE = 64
#: Entries made from snapshots per listing: a copied store may have no catalogue.
_MAX_MADE = 64
_MAX_CASES = 300

Names = list[str]
Refused = dict[str, str]  # id: why it is not listed


@dataclass(frozen=True)
class Entry:
    """A snapshot in a list."""

    id: str
    title: str
    created_at: str  # when its last run was finished
    machine: str
    harness: str  # the versions of Firstlight that measured
    cases: tuple[str, ...]
    cases_total: int
    cases_passed: int
    signer: str | None  # id of the key that the index names; not checked here
    files: int
    bytes: int
    cpu_busy_ratio: float | None  # share of the CPU used by others when the busiest run began


Entries = list[Entry]


class Catalogue:
    """The snapshots in a directory or at a URL."""

    def __init__(self, store: Store | str | Path) -> None:
        self._store = open_store(store) if isinstance(store, (str, Path)) else store

    def list(self) -> Entries:
        return self.look()[0]

    def look(self) -> tuple[Entries, Refused]:
        """The entries, and why other folders have none; writes nothing."""
        present = self._store.ids()
        lines = (self._store.read(ALL, _MAX_BYTES) or b"").split(b"\n")
        gathered = {entry.id: entry for line in lines if line and (entry := _parsed(line))}
        known = {name: gathered[name] for name in present if name in gathered}
        missing = [snapshot_id for snapshot_id in present if snapshot_id not in known]
        known |= self._loose(missing)
        made, refused = self._made([i for i in missing if i not in known], _MAX_MADE)
        return _newest_first([*known.values(), *made]), refused

    def add(self, snapshot_id: str, files: Mapping[str, bytes]) -> None:
        """Add a snapshot that has just been written."""
        entry = _entry(files[INDEX], files.__getitem__)
        self._store.write(_entry_name(snapshot_id), _line(entry))
        # Ids are as good as random: one in _MAX_LOOSE publishers gathers, without counting.
        if int(snapshot_id[:8], 16) % _MAX_LOOSE == 0:
            self.gather()

    def gather(self) -> None:
        self._store.write(ALL, b"".join(sorted(map(_line, self.list()))))

    def rebuild(self) -> tuple[Entries, Refused]:
        """Rebuild every entry from its snapshot; also returns why other folders are refused."""
        ids = self._store.ids()
        entries, refused = self._made(ids, len(ids))
        for entry in entries:
            self._store.write(_entry_name(entry.id), _line(entry))
        self.gather()
        return _newest_first(entries), refused

    def _made(self, ids: Names, limit: int) -> tuple[Entries, Refused]:
        """The entries of these snapshots, made from their files; at most `limit`."""
        entries: Entries = []
        refused = dict.fromkeys(ids[limit:], "no entry in the catalogue; try --rebuild")
        for snapshot_id in ids[:limit]:
            source = self._store.source(snapshot_id)
            try:
                index = source.read(INDEX, LIMITS.index_bytes)
                if id_of(index) != snapshot_id:
                    raise UnusableSnapshotError(f"{source.name}: its index has another id.")
                read = partial(read_checked, source, parse_index(index).files)
                entries.append(_entry(index, read))
            except SnapshotError as error:
                refused[snapshot_id] = str(error)
        return entries, refused

    def _loose(self, ids: Names) -> dict[str, Entry]:
        names = {_entry_name(snapshot_id): snapshot_id for snapshot_id in ids}
        found = self._store.read_many([*names], _MAX_ENTRY_BYTES).items()
        entries = ((names[name], _parsed(data)) for name, data in found)
        return {key: entry for key, entry in entries if entry is not None and entry.id == key}


def _newest_first(entries: Entries) -> Entries:
    return sorted(entries, key=lambda e: (e.created_at, e.id), reverse=True)


def _entry(index: bytes, read: Callable[[str], bytes]) -> Entry:
    """The entry of a snapshot, from its index, manifest and validation report."""
    about = parse_object(read(MANIFEST), MANIFEST, LIMITS.json_bytes)
    report = parse_object(read(VALIDATION), VALIDATION, LIMITS.json_bytes)
    require_version(about, "firstlight.snapshot.manifest", MANIFEST)
    require_version(report, "firstlight.snapshot.validation", VALIDATION)
    listed = parse_index(index)
    try:
        runs = about["runs"]
        cases = dict.fromkeys(c["case"] for run in runs for c in run["cases"])
        plain = {
            "id": id_of(index),
            "title": about["publication"]["title"],
            "created_at": about["measured_to"],
            "machine": "; ".join(dict.fromkeys(machine(run["hardware"]) for run in runs)),
            "harness": ", ".join(sorted({str(run["harness"]["version"]) for run in runs})),
            "cases": list(cases)[:_MAX_CASES],
            "cases_total": report["cases_total"],
            "cases_passed": report["cases_passed"],
            "signer": PublicKey.from_base64(listed.signer).id if listed.signer else None,
            "files": len(listed.files),
            "bytes": sum(file.bytes for file in listed.files.values()),
            "cpu_busy_ratio": max(r["state"].get("cpu_busy_ratio") or 0.0 for r in runs) or None,
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UnusableSnapshotError(f"{MANIFEST}: not a snapshot's manifest ({error!r}).") from None
    return decoded(Entry, plain, MANIFEST)


def _entry_name(snapshot_id: str) -> str:
    return f"catalogue/entries/{snapshot_id}.json"


def _line(entry: Entry) -> bytes:
    return compact(to_json(entry)) + b"\n"


def _parsed(line: bytes) -> Entry | None:
    """An entry, or None if it is damaged: a cache may be, and the snapshot is read instead."""
    try:
        # There are thousands of lines: json.loads is safe where no escape can be a lone surrogate.
        unusual = b"\\u" in line or len(line) > _MAX_ENTRY_BYTES
        plain = parse(line, ALL, _MAX_ENTRY_BYTES) if unusual else json.loads(line)
        return decoded(Entry, plain, ALL)
    except (SnapshotError, ValueError, RecursionError):
        return None
