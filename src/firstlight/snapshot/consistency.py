"""Whether the files of a snapshot agree: with their schemas, and with what they were made from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from firstlight.records import can_validate, from_json
from firstlight.snapshot import strict_json
from firstlight.snapshot.admissibility import needed_allowances
from firstlight.snapshot.contents import derived_files, made_by
from firstlight.snapshot.distributions import distributions
from firstlight.snapshot.errors import SnapshotError
from firstlight.snapshot.layout import (
    DISTRIBUTIONS,
    INDEX,
    MANIFEST,
    PLAN,
    RUN,
    SAMPLES,
    VALIDATION,
    Index,
    Limits,
)
from firstlight.snapshot.manifest import Publication, manifest
from firstlight.snapshot.opening import run_folders
from firstlight.snapshot.raw_runs import RawRun, has_number
from firstlight.snapshot.recomputing import METHOD, differences
from firstlight.snapshot.schemas import SCHEMAS, first_error
from firstlight.snapshot.truth import judge
from firstlight.snapshot.typed import require_type
from firstlight.snapshot.validation import validation_report

if TYPE_CHECKING:
    from firstlight.snapshot.verifying import Record


def check_contents(
    index: Index, data: bytes, kept: Mapping[str, bytes], record: Record, limits: Limits
) -> None:
    """Note in `record` what the files say that they should not, and what nobody can check."""
    try:
        about = _parsed(kept, MANIFEST, limits)
        runs = _runs(about, kept, limits)
        publication = _publication(about)
    except SnapshotError as error:
        record.find("schemas", str(error))
        return
    _check_schemas(data, kept, runs, record, limits)
    try:
        _check_runs(runs, about, publication, record)
        _check_sources(index, runs, publication, record)
        _check_derived(index, kept, runs, about, publication, record, limits)
    except Exception as error:
        # A stranger's values can break any of the code that draws and sums. That is a finding.
        record.find("derived", f"the runs cannot be evaluated ({type(error).__name__}: {error})")
    _note_unknown(about, record)


def _parsed(kept: Mapping[str, bytes], path: str, limits: Limits) -> dict[str, Any]:
    if path not in kept:
        raise SnapshotError(f"{path} is not part of it")
    return strict_json.parse_object(kept[path], path, limits.json_bytes)


def _runs(about: Mapping[str, Any], kept: Mapping[str, bytes], limits: Limits) -> list[RawRun]:
    found = []
    for folder in run_folders(about, limits):
        for name in (PLAN, SAMPLES, RUN):
            if f"{folder}/{name}" not in kept:
                raise SnapshotError(f"{folder}/{name} is not part of it")
        files = {name: kept[f"{folder}/{name}"] for name in (PLAN, SAMPLES, RUN)}
        found.append(RawRun.of(folder, files, limits))
    return found


def _publication(about: Mapping[str, Any]) -> Publication:
    require_type(Publication, about.get("publication"), f"{MANIFEST}: publication")
    return from_json(Publication, about["publication"])


def _check_schemas(
    index: bytes, kept: Mapping[str, bytes], runs: Sequence[RawRun], record: Record, limits: Limits
) -> None:
    if not can_validate():
        record.unknown("the schemas: the package `jsonschema` is not installed")
        return
    documents = {INDEX: index}
    documents |= {
        path: kept[path] for path in (MANIFEST, VALIDATION, DISTRIBUTIONS) if path in kept
    }
    for raw in runs:
        documents |= {f"{raw.folder}/{name}": raw.files[name] for name in (PLAN, RUN)}
    for path, content in documents.items():
        plain = strict_json.parse(content, path, limits.json_bytes)
        error = first_error(plain, SCHEMAS[path.rsplit("/", 1)[-1]])
        if error is not None:
            record.find("schemas", f"{path}: {error}")
    record.passed("schemas", f"{len(documents)} files fit their schemas")


def _check_runs(
    runs: Sequence[RawRun], about: Mapping[str, Any], publication: Publication, record: Record
) -> None:
    for raw in runs:
        _check_samples_hash(raw, publication, record)
        if about.get("summary_method") != METHOD:
            record.unknown(
                f"that summaries follow from the samples: they were made by method "
                f"{about.get('summary_method')!r:.20}, this Firstlight has {METHOD}"
            )
            continue
        judgement = judge(raw)
        for message in judgement.untrue[:50]:
            record.find("samples", f"{raw.folder}: {message}")
        if judgement.wording:
            record.unknown(f"{raw.folder}: how its protocols are worded: another Firstlight did it")
        for kind, cases in needed_allowances(raw).items():
            if kind not in publication.allowed:
                record.find("labels", f"{raw.folder}: {cases[0]} is {kind}, which nobody allowed")
    if about.get("summary_method") != METHOD:
        return
    processes = sum(len(raw.samples) for raw in runs)
    shown = sum(has_number(case) for raw in runs for case in raw.run.cases)
    record.passed("samples", f"all summaries follow from the {processes} raw samples")
    record.passed("samples", f"{shown} cases with a number: each has its protocol, was correct in "
                  "every process, and proved its cache label in every process")  # fmt: skip


def _check_samples_hash(raw: RawRun, publication: Publication, record: Record) -> None:
    path = f"{raw.folder}/{SAMPLES}"
    replaced = publication.redacted.get(path)
    if replaced is None:
        if raw.run.samples_sha256 != raw.digest(SAMPLES):
            record.find("samples", f"{path} is not the file that {RUN} was made from")
        return
    if raw.run.samples_sha256 != replaced.get("measured_sha256"):
        record.find("samples", f"{path}: the hash before redaction is not the one in {RUN}")
    record.unknown(f"{path} as it was measured: private texts in it were replaced")


def _check_sources(
    index: Index, runs: Sequence[RawRun], publication: Publication, record: Record
) -> None:
    """The users' own programs: those that were measured, with the hash they had then."""
    planned = []
    for raw in runs:
        files = (raw.plan.get("fingerprint") or {}).get("files") or {}
        planned += [(raw.folder, path.rsplit("/", 1)[-1], sha) for path, sha in files.items()]
    named = [(s.get("run"), s.get("name"), s.get("sha256")) for s in publication.sources]
    if sorted(planned) != sorted(named):
        record.find("derived", f"{MANIFEST}: its sources are not the programs of the plans")
    for source in publication.sources:
        path = source.get("path")
        if path is None:
            record.unknown(f"the program {source.get('name')}: only its hash is in the snapshot")
        elif path not in index.files or index.files[path].sha256 != source.get("sha256"):
            record.find("derived", f"{path} is not the program that was measured")


