"""Makes a snapshot from run directories: read, redacted, checked, and written."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firstlight.present.quantities import counted
from firstlight.records import JsonObject, to_json
from firstlight.snapshot.archive import write_archive
from firstlight.snapshot.catalogue import Catalogue
from firstlight.snapshot.contents import derived_files, made_by
from firstlight.snapshot.errors import RefusedError, SnapshotError, StorageError
from firstlight.snapshot.keys import PrivateKey, sign
from firstlight.snapshot.layout import (
    INDEX,
    LIMITS,
    PLAN,
    RAW_FILES,
    RUN,
    SAMPLES,
    SIGNATURE,
    id_of,
    index_bytes,
    require_safe,
)
from firstlight.snapshot.manifest import Creator, Publication
from firstlight.snapshot.opening import RawRun, programs_of
from firstlight.snapshot.plausibility import method_and_inconsistencies, require_admissible
from firstlight.snapshot.redaction import Owner, Redacted, Replaced, private_part, redact_run
from firstlight.snapshot.storage import Store
from firstlight.snapshot.verifying import findings_in

Watch = Callable[[str], None]


@dataclass(frozen=True)
class PublishOptions:
    """What the publisher chose."""

    title: str | None = None
    creators: tuple[Creator, ...] = ()
    license: str | None = None
    allow: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    with_source: bool = False


@dataclass(frozen=True)
class Built:
    """A snapshot in memory: its id, and every file including index and signature."""

    id: str
    files: dict[str, bytes] = field(repr=False)
    publication: Publication
    replaced: Mapping[str, tuple[Replaced, ...]]


@dataclass(frozen=True)
class Published:
    id: str
    location: str
    archive: str | None
    new: bool  # False if the same snapshot already existed
    files: int
    bytes: int
    publication: Publication
    replaced: Mapping[str, tuple[Replaced, ...]]  # by file, what was redacted


def publish(
    folders: Sequence[Path],
    store: Store,
    options: PublishOptions | None = None,
    key: PrivateKey | None = None,
    archive: bool = False,
    watch: Watch = lambda step: None,
) -> Published:
    """Make the snapshot of these runs and write it, with its catalogue entry, into `store`.

    `watch` is called with a description of each step. Raises `RefusedError`, before anything is
    written, for what must not be published.
    """
    built = build(folders, options or PublishOptions(), key, watch)
    watch(f"writing {len(built.files)} files")
    new = store.put(built.id, built.files)
    # Before the archive: if the disk is full then, the snapshot itself is complete.
    Catalogue(store).add(built.id, built.files)
    location = f"{store.name.rstrip('/')}/{built.id}"
    if archive:
        packed = io.BytesIO()
        write_archive(packed, built.id, built.files)
        try:
            store.write(f"{built.id}.tar", packed.getvalue())
        except StorageError as error:
            what = "The snapshot itself was written; publish again for its archive."
            raise StorageError(f"{error} {what}") from None
    return Published(
        id=built.id,
        location=location,
        archive=f"{location}.tar" if archive else None,
        new=new,
        files=len(built.files),
        bytes=sum(len(data) for data in built.files.values()),
        publication=built.publication,
        replaced=built.replaced,
    )


def build(
    folders: Sequence[Path],
    options: PublishOptions,
    key: PrivateKey | None = None,
    watch: Watch = lambda step: None,
) -> Built:
    """The snapshot of these runs: the same runs and options give the same bytes."""
    watch(f"reading {counted(len(folders), 'run')}")
    measured = sorted(((Path(f), _measured(Path(f))) for f in folders), key=_order)
    if not measured:
        raise RefusedError("no run was given.")
    if len(set(map(_order, measured))) != len(measured):
        raise RefusedError("a run was given twice.")
    owner = Owner.of_process()
    _require_no_secret(options, owner)
    watch("searching for private data")
    raws, redacted = _made_public(measured, options, owner)
    watch("checking summaries against samples")
    method, findings = method_and_inconsistencies(raws)
    for raw, found, (folder, _) in zip(raws, findings, measured, strict=True):
        require_admissible(raw, found, options.allow, str(folder))
    programs, sources = _programs([raw for _, raw in measured], raws, options, owner)
    targets = dict.fromkeys(Path(raw.plan.target or "a run").name for raw in raws)
    publication = Publication(
        title=options.title or f"Time to first result: {', '.join(targets)}",
        creators=options.creators,
        license=options.license,
        allowed=tuple(sorted(set(options.allow))),
        redacted={path: {"replacements": r.replacements} for path, r in redacted.items()},
        sources=sources,
    )
    watch("drawing tables, plots and reports")
    files = derived_files(raws, publication, made_by(), method) | programs
    for raw in raws:
        files |= {f"{raw.folder}/{name}": data for name, data in raw.files.items()}
    files[INDEX] = index = index_bytes(files, key.public.base64 if key else None)
    if key is not None:
        files[SIGNATURE] = sign(key, index)
    watch("verifying the snapshot")
    wrong = findings_in(files)
    if wrong:  # a snapshot that would not verify is never written
        raise RefusedError(f"the snapshot would not verify: {wrong[0].message}.")
    return Built(id_of(index), files, publication, {path: r.found for path, r in redacted.items()})


def _require_no_secret(options: PublishOptions, owner: Owner) -> None:
    """Refuse a secret in the publisher's own texts, which are published unchanged."""
    texts = json.dumps(
        to_json((options.title, options.creators, options.license)), ensure_ascii=False
    )
    for variable, value in owner.secrets.items():
        if value in texts:
            raise RefusedError(
                f"the title, a creator or the licence has the value of the variable {variable}, "
                "which is named like a secret. Leave it out."
            )


