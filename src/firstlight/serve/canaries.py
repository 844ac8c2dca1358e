"""Decides whether a canary fails more often than the current version.

While there is a canary, each request is given to one of the two versions at random. If both are
equally good, which version got the bad ones is chance, so Fisher's exact test gives the probability
of a table as bad as the one seen, whatever the requests are. It is looked at again and again: look
k may take a sound canary back with probability 6α/(π²k²), all looks together with α.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

#: At most so many sound canaries are taken back.
FALSE_ALARMS = 1e-4
#: The canary's requests before the first look, and how much more there are at each later one.
_FIRST_LOOK, _GROWTH = 8, 1.25


@dataclass
class Arm:
    """The requests of one version since the canary began; bad ones failed, or got a NaN."""

    requests: int = 0
    bad: int = 0
    changed: Callable[[], None] = lambda: None

    def add(self, requests: int, bad: int) -> None:
        self.requests += requests
        self.bad += bad
        self.changed()


@dataclass
class Trial:
    """Compares a canary with the current version; `failed` is called at most once."""

    failed: Callable[[], None]
    false_alarms: float = FALSE_ALARMS
    current: Arm = field(default_factory=Arm)
    canary: Arm = field(default_factory=Arm)
    _looks: int = 0
    _next: int = _FIRST_LOOK
    _over: bool = False

    def __post_init__(self) -> None:
        self.canary.changed = self._look

    def end(self) -> None:
        self._over = True

    def _look(self) -> None:
        if self._over or self.canary.requests < self._next:
            return
        self._looks += 1
        self._next = math.ceil(_GROWTH * self.canary.requests)
        if self.p_value() < 6 * self.false_alarms / (math.pi * self._looks) ** 2:
            self._over = True
            self.failed()

    def p_value(self) -> float:
        """The probability of as many bad requests of the canary, if both versions are as good."""
        return upper_tail(
            self.canary.bad,
            self.canary.requests,
            self.canary.bad + self.current.bad,
            self.canary.requests + self.current.requests,
        )

    def __str__(self) -> str:
        return (
            f"{self.canary.bad} of its {self.canary.requests} requests failed or gave NaN, "
            f"{self.current.bad} of {self.current.requests} of the current version"
        )


def upper_tail(bad: int, drawn: int, all_bad: int, everything: int) -> float:
    """P(X ≥ bad), where X of the `drawn` are bad, and `all_bad` of everything (hypergeometric)."""
    last = min(drawn, all_bad)
    if bad <= max(0, drawn + all_bad - everything):
        return 1.0
    if bad > last:
        return 0.0
    first = math.exp(
        _log_choose(all_bad, bad)
        + _log_choose(everything - all_bad, drawn - bad)
        - _log_choose(everything, drawn)
    )
    total = term = first
    for x in range(bad, last):
        term *= (all_bad - x) * (drawn - x)
        term /= (x + 1) * (everything - all_bad - drawn + x + 1)
        total += term
        if term < 1e-12 * total and x > drawn * all_bad / everything:
            break  # the terms only become smaller
    return min(total, 1.0)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
