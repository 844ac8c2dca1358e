"""The summary of a load in a few lines of text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from firstlight.load.generator import BROKEN, Loop, Seen
from firstlight.present.quantities import counted, plain_seconds

QUANTILES = (0.5, 0.9, 0.99, 0.999)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def lines(loop: Loop, rounds: Sequence[Seen]) -> Iterator[str]:
    """The rate, percentiles over all answers, and counts of answers other than 2xx."""
    ordered = sorted(latency for seen in rounds for latency in seen.latencies)
    statuses = sum((seen.statuses for seen in rounds), Counter[int]())
    took = sum(seen.seconds for seen in rounds)
    since = "the time they were sent" if loop.rate is None else "their scheduled time"
    rate = f"{len(ordered) / max(took, 1e-9):.0f} per second"
    yield f"{counted(len(ordered), '2xx answer')}, {rate}; latency since {since}:"
    if ordered:
        shown = [f"p{100 * q:g} {plain_seconds(quantile(ordered, q))}" for q in QUANTILES]
        yield "  " + "  ".join([*shown, f"max {plain_seconds(ordered[-1])}"])
    for code, count in sorted(statuses.items()):
        if not 200 <= code < 300:
            yield f"  {count} without an answer" if code == BROKEN else f"  {count} answered {code}"
    if unsent := sum(seen.unsent for seen in rounds):
        yield f"  {unsent} due but never sent: all connections were busy"
