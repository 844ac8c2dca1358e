"""Selects the cases of a published plan that can be measured again here, with reasons for the rest.

A case is looked up in this installation by its name. The programs, adapters and parameters in the
snapshot are only compared with those found here, never loaded or executed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.measure.case_selection import SelectionError, make_case, mark_missing
from firstlight.measure.user_file import cases_in
from firstlight.records import Case, Settings, to_json
from firstlight.workloads.catalog import registered

#: Fields that must be equal here and there.
_SAME = (
    *("adapter", "program", "parameters", "tolerance", "seed", "compiled", "cache_kind"),
    "environment",
)
#: Our own plans stay below; a stranger's could occupy this machine for days.
_MAX_SETTINGS = {"processes": 1000, "warm_calls": 10**6, "warm_seconds": 600.0, "batches": 1000,
         "batch_seconds": 60.0, "timeout_seconds": 6 * 3600.0}  # fmt: skip


class ReplicationError(FirstlightError):
    """The snapshot cannot be measured again."""


@dataclass(frozen=True)
class Selection:
    cases: tuple[Case, ...]
    left_out: Mapping[str, str]  # case: why


def named_files(paths: Sequence[Path]) -> dict[str, Path]:
    """{SHA-256: path} of the user's benchmark files."""
    found = {}
    for path in paths:
        try:
            found[hashlib.sha256(path.read_bytes()).hexdigest()] = path
        except OSError as error:
            raise SelectionError(f"--file {path}: cannot be read: {error.strerror}.") from None
    return found


def select(
    planned: Sequence[Case],
    statuses: Mapping[str, str],
    hashes: Mapping[str, str],
    files: Mapping[str, Path],
) -> Selection:
    """The cases to measure.

    `statuses` are the published ones by case, `hashes` those of the plan's programs by path,
    `files` the user's benchmark files by hash.
    """
    left_out: dict[str, str] = {}
    found: list[Case] = []
    own = _cases_of_files(planned, hashes, files)
    for case in planned:
        if statuses.get(case.id) != "ok":
            left_out[case.id] = f"the snapshot has no valid number for it: {statuses.get(case.id)}"
            continue
        if case.file is not None:
            mine = _in_file(case, hashes.get(case.file, ""), files, own)
        else:
            mine = _in_catalogue(case)
        if isinstance(mine, str):
            left_out[case.id] = mine
        elif other := _differing(case, mine):
            left_out[case.id] = f"it is different in this installation: {', '.join(other)} differ"
        else:
            found.append(mine)
    missing = mark_missing(found, registered()[0])
    left_out |= {case.id: case.skipped for case in missing if case.skipped is not None}
    return Selection(tuple(c for c in found if c.id not in left_out), left_out)


def _in_file(
    case: Case, digest: str, files: Mapping[str, Path], own: Mapping[str, Mapping[str, Case]]
) -> Case | str:
    """The same case in one of the user's files, or why there is none."""
    if digest not in files:
        return (
            f"it is in the publisher's file {Path(case.file or '').name} (SHA-256 {digest[:16]}…). "
            "Read that file, then name it with --file; its hash must match"
        )
    return own.get(digest, {}).get(case.id) or f"{files[digest]} does not have it"


def _in_catalogue(case: Case) -> Case | str:
    """The same case of this installation, or why there is none."""
    backends, workloads = registered()
    try:
        workload, backend = workloads[case.workload], backends[case.backend]
        mine = make_case(workload, case.size, backend, case.cache)
    except (KeyError, SelectionError):
        return "this installation has no such workload, size or backend"
    return mine if mine.id == case.id else f"the same parts are called {mine.id} here"


def _differing(case: Case, mine: Case) -> list[str]:
    one, other = to_json(case), to_json(mine)
    found = [name for name in _SAME if one[name] != other[name]]
    if (case.reference is None) != (mine.reference is None) or (
        case.file is None and case.reference != mine.reference
    ):
        found.append("reference")
    return found


def _cases_of_files(
    planned: Sequence[Case], hashes: Mapping[str, str], files: Mapping[str, Path]
) -> dict[str, dict[str, Case]]:
    """{SHA-256: {id: case}} of the user's files that the plan needs. Executes them to find out."""
    found: dict[str, dict[str, Case]] = {}
    for digest, path in files.items():
        own = [c for c in planned if c.file is not None and hashes.get(c.file) == digest]
        if own:
            policies = list(dict.fromkeys(c.cache for c in own))
            cases = cases_in(path, registered()[0], None, policies)
            found[digest] = {case.id: case for case in cases}
    return found


def settings_here(settings: Settings) -> tuple[Settings, list[str]]:
    """The published settings as far as this machine can keep them, and notes on the others."""
    for name, limit in _MAX_SETTINGS.items():
        value = getattr(settings, name)
        if not 0 <= value <= limit:
            raise ReplicationError(f"its plan has {name} = {value!r:.30}; the limit is {limit:g}.")
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if settings.affinity is None or set(settings.affinity) <= usable:
        return settings, []
    wanted = ", ".join(map(str, settings.affinity))
    note = f"the workers were pinned to the CPUs {wanted}; this machine lacks them"
    return replace(settings, affinity=None), [note]
