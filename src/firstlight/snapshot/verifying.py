"""Is a snapshot what it says it is? What holds, what does not, what was skipped, and what no file
can tell.

index ──▶ every file's hash ──▶ signature ──▶ schemas ──▶ runs follow from samples ──▶ the rest
                                                          follows from the runs
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from firstlight.snapshot.archive import Reader
from firstlight.snapshot.by_value import SNIPPET, is_table
from firstlight.snapshot.errors import SnapshotError, UnusableSnapshotError
from firstlight.snapshot.keys import can_sign
from firstlight.snapshot.layout import (
    DISTRIBUTIONS,
    INDEX,
    LIMITS,
    MANIFEST,
    PLAN,
    RUN,
    SAMPLES,
    SIGNATURE,
    VALIDATION,
    Index,
    Limits,
    id_of,
    is_id,
    parse_index,
    require_expected,
)
from firstlight.snapshot.opening import run_folders
from firstlight.snapshot.signatures import signed_by
from firstlight.snapshot.sources import Archive, Item, Source, exactly, full_location, open_source
from firstlight.snapshot.storage import open_store
from firstlight.snapshot.strict_json import parse_object
from firstlight.snapshot.timestamps import MOST_BYTES, read_token
from firstlight.snapshot.trust import Standing, Trusted, TrustedKeys, skeleton


class Outcome(StrEnum):
    """What came of verifying: that the files are valid says nothing of how good the numbers are."""

    VALID = "valid"
    PARTLY_CHECKED = "valid as far as checked"
    NUMBERS_NOT_CHECKED = "numbers not checked"
    NOT_VALID = "not valid"


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    check: str  # identity, files, time, signature, schemas, samples, labels, derived
    message: str


@dataclass(frozen=True)
class Verification:
    """What came of verifying a snapshot."""

    location: str
    id: str
    signature: str  # trusted, expired, revoked, valid (key not known), none, bad, not checked
    signer: str | None  # id of the key, where the signature is good
    signer_name: str | None  # what this user calls it, where it is trusted
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]  # what cannot be known from these files
    skipped: tuple[str, ...] = ()  # what could be, and was not checked here
    unchecked_files: tuple[str, ...] = ()  # of which only the hash was checked
    numbers_checked: bool = True  # whether the numbers were held against the raw samples
    loads: tuple[str, ...] = ()  # runs that other programs disturbed, in words
    proven_time: str | None = None  # by when it existed, by an authority that this user trusts

    @property
    def outcome(self) -> Outcome:
        """The verdict on the files."""
        if self.findings:
            return Outcome.NOT_VALID
        if not self.numbers_checked:
            return Outcome.NUMBERS_NOT_CHECKED
        return Outcome.PARTLY_CHECKED if self.skipped else Outcome.VALID

    @property
    def exit_code(self) -> int:
        """0 everything was checked and holds, 1 something does not, 3 not all could be checked."""
        return {Outcome.VALID: 0, Outcome.NOT_VALID: 1}.get(self.outcome, 3)


@dataclass
class Record:
    """What is noted while a snapshot is looked through."""

    checked: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unchecked_files: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    numbers_checked: bool = True
    proven_time: datetime | None = None
    _told: set[str] = field(default_factory=set)

    def find(self, check: str, message: str) -> None:
        self.findings.append(Finding(check, message))

    def passed(self, check: str, message: str) -> None:
        """Say what holds, unless something of this check does not."""
        if not any(finding.check == check for finding in self.findings):
            self.checked.append(message)

    def unknown(self, message: str) -> None:
        """Something that nobody can tell from these files."""
        if message not in self._told:
            self._told.add(message)
            self.not_checked.append(message)

    def skip(self, message: str, files: Sequence[str] = ()) -> None:
        """Something that could be checked, and is not here."""
        if message not in self._told:
            self._told.add(message)
            self.skipped.append(message)
            self.unchecked_files += files


#: Of so many findings of one kind the first are told, and how many more there are.
_MOST_FINDINGS = 20


def verify(
    location: str | Path,
    expected_id: str | None = None,
    trusted: TrustedKeys | None = None,
    limits: Limits = LIMITS,
    timestamp: bytes | None = None,
    now: datetime | None = None,
) -> Verification:
    """Check the snapshot at `location`; `expected_id` is the id from elsewhere, such as a paper,
    or its first 16 digits or more. `timestamp` is an RFC 3161 token over its index; without, the
    file `ID.tsr` beside the snapshot counts. `now` is when keys must not have expired.

    Raises `UnusableSnapshotError` if it is no snapshot, is too new, or holds what no snapshot may.
    """
    source = open_source(location)
    record, named = Record(), source.named_id()
    items = source.walk(limits)
    data = _index_bytes(source, next(items, None), limits)
    _check_identity(data, named, expected_id, record)
    try:
        index = parse_index(data, limits)
    except UnusableSnapshotError as error:
        if not record.findings:  # no name and no promise to hold it against
            raise
        record.find("identity", str(error))
        return _result(source, data, record, ("bad", None, None))
    kept = _check_files(source, items, index, record, limits)
    trusted = trusted or TrustedKeys.of_user()
    token = timestamp if timestamp is not None else token_beside(location)
    _check_time(data, token, trusted, kept.get(MANIFEST), record)
    document = kept.pop(SIGNATURE, None)
    signature = _check_signature(index, data, document, trusted, now or datetime.now(UTC), record)
    if signature[0] != Standing.TRUSTED:
        _note_lookalikes(kept.get(MANIFEST), trusted, record)
    if not any(finding.check == "files" for finding in record.findings):
        # Imported here: re-making the contents loads the report, of which hashes need nothing.
        from firstlight.snapshot.consistency import check_contents

        check_contents(index, data, kept, record, limits)
    else:
        record.skip("what the files say: they are not those of the index")
        record.numbers_checked = False
    return _result(source, data, record, signature)


def _index_bytes(source: Source, item: Item | None, limits: Limits) -> bytes:
    if item is None or item.path != INDEX or item.content is None:
        what = f" ({INDEX} is {item.odd})" if item and item.path == INDEX else ""
        raise UnusableSnapshotError(
            f"{source.name}: no {INDEX}{what}, so this is no snapshot, or one whose publishing was "
            "interrupted."
        )
    return exactly(item.content, INDEX, limits.index_bytes)


def _check_identity(index: bytes, named: str | None, expected: str | None, record: Record) -> None:
    computed = id_of(index)
    if expected is not None and not computed.startswith(require_expected(expected)):
        record.find("identity", f"the id is {computed}, not the {expected} that was asked for")
    if named is not None and named != computed:
        record.find(
            "identity",
            f"{INDEX} is not the one that the snapshot is named for: its id is {computed}",
        )
    if expected is not None or named is not None:
        record.passed("identity", f"the id follows from {INDEX}")
    else:
        record.unknown("the id: the folder is not named by it (give it with --id)")


def findings_in(files: Mapping[str, bytes]) -> tuple[Finding, ...]:
    """What would be found in a snapshot that is not written yet; `files` has its index too."""
    from firstlight.snapshot.consistency import check_contents

    record, data = Record(), files[INDEX]
    index = parse_index(data)
    _require_sizes(index, LIMITS)
    check_contents(index, data, {p: files[p] for p in files if _is_read(p)}, record, LIMITS)
    return tuple(record.findings)


def _is_read(path: str) -> bool:
    """Whether the content of the file is looked at, not only its hash."""
    if path.startswith("runs/"):
        return path.rsplit("/", 1)[-1] in (PLAN, SAMPLES, RUN)
    return path in (MANIFEST, VALIDATION, DISTRIBUTIONS, SNIPPET) or is_table(path)


def _may_be_large(path: str) -> bool:
    """Whether the snapshot is valid without a look into the file: too large, it is not kept."""
    return path == SNIPPET or is_table(path)


def _require_sizes(index: Index, limits: Limits) -> None:
    """What is read whole must fit, by what the index says, before a byte of it is read."""
    samples = 0
    for path, entry in index.files.items():
        if not _is_read(path) or _may_be_large(path):
            continue
        if path.endswith(f"/{SAMPLES}"):
            samples += entry.bytes
        elif entry.bytes > limits.json_bytes:
            raise UnusableSnapshotError(
                f"{path}: {entry.bytes} bytes, more than the {limits.json_bytes} that are read."
            )
    if samples > limits.samples_bytes:
        raise UnusableSnapshotError(
            f"{samples} bytes of samples, more than the {limits.samples_bytes} that are read."
        )


def _check_files(
    source: Source, items: Iterator[Item], index: Index, record: Record, limits: Limits
) -> dict[str, bytes]:
    """Hash every file; what later checks read is returned, the signature too."""
    _require_sizes(index, limits)
    kept: dict[str, bytes] = {}
    missing = dict(index.files)
    for item in items:
        if item.path == SIGNATURE and item.content is not None:
            kept[SIGNATURE] = exactly(item.content, SIGNATURE, 1 << 14)
            continue
        entry = missing.pop(item.path, None)
        if item.content is None:
            record.find("files", f"{item.path!r:.150} is {item.odd}")
        elif entry is None:
            record.find("files", f"{item.path!r:.150} is not in the index: it was added")
        else:
            keep = _is_read(item.path) and _is_named(item.path, kept.get(MANIFEST), limits)
            keep = keep and not (_may_be_large(item.path) and entry.bytes > limits.json_bytes)
            size, digest, data = _digest(item.content, entry.bytes, keep)
            if size != entry.bytes or digest != entry.sha256:
                record.find("files", f"{item.path} is not the file that the index names")
            elif data is not None:
                kept[item.path] = data
    for path in missing:
        record.find("files", f"{path} is missing")
    if isinstance(source, Archive):
        record.passed("files", "the archive is the one of this snapshot, byte by byte")
    if not source.sees_all():
        record.unknown("that there is no further file: this place cannot be listed")
    total = sum(entry.bytes for entry in index.files.values())
    record.passed("files", f"{len(index.files)} files, {total} bytes, have the hash of the index")
    return kept


def _is_named(path: str, manifest: bytes | None, limits: Limits) -> bool:
    """Whether a file of a run is of one that the manifest names; it comes before the runs."""
    if not path.startswith("runs/"):
        return True
    if manifest is None:
        return False
    try:
        folders = _folders(manifest, limits)
    except SnapshotError:  # found again, and told, when the contents are checked
        return False
    return path.rsplit("/", 1)[0] in folders


@functools.lru_cache(maxsize=1)
def _folders(manifest: bytes, limits: Limits) -> tuple[str, ...]:
    return run_folders(parse_object(manifest, MANIFEST, limits.json_bytes), limits)


def _digest(content: Reader, size: int, keep: bool) -> tuple[int, str, bytes | None]:
    """(bytes, SHA-256, content where kept); reads at most one byte more than expected."""
    digest, seen, whole = hashlib.sha256(), 0, io.BytesIO()
    while seen <= size and (part := content.read(min(1 << 20, size + 1 - seen))):
        digest.update(part)
        seen += len(part)
        if keep:
            whole.write(part)
    return seen, digest.hexdigest(), whole.getvalue() if keep else None


def token_beside(location: str | Path) -> bytes | None:
    """The token that lies beside a snapshot or its archive, as `ID.tsr`."""
    folder, slash, name = full_location(location).rstrip("/").rpartition("/")
    stem = name.partition(".")[0]
    if not is_id(stem):
        return None
    return open_store(folder or slash or ".").read(f"{stem}.tsr", MOST_BYTES)


def _check_time(
    data: bytes, token: bytes | None, trusted: TrustedKeys, manifest: bytes | None, record: Record
) -> None:
    """By when the index existed, as an authority with a clock says."""
    if token is None:
        return
    if not can_sign():
        record.skip("the proof of time: the package `cryptography` is not installed")
        return
    try:
        found = read_token(token, data)
    except SnapshotError as error:
        record.find("time", f"the proof of time is none: {error}")
        return
    when = found.time.isoformat(timespec="seconds")
    measured = str(_said(manifest).get("measured_to", ""))
    if measured > when:  # both in UTC, in one spelling up to the second
        record.find("time", f"it was there at {when}, and says that it was measured at {measured}")
    known = trusted.authorities().values()
    name = next((name for anchor, name in known if found.is_vouched_for(anchor)), None)
    if name is None:
        record.unknown(
            f"whose clock says that it was there at {when}: {found.authority!r:.120} is not among "
            "your authorities (firstlight keys trust CERTIFICATE.pem --name NAME)"
        )
        return
    record.proven_time = found.time
    record.passed("time", f"it was there at {when}, by the clock of {name}")


def _said(manifest: bytes | None) -> Mapping[str, Any]:
    """What the manifest says; nothing, where it cannot be read: that is told with the contents."""
    try:
        return parse_object(manifest or b"", MANIFEST, LIMITS.json_bytes)
    except SnapshotError:
        return {}


def _note_lookalikes(manifest: bytes | None, trusted: TrustedKeys, record: Record) -> None:
    """Who is cited under a name that looks like a trusted one, whose key did not sign."""
    publication = _said(manifest).get("publication")
    creators = publication.get("creators") if isinstance(publication, dict) else None
    said = [c.get("name") for c in creators or () if isinstance(c, dict)]
    names = {skeleton(one.name): one.name for one in trusted.all().values()}
    for name in said[:100]:
        other = names.get(skeleton(name)) if isinstance(name, str) else None
        if other is not None:
            record.unknown(
                f"whether its creator {name!r:.100} is your {other!r}: the name looks like it, and "
                "no key that you trust signed"
            )


def _check_signature(
    index: Index,
    data: bytes,
    document: bytes | None,
    trusted: TrustedKeys,
    now: datetime,
    record: Record,
) -> tuple[str, str | None, str | None]:
    if index.signer is None:
        if document is not None:
            record.find("signature", f"{SIGNATURE} was added: the index says that nobody signed")
            return "bad", None, None
        record.unknown("who published it: it is not signed")
        return "none", None, None
    if document is None:
        record.find("signature", f"{SIGNATURE} is missing: the index says that it was signed")
        return "bad", None, None
    if not can_sign():
        record.skip("the signature: the package `cryptography` is not installed")
        return "not checked", None, None
    try:
        key = signed_by(document, data)
    except SnapshotError as error:
        record.find("signature", str(error))
        return "bad", None, None
    if key.base64 != index.signer:
        record.find("signature", f"{SIGNATURE} is by another key than the index names")
        return "bad", None, None
    known = trusted.known(key)
    if known is None:
        record.passed("signature", f"signed with the key {key.id}")
        record.unknown(
            f"who holds the key {key.id}: it is not among your trusted keys (firstlight keys trust "
            f"{key.base64} --name NAME)"
        )
        return "valid", key.id, None
    return _standing(known, now, record), key.id, known.name


def _standing(known: Trusted, now: datetime, record: Record) -> str:
    """What the signature of a key that the user knows is worth, noted."""
    standing, signer = known.standing(record.proven_time, now), f"{known.name} (key {known.key.id})"
    if standing is Standing.REVOKED:
        record.find(
            "signature",
            f"signed by {signer}, whose key was revoked on {known.revoked}, and nothing proves "
            "that it was signed before",
        )
        return standing.value
    record.passed("signature", f"signed by {signer}")
    if standing is Standing.EXPIRED:
        record.unknown(f"that it was signed before the key of {signer} expired on {known.until}")
    return standing.value


def _result(
    source: Source, data: bytes, record: Record, signature: tuple[str, str | None, str | None]
) -> Verification:
    kinds: dict[str, list[Finding]] = {}
    for finding in record.findings:
        kinds.setdefault(finding.check, []).append(finding)
    told: list[Finding] = []
    for check, found in kinds.items():
        told += found[:_MOST_FINDINGS]
        if len(found) > _MOST_FINDINGS:
            told.append(Finding(check, f"{len(found) - _MOST_FINDINGS} more of this kind"))
    return Verification(
        source.name, id_of(data), *signature, tuple(record.checked), tuple(told),
        tuple(record.not_checked), tuple(record.skipped), tuple(record.unchecked_files),
        record.numbers_checked, tuple(record.loads),
        record.proven_time.isoformat() if record.proven_time else None,
    )  # fmt: skip
