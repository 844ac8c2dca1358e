"""Broken and flaky cases: why a case cannot be compared, and whether the change is to blame.

A process that breaks is repeated on both sides. If it breaks every time on the head but not on the
base, the change is to blame. If it breaks on the base alone, the change repaired it; on both sides,
nothing follows. A side that was not timed because the other one failed is not broken.

A case is *flaky* if a process broke and then did not. Whether the head breaks more often than the
base is decided by an exact test: without an effect of the change, a round in which only one side
broke is equally likely to be the head's or the base's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firstlight.records import REPEATS, Sample

#: Statuses of the head alone that the change is to blame for. Not `unproven`: then the measurement
#: failed.
_BLAMED = {"failed", "crashed", "out-of-memory"}
#: If a split of rounds is no more probable than this, more rounds may show that the head breaks
#: more often. Three to none is such a split.
_SUSPICIOUS = 1 / 8


class Breakage(NamedTuple):
    """Why a case cannot be compared."""

    why: str
    both: bool = False  # broken on both sides
    regression: str | None = None  # "exact" or "slow"; None: the change is not to blame


@dataclass(frozen=True)
class Flakiness:
    """A case with processes that broke, but not every time they were repeated."""

    case: str
    base_broken: int
    base_processes: int
    head_broken: int
    head_processes: int
    base_only_rounds: int  # in which only the base broke, at the first attempt
    head_only_rounds: int
    reason: str  # of one of them
    p_adjusted: float  # two-sided, for "both break equally often"; Holm together with the times
    verdict: str  # regression, inconclusive or flaky


def repeats_of(status: str) -> int:
    """How often a process with this status is repeated. Once after a timeout, which takes long."""
    return 1 if status == "timeout" else REPEATS


def breakage(base: Sequence[Sample], head: Sequence[Sample], is_control: bool) -> Breakage | None:
    """Why the samples of one case cannot be compared; None if they can."""
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
        return Breakage(f"broken on one side: base {one}; there is nothing to compare head with")
    timed = [any((s.kind, s.status) == ("timed", "ok") for s in side) for side in (base, head)]
    if all(timed) or is_control:  # a control is not timed where nothing else is
        return None
    if not any(timed):
        return Breakage("not measured on either side", both=True)
    return Breakage(f"not measured on the {'head' if timed[0] else 'base'}")


def breaks_every_time(samples: Sequence[Sample]) -> bool:
    """Whether some planned process broke at every attempt."""
    sound = {(s.kind, s.index) for s in samples if s.status == "ok"}
    return any((s.kind, s.index) not in sound for s in samples)


def _broken(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s.status != "ok"]


def _words(samples: Sequence[Sample]) -> str | None:
    """The failure of a side that breaks every time; None if it does not.

    As in a run, one such process is enough: the survivors are a biased sample.
    """
    if not breaks_every_time(samples):
        return None
    bad = _broken(samples)
    return f"{bad[0].status} in {len(bad)} of {len(samples)} processes ({bad[0].reason})"


def _blame(statuses: Collection[str]) -> str | None:
    if _BLAMED.intersection(statuses):
        return "exact"
    return "slow" if "timeout" in statuses else None  # a time, so a moved control excuses it


def last_attempts(samples: Sequence[Sample]) -> list[Sample]:
    """The last attempt of every process."""
    return list({(s.case, s.kind, s.index): s for s in samples}.values())


# --- flaky ----------------------------------------------------------------------------------------


class OneSidedRounds(NamedTuple):
    """The numbers of rounds in which only one side broke."""

    base_only: int
    head_only: int

    def p(self) -> float:
        """The two-sided p-value of the exact sign test."""
        return min(1.0, 2 * _tail(max(self), sum(self)))

    def is_suspicious(self) -> bool:
        return self.head_only > self.base_only and _tail(self.head_only, sum(self)) <= _SUSPICIOUS


def _tail(heads: int, coins: int) -> float:
    """The probability of at least so many heads."""
    return math.fsum(math.comb(coins, i) / 2**coins for i in range(heads, coins + 1))


def one_sided_rounds(base: Sequence[Sample], head: Sequence[Sample]) -> OneSidedRounds:
    """Count first attempts only: whether there is a second depends on the outcome of the first."""
    one, other = (
        {s.index: s.status != "ok" for s in reversed(side) if s.kind == "timed"}
        for side in (base, head)
    )
    rounds = one.keys() & other.keys()
    return OneSidedRounds(
        sum(one[index] and not other[index] for index in rounds),
        sum(other[index] and not one[index] for index in rounds),
    )


def flakiness(
    case: str, base: Sequence[Sample], head: Sequence[Sample], p_adjusted: float, alpha: float
) -> Flakiness:
    """The verdict on a flaky case."""
    rounds = one_sided_rounds(base, head)
    verdict = "inconclusive" if rounds.is_suspicious() else "flaky"
    if rounds.head_only > rounds.base_only and p_adjusted < alpha:
        verdict = "regression"
    base_broken, head_broken = _broken(base), _broken(head)
    example = (head_broken or base_broken)[0]
    reason = f"{example.status}: {example.reason}"
    numbers = (len(base_broken), len(base), len(head_broken), len(head), *rounds)
    return Flakiness(case, *numbers, reason, p_adjusted, verdict)


def is_flaky(base: Sequence[Sample], head: Sequence[Sample]) -> bool:
    return bool(_broken(base) or _broken(head))


def flaky_sentence(found: Flakiness) -> str:
    """How often the processes of a flaky case broke on each side, and what follows."""
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