def _order(measured: tuple[Path, RawRun]) -> tuple[str, str]:
    """By time, then by content."""
    return measured[1].run.created_at, measured[1].digest(SAMPLES)


def _measured(folder: Path) -> RawRun:
    """The run in a directory, unredacted."""
    files = {}
    for name in RAW_FILES:
        path = folder / name
        if not path.is_file():
            why = "its run was killed: finish it with `firstlight run --resume`"
            hint = f" ({why})" if name == RUN and (folder / PLAN).is_file() else ""
            raise RefusedError(f"{folder}: there is no {name}: this is not a finished run{hint}.")
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
    return raw


def _made_public(
    measured: Sequence[tuple[Path, RawRun]], options: PublishOptions, owner: Owner
) -> tuple[list[RawRun], dict[str, Redacted]]:
    """The redacted runs with their folders in the snapshot, and what was replaced, by file."""
    raws: list[RawRun] = []
    redacted: dict[str, Redacted] = {}
    for number, (origin, raw) in enumerate(measured, start=1):
        folder = f"runs/{number:03d}"
        clean = redact_run(raw.files, options.redact, owner)
        redacted |= {f"{folder}/{name}": r for name, r in clean.items() if r.replacements}
        files = {name: r.data for name, r in clean.items()}
        same = files == raw.files
        try:
            raws.append(replace(raw, folder=folder) if same else RawRun.of(folder, files))
        except SnapshotError as error:
            raise RefusedError(f"{origin}: after redaction: {error}") from None
    return raws, redacted


def _programs(
    measured: Sequence[RawRun], raws: Sequence[RawRun], options: PublishOptions, owner: Owner
) -> tuple[dict[str, bytes], tuple[JsonObject, ...]]:
    """The users' own benchmark files: names and hashes, and with `with_source` their texts."""
    files: dict[str, bytes] = {}
    sources = []
    for origin, raw in zip(measured, raws, strict=True):
        # The names come from the redacted plan; only the measured one has the real paths.
        places = programs_of(origin.plan)
        for (public, digest), path in zip(programs_of(raw.plan).items(), places, strict=True):
            name = public.rsplit("/", 1)[-1]
            place = f"sources/{raw.number}/{name}" if options.with_source else None
            if place is not None:
                files[place] = _program(Path(path), place, digest, options.redact, owner)
            sources.append({"run": raw.folder, "name": name, "sha256": digest, "path": place})
    return files, tuple(sorted(sources, key=lambda s: (str(s["run"]), str(s["name"]))))


def _program(path: Path, place: str, digest: str, texts: Sequence[str], owner: Owner) -> bytes:
    """The text of a program; refused if it has changed since, or contains private data."""
    try:
        require_safe(place)
        data = path.read_bytes()
    except SnapshotError:
        raise RefusedError(
            f"{path}: a file with this name cannot be part of a snapshot. Rename it with letters, "
            "digits, - and _ only and measure again, or omit --with-source."
        ) from None
    except OSError as error:
        raise RefusedError(f"{path}: cannot be read any more: {error.strerror}.") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise RefusedError(f"{path}: changed since it was measured, so it is not added.")
    private = private_part(data, texts, owner)
    if private is not None:
        raise RefusedError(
            f"{path}: contains {private}, and a program is published unchanged or not at all. Omit "
            "--with-source, or remove it from the program and measure again."
        )
    return data
