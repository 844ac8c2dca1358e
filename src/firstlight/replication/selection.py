"""Which cases of a published plan can be measured again here, and why the others cannot.

A case is looked up in this installation by its name. What the snapshot says of programs, adapters
and parameters is only held against what is found here; it is never loaded or executed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstlight.errors import FirstlightError
from firstlight.measure.case_selection import SelectionError, make_case, mark_missing
from firstlight.measure.user_file import cases_in
from firstlight.records import Case, Settings, to_json
from firstlight.workloads.catalog import Backend, Workload

#: What must be the same here as it was there. Titles and notes are words about it.
_SAME = (
    *("adapter", "program", "parameters", "tolerance", "seed", "compiled", "cache_kind"),
    "environment",
)
#: No plan of ours asks for more; a stranger's that does would hold this machine for days.
_MAX_SETTINGS = {"processes": 1000, "warm_calls": 10**6, "warm_seconds": 600.0, "batches": 1000,
         "batch_seconds": 60.0, "timeout_seconds": 6 * 3600.0}  # fmt: skip


class ReplicationError(FirstlightError):
    """The snapshot cannot be measured again."""


@dataclass(frozen=True)
class Selection:
    """What is measured here, and what is not."""

    cases: tuple[Case, ...]
    left_out: Mapping[str, str]  # case: why


@dataclass(frozen=True)
class Installation:
    """What can be run here: the catalogue, and files that the user has named."""

    backends: Mapping[str, Backend]
    workloads: Mapping[str, Workload]
    files: Mapping[str, Path]  # by SHA-256


def named_files(paths: Sequence[Path]) -> dict[str, Path]:
    """{SHA-256: path} of the benchmark files that the user named."""
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
    installation: Installation,
) -> Selection:
    """The cases to measure; `statuses` are the published ones, `hashes` those of users' files."""
    left_out: dict[str, str] = {}
    found: list[Case] = []
    own = _cases_of_files(planned, hashes, installation)
    for case in planned:
        if statuses.get(case.id) != "ok":
            left_out[case.id] = f"the snapshot has no valid number for it: {statuses.get(case.id)}"
            continue
        mine = _mine(case, hashes, installation, own)
        if isinstance(mine, str):
            left_out[case.id] = mine
        else:
            found.append(mine)
    for case in mark_missing(found, installation.backends):
        if case.skipped is not None:
            left_out[case.id] = case.skipped
    return Selection(tuple(c for c in found if c.id not in left_out), left_out)


def _mine(
    case: Case,
    hashes: Mapping[str, str],
    installation: Installation,
    own: Mapping[str, Mapping[str, Case]],
) -> Case | str:
    """The same case as this installation has it, or why there is none."""
    if case.file is not None:
        digest = hashes.get(case.file, "")
        if digest not in installation.files:
            return (
                f"it is in a file of the publisher's, {Path(case.file).name} (SHA-256 "
                f"{digest[:16]}…). Read that file, then name it with --file; its hash must match"
            )
        mine = own.get(digest, {}).get(case.id)
        if mine is None:
            return f"{installation.files[digest]} does not have it"
    else:
        try:
            workload = installation.workloads[case.workload]
            backend = installation.backends[case.backend]
            mine = make_case(workload, case.size, backend, case.cache)
        except (KeyError, SelectionError):
            return "this installation has no such workload, size or backend"
        if mine.id != case.id:
            return f"the same parts are called {mine.id} here"
    other = [name for name in _SAME if _plain(case, name) != _plain(mine, name)]
    if (case.reference is None) != (mine.reference is None) or (
        case.file is None and case.reference != mine.reference
    ):
        other.append("reference")
    if other:
        return f"this installation’s is another one: {', '.join(other)} differ"
    return mine


def _plain(case: Case, name: str) -> Any:
    return to_json(getattr(case, name))


def _cases_of_files(
    planned: Sequence[Case], hashes: Mapping[str, str], installation: Installation
) -> dict[str, dict[str, Case]]:
    """{SHA-256: {id: case}} of the named files that the plan needs. Runs them to find out."""
    found: dict[str, dict[str, Case]] = {}
    for digest, path in installation.files.items():
        policies = dict.fromkeys(
            c.cache for c in planned if c.file is not None and hashes.get(c.file) == digest
        )
        if policies:
            cases = cases_in(path, installation.backends, None, [*policies])
            found[digest] = {case.id: case for case in cases}
    return found


def settings_here(settings: Settings) -> tuple[Settings, list[str]]:
    """The published settings, as far as this machine has them, and what is not the same."""
    for name, most in _MAX_SETTINGS.items():
        value = getattr(settings, name)
        if not 0 <= value <= most:
            raise ReplicationError(f"its plan asks for {name} = {value!r:.30}, at most {most:g}.")
    if settings.affinity is None:
        return settings, []
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if set(settings.affinity) <= usable:
        return settings, []
    wanted = ", ".join(str(cpu) for cpu in settings.affinity)
    note = f"the workers were pinned to the CPUs {wanted}; here they are not: there are no such"
    return replace(settings, affinity=None), [note]
