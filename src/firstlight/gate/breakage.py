"""Why a case has no numbers to compare, and whether the change is to blame.

A case that is broken on the head alone is what the change did. Broken on the base alone, it was
repaired, and on both sides it says nothing. A side that only was not timed, because the other one
failed, is not broken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from firstlight.records import Sample

#: What a process of the head alone may end with that is the change's doing. A cache label that is
#: not proven is none of it: that is a measurement that failed.
_EXACT = ("failed", "crashed", "out-of-memory")
_SLOW = ("timeout",)  # a time: the control can excuse it


class Breakage(NamedTuple):
    """What is broken, in words."""

    why: str
    both: bool = False
    regression: str | None = None  # "exact" or "slow"; None: the change is not to blame


def breakage(base: Sequence[Sample], head: Sequence[Sample], is_control: bool) -> Breakage | None:
    """What keeps the samples of one case from being compared; None if nothing does."""
    one, other = _words(base), _words(head)
    if one and other:
        return Breakage(f"broken on both sides: base {one}; head {other}", both=True)
    if other:
        blame = None if is_control else _blame({s.status for s in head})
        return Breakage(f"broken on one side: head {other}", regression=blame)
    if one:
        nothing = "head is not, so there is nothing to compare it with"
        return Breakage(f"broken on one side: base {one}; {nothing}")
    timed = [any(s.kind == "timed" for s in side) for side in (base, head)]
    if all(timed) or is_control:  # a control is not timed where nothing else is
        return None
    if not any(timed):
        return Breakage("not measured on either side", both=True)
    return Breakage(f"not measured on the {'head' if timed[0] else 'base'}")


def _words(samples: Sequence[Sample]) -> str | None:
    """What went wrong on a side: as in a run, survivors are not a fair sample."""
    bad = [s for s in samples if s.status != "ok"]
    if not bad:
        return None
    return f"{bad[0].status} in {len(bad)} of {len(samples)} processes ({bad[0].reason})"


def _blame(statuses: Collection[str]) -> str | None:
    if any(status in _EXACT for status in statuses):
        return "exact"
    return "slow" if any(status in _SLOW for status in statuses) else None
