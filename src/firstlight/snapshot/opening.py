"""A snapshot opened for reading, to show, compare or replicate it.

    snapshot = open_snapshot("results/3f0c…")
    snapshot.manifest["title"]
    for number, run in enumerate(snapshot.runs):
        samples = snapshot.samples(number)

Nothing is trusted: every file that is handed out has the SHA-256 that the index names, within the
limits, and `id` is computed, not read. Whether the snapshot is sound as a whole, and who signed it,
is what `firstlight verify` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from firstlight.records import Plan, Run, Sample, can_validate
from firstlight.snapshot.errors import ChangedSnapshotError, UnusableSnapshotError
from firstlight.snapshot.layout import (
    INDEX,
    LIMITS,
    MANIFEST,
    PLAN,
    RUN,
    SAMPLES,
    VALIDATION,
    FileEntry,
    id_of,
    parse_index,
    require_version,
)
from firstlight.snapshot.locations import open_source
from firstlight.snapshot.raw_runs import parse_plan, parse_run, parse_samples
from firstlight.snapshot.sources import Source
from firstlight.snapshot.strict_json import SCHEMAS, Plain, first_error, parse_object


@dataclass(frozen=True)
class Snapshot:
    """A snapshot whose index, manifest, runs and validation report have been read.

    `folders[i]` is where the files of `runs[i]` lie; `files` has every file of the index by path.
    """

    id: str
    manifest: Plain
    runs: tuple[Run, ...]
    validation: Plain
    files: Mapping[str, FileEntry]
    folders: tuple[str, ...]
    signer: str | None  # base64 of the public key that the index names; not checked here
    source: Source = field(repr=False, compare=False)

    def read(self, path: str) -> bytes:
        """The content of a file, exactly as the index names it."""
        return read_checked(self.source, self.files, path, LIMITS.file_bytes)

    def plan(self, number: int) -> Plan:
        """The plan of `runs[number]`: cases, settings, host, as before the first process."""
        path = f"{self.folders[number]}/{PLAN}"
        return parse_plan(self.read(path), path)

    def samples(self, number: int) -> list[Sample]:
        """The processes of `runs[number]` in the order in which they ran."""
        path = f"{self.folders[number]}/{SAMPLES}"
        return parse_samples(self.read(path), path)


def open_snapshot(location: str | Path) -> Snapshot:
    """The snapshot in a directory, an archive (.tar, .tar.gz) or at a URL that fsspec knows.

    Where jsonschema is installed, manifest, validation report and runs have the fields that their
    schemas promise. Raises `UnusableSnapshotError` if it is none, is too new, or holds what no
    snapshot holds, and `ChangedSnapshotError` if a file is not the one that the index names.
    """
    source = open_source(location)
    data = source.read(INDEX, LIMITS.index_bytes)
    index = parse_index(data)
    found = {}
    for path, kind in ((MANIFEST, "manifest"), (VALIDATION, "validation")):
        content = read_checked(source, index.files, path)
        found[path] = parse_object(content, path, LIMITS.json_bytes)
        require_version(found[path], f"firstlight.snapshot.{kind}", path)
        _require_schema(found[path], path, path)
    folders = run_folders(found[MANIFEST])
    runs = []
    for folder in folders:
        path = f"{folder}/{RUN}"
        content = read_checked(source, index.files, path)
        runs.append(parse_run(content, path))
        _require_schema(parse_object(content, path, LIMITS.json_bytes), RUN, path)
    return Snapshot(
        id=id_of(data),
        manifest=found[MANIFEST],
        runs=tuple(runs),
        validation=found[VALIDATION],
        files=index.files,
        folders=folders,
        signer=index.signer,
        source=source,
    )


def read_checked(
    source: Source,
    files: Mapping[str, FileEntry],
    path: str,
    max_bytes: int = LIMITS.json_bytes,
) -> bytes:
    """A file of the index, refused unless it is the one that the index names."""
    entry = files.get(path)
    if entry is None:
        raise ChangedSnapshotError(f"{source.name}: {path} is not in the index.")
    data = source.read(path, min(max_bytes, entry.bytes))
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ChangedSnapshotError(f"{source.name}: {path} is not the file listed in the index.")
    return data


def run_folders(manifest: Plain) -> tuple[str, ...]:
    """The folders of the runs of a manifest."""
    runs = manifest.get("runs")
    if not isinstance(runs, list) or not 1 <= len(runs) <= LIMITS.runs:
        raise UnusableSnapshotError(f"{MANIFEST}: runs must be a list of 1 to {LIMITS.runs}.")
    folders = tuple(f"runs/{number:03d}" for number in range(1, len(runs) + 1))
    if tuple(run.get("folder") if isinstance(run, dict) else None for run in runs) != folders:
        raise UnusableSnapshotError(f"{MANIFEST}: the folders of its runs are not {folders[0]} …")
    return folders


def _require_schema(plain: Plain, kind: str, path: str) -> None:
    error = first_error(plain, SCHEMAS[kind]) if can_validate() else None
    if error is not None:
        raise UnusableSnapshotError(f"{path}: {error}")
