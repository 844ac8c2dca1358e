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
from typing import Any

from firstlight.records import Plan, Run, Sample, can_validate
from firstlight.snapshot import strict_json
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
    Limits,
    id_of,
    parse_index,
    require_version,
)
from firstlight.snapshot.locations import open_source
from firstlight.snapshot.schemas import SCHEMAS, first_error
from firstlight.snapshot.sources import Source
from firstlight.snapshot.strict_json import decoded


@dataclass(frozen=True)
class Snapshot:
    """A snapshot whose index, manifest, runs and validation report have been read.

    `folders[i]` is where the files of `runs[i]` lie; `files` has every file of the index by path.
    """

    id: str
    manifest: Mapping[str, Any]
    runs: tuple[Run, ...]
    validation: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    folders: tuple[str, ...]
    signer: str | None  # base64 of the public key that the index names; not checked here
    source: Source = field(repr=False, compare=False)
    limits: Limits = LIMITS

    def read(self, path: str) -> bytes:
        """The content of a file, exactly as the index names it."""
        return read_checked(self.source, self.files, path, self.limits.file_bytes)

    def plan(self, number: int) -> Plan:
        """The plan of `runs[number]`: cases, settings, host, as before the first process."""
        path = f"{self.folders[number]}/{PLAN}"
        return parse_plan(self.read(path), path, self.limits)

    def samples(self, number: int) -> list[Sample]:
        """The processes of `runs[number]` in the order in which they ran."""
        path = f"{self.folders[number]}/{SAMPLES}"
        return parse_samples(self.read(path), path, self.limits)


def open_snapshot(
    location: str | Path, limits: Limits = LIMITS, check_schemas: bool = True
) -> Snapshot:
    """The snapshot in a directory, an archive (.tar, .tar.gz) or at a URL that fsspec knows.

    With `check_schemas`, and where jsonschema is installed, manifest, validation report and runs
    have the fields that their schemas promise, so a reader need not look twice. Raises
    `UnusableSnapshotError` if it is none, is too new, or holds what no snapshot holds, and
    `ChangedSnapshotError` if a file is not the one that the index names. Nothing is ever written.
    """
    source = open_source(location)
    data = source.read(INDEX, limits.index_bytes)
    index = parse_index(data, limits)
    manifest = _object(source, index.files, MANIFEST, "firstlight.snapshot.manifest", limits)
    schema = "firstlight.snapshot.validation"
    validation = _object(source, index.files, VALIDATION, schema, limits)
    if check_schemas:
        _require_schema(manifest, MANIFEST)
        _require_schema(validation, VALIDATION)
    folders = run_folders(manifest, limits)
    runs = []
    for folder in folders:
        path = f"{folder}/{RUN}"
        content = read_checked(source, index.files, path, limits.json_bytes)
        runs.append(parse_run(content, path, limits))
        if check_schemas:
            _require_schema(strict_json.parse(content, path, limits.json_bytes), RUN, path)
    return Snapshot(
        id=id_of(data),
        manifest=manifest,
        runs=tuple(runs),
        validation=validation,
        files=index.files,
        folders=folders,
        signer=index.signer,
        source=source,
        limits=limits,
    )


def read_checked(
    source: Source, files: Mapping[str, FileEntry], path: str, max_bytes: int
) -> bytes:
    """A file of the index, refused unless it is the one that the index names."""
    entry = files.get(path)
    if entry is None:
        raise ChangedSnapshotError(f"{source.name}: {path} is not in the index.")
    data = source.read(path, min(max_bytes, entry.bytes))
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ChangedSnapshotError(f"{source.name}: {path} is not the file listed in the index.")
    return data


def run_folders(manifest: Mapping[str, Any], limits: Limits = LIMITS) -> tuple[str, ...]:
    """The folders of the runs of a manifest."""
    runs = manifest.get("runs")
    if not isinstance(runs, list) or not 1 <= len(runs) <= limits.runs:
        raise UnusableSnapshotError(f"{MANIFEST}: runs must be a list of 1 to {limits.runs}.")
    folders = tuple(f"runs/{number:03d}" for number in range(1, len(runs) + 1))
    named = tuple(run.get("folder") if isinstance(run, dict) else None for run in runs)
    if named != folders:
        raise UnusableSnapshotError(f"{MANIFEST}: the folders of its runs are not {folders[0]} …")
    return folders


def parse_plan(data: bytes, name: str, limits: Limits = LIMITS) -> Plan:
    """A `plan.json` that a stranger wrote."""
    plan = decoded(Plan, strict_json.parse_object(data, name, limits.json_bytes), name)
    if len({case.id for case in plan.cases}) != len(plan.cases):
        raise UnusableSnapshotError(f"{name}: a case is planned twice.")
    return plan


def parse_run(data: bytes, name: str, limits: Limits = LIMITS) -> Run:
    """A `run.json` that a stranger wrote."""
    plain = strict_json.parse_object(data, name, limits.json_bytes)
    require_version(plain, "firstlight.run", name)
    return decoded(Run, plain, name)


def parse_samples(data: bytes, name: str, limits: Limits = LIMITS) -> list[Sample]:
    """A `samples.jsonl` that a stranger wrote: every line whole."""
    if len(data) > limits.samples_bytes:
        raise UnusableSnapshotError(f"{name}: more than {limits.samples_bytes} bytes of samples.")
    if data and not data.endswith(b"\n"):
        raise UnusableSnapshotError(f"{name}: its last line is truncated.")
    samples = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"{name}: line {number}"
        plain = strict_json.parse_object(line, where, limits.line_bytes)
        samples.append(decoded(Sample, plain, where))
    return samples


def _object(
    source: Source, files: Mapping[str, FileEntry], path: str, schema: str, limits: Limits
) -> dict[str, Any]:
    data = read_checked(source, files, path, limits.json_bytes)
    plain = strict_json.parse_object(data, path, limits.json_bytes)
    require_version(plain, schema, path)
    return plain


def _require_schema(plain: Any, kind: str, path: str | None = None) -> None:
    if not can_validate():
        return
    error = first_error(plain, SCHEMAS[kind])
    if error is not None:
        raise UnusableSnapshotError(f"{path or kind}: {error}")
