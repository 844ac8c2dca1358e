"""Verdicts on single quantities and counts: the effect, its threshold, and what follows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from firstlight.compare.quantities import GATED_COUNTS
from firstlight.records import Estimate
from firstlight.statistics.calibration import Thresholds
from firstlight.statistics.effects import Effect, fewest_values, holm, smallest_p
from firstlight.statistics.intervals import median_estimate

MINIMUM_EFFECT = 0.03
RESOLUTION = 0.10


@dataclass(frozen=True)
class Comparison:
    """The change of one quantity of one case, and the verdict on it."""

    case: str
    quantity: str
    gated: bool  # decisive; otherwise only reported
    base: Estimate  # seconds
    head: Estimate
    effect: Effect
    p_adjusted: float  # by Holm, among the gated comparisons or among the others
    threshold: float  # a ratio such as 1.03; the near end of the interval must exceed it
    threshold_source: str
    verdict: str  # regression, improvement, same or inconclusive
    reason: str | None = None
    #: False: too few values for a small p-value after Holm's correction.
    can_be_significant: bool = True


@dataclass(frozen=True)
class CountChange:
    """An exact count on both sides; null if the processes of a side differ."""

    case: str
    name: str  # compiles, warm_compiles, cache_misses, equations, traces, lowerings
    gated: bool
    base: int | None
    head: int | None
    verdict: str  # regression, improvement, same or inconclusive
    reason: str | None = None


@dataclass(frozen=True)
class Rule:
    """The conditions under which an effect counts."""

    alpha: float
    minimum_effect: float  # a share: 0.03 is 3 %; smaller changes do not matter
    resolution: float  # a share: an interval that includes so large an increase is inconclusive
    thresholds: Thresholds | None = None

    def limit(self, case: str, quantity: str, rounds: int) -> tuple[float, str]:
        """The ratio that an interval must exceed, and its source."""
        least = 1 + self.minimum_effect
        found = self.thresholds.of(case, quantity, rounds) if self.thresholds else None
        if found is None:
            why = "too few A/A runs" if self.thresholds else "not calibrated"
            return least, f"the minimum effect ({why})"
        if found.ratio <= least:
            return least, f"the minimum effect (above that of {found.source})"
        return found.ratio, found.source


@dataclass(frozen=True)
class QuantityPair:
    """The values of a quantity on both sides, and the effect between them."""

    case: str
    quantity: str
    gated: bool
    base: Sequence[float]
    head: Sequence[float]
    effect: Effect
    #: Not judged, because the base's own processes differ by this factor.
    spread: float | None = None

    @property
    def note(self) -> str | None:
        if self.spread is None:
            return None
        return f"not judged: the processes of the base differ {self.spread:.0f}-fold"

    @property
    def smallest_p(self) -> float:
        """The p-value if every value of one side were larger than all of the other."""
        return smallest_p(len(self.base), len(self.head), self.effect.paired)


def compare(
    pairs: Sequence[QuantityPair], rule: Rule, other_p: Sequence[float] = ()
) -> list[Comparison]:
    """Verdicts on `pairs`; p-values of the gated ones are adjusted together with `other_p`."""
    found: dict[int, Comparison] = {}
    for family, others in ((True, other_p), (False, ())):
        members = {i: pair for i, pair in enumerate(pairs) if pair.gated is family}
        adjusted = holm([*(pair.effect.p for pair in members.values()), *others])
        smallest = holm([*(pair.smallest_p for pair in members.values()), *(0.0 for _ in others)])
        for (i, pair), p, least in zip(members.items(), adjusted, smallest, strict=False):
            too_many = None if least < rule.alpha else len(members) + len(others)
            found[i] = _compared(pair, p, rule, too_many)
    return [found[i] for i in range(len(pairs))]


def _compared(
    pair: QuantityPair, p_adjusted: float, rule: Rule, too_many: int | None
) -> Comparison:
    """`too_many`: the number of comparisons, if too many for a significant result."""
    limit, source = rule.limit(pair.case, pair.quantity, pair.effect.n)
    verdict, reason = judge(pair.effect, p_adjusted, limit, rule, too_many)
    return Comparison(
        case=pair.case,
        quantity=pair.quantity,
        gated=pair.gated,
        base=median_estimate(pair.base),
        head=median_estimate(pair.head),
        effect=pair.effect,
        p_adjusted=p_adjusted,
        threshold=limit,
        threshold_source=source,
        verdict="inconclusive" if pair.note else verdict,
        reason=pair.note or reason,
        can_be_significant=too_many is None,
    )


def judge(
    effect: Effect, p_adjusted: float, limit: float, rule: Rule, too_many: int | None = None
) -> tuple[str, str | None]:
    """The verdict on one effect, with a reason where one is needed."""
    unit = "rounds" if effect.paired else "processes per side"
    if effect.confidence < 0.95:
        return "inconclusive", f"{effect.n} {unit} are too few for an interval of 95 %"
    significant = p_adjusted < rule.alpha
    if effect.low > limit or effect.high < 1 / limit:
        slower = effect.low > limit
        if significant:
            return ("regression" if slower else "improvement"), None
        why = f"p is {p_adjusted:.2g} after Holm's correction"
        if too_many is not None:
            why = too_few(effect, unit, too_many, rule.alpha)
        return "inconclusive", f"{'slower' if slower else 'faster'}, but {why}"
    if effect.high >= 1 + rule.resolution:
        return "inconclusive", f"too noisy: up to {change(effect.high)} cannot be excluded"
    if effect.low <= 1 / (1 + rule.resolution):
        return "same", f"no slower; too noisy to exclude {change(effect.low)}"
    return "same", _not_beyond(effect, limit) if significant else None


def _not_beyond(effect: Effect, limit: float) -> str:
    """Why a significant change does not count: it is small, or not certainly large enough."""
    near, far = (effect.low, limit) if effect.ratio > 1 else (effect.high, 1 / limit)
    if 1 / limit <= effect.ratio <= limit:
        return f"{change(effect.ratio)}, within the threshold of {change(far)}"
    perhaps = f"but perhaps only {change(near)}, which is not beyond {change(far)}"
    return f"{change(effect.ratio)}, {perhaps}"


def too_few(effect: Effect, unit: str, comparisons: int, alpha: float) -> str:
    """The reason given if no p-value could have been small enough."""
    needed = fewest_values(comparisons, alpha, effect.paired)
    number = "one comparison" if comparisons == 1 else f"{comparisons} comparisons"
    return f"{effect.n} {unit} can never be significant in {number}: it takes {needed} or more"


def may_be_slower(found: Comparison) -> bool:
    """False if the whole interval lies below 1."""
    return found.effect.confidence < 0.95 or found.effect.high >= 1


def change(ratio: float) -> str:
    """1.034 is '+3.4 %'."""
    return f"{(ratio - 1) * 100:+.1f} %".replace("-", "−")


def count_changes(
    case: str, base: Sequence[Mapping[str, int]], head: Sequence[Mapping[str, int]]
) -> list[CountChange]:
    """The changes of all counts that both sides have; one mapping per process."""
    one, other = _by_name(base), _by_name(head)
    return [_count_change(case, name, one[name], other[name]) for name in one if name in other]


def _by_name(side: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, value in itertools.chain.from_iterable(counts.items() for counts in side):
        found.setdefault(name, []).append(value)
    return found


def _count_change(case: str, name: str, base: Sequence[int], head: Sequence[int]) -> CountChange:
    one, other = (values[0] if len(set(values)) == 1 else None for values in (base, head))
    found = CountChange(case, name, name in GATED_COUNTS, one, other, "same")
    if one is not None and other is not None:
        moved = f"{name}: {one} before, {other} now"
        if other > one:
            return replace(found, verdict="regression", reason=moved)
        if other < one:
            return replace(found, verdict="improvement", reason=f"{moved}, unexplained")
        return found
    # A count that varies has grown too, if its smallest value exceeds all of the base's.
    spans = f"{min(base)} to {max(base)} before, {min(head)} to {max(head)} now"
    if min(head) > max(base):
        return replace(found, verdict="regression", reason=f"{name}: {spans}")
    return replace(found, verdict="inconclusive", reason=f"{name} varies: {spans}")
