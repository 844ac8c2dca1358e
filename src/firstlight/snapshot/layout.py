"""The layout of a snapshot: file names, limits, the index, and the id derived from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from firstlight.snapshot.errors import (
    HostileSnapshotError,
    NewerSnapshotError,
    UnusableSnapshotError,
)
from firstlight.snapshot.strict_json import Plain, canonical, parse_object

VERSION = 1
INDEX, SIGNATURE = "index.json", "signature.json"
MANIFEST, VALIDATION = "manifest.json", "validation_report.json"
DISTRIBUTIONS = "distributions.json"
PLAN, SAMPLES, RUN = "plan.json", "samples.jsonl", "run.json"
#: The files of a run, from which all others are derived.
RAW_FILES = (PLAN, SAMPLES, RUN)

_ID = re.compile(r"[0-9a-f]{64}")
_EXPECTED = re.compile(r"[0-9a-f]{16,64}")
#: Letters, digits, `_`, `-`, `.`; a part begins with neither a dot nor a dash. This excludes `..`,
#: drives, backslashes, hidden files, options, and names with a second spelling in Unicode.
_PATH = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/){0,4}[A-Za-z0-9_][A-Za-z0-9._-]*")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """Limits on what is read from strangers."""

    index_bytes: int = 4 << 20
    json_bytes: int = 16 << 20
    line_bytes: int = 4 << 20  # one process in samples.jsonl
    samples_bytes: int = 512 << 20
    file_bytes: int = 1 << 30
    total_bytes: int = 4 << 30
    files: int = 5000
    runs: int = 500
    compression: int = 200  # bytes out of an archive for every byte in


LIMITS = Limits()


@dataclass(frozen=True)
class FileEntry:
    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    files: Mapping[str, FileEntry]
    signer: str | None  # base64 of the public key; None if the snapshot is not signed


def is_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def id_of(index: bytes) -> str:
    return hashlib.sha256(index).hexdigest()


def require_expected(text: str) -> str:
    """An expected id in lower case, or a prefix too long (16 digits) to find a collision for."""
    if not _EXPECTED.fullmatch(text.lower()):
        raise UnusableSnapshotError(
            f"--id {text[:80]!r}: an id has 64 hexadecimal digits; give at least the first 16."
        )
    return text.lower()


def require_safe(path: str) -> None:
    """Refuse a path that could lead out of the snapshot or name another file on some system."""
    reserved = any(part.endswith(".") or _RESERVED.fullmatch(part) for part in path.split("/"))
    if len(path) > 150 or not _PATH.fullmatch(path) or reserved:
        raise HostileSnapshotError(f"the name {path[:80]!r} could lead elsewhere: refused.")


def index_bytes(files: Mapping[str, bytes], signer: str | None) -> bytes:
    """`index.json` of these files."""
    entries = [
        {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in sorted(files.items())
    ]
    about = {"schema": "firstlight.snapshot.index", "schema_version": VERSION, "signer": signer}
    return canonical({**about, "files": entries})


def parse_index(data: bytes) -> Index:
    """The index, after checking every name and number in it."""
    plain = parse_object(data, INDEX, LIMITS.index_bytes)
    require_version(plain, "firstlight.snapshot.index", INDEX)
    if canonical(plain) != data:
        raise UnusableSnapshotError(f"{INDEX}: not in canonical form: it was rewritten.")
    signer, listed = plain.get("signer"), plain.get("files")
    if set(plain) != {"schema", "schema_version", "signer", "files"} or not (
        signer is None or isinstance(signer, str)
    ):
        raise UnusableSnapshotError(f"{INDEX}: its fields are not those of a snapshot's index.")
    if not isinstance(listed, list) or len(listed) > LIMITS.files:
        raise UnusableSnapshotError(f"{INDEX}: files must be a list of at most {LIMITS.files}.")
    entries = [_entry(item) for item in listed]
    _require_distinct([entry.path for entry in entries])
    if sum(entry.bytes for entry in entries) > LIMITS.total_bytes:
        raise HostileSnapshotError(f"{INDEX}: the files total more than {LIMITS.total_bytes} B.")
    return Index({entry.path: entry for entry in entries}, signer)


def require_version(plain: Plain, schema: str, name: str) -> None:
    """Refuse a file of another kind, or of a newer version."""
    if plain.get("schema") != schema:
        raise UnusableSnapshotError(
            f"{name}: not part of a Firstlight snapshot (schema {plain.get('schema')!r:.60}, "
            f"expected {schema!r})."
        )
    version = plain.get("schema_version")
    if type(version) is not int or version < 1:
        raise UnusableSnapshotError(f"{name}: schema_version is {version!r:.60}, not a number.")
    if version > VERSION:
        raise NewerSnapshotError(
            f"{name}: written with version {version} of the format, this Firstlight reads up to "
            f"{VERSION}. Update Firstlight."
        )


def _entry(item: object) -> FileEntry:
    match item:
        case {"path": str(path), "bytes": size, "sha256": str(digest), **rest} if (
            not rest and is_id(digest)
        ):
            require_safe(path)
        case _:
            raise UnusableSnapshotError(f"{INDEX}: {item!r:.80} is not a file entry.")
    if path in (INDEX, SIGNATURE):
        raise UnusableSnapshotError(f"{INDEX}: {path} cannot be listed in the index.")
    if type(size) is not int or not 0 <= size <= LIMITS.file_bytes:
        raise HostileSnapshotError(f"{INDEX}: {path} of {size!r:.40} bytes is too large.")
    return FileEntry(path, size, digest)


def _require_distinct(paths: list[str]) -> None:
    """Refuse names that collide on some file system, and a file that is also a folder."""
    seen: set[str] = set()
    for path in paths:
        if path.casefold() in seen:
            raise HostileSnapshotError(f"{INDEX}: {path} is listed twice.")
        seen.add(path.casefold())
    parts = [path.split("/") for path in seen]
    both = seen & {"/".join(names[:i]) for names in parts for i in range(1, len(names))}
    if both:
        raise HostileSnapshotError(f"{INDEX}: {min(both)} is both a file and a folder.")
