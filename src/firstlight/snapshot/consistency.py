"""Checks the files of a snapshot against their schemas and what they were made from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from firstlight.present.quantities import counted
from firstlight.records import noisy_share
from firstlight.snapshot.contents import derived_files, made_by
from firstlight.snapshot.errors import NewerSnapshotError, SnapshotError
from firstlight.snapshot.layout import (
    DISTRIBUTIONS,
    INDEX,
    LIMITS,
    MANIFEST,
    PLAN,
    RAW_FILES,
    RUN,
    SAMPLES,
    VALIDATION,
    Index,
)
from firstlight.snapshot.manifest import Publication
from firstlight.snapshot.opening import RawRun, programs_of, run_folders
from firstlight.snapshot.order_and_clock import unaccounted
from firstlight.snapshot.plausibility import inconsistencies, needed_allowances
from firstlight.snapshot.redaction import count_marks
from firstlight.snapshot.strict_json import SCHEMAS, Plain, decoded, first_error, parse_object
from firstlight.snapshot.verification import Record
from firstlight.statistics.steady_state import METHOD

_PLOT = re.compile(r"plots/[A-Za-z0-9][A-Za-z0-9._-]*\.svg")
#: Derived data whose bytes are the same in every version of Firstlight.
_DOCUMENTS = (MANIFEST, VALIDATION, DISTRIBUTIONS)


def check_contents(
    index: Index, data: bytes, kept: Mapping[str, bytes], record: Record, is_plausible: bool = False
) -> None:
    """Note in `record` what is wrong with the files, and what nobody can check.

    `is_plausible`: these runs, in these bytes, have already passed `inconsistencies`.
    """
    try:
        about, method, runs = _read(kept)
        publication = decoded(Publication, about.get("publication"), f"{MANIFEST}: publication")
    except NewerSnapshotError:
        raise
    except SnapshotError as error:
        record.find("schemas", str(error))
        return
    _check_schemas(data, kept[MANIFEST], runs, record)
    try:
        _check_runs(runs, method, publication, record, is_plausible)
        _check_sources(index, runs, publication, record)
        _check_derived(index, runs, about, method, publication, record)
    except Exception as error:
        # A stranger's values can break any code that draws or sums. That is a finding.
        what = f"{type(error).__name__}: {error!s:.200}"
        record.find("derived", f"the runs cannot be evaluated ({what})")
        return
    for raw in runs:  # valid files may contain disturbed times
        if (busy := noisy_share(raw.run.host)) is not None:
            record.loads.append(f"{raw.folder}: other programs were using {busy:.0%} of the CPU")
    if record.holds("derived"):  # else a field that it needs may be missing
        _note_unknown(about, record)


def _read(kept: Mapping[str, bytes]) -> tuple[Plain, int, list[RawRun]]:
    """(manifest, method of its summaries, runs); refuses a method newer than ours."""
    if MANIFEST not in kept:
        raise SnapshotError(f"{MANIFEST} is not part of it")
    about = parse_object(kept[MANIFEST], MANIFEST, LIMITS.json_bytes)
    method = about.get("summary_method")
    if type(method) is not int or method < 1:
        method = METHOD  # the manifest derived with it will differ, which is a finding
    if method > METHOD:
        raise NewerSnapshotError(
            f"{MANIFEST}: its summaries were made with method {method}, this Firstlight has "
            f"{METHOD}. Update Firstlight."
        )
    decoded(dict[str, str], about.get("made_by"), f"{MANIFEST}: made_by")
    found = []
    for folder in run_folders(about):
        for name in RAW_FILES:
            if f"{folder}/{name}" not in kept:
                raise SnapshotError(f"{folder}/{name} is not part of it")
        found.append(RawRun.of(folder, {name: kept[f"{folder}/{name}"] for name in RAW_FILES}))
    return about, method, found


def _check_schemas(index: bytes, manifest: bytes, runs: Sequence[RawRun], record: Record) -> None:
    # The other documents need no schema: they must equal the bytes derived here.
    documents = {INDEX: index, MANIFEST: manifest}
    for raw in runs:
        documents |= {f"{raw.folder}/{name}": raw.files[name] for name in (PLAN, RUN)}
    for path, content in documents.items():
        plain = parse_object(content, path, LIMITS.json_bytes)
        error = first_error(plain, SCHEMAS[path.rsplit("/", 1)[-1]])
        if error is not None:
            record.find("schemas", f"{path}: {error}")
    record.passed("schemas", f"{len(documents)} files fit their schemas")


def _check_runs(
    runs: list[RawRun], method: int, publication: Publication, record: Record, is_plausible: bool
) -> None:
    for raw in runs:
        _check_redaction(raw, publication, record)
        if raw.run.samples_sha256 != raw.digest(SAMPLES):
            what = f"{raw.folder}/{SAMPLES} is not the file that {RUN} was made from"
            record.find("samples", what)
        for message in [] if is_plausible else inconsistencies(raw, method)[:50]:
            record.find("samples", f"{raw.folder}: {message}")
        for gap in unaccounted(raw):
            record.unknown(gap)
        for kind, cases in needed_allowances(raw).items():
            if kind not in publication.allowed:
                record.find("labels", f"{raw.folder}: {cases[0]} is {kind}, which was not allowed")
    processes = sum(len(raw.samples) for raw in runs)
    record.passed("samples", f"all summaries follow from the {processes} raw samples")
    shown = sum(case.cold_seconds is not None for raw in runs for case in raw.run.cases)
    record.passed(
        "samples",
        f"{counted(shown, 'case')} with a number: each has its protocol, was correct in every "
        "process, and proved its cache label in every process",
    )


def _check_redaction(raw: RawRun, publication: Publication, record: Record) -> None:
    """A file that is listed as redacted has as many redaction marks as listed."""
    for name in RAW_FILES:
        path = f"{raw.folder}/{name}"
        if path not in publication.redacted:
            continue
        count, found = publication.redacted[path].get("replacements"), count_marks(raw.files[name])
        if type(count) is not int or count < 1:
            record.find("samples", f"{path} is listed as redacted, but nothing in it was replaced")
        elif found < count:
            record.find(
                "samples",
                f"{path} is listed as redacted in {count} places, but has {found} redaction marks",
            )
        if name == SAMPLES:
            record.unknown(f"{path} as measured: private text in it was replaced")


def _check_sources(
    index: Index, runs: Sequence[RawRun], publication: Publication, record: Record
) -> None:
    """The users' own programs are those that were measured, with the same hashes."""
    planned = [
        (raw.folder, path.rsplit("/", 1)[-1], digest)
        for raw in runs
        for path, digest in programs_of(raw.plan).items()
    ]
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
    about: Plain,
    method: int,
    publication: Publication,
    record: Record,
) -> None:
    """Derive every other file from the runs again and compare the bytes.

    Another Firstlight may draw and word pages differently, but not derive other data.
    """
    derived = derived_files(runs, publication, about["made_by"], method)
    raw = {f"{raw.folder}/{name}" for raw in runs for name in RAW_FILES}
    known = {*derived, *raw, *(source.get("path") for source in publication.sources)}
    ours, unchecked = about["made_by"] == made_by(), []
    for path in sorted({*index.files, *derived}):
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
            if ours or path in _DOCUMENTS:
                record.find("derived", f"{path} does not follow from the runs")
            else:
                unchecked.append(path)
    same = f"{len(derived) - len(unchecked)} manifests, tables, plots and pages"
    record.passed("derived", f"{same} follow from the runs, byte by byte")
    if unchecked:
        record.skip(
            f"{counted(len(unchecked), 'file')} (pages, plots, tables): "
            f"another Firstlight made them ({about['made_by'].get('version')!r:.20}, or different "
            "code), so they cannot be reproduced here, and may say anything",
            files=unchecked,
        )


def _note_unknown(about: Plain, record: Record) -> None:
    record.unknown("whether the machine was the one described: files cannot show that")
    record.unknown("whether the clock and the person were honest: replicate it to see")
    for run in about["runs"]:
        if run["software"].get("lock") is None:
            record.unknown(f"{run['folder']}: the versions of all packages: not recorded")
        if any(case["dataset"]["sha256"] is None for case in run["cases"]):
            record.unknown(f"{run['folder']}: hashes of some input data: not recorded")
