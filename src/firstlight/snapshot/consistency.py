"""Whether the files of a snapshot agree: with their schemas, and with what they were made from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from firstlight.records import can_validate, from_json, noisy_share
from firstlight.snapshot import strict_json
from firstlight.snapshot.admissibility import needed_allowances
from firstlight.snapshot.by_value import (
    SNIPPET,
    is_table,
    same_columns,
    snippet_differences,
    table_differences,
)
from firstlight.snapshot.contents import derived_files, made_by
from firstlight.snapshot.distributions import distributions
from firstlight.snapshot.errors import NewerSnapshotError, SnapshotError, UnusableSnapshotError
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
from firstlight.snapshot.plausibility import unaccounted
from firstlight.snapshot.raw_runs import RawRun, has_number
from firstlight.snapshot.recomputing import METHOD, differences
from firstlight.snapshot.redaction import marks
from firstlight.snapshot.schemas import SCHEMAS, first_error
from firstlight.snapshot.truth import judge
from firstlight.snapshot.typed import require_type
from firstlight.snapshot.validation import validation_report

if TYPE_CHECKING:
    from firstlight.snapshot.verifying import Record

_PLOT = re.compile(r"plots/[A-Za-z0-9][A-Za-z0-9._-]*\.svg")
#: What is compared by what it says, if another Firstlight wrote it. Of a snippet only the rows are,
#: so it is among what was skipped as well.
_BY_VALUE = (MANIFEST, VALIDATION, DISTRIBUTIONS)


def check_contents(
    index: Index, data: bytes, kept: Mapping[str, bytes], record: Record, limits: Limits
) -> None:
    """Note in `record` what the files say that they should not, and what nobody can check."""
    try:
        about = _parsed(kept, MANIFEST, limits)
        method = _method(about)
        runs = _runs(about, kept, limits)
        publication = _publication(about)
    except NewerSnapshotError:
        raise
    except SnapshotError as error:
        record.find("schemas", str(error))
        record.numbers_checked = False
        return
    _check_schemas(data, kept, runs, record, limits)
    try:
        _check_runs(runs, method, publication, record)
        _check_sources(index, runs, publication, record)
        _check_derived(index, kept, runs, about, publication, record, limits)
    except Exception as error:
        # A stranger's values can break any of the code that draws and sums. That is a finding.
        what = f"{type(error).__name__}: {error!s:.200}"
        record.find("derived", f"the runs cannot be evaluated ({what})")
        return
    _note_load(runs, record)
    _note_unknown(about, record)


def _parsed(kept: Mapping[str, bytes], path: str, limits: Limits) -> dict[str, Any]:
    if path not in kept:
        raise SnapshotError(f"{path} is not part of it")
    return strict_json.parse_object(kept[path], path, limits.json_bytes)


def _method(about: Mapping[str, Any]) -> int:
    """By which statistics its summaries were made. Newer ones we do not know, so we judge none."""
    method = about.get("summary_method")
    if type(method) is not int or method < 1:
        raise UnusableSnapshotError(f"{MANIFEST}: summary_method is {method!r:.30}, which is none")
    if method > METHOD:
        raise NewerSnapshotError(
            f"{MANIFEST}: its summaries were made by method {method}, this Firstlight has "
            f"{METHOD}. Update Firstlight."
        )
    return method


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
        record.skip("the schemas: the package `jsonschema` is not installed")
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
    runs: Sequence[RawRun], method: int, publication: Publication, record: Record
) -> None:
    for raw in runs:
        _check_samples_hash(raw, publication, record)
        judgement = judge(raw)
        # Numbers by older statistics are not ours, but what contradicts itself is untrue by all.
        untrue = judgement.untrue if method == METHOD else judgement.contradictions
        for message in untrue[:50]:
            record.find("samples", f"{raw.folder}: {message}")
        if judgement.wording:
            record.skip(f"{raw.folder}: how its protocols are worded: another Firstlight did it")
        for gap in unaccounted(raw):
            record.unknown(gap)
        for kind, cases in needed_allowances(raw).items():
            if kind not in publication.allowed:
                record.find("labels", f"{raw.folder}: {cases[0]} is {kind}, which nobody allowed")
    if method == METHOD:
        processes = sum(len(raw.samples) for raw in runs)
        record.passed("samples", f"all summaries follow from the {processes} raw samples")
    else:
        record.numbers_checked = False
        record.skip(f"that summaries follow from the samples: they were made by method {method}, "
                    f"this Firstlight has {METHOD}")  # fmt: skip
    shown = sum(has_number(case) for raw in runs for case in raw.run.cases)
    cases = "1 case" if shown == 1 else f"{shown} cases"
    record.passed("samples", f"{cases} with a number: each has its protocol, was correct in every "
                  "process, and proved its cache label in every process")  # fmt: skip


def _check_samples_hash(raw: RawRun, publication: Publication, record: Record) -> None:
    path = f"{raw.folder}/{SAMPLES}"
    # Summaries that were made anew need not have as many marks as the ones before.
    anew = "resummarised" in publication.allowed
    for name in (PLAN, SAMPLES) if anew else (PLAN, SAMPLES, RUN):
        _check_redaction(raw, name, publication, record)
    if raw.run.samples_sha256 != raw.digest(SAMPLES):
        record.find("samples", f"{path} is not the file that {RUN} was made from")
    if path in publication.redacted:
        record.unknown(f"{path} as it was measured: private texts in it were replaced")


def _check_redaction(raw: RawRun, name: str, publication: Publication, record: Record) -> None:
    """A file that is said to be redacted has the marks of it, as many as are said."""
    path = f"{raw.folder}/{name}"
    told = publication.redacted.get(path)
    if told is None:
        return
    count = told.get("replacements")
    if type(count) is not int or count < 1:
        record.find("samples", f"{path} is said to be redacted, and nothing in it was replaced")
    elif marks(raw.files[name]) < count:
        record.find(
            "samples",
            f"{path} is said to be redacted in {count} places, and has {marks(raw.files[name])} "
            "marks of it",
        )


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
    ours = about.get("made_by") == made_by()
    for path in sorted({*index.files} - {*derived} - raw - sources):
        if ours or not _PLOT.fullmatch(path):  # another Firstlight may draw other plots
            record.find("derived", f"{path} is no file of a snapshot")
    differing = set()
    for path, content in derived.items():
        entry = index.files.get(path)
        if entry is None and (ours or not _PLOT.fullmatch(path)):
            record.find("derived", f"{path} is not part of it")
        elif entry is not None and entry.sha256 != hashlib.sha256(content).hexdigest():
            differing.add(path)
            if ours:
                record.find("derived", f"{path} does not follow from the runs")
    if ours:
        record.passed("derived", f"{len(derived)} manifests, tables, plots and pages follow from "
                      "the runs, byte by byte")  # fmt: skip
        return
    differing |= {path for path in index.files if _PLOT.fullmatch(path) and path not in derived}
    _check_documents(kept, runs, about, publication, record, limits)
    _check_tables(kept, derived, differing, record)
    compared = {
        path
        for path in differing & {*kept}
        if is_table(path) and same_columns(kept[path], derived[path])
    }
    rest = sorted(differing - compared - {*_BY_VALUE})
    if rest:
        version = about["made_by"].get("version")
        record.skip(
            f"{len(rest)} page(s), plots or tables: another Firstlight made them ({version!r:.20}, "
            "or other code of it), so they cannot be made again here, and may say anything",
            files=rest,
        )


def _check_documents(
    kept: Mapping[str, bytes],
    runs: Sequence[RawRun],
    about: Mapping[str, Any],
    publication: Publication,
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


def _check_tables(
    kept: Mapping[str, bytes], derived: Mapping[str, bytes], differing: set[str], record: Record
) -> None:
    """Tables and the rows of the snippet, by value."""
    for path in sorted(differing):
        if path in kept and is_table(path):
            found = table_differences(kept[path], derived[path])
        elif path in kept and path == SNIPPET:
            found = snippet_differences(kept[path], derived[path])
        else:
            continue
        for difference in islice(found, 3):
            record.find("derived", f"{path} does not follow from the runs: {difference}")
    record.passed("derived", "tables have the numbers of the runs")


def _note_load(runs: Sequence[RawRun], record: Record) -> None:
    """What a reader must know beside the verdict: valid files may hold disturbed times."""
    for raw in runs:
        if (busy := noisy_share(raw.run.host)) is not None:
            record.loads.append(f"{raw.folder}: other programs were using {busy:.0%} of the CPU")


def _note_unknown(about: Mapping[str, Any], record: Record) -> None:
    record.unknown("that the machine was the one that is described: nobody can tell from files")
    record.unknown("that the clock and the person were honest: replicate it to see")
    for run in about["runs"]:
        if run["software"].get("lock") is None:
            record.unknown(f"{run['folder']}: the lock of all packages: it was not recorded")
        if any(case["dataset"]["sha256"] is None for case in run["cases"]):
            record.unknown(f"{run['folder']}: hashes of some input data: they were not recorded")
