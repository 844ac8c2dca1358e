"""Opens a snapshot to show, compare or replicate it.

Nothing is trusted: every file that is read has the SHA-256 listed in the index and is within the
limits, and `id` is computed, not read. Whether the snapshot as a whole is sound, and who signed it,
is for `firstlight verify` to check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from firstlight.records import Case, JsonObject, Plan, Run, Sample
from firstlight.snapshot.errors import ChangedSnapshotError, UnusableSnapshotError
from firstlight.snapshot.layout import (
    INDEX,
    LIMITS,
    MANIFEST,
    PLAN,
    RAW_FILES,
    RUN,
    SAMPLES,
    VALIDATION,
    FileEntry,
    id_of,
    parse_index,
    require_version,
)
from firstlight.snapshot.sources import Source
from firstlight.snapshot.storage import open_source
from firstlight.snapshot.strict_json import SCHEMAS, Plain, decoded, first_error, parse_object


@dataclass(frozen=True)
class RawRun:
    """One run; `files` are the published bytes of plan.json, samples.jsonl and run.json."""

    folder: str  # runs/001
    plan: Plan
    samples: tuple[Sample, ...]
    run: Run
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, folder: str, files: Mapping[str, bytes]) -> RawRun:
        """Parse the files; raises `UnusableSnapshotError` with the file's name."""
        return cls(
            folder=folder,
            plan=parse_plan(files[PLAN], f"{folder}/{PLAN}"),
            samples=tuple(parse_samples(files[SAMPLES], f"{folder}/{SAMPLES}")),
            run=parse_run(files[RUN], f"{folder}/{RUN}"),
            files={name: files[name] for name in RAW_FILES},
        )

    @property
    def number(self) -> str:
        return self.folder.rsplit("/", 1)[-1]

    @cached_property
    def planned(self) -> Mapping[str, Case]:
        return {case.id: case for case in self.plan.cases}

    @cached_property
    def by_case(self) -> Mapping[str, Sequence[Sample]]:
        """The samples of every case, in run order."""
        found: dict[str, list[Sample]] = {case.case: [] for case in self.run.cases}
        for sample in self.samples:
            found.setdefault(sample.case, []).append(sample)
        return found

    def digest(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()


def parse_plan(data: bytes, name: str) -> Plan:
    plan = decoded(Plan, parse_object(data, name, LIMITS.json_bytes), name)
    if len({case.id for case in plan.cases}) != len(plan.cases):
        raise UnusableSnapshotError(f"{name}: a case is planned twice.")
    return plan


def parse_run(data: bytes, name: str) -> Run:
    plain = parse_object(data, name, LIMITS.json_bytes)
    require_version(plain, "firstlight.run", name)
    return decoded(Run, plain, name)


def parse_samples(data: bytes, name: str) -> list[Sample]:
    """The samples in a `samples.jsonl`; refuses a truncated last line."""
    if len(data) > LIMITS.samples_bytes:
        raise UnusableSnapshotError(f"{name}: more than {LIMITS.samples_bytes} bytes of samples.")
    if data and not data.endswith(b"\n"):
        raise UnusableSnapshotError(f"{name}: its last line is truncated.")
    samples = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"{name}: line {number}"
        samples.append(decoded(Sample, parse_object(line, where, LIMITS.line_bytes), where))
    return samples


def timed(samples: Sequence[Sample]) -> list[Sample]:
    """The timed processes that have a cold start."""
    return [s for s in samples if s.kind == "timed" and s.cold is not None]


def programs_of(plan: Plan) -> dict[str, str]:
    """{path: SHA-256} of the users' own programs."""
    return dict(plan.fingerprint.get("files") or {})


def machine(hardware: JsonObject) -> str:
    """'Made-up CPU, 8 cores, 2 × H200'."""
    cpu = hardware.get("cpu") or {}
    gpus = [str(gpu.get("name")) for gpu in hardware.get("gpus") or () if isinstance(gpu, dict)]
    parts = [str(cpu.get("model") or "an unnamed CPU"), f"{cpu.get('usable_cores') or '?'} cores"]
    parts += [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return ", ".join(parts)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot whose index, manifest, runs and validation report have been read.

    `folders[i]` contains the files of `runs[i]`; `files` is the index by path.
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
        return read_checked(self.source, self.files, path, LIMITS.file_bytes)

    def plan(self, number: int) -> Plan:
        """The plan of `runs[number]`."""
        path = f"{self.folders[number]}/{PLAN}"
        return parse_plan(self.read(path), path)

    def samples(self, number: int) -> list[Sample]:
        """The samples of `runs[number]` in run order."""
        path = f"{self.folders[number]}/{SAMPLES}"
        return parse_samples(self.read(path), path)


def open_snapshot(location: str | Path) -> Snapshot:
    """Open the snapshot in a directory, an archive (.tar, .tar.gz) or at a URL that fsspec knows.

    Manifest, validation report and runs fit their schemas. Raises `UnusableSnapshotError` if it is
    not a snapshot, is too new, or contains what no snapshot may, and `ChangedSnapshotError` if a
    file is not the one listed in the index.
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
    source: Source, files: Mapping[str, FileEntry], path: str, max_bytes: int = LIMITS.json_bytes
) -> bytes:
    """A file, refused unless it is the one listed in the index."""
    entry = files.get(path)
    if entry is None:
        raise ChangedSnapshotError(f"{source.name}: {path} is not in the index.")
    data = source.read(path, min(max_bytes, entry.bytes))
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ChangedSnapshotError(f"{source.name}: {path} is not the file listed in the index.")
    return data


def run_folders(manifest: Plain) -> tuple[str, ...]:
    runs = manifest.get("runs")
    if not isinstance(runs, list) or not 1 <= len(runs) <= LIMITS.runs:
        raise UnusableSnapshotError(f"{MANIFEST}: runs must be a list of 1 to {LIMITS.runs}.")
    folders = tuple(f"runs/{number:03d}" for number in range(1, len(runs) + 1))
    if tuple(run.get("folder") if isinstance(run, dict) else None for run in runs) != folders:
        raise UnusableSnapshotError(f"{MANIFEST}: the folders of its runs are not {folders[0]} …")
    return folders


def _require_schema(plain: Plain, kind: str, path: str) -> None:
    error = first_error(plain, SCHEMAS[kind])
    if error is not None:
        raise UnusableSnapshotError(f"{path}: {error}")