def _check_derived(
    index: Index,
    kept: Mapping[str, bytes],
    runs: Sequence[RawRun],
    about: Mapping[str, Any],
    publication: Publication,
    record: Record,
    limits: Limits,
) -> None:
    derived = derived_files(runs, publication)
    raw = {f"{raw.folder}/{name}" for raw in runs for name in (PLAN, SAMPLES, RUN)}
    sources = {source.get("path") for source in publication.sources}
    strange = sorted({*index.files} - {*derived} - raw - sources)
    if about.get("made_by") != made_by():
        _check_documents(kept, runs, about, publication, strange, record, limits)
        return
    for path, content in derived.items():
        entry = index.files.get(path)
        if entry is None:
            record.find("derived", f"{path} is not part of it")
        elif entry.sha256 != hashlib.sha256(content).hexdigest():
            record.find("derived", f"{path} does not follow from the runs")
    for path in strange:
        record.find("derived", f"{path} is no file of a snapshot")
    record.passed("derived", f"{len(derived)} manifests, tables, plots and pages follow from the "
                  "runs, byte by byte")  # fmt: skip


def _check_documents(
    kept: Mapping[str, bytes],
    runs: Sequence[RawRun],
    about: Mapping[str, Any],
    publication: Publication,
    strange: Sequence[str],
    record: Record,
    limits: Limits,
) -> None:
    """For a snapshot that another Firstlight made: what it says, not how it looks."""
    computed = {
        MANIFEST: manifest(runs, publication, about["made_by"]) | {
            "summary_method": about.get("summary_method")
        },
        VALIDATION: validation_report(runs),
        DISTRIBUTIONS: distributions(runs),
    }  # fmt: skip
    for path, wanted in computed.items():
        for difference in islice(differences(_parsed(kept, path, limits), wanted), 10):
            record.find("derived", f"{path} does not follow from the runs: {difference}")
    record.passed("derived", "manifest, validation report and distributions follow from the runs")
    for path in strange:
        record.unknown(f"{path}: no file that this Firstlight makes")
    version = about["made_by"].get("version")
    record.unknown(
        "that tables, plots and pages follow from the runs: they were made by another Firstlight "
        f"({version!r:.20}, or other code of that version)"
    )


def _note_unknown(about: Mapping[str, Any], record: Record) -> None:
    record.unknown("that the machine was the one that is described: nobody can tell from files")
    record.unknown("that the clock and the person were honest: replicate it to see")
    for run in about["runs"]:
        if run["software"].get("lock") is None:
            record.unknown(f"{run['folder']}: the lock of all packages: it was not recorded")
        if any(case["dataset"]["sha256"] is None for case in run["cases"]):
            record.unknown(f"{run['folder']}: hashes of some input data: they were not recorded")
