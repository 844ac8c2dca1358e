"""Why a case has no numbers to compare, and whether the change is to blame.

A process that breaks is repeated on both sides before it counts. A case of which a process breaks
every time on the head, and never on the base, is what the change did. On the base alone, it was
repaired, and on both sides it says nothing. A side that only was not timed, because the other one
failed, is not broken.

A process that did not break when it was repeated makes its case *flaky*. Whether the head is more
so than the base is a question for an exact test: if the change did nothing, a round in which one
side alone broke is as likely to be that of the head as that of the base.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firstlight.records import REPEATS, Sample

#: What a process of the head alone may end with that is the change's doing. A cache label that is
#: not proven is none of it: that is a measurement that failed.
_EXACT = {"failed", "crashed", "out-of-memory"}
#: With at most this probability of so uneven a split, more rounds may show that head breaks more
#: often. Three rounds to none are that uneven.
_SUSPICIOUS = 1 / 8


class Breakage(NamedTuple):
    """What is broken, in words."""

    why: str
    both: bool = False
    regression: str | None = None  # "exact" or "slow"; None: the change is not to blame


@dataclass(frozen=True)
class Flakiness:
    """A case of which processes broke that did not when they were repeated."""

    case: str
    base_broken: int
    base_processes: int
    head_broken: int
    head_processes: int
    base_only_rounds: int  # in which the base alone broke, at the first attempt
    head_only_rounds: int
    reason: str  # what one of them said
    p_adjusted: float  # two-sided, of "both break equally often", by Holm with the times
    verdict: str  # regression, inconclusive or flaky


def repeats_of(status: str) -> int:
    """How often a process that ended so is repeated; a timeout costs the whole time limit."""
    return 1 if status == "timeout" else REPEATS


def breakage(base: Sequence[Sample], head: Sequence[Sample], is_control: bool) -> Breakage | None:
    """What keeps the samples of one case from being compared; None if nothing does."""
    one, other = _words(base), _words(head)
    if one and other:
        return Breakage(f"broken on both sides: base {one}; head {other}", both=True)
    if other and (too := _broken(base)):
        also = f"base {too[0].status} in {len(too)} of {len(base)} processes"
        return Breakage(f"flaky: head {other}, but {also} too")
    if other:
        blame = None if is_control else _blame({s.status for s in _broken(head)})
        return Breakage(f"broken on one side: head {other}", regression=blame)
    if one:
        nothing = "head is not, so there is nothing to compare it with"
        return Breakage(f"broken on one side: base {one}; {nothing}")
    timed = [any((s.kind, s.status) == ("timed", "ok") for s in side) for side in (base, head)]
    if all(timed) or is_control:  # a control is not timed where nothing else is
        return None
    if not any(timed):
        return Breakage("not measured on either side", both=True)
    return Breakage(f"not measured on the {'head' if timed[0] else 'base'}")


def breaks_every_time(samples: Sequence[Sample]) -> bool:
    """Whether some process of the plan broke at every attempt."""
    sound = {(s.kind, s.index) for s in samples if s.status == "ok"}
    return any((s.kind, s.index) not in sound for s in samples)


def _broken(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s.status != "ok"]


def _words(samples: Sequence[Sample]) -> str | None:
    """What goes wrong on a side every time: as in a run, survivors are not a fair sample."""
    if not breaks_every_time(samples):
        return None
    bad = _broken(samples)
    return f"{bad[0].status} in {len(bad)} of {len(samples)} processes ({bad[0].reason})"


def _blame(statuses: Collection[str]) -> str | None:
    if _EXACT.intersection(statuses):
        return "exact"
    return "slow" if "timeout" in statuses else None  # a time: the control can excuse it


def last_attempts(samples: Sequence[Sample]) -> list[Sample]:
    """The samples without those that were repeated."""
    return list({(s.case, s.kind, s.index): s for s in samples}.values())


# --- flaky ----------------------------------------------------------------------------------------


class Uneven(NamedTuple):
    """Rounds in which one side alone broke."""

    base_only: int
    head_only: int

    def p(self) -> float:
        """Two-sided and exact, of a fair coin."""
        return min(1.0, 2 * _tail(max(self), sum(self)))

    def is_suspicious(self) -> bool:
        return self.head_only > self.base_only and _tail(self.head_only, sum(self)) <= _SUSPICIOUS


def _tail(heads: int, coins: int) -> float:
    """Probability of so many heads or more."""
    return math.fsum(math.comb(coins, i) / 2**coins for i in range(heads, coins + 1))


def uneven_rounds(base: Sequence[Sample], head: Sequence[Sample]) -> Uneven:
    """Counted at the first attempt of each round: what is repeated depends on what it showed."""
    one, other = (
        {s.index: s.status != "ok" for s in reversed(side) if s.kind == "timed"}
        for side in (base, head)
    )
    rounds = one.keys() & other.keys()
    return Uneven(
        sum(one[index] and not other[index] for index in rounds),
        sum(other[index] and not one[index] for index in rounds),
    )


def flakiness(
    case: str, base: Sequence[Sample], head: Sequence[Sample], p_adjusted: float, alpha: float
) -> Flakiness:
    """The verdict on a case of which processes broke now and then."""
    uneven = uneven_rounds(base, head)
    verdict = "inconclusive" if uneven.is_suspicious() else "flaky"
    if uneven.head_only > uneven.base_only and p_adjusted < alpha:
        verdict = "regression"
    bad, worse = _broken(base), _broken(head)
    example = (worse or bad)[0]
    reason = f"{example.status}: {example.reason}"
    numbers = (len(bad), len(base), len(worse), len(head), *uneven)
    return Flakiness(case, *numbers, reason, p_adjusted, verdict)


def is_flaky(base: Sequence[Sample], head: Sequence[Sample]) -> bool:
    return bool(_broken(base) or _broken(head))


def flaky_sentence(found: Flakiness) -> str:
    """How often processes of a flaky case broke on either side, and what follows from it."""
    lead = {
        "regression": f"head breaks more often (p = {found.p_adjusted:.2g})",
        "inconclusive": "head may break more often, which more rounds would show",
        "flaky": f"flaky{' on both sides' if found.base_broken and found.head_broken else ''}",
    }[found.verdict]
    return (
        f"{found.case}: {lead}: processes broke in {found.base_broken} of {found.base_processes} "
        f"on the base and {found.head_broken} of {found.head_processes} on the head "
        f"({found.reason}). Broken processes were repeated on both sides."
    )
