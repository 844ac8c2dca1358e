"""What compiles cost: in all, and as far as the first result waited for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypedDict

from firstlight.trace.model import Compile


class Cost(TypedDict):
    """Fields of a finding."""

    seconds: float
    before_first_result_seconds: float


def cost(
    compiles: Iterable[Compile], seconds: Callable[[Compile], float] = attrgetter("seconds")
) -> Cost:
    """Of these compiles. seconds: what of each is meant."""
    every = [(seconds(one), one.before_first_result) for one in compiles]
    return Cost(
        seconds=sum(spent for spent, _ in every),
        before_first_result_seconds=sum(spent for spent, before in every if before),
    )
