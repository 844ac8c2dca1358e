"""`manifest.json`: what was measured, with which data, machine, code and protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firstlight.records import Case, CaseSummary, JsonObject, Sample, to_json
from firstlight.snapshot.layout import VERSION
from firstlight.snapshot.opening import RawRun
from firstlight.snapshot.strict_json import Plain, compact

NOT_RECORDED = "not recorded"
_PLANNED = ("title", "program", "reference", "tolerance", "cache_kind")


@dataclass(frozen=True)
class Creator:
    """An author to cite."""

    name: str  # 'Family, Given', or the name of a group
    orcid: str | None = None
    affiliation: str | None = None


@dataclass(frozen=True)
class Publication:
    """What the publisher adds to the runs; everything else in a snapshot is derived from them."""

    title: str
    creators: tuple[Creator, ...] = ()
    license: str | None = None  # SPDX
    allowed: tuple[str, ...] = ()  # unsound cases that were published as such: "unproven", …
    #: By file, how often something private was replaced.
    redacted: Mapping[str, JsonObject] = field(default_factory=dict)
    #: The user's own measured programs, with their path in the snapshot or null.
    sources: tuple[JsonObject, ...] = ()


def manifest(
    runs: Sequence[RawRun], publication: Publication, made_by: Mapping[str, str], method: int
) -> Plain:
    return {
        "schema": "firstlight.snapshot.manifest",
        "schema_version": VERSION,
        "publication": to_json(publication),
        "made_by": dict(made_by),
        "summary_method": method,
        "measured_from": min(raw.run.created_at for raw in runs),
        "measured_to": max(raw.run.finished_at or raw.run.created_at for raw in runs),
        "runs": [_run(raw) for raw in runs],
    }


def _run(raw: RawRun) -> Plain:
    run, host = raw.run, raw.run.host
    lock = host.get("lock")
    names = ("id", "created_at", "finished_at", "complete", "harness", "settings")
    return {
        "folder": raw.folder,
        **{name: to_json(getattr(run, name)) for name in names},
        "hardware": {k: host.get(k) for k in ("cpu", "container", "memory_bytes", "gpus", "os")},
        "software": {
            **{k: host.get(k) for k in ("python", "packages", "environment", "commit")},
            "lock": lock,
            "lock_unknown": None if lock is not None else NOT_RECORDED,
        },
        "state": {
            key: host.get(key)
            for key in ("load", "load_after", "cpu_busy_ratio", "memory_available_bytes")
        },
        "warnings": list(run.warnings),
        "samples": len(raw.samples),
        "cases": [_case(c, raw.planned[c.case], raw.by_case[c.case]) for c in run.cases],
    }


def _case(case: CaseSummary, planned: Case, samples: Sequence[Sample]) -> Plain:
    return {
        **{name: getattr(case, name) for name in ("case", "status", "reason", "note")},
        **{name: getattr(planned, name) for name in _PLANNED},
        "file": planned.file.rsplit("/", 1)[-1] if planned.file else None,
        "cache_policy": case.cache,
        "dataset": dataset(planned, samples),
        "protocol": to_json(case.protocol),
    }


def dataset(case: Case, samples: Sequence[Sample]) -> Plain:
    """The input data: name, a hash over all arrays, and one of each.

    A program of the catalogue makes its data from a seed and parameters, so the name is a recipe;
    the hash is of the arrays that the check process received.
    """
    check = next((s for s in samples if s.kind == "check" and "data" in s.facts), None)
    facts = check.facts if check is not None else {}
    arrays, hashes = list(facts.get("data") or ()), facts.get("data_sha256")
    known = isinstance(hashes, list) and len(hashes) == len(arrays) and None not in hashes
    unknown = facts.get("data_sha256_unknown") or NOT_RECORDED
    if check is None:
        known, unknown = False, "the check process did not get as far as its data"
    digests = list(hashes or ()) if known else [None] * len(arrays)
    items = [{**array, "sha256": digest} for array, digest in zip(arrays, digests, strict=True)]
    # One over all: shape, type and hash of every array, in order.
    parts = [[item.get("shape"), item.get("dtype"), item["sha256"]] for item in items]
    seed = "" if case.seed is None else f"@seed={case.seed}"
    maker = f"{case.file.rsplit('/', 1)[-1]}:" if case.file else ""
    return {
        "id": f"{maker}{case.workload}[{case.size}]{seed}",
        "sha256": hashlib.sha256(compact(parts)).hexdigest() if known else None,
        "sha256_unknown": None if known else str(unknown),
        "parameters": to_json(case.parameters),
        "arrays": items,
    }
