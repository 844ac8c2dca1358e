"""A snapshot made from run directories: read, made free of private things, judged, and written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firstlight.records import to_json
from firstlight.snapshot.admissibility import require_admissible
from firstlight.snapshot.catalogue import Catalogue
from firstlight.snapshot.contents import derived_files, made_by
from firstlight.snapshot.detached_signature import sign
from firstlight.snapshot.errors import RefusedError, SnapshotError
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.layout import (
    INDEX,
    LIMITS,
    PLAN,
    RUN,
    SAMPLES,
    SIGNATURE,
    id_of,
    index_bytes,
    parse_index,
    require_safe,
)
from firstlight.snapshot.manifest import Creator, Publication
from firstlight.snapshot.raw_runs import RawRun, programs_of
from firstlight.snapshot.redaction import Owner, Redacted, Replaced, private_part, redact
from firstlight.snapshot.storage import Store
from firstlight.snapshot.verifying import findings_in

Watch = Callable[[str], None]


@dataclass(frozen=True)
class Wishes:
    """What the publisher asks for."""

    title: str | None = None
    creators: tuple[Creator, ...] = ()
    license: str | None = None
    allow: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    with_source: bool = False


@dataclass(frozen=True)
class Built:
    """A snapshot in memory: its id, and every file with index and signature."""

    id: str
    files: dict[str, bytes] = field(repr=False)
    publication: Publication
    replaced: Mapping[str, tuple[Replaced, ...]]


@dataclass(frozen=True)
class Published:
    """What came of publishing."""

    id: str
    location: str
    archive: str | None
    new: bool  # False: the same snapshot was there already
    files: int
    bytes: int
    publication: Publication
    replaced: Mapping[str, tuple[Replaced, ...]]  # by file, what private things were taken out


def publish(
    folders: Sequence[Path],
    store: Store,
    wishes: Wishes | None = None,
    key: PrivateKey | None = None,
    archive: bool = False,
    watch: Watch = lambda step: None,
) -> Published:
    """Make the snapshot of these runs and put it into `store`, with its entry in the catalogue.

    `watch` is called with a description of each step.

    Raises `RefusedError` for what must not be published; nothing is written then.
    """
    built = build(folders, wishes or Wishes(), key, watch)
    watch(f"writing {len(built.files)} files")
    new = store.put(built.id, built.files)
    # Listed before its archive is written: a full disk then leaves a snapshot that is whole.
    Catalogue(store).add(built.id, built.files)
    place = store.write_archive(built.id, built.files) if archive else None
    return Published(
        id=built.id,
        location=f"{store.name.rstrip('/')}/{built.id}",
        archive=place,
        new=new,
        files=len(built.files),
        bytes=sum(len(data) for data in built.files.values()),
        publication=built.publication,
        replaced=built.replaced,
    )


def build(
    folders: Sequence[Path],
    wishes: Wishes,
    key: PrivateKey | None = None,
    watch: Watch = lambda step: None,
) -> Built:
    """The snapshot of these runs: the same runs and wishes give the same bytes."""
    watch(f"reading {len(folders)} run(s)")
    measured = sorted((_measured(Path(f)) for f in folders), key=lambda m: m.order)
    if not measured:
        raise RefusedError("no run was given.")
    if len({m.order for m in measured}) != len(measured):
        raise RefusedError("a run was given twice.")
    owner = Owner.of_process()
    _require_no_secret(wishes, owner)
    watch("searching for private data")
    raws, redacted = _made_public(measured, wishes, owner)
    watch("checking summaries against samples")
    for raw, origin in zip(raws, measured, strict=True):
        require_admissible(raw, wishes.allow, str(origin.folder))
    programs, sources = _programs(measured, raws, wishes, owner)
    publication = Publication(
        title=wishes.title or _title(raws),
        creators=wishes.creators,
        license=wishes.license,
        allowed=tuple(sorted(set(wishes.allow))),
        redacted={path: {"replacements": r.replacements} for path, r in redacted.items()},
        sources=sources,
    )
    watch("drawing tables, plots and reports")
    files = derived_files(raws, publication, made_by()) | programs
    for raw in raws:
        files |= {f"{raw.folder}/{name}": data for name, data in raw.files.items()}
    index = index_bytes(files, key.public.base64 if key else None)
    parse_index(index)  # what we would refuse to read is not written
    files[INDEX] = index
    if key is not None:
        files[SIGNATURE] = sign(key, index)
    watch("verifying the snapshot")
    _require_valid(files)
    replaced = {path: r.found for path, r in redacted.items()}
    return Built(id_of(index), files, publication, replaced)


def _require_no_secret(wishes: Wishes, owner: Owner) -> None:
    """The publisher's texts are published unchanged, so they must not contain a secret."""
    said = json.dumps(to_json((wishes.title, wishes.creators, wishes.license)), ensure_ascii=False)
    for variable, value in owner.secrets.items():
        if value in said:
            raise RefusedError(
                f"the title, a creator or the licence has the value of the variable {variable}, "
                "which is named like a secret. Leave it out."
            )


