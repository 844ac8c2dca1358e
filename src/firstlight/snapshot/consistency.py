"""Whether the files of a snapshot agree: with their schemas, and with what they were made from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.records import can_validate, noisy_share
from firstlight.snapshot import strict_json
from firstlight.snapshot.admissibility import needed_allowances
from firstlight.snapshot.contents import derived_files, made_by
from firstlight.snapshot.errors import NewerSnapshotError, SnapshotError
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
from firstlight.snapshot.manifest import Publication
from firstlight.snapshot.opening import run_folders
from firstlight.snapshot.plausibility.order_and_clock import unaccounted
from firstlight.snapshot.plausibility.whole_run import untrue
from firstlight.snapshot.raw_runs import RawRun, has_number, programs_of
from firstlight.snapshot.recomputing import METHOD
from firstlight.snapshot.redaction import marks
from firstlight.snapshot.schemas import SCHEMAS, first_error
from firstlight.snapshot.strict_json import decoded
from firstlight.snapshot.verification import Record

_PLOT = re.compile(r"plots/[A-Za-z0-9][A-Za-z0-9._-]*\.svg")
#: What says as data what the runs say, in one spelling whoever wrote it.
_DOCUMENTS = (MANIFEST, VALIDATION, DISTRIBUTIONS)


def check_contents(
    index: Index,
    data: bytes,
    kept: Mapping[str, bytes],
    record: Record,
    limits: Limits,
    judged: bool = False,
) -> None:
    """Note in `record` what the files say that they should not, and what nobody can check.

    `judged`: that the runs are true was seen already, in these bytes.
    """
    try:
        about = _manifest(kept, limits)
        runs = _runs(about, kept, limits)
        publication = decoded(Publication, about.get("publication"), f"{MANIFEST}: publication")
    except NewerSnapshotError:
        raise
    except SnapshotError as error:
        record.find("schemas", str(error))
        return
    _check_schemas(data, kept, runs, record, limits)
    try:
        _check_runs(runs, publication, record, judged)
        _check_sources(index, runs, publication, record)
        _check_derived(index, runs, about, publication, record)
    except Exception as error:
        # A stranger's values can break any of the code that draws and sums. That is a finding.
        what = f"{type(error).__name__}: {error!s:.200}"
        record.find("derived", f"the runs cannot be evaluated ({what})")
        return
    _note_load(runs, record)
    if record.holds("derived"):  # else a field that it needs may be missing
        _note_unknown(about, record)


def _manifest(kept: Mapping[str, bytes], limits: Limits) -> dict[str, Any]:
    """What the manifest says; summaries by newer statistics are not judged by ours."""
    if MANIFEST not in kept:
        raise SnapshotError(f"{MANIFEST} is not part of it")
    about = strict_json.parse_object(kept[MANIFEST], MANIFEST, limits.json_bytes)
    method = about.get("summary_method")
    if type(method) is int and method > METHOD:
        raise NewerSnapshotError(
            f"{MANIFEST}: its summaries were made with method {method}, this Firstlight has "
            f"{METHOD}. Update Firstlight."
        )
    decoded(dict[str, str], about.get("made_by"), f"{MANIFEST}: made_by")
    return about


def _runs(about: Mapping[str, Any], kept: Mapping[str, bytes], limits: Limits) -> list[RawRun]:
    found = []
    for folder in run_folders(about, limits):
        for name in (PLAN, SAMPLES, RUN):
            if f"{folder}/{name}" not in kept:
                raise SnapshotError(f"{folder}/{name} is not part of it")
        files = {name: kept[f"{folder}/{name}"] for name in (PLAN, SAMPLES, RUN)}
        found.append(RawRun.of(folder, files, limits))
    return found


def _check_schemas(
    index: bytes, kept: Mapping[str, bytes], runs: Sequence[RawRun], record: Record, limits: Limits
) -> None:
    if not can_validate():
        record.skip("the schemas: the package `jsonschema` is not installed")
        return
    # The other documents must be the bytes that are made here, whatever else they might fit.
    documents = {INDEX: index, MANIFEST: kept[MANIFEST]}
    for raw in runs:
        documents |= {f"{raw.folder}/{name}": raw.files[name] for name in (PLAN, RUN)}
    for path, content in documents.items():
        plain = strict_json.parse(content, path, limits.json_bytes)
        error = first_error(plain, SCHEMAS[path.rsplit("/", 1)[-1]])
        if error is not None:
            record.find("schemas", f"{path}: {error}")
    record.passed("schemas", f"{len(documents)} files fit their schemas")


def _check_runs(
    runs: Sequence[RawRun], publication: Publication, record: Record, judged: bool
) -> None:
    for raw in runs:
        _check_samples_hash(raw, publication, record)
        for message in [] if judged else untrue(raw)[:50]:
            record.find("samples", f"{raw.folder}: {message}")
        for gap in unaccounted(raw):
            record.unknown(gap)
        for kind, cases in needed_allowances(raw).items():
            if kind not in publication.allowed:
                record.find("labels", f"{raw.folder}: {cases[0]} is {kind}, which was not allowed")
    processes = sum(len(raw.samples) for raw in runs)
    record.passed("samples", f"all summaries follow from the {processes} raw samples")
    shown = sum(has_number(case) for raw in runs for case in raw.run.cases)
    record.passed(
        "samples",
        f"{'1 case' if shown == 1 else f'{shown} cases'} with a number: each has its protocol, was "
        "correct in every process, and proved its cache label in every process",
    )


def _check_samples_hash(raw: RawRun, publication: Publication, record: Record) -> None:
    path = f"{raw.folder}/{SAMPLES}"
    for name in (PLAN, SAMPLES, RUN):
        _check_redaction(raw, name, publication, record)
    if raw.run.samples_sha256 != raw.digest(SAMPLES):
        record.find("samples", f"{path} is not the file that {RUN} was made from")
    if path in publication.redacted:
        record.unknown(f"{path} as measured: private text in it was replaced")


def _check_redaction(raw: RawRun, name: str, publication: Publication, record: Record) -> None:
    """A file that is said to be redacted has the marks of it, as many as are said."""
    path = f"{raw.folder}/{name}"
    told = publication.redacted.get(path)
    if told is None:
        return
    count = told.get("replacements")
    if type(count) is not int or count < 1:
        record.find("samples", f"{path} is listed as redacted, but nothing in it was replaced")
    elif marks(raw.files[name]) < count:
        record.find(
            "samples",
            f"{path} is listed as redacted in {count} places, but has {marks(raw.files[name])} "
            "redaction marks",
        )


def _check_sources(
    index: Index, runs: Sequence[RawRun], publication: Publication, record: Record
) -> None:
    """The users' own programs: those that were measured, with the hash they had then."""
    planned = []
    for raw in runs:
        files = programs_of(raw.plan)
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
    runs: Sequence[RawRun],
    about: Mapping[str, Any],
    publication: Publication,
    record: Record,
) -> None:
    """What follows from the runs is made again and compared byte by byte.

    Another Firstlight may draw and word other pages; what it says of the runs as data it may not.
    """
    derived = derived_files(runs, publication, about["made_by"])
    raw = {f"{raw.folder}/{name}" for raw in runs for name in (PLAN, SAMPLES, RUN)}
    known = {*derived, *raw, *(source.get("path") for source in publication.sources)}
    ours, unchecked = about["made_by"] == made_by(), []
    for path in sorted({*index.files, *derived}):
        may_differ = not ours and path not in _DOCUMENTS
        may_be_absent = not ours and _PLOT.fullmatch(path)
        if path not in known and not may_be_absent:
            record.find("derived", f"{path} does not belong in a snapshot")
        elif path not in index.files and not may_be_absent:
            record.find("derived", f"{path} is not part of it")
        elif path in index.files and path not in known:
            unchecked.append(path)
        elif path in index.files and path in derived:
            if index.files[path].sha256 == hashlib.sha256(derived[path]).hexdigest():
                continue
            if may_differ:
                unchecked.append(path)
            else:
                record.find("derived", f"{path} does not follow from the runs")
    same = f"{len(derived) - len(unchecked)} manifests, tables, plots and pages"
    record.passed("derived", f"{same} follow from the runs, byte by byte")
    if unchecked:
        record.skip(
            f"{len(unchecked)} page(s), plots or tables: another Firstlight made them "
            f"({about['made_by'].get('version')!r:.20}, or different code), so they cannot be "
            "reproduced here, and may say anything",
            files=unchecked,
        )


def _note_load(runs: Sequence[RawRun], record: Record) -> None:
    """What a reader must know besides the verdict: valid files may contain disturbed times."""
    for raw in runs:
        if (busy := noisy_share(raw.run.host)) is not None:
            record.loads.append(f"{raw.folder}: other programs were using {busy:.0%} of the CPU")


def _note_unknown(about: Mapping[str, Any], record: Record) -> None:
    record.unknown("whether the machine was the one described: files cannot show that")
    record.unknown("whether the clock and the person were honest: replicate it to see")
    for run in about["runs"]:
        if run["software"].get("lock") is None:
            record.unknown(f"{run['folder']}: the versions of all packages: not recorded")
        if any(case["dataset"]["sha256"] is None for case in run["cases"]):
            record.unknown(f"{run['folder']}: hashes of some input data: not recorded")
