"""Which runs may be published, and what may be published only if the publisher says so."""

from __future__ import annotations

from collections.abc import Sequence

from firstlight.snapshot.errors import RefusedError
from firstlight.snapshot.plausibility.whole_run import untrue
from firstlight.snapshot.raw_runs import RawRun, has_number

#: What can be published as such with `--allow`; what is unproven or failed gets no number.
ALLOWABLE = ("incomplete", "unproven", "failed")
_KIND = {
    "incomplete": "incomplete",
    "unproven": "unproven",
    **dict.fromkeys(("failed", "crashed", "timeout", "out-of-memory"), "failed"),
}
_ADVICE = {
    "incomplete": "Finish it with `firstlight run --resume`, or publish it as it is with "
    "--allow incomplete: the snapshot will say so.",
    "unproven": "The cache was not in the state that the label claims. Publish it with --allow "
    "unproven: the snapshot then lists the case as unproven, without a number.",
    "failed": "Publish it with --allow failed: the snapshot then lists the case with its reason, "
    "without a number.",
}


def require_admissible(raw: RawRun, allowed: Sequence[str], name: str) -> None:
    """Refuse a run that claims more than its samples show, or contains what was not allowed."""
    found = untrue(raw)
    if found:
        raise RefusedError(f"{name}: {found[0]}. Measure again: such a run is never published.")
    for kind, cases in needed_allowances(raw).items():
        if kind not in allowed:
            more = " …" if len(cases) > 5 else ""
            raise RefusedError(f"{name}: {kind}: {', '.join(cases[:5])}{more}. {_ADVICE[kind]}")
    if not any(has_number(case) for case in raw.run.cases):
        raise RefusedError(f"{name}: no case of this run has a number: nothing to publish.")


def needed_allowances(raw: RawRun) -> dict[str, list[str]]:
    """{"unproven": its cases, …}: what must have been allowed, for a run that is not all sound."""
    found = {
        kind: [case.case for case in raw.run.cases if _KIND.get(case.status) == kind]
        for kind in ALLOWABLE
    }
    if not raw.run.complete and not found["incomplete"]:
        found["incomplete"] = ["the run"]
    return {kind: cases for kind, cases in found.items() if cases}
