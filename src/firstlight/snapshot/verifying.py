"""Verifies a snapshot: what holds, what does not, what was skipped, and what no file can show.

index ──▶ every file's hash ──▶ signature ──▶ schemas ──▶ runs follow from samples ──▶ the rest
                                                          follows from the runs
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from firstlight.snapshot.archive import Archive
from firstlight.snapshot.authenticity import check_signature, check_time, note_lookalikes, token_of
from firstlight.snapshot.errors import SnapshotError, UnusableSnapshotError
from firstlight.snapshot.layout import (
    DISTRIBUTIONS,
    INDEX,
    LIMITS,
    MANIFEST,
    RAW_FILES,
    SAMPLES,
    SIGNATURE,
    VALIDATION,
    Index,
    id_of,
    parse_index,
    require_expected,
)
from firstlight.snapshot.opening import run_folders
from firstlight.snapshot.sources import Item, Reader, Source, missing_file, read_whole
from firstlight.snapshot.storage import open_source
from firstlight.snapshot.strict_json import parse_object
from firstlight.snapshot.trust import Standing, TrustedKeys
from firstlight.snapshot.verification import Finding, Record, Verification


def verify(
    location: str | Path,
    expected_id: str | None = None,
    timestamp: bytes | None = None,
    now: datetime | None = None,
) -> Verification:
    """Check the snapshot at `location`.

    `expected_id` is the id, or at least its first 16 digits, from elsewhere, such as a paper.
    `timestamp` is an RFC 3161 token over the index (default: the file `ID.tsr` beside the
    snapshot). `now` is when keys must not have expired.

    Raises `UnusableSnapshotError` if it is not a snapshot, is too new, or contains what none may.
    """
    source = open_source(location)
    record, named = Record(), source.named_id()
    items = source.walk()
    data = _index_bytes(source, next(items, None))
    _check_identity(data, named, expected_id, record)
    try:
        index = parse_index(data)
    except UnusableSnapshotError as error:
        if not record.findings:  # no name and no expected id to check against
            raise
        record.find("identity", str(error))
        return record.result(source.name, id_of(data))
    kept = _check_files(source, items, index, record)
    trusted = TrustedKeys.of_user()
    token = timestamp if timestamp is not None else token_of(location)
    check_time(data, token, trusted, kept.get(MANIFEST), record)
    document = kept.pop(SIGNATURE, None)
    check_signature(index, data, document, trusted, now or datetime.now(UTC), record)
    if record.signature != Standing.TRUSTED:
        note_lookalikes(kept.get(MANIFEST), trusted, record)
    if record.holds("files"):
        # Imported here because it loads the report, which is not needed to check hashes.
        from firstlight.snapshot.consistency import check_contents

        check_contents(index, data, kept, record)
    else:
        record.skip("the contents of the files: they do not match the index")
    return record.result(source.name, id_of(data))


def findings_in(files: Mapping[str, bytes]) -> list[Finding]:
    """What `verify` would find in a new snapshot of checked runs; `files` includes the index."""
    from firstlight.snapshot.consistency import check_contents

    record, index = Record(), parse_index(files[INDEX])
    _require_sizes(index)
    kept = {path: content for path, content in files.items() if _is_read(path)}
    check_contents(index, files[INDEX], kept, record, is_plausible=True)
    return record.findings


def _index_bytes(source: Source, item: Item | None) -> bytes:
    if item is None or item.path != INDEX:
        raise missing_file(source.name, INDEX)
    if item.content is None:
        raise UnusableSnapshotError(f"{source.name}: {INDEX} is {item.odd}.")
    return read_whole(item.content, INDEX, LIMITS.index_bytes)


def _check_identity(index: bytes, named: str | None, expected: str | None, record: Record) -> None:
    computed = id_of(index)
    if expected is not None and not computed.startswith(require_expected(expected)):
        record.find("identity", f"the id is {computed}, not the requested {expected}")
    if named is not None and named != computed:
        what = f"{INDEX} does not match the name of the snapshot: its id is {computed}"
        record.find("identity", what)
    if expected is not None or named is not None:
        record.passed("identity", f"the id follows from {INDEX}")
    else:
        record.unknown("the id: the folder is not named after it (give it with --id)")


def _is_read(path: str) -> bool:
    """Whether the content of the file is checked, not only its hash."""
    if path.startswith("runs/"):
        return path.rsplit("/", 1)[-1] in RAW_FILES
    return path in (MANIFEST, VALIDATION, DISTRIBUTIONS)


def _require_sizes(index: Index) -> None:
    """Refuse, before reading them, files that the index lists as too large to read whole."""
    samples = 0
    for path, entry in index.files.items():
        if _is_read(path) and path.endswith(f"/{SAMPLES}"):
            samples += entry.bytes
        elif _is_read(path) and entry.bytes > LIMITS.json_bytes:
            raise UnusableSnapshotError(f"{path}: more than the limit of {LIMITS.json_bytes} B.")
    if samples > LIMITS.samples_bytes:
        raise UnusableSnapshotError(f"samples: more than the limit of {LIMITS.samples_bytes} B.")


def _check_files(
    source: Source, items: Iterator[Item], index: Index, record: Record
) -> dict[str, bytes]:
    """Hash every file; returns the contents that later checks need, including the signature."""
    _require_sizes(index)
    kept: dict[str, bytes] = {}
    missing = dict(index.files)
    folders: Collection[str] = ()  # of the manifest, which comes before the runs
    for item in items:
        if item.path == SIGNATURE and item.content is not None:
            kept[SIGNATURE] = read_whole(item.content, SIGNATURE, 1 << 14)
            continue
        entry = missing.pop(item.path, None)
        if item.content is None:
            record.find("files", f"{item.path!r:.150} is {item.odd}")
        elif entry is None:
            record.find("files", f"{item.path!r:.150} is not in the index: it was added")
        else:
            named = not item.path.startswith("runs/") or item.path.rsplit("/", 1)[0] in folders
            keep = _is_read(item.path) and named
            size, digest, data = _digest(item.content, entry.bytes, keep)
            if size != entry.bytes or digest != entry.sha256:
                record.find("files", f"{item.path} is not the file listed in the index")
            elif data is not None:
                kept[item.path] = data
                if item.path == MANIFEST:
                    with suppress(SnapshotError):  # reported when the contents are checked
                        folders = run_folders(parse_object(data, MANIFEST, LIMITS.json_bytes))
    for path in missing:
        record.find("files", f"{path} is missing")
    if isinstance(source, Archive):
        record.passed("files", "the archive is exactly that of this snapshot")
    if not source.sees_all:
        record.unknown("whether there are further files: this place cannot be listed")
    total = sum(entry.bytes for entry in index.files.values())
    record.passed("files", f"{len(index.files)} files, {total} bytes, match their hashes")
    return kept


def _digest(content: Reader, size: int, keep: bool) -> tuple[int, str, bytes | None]:
    """(bytes, SHA-256, content if `keep`); reads at most one byte more than `size`."""
    digest, seen, whole = hashlib.sha256(), 0, io.BytesIO()
    while seen <= size and (part := content.read(min(1 << 20, size + 1 - seen))):
        digest.update(part)
        seen += len(part)
        if keep:
            whole.write(part)
    return seen, digest.hexdigest(), whole.getvalue() if keep else None
