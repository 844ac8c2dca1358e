"""A list of thousands of snapshots in one look.

    catalogue/entries/<id>.json   one small entry a snapshot, written once, after the snapshot
    catalogue/all.jsonl           the entries together, rewritten now and then

Both are only a cache: the truth is the snapshots. A listing names the folders that are there, takes
their entries from `all.jsonl`, reads singly the few that are not in it, and makes those that are
nowhere from the snapshot. So it does not matter who wrote `all.jsonl` last: publishers who write at
the same time lose each other's lines, and the next listing finds them again by their own files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstlight.records import to_json
from firstlight.snapshot import strict_json
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
from firstlight.snapshot.machines import machine
from firstlight.snapshot.opening import read_checked
from firstlight.snapshot.storage import Store, open_store
from firstlight.snapshot.strict_json import decoded

ALL = "catalogue/all.jsonl"
_MAX_BYTES, _MAX_ENTRY_BYTES = 256 << 20, 1 << 18
#: How many entries a listing has to read singly, on average at most.
_LOOSE = 64
#: How many entries a listing makes from snapshots at most: a copied store may have none at all.
_MAX_MADE = 64
_MAX_CASES = 300

Names = list[str]
Refused = dict[str, str]  # id: why it is not listed


@dataclass(frozen=True)
class Entry:
    """What a list shows of a snapshot."""

    id: str
    title: str
    created_at: str  # when the last of its runs had been measured
    machine: str
    harness: str  # versions of Firstlight that measured
    cases: tuple[str, ...]
    cases_total: int
    cases_passed: int
    signer: str | None  # id of the key that the index names; not checked here
    files: int
    bytes: int
    cpu_busy_ratio: float | None  # of the CPU, taken by others when the busiest run began


Entries = list[Entry]


class Catalogue:
    """The snapshots in a directory or at a URL."""

    def __init__(self, store: Store | str | Path) -> None:
        self._store = open_store(store) if isinstance(store, (str, Path)) else store

    def list(self) -> Entries:
        """The entries of all snapshots that are there, newest first."""
        return self.look()[0]

    def look(self) -> tuple[Entries, Refused]:
        """The entries, and the folders without one with the reason: half written, as a rule.

        An entry that is missing is made from its snapshot; nothing is written.
        """
        present = self._store.ids()
        gathered = self._gathered()
        known = {name: gathered[name] for name in present if name in gathered}
        missing = [snapshot_id for snapshot_id in present if snapshot_id not in known]
        known |= self._loose(missing)
        made, refused = self._made([i for i in missing if i not in known], _MAX_MADE)
        return _newest_first([*known.values(), *made]), refused

    def add(self, snapshot_id: str, files: Mapping[str, bytes]) -> None:
        """Enter a snapshot that has just been written."""
        entry = entry_of(files[INDEX], files[MANIFEST], files[VALIDATION])
        self._store.write(_entry_name(snapshot_id), _line(entry))
        # Ids are as good as random: about every so many-th publisher gathers, without counting.
        if int(snapshot_id[:8], 16) % _LOOSE == 0:
            self.gather()

    def gather(self) -> None:
        """Write the entries that are there into one file."""
        self._write_all(self.list())

    def rebuild(self) -> tuple[Entries, Refused]:
        """Rebuild every entry from its snapshot; also lists folders that are not snapshots."""
        ids = self._store.ids()
        entries, refused = self._made(ids, len(ids))
        for entry in entries:
            self._store.write(_entry_name(entry.id), _line(entry))
        self._write_all(entries)
        return _newest_first(entries), refused

    def _made(self, ids: Names, most: int) -> tuple[Entries, Refused]:
        """The entries of these snapshots, from the snapshots themselves."""
        entries: Entries = []
        refused = dict.fromkeys(ids[most:], "no entry in the catalogue; try --rebuild")
        for snapshot_id in ids[:most]:
            try:
                entries.append(self._entry_from_snapshot(snapshot_id))
            except SnapshotError as error:
                refused[snapshot_id] = str(error)
        return entries, refused

    def _entry_from_snapshot(self, snapshot_id: str) -> Entry:
        source = self._store.source(snapshot_id)
        index = source.read(INDEX, LIMITS.index_bytes)
        if id_of(index) != snapshot_id:
            raise UnusableSnapshotError(f"{source.name}: its index has another id.")
        files = parse_index(index).files
        parts = [read_checked(source, files, p, LIMITS.json_bytes) for p in (MANIFEST, VALIDATION)]
        return entry_of(index, *parts)

    def _write_all(self, entries: Entries) -> None:
        lines = sorted(_line(entry) for entry in entries)
        self._store.write(ALL, b"".join(lines))

    def _gathered(self) -> dict[str, Entry]:
        data = self._store.read(ALL, _MAX_BYTES) or b""
        entries = (_parsed(line) for line in data.split(b"\n") if line)
        return {entry.id: entry for entry in entries if entry is not None}

    def _loose(self, ids: Names) -> dict[str, Entry]:
        names = {_entry_name(snapshot_id): snapshot_id for snapshot_id in ids}
        found = {}
        for name, data in self._store.read_many([*names], _MAX_ENTRY_BYTES).items():
            entry = _parsed(data)
            if entry is not None and entry.id == names[name]:
                found[entry.id] = entry
        return found


def _newest_first(entries: Entries) -> Entries:
    return sorted(entries, key=lambda e: (e.created_at, e.id), reverse=True)


def entry_of(index: bytes, manifest: bytes, validation: bytes) -> Entry:
    """The entry of a snapshot, from three of its files."""
    about = strict_json.parse_object(manifest, MANIFEST, LIMITS.json_bytes)
    report = strict_json.parse_object(validation, VALIDATION, LIMITS.json_bytes)
    require_version(about, "firstlight.snapshot.manifest", MANIFEST)
    require_version(report, "firstlight.snapshot.validation", VALIDATION)
    files = parse_index(index)
    try:
        return _entry(id_of(index), about, report, files.signer, list(files.files.values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise UnusableSnapshotError(f"{MANIFEST}: not a snapshot's manifest ({error!r}).") from None


def _entry(
    snapshot_id: str, about: Any, report: Any, signer: str | None, files: list[Any]
) -> Entry:
    runs = about["runs"]
    plain = {
        "id": snapshot_id,
        "title": about["publication"]["title"],
        "created_at": about["measured_to"],
        "machine": "; ".join(dict.fromkeys(machine(run["hardware"]) for run in runs)),
        "harness": ", ".join(sorted({str(run["harness"]["version"]) for run in runs})),
        "cases": list(dict.fromkeys(c["case"] for run in runs for c in run["cases"]))[:_MAX_CASES],
        "cases_total": report["cases_total"],
        "cases_passed": report["cases_passed"],
        "signer": PublicKey.from_base64(signer).id if signer else None,
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "cpu_busy_ratio": max(run["state"].get("cpu_busy_ratio") or 0.0 for run in runs) or None,
    }
    return decoded(Entry, plain, MANIFEST)


def _entry_name(snapshot_id: str) -> str:
    return f"catalogue/entries/{snapshot_id}.json"


def _line(entry: Entry) -> bytes:
    return strict_json.compact(to_json(entry)) + b"\n"


def _parsed(line: bytes) -> Entry | None:
    """An entry, or None for what is damaged or foreign: it is a cache, so it is read elsewhere."""
    try:
        # Thousands of lines: the quick parser will do where no escape can hide half a character.
        strange = b"\\u" in line or len(line) > _MAX_ENTRY_BYTES
        plain = strict_json.parse(line, ALL, _MAX_ENTRY_BYTES) if strange else json.loads(line)
        return decoded(Entry, plain, ALL)
    except (SnapshotError, ValueError, RecursionError):
        return None