def _require_valid(files: Mapping[str, bytes]) -> None:
    """What would not verify is not written, whatever the reason."""
    found = findings_in(files)
    if found:
        raise RefusedError(f"the snapshot would not verify: {found[0].message}.")


@dataclass(frozen=True)
class _Measured:
    """A run directory as it is on disk."""

    folder: Path
    files: Mapping[str, bytes]
    run: RawRun

    @property
    def order(self) -> tuple[str, str]:
        """By time; runs of the same moment by their content."""
        return self.run.run.created_at, self.run.digest(SAMPLES)


def _measured(folder: Path) -> _Measured:
    files = {}
    for name in (PLAN, SAMPLES, RUN):
        path = folder / name
        if not path.is_file():
            why = "its run was killed: finish it with `firstlight run --resume`"
            hint = f" ({why})" if name == RUN and (folder / PLAN).is_file() else ""
            raise RefusedError(
                f"{folder}: there is no {name}, so this is not a finished run{hint}."
            )
        if path.stat().st_size > LIMITS.samples_bytes:
            raise RefusedError(f"{path}: larger than a snapshot may contain.")
        files[name] = path.read_bytes()
    try:
        raw = RawRun.of("runs/001", files)
    except SnapshotError as error:
        raise RefusedError(f"{folder}: {error}") from None
    if raw.run.samples_sha256 != raw.digest(SAMPLES):
        raise RefusedError(
            f"{folder}: {SAMPLES} is not the file that {RUN} was made from (its SHA-256 "
            "differs). Measure again: an edited run is never published."
        )
    return _Measured(folder, files, raw)


def _made_public(
    measured: Sequence[_Measured], wishes: Wishes, owner: Owner
) -> tuple[list[RawRun], dict[str, Redacted]]:
    """The runs without private things, in their places, and what was replaced where."""
    raws: list[RawRun] = []
    redacted: dict[str, Redacted] = {}
    for number, origin in enumerate(measured, start=1):
        folder = f"runs/{number:03d}"
        clean = {name: redact(data, wishes.redact, owner) for name, data in origin.files.items()}
        files = {name: r.data for name, r in clean.items()}
        # The hash of the samples as they were would let a reader try names until one fits.
        was, public = origin.run.digest(SAMPLES), hashlib.sha256(files[SAMPLES]).hexdigest()
        files[RUN] = files[RUN].replace(was.encode(), public.encode())
        redacted |= {f"{folder}/{name}": r for name, r in clean.items() if r.replacements}
        if files == origin.files:
            raws.append(replace(origin.run, folder=folder))
            continue
        try:
            raws.append(RawRun.of(folder, files))
        except SnapshotError as error:
            raise RefusedError(f"{origin.folder}: after redaction: {error}") from None
    return raws, redacted


def _programs(
    measured: Sequence[_Measured], raws: Sequence[RawRun], wishes: Wishes, owner: Owner
) -> tuple[dict[str, bytes], tuple[Mapping[str, Any], ...]]:
    """The users' own benchmark files: their names and hashes, and if wished for their text."""
    files: dict[str, bytes] = {}
    sources = []
    for origin, raw in zip(measured, raws, strict=True):
        # The names are those of the redacted plan; where the files lie, only the measured one says.
        places = programs_of(origin.run.plan)
        for (public, digest), path in zip(programs_of(raw.plan).items(), places, strict=True):
            name = public.rsplit("/", 1)[-1]
            place = f"sources/{raw.number}/{name}" if wishes.with_source else None
            if place is not None:
                _require_plain_name(place, path)
                files[place] = _program(Path(path), places[path], wishes.redact, owner)
            sources.append({"run": raw.folder, "name": name, "sha256": digest, "path": place})
    return files, tuple(sorted(sources, key=lambda s: (str(s["run"]), str(s["name"]))))


def _require_plain_name(place: str, path: str) -> None:
    try:
        require_safe(place)
    except SnapshotError:
        raise RefusedError(
            f"{path}: a file with this name cannot be part of a snapshot. Rename it with letters, "
            "digits, - and _ only and measure again, or omit --with-source."
        ) from None


def _program(path: Path, digest: str, redacted: Sequence[str], owner: Owner) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RefusedError(f"{path}: cannot be read any more: {error.strerror}.") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise RefusedError(f"{path}: changed since it was measured, so it is not added.")
    private = private_part(data, redacted, owner)
    if private is not None:
        raise RefusedError(
            f"{path}: contains {private}, and a program is published unchanged or not at all. Omit "
            "--with-source, or remove it from the program and measure again."
        )
    return data


def _title(raws: Sequence[RawRun]) -> str:
    targets = dict.fromkeys(
        Path(str(to_json(raw.run.settings).get("target") or "a run")).name for raw in raws
    )
    return f"Time to first result: {', '.join(targets)}"
