"""What of a process is compared: its times by name, and its exact counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from firstlight.records import PHASES, Sample, WarmCalls
from firstlight.statistics.intervals import median
from firstlight.statistics.steady_state import classify, level

#: In the order in which they are shown. Times in seconds, one value per process.
QUANTITIES = (
    "cold_seconds",
    *PHASES,
    "unattributed",
    "warm_call_seconds",
    "batch_call_seconds",
)

#: What decides, unless asked otherwise: every further quantity makes Holm's correction harsher.
GATED = ("cold_seconds", "compile", "warm_call_seconds")

#: A phase is gated by default where it takes at least this share of the time to the first result.
#: A tenth more of a hundredth is not a regression, and the shortest phases are the noisiest.
MIN_SHARE = 0.1

#: Counts of which more is worse. The others (traces, lowerings) depend on how a framework goes
#: about its work, and are reported but not judged.
GATED_COUNTS = ("compiles", "warm_compiles", "cache_misses", "equations")

#: With fewer windows in turns the processes are compared as wholes.
MIN_WINDOWS = 5


def of_sample(sample: Sample) -> dict[str, float]:
    """The times of one process that has them; what it does not have, or has as 0, is left out.

    `warm_call_seconds` is the level that its calls settled at (or that of the last quarter, where
    they did not), `batch_call_seconds` the time of a call when a batch is waited for as a whole.
    """
    found: dict[str, float | None] = {}
    if sample.cold is not None:
        found["cold_seconds"] = sample.cold.total_seconds
        found |= {name: sample.cold.phases_seconds.get(name) for name in PHASES}
        found["unattributed"] = sample.cold.unattributed_seconds
    if sample.warm is not None and sample.warm.call_seconds:
        calls = sample.warm.call_seconds
        found["warm_call_seconds"] = level(calls, classify(calls))
    if sample.warm is not None and sample.warm.batch_seconds and sample.warm.batch_calls:
        found["batch_call_seconds"] = median(sample.warm.batch_seconds) / sample.warm.batch_calls
    return {name: value for name, value in found.items() if value is not None and value > 0}


def of_pair(base: Sample, head: Sample) -> tuple[dict[str, float], dict[str, float]]:
    """The times of both processes of a round.

    Of calls that were made in turns, each window is compared with its neighbour: the two levels are
    moved apart, or together, until their ratio is the median of those of the windows.
    """
    one, other = of_sample(base), of_sample(head)
    ratio = _ratio_in_turns(base.warm, head.warm) if base.warm and head.warm else None
    name = "warm_call_seconds"
    if ratio is not None and name in one and name in other:
        middle = math.sqrt(one[name] * other[name])
        one[name], other[name] = middle / math.sqrt(ratio), middle * math.sqrt(ratio)
    return one, other


def _ratio_in_turns(base: WarmCalls, head: WarmCalls) -> float | None:
    """Head to base, over the windows that both had; the first quarter of them is warm-up."""
    pairs = list(zip(_windows(base), _windows(head), strict=False))
    settled = pairs[len(pairs) // 4 :]
    if len(settled) < MIN_WINDOWS or not all(low > 0 for pair in settled for low in pair):
        return None
    return math.exp(median([math.log(other / one) for one, other in settled]))


def _windows(warm: WarmCalls) -> list[float]:
    """The median call of each window that was taken in turns."""
    ends = list(itertools.accumulate(warm.turn_calls))
    spans = zip([0, *ends], ends, strict=False)
    return [median(warm.call_seconds[begin:end]) for begin, end in spans if end > begin]


def decides(
    name: str, sides: Sequence[Sequence[Mapping[str, float]]], gated: Collection[str] = GATED
) -> bool:
    """Whether a quantity is one of those that decide: of the usual phases, those long enough."""
    if name not in gated or name not in PHASES or name not in GATED or tuple(gated) != GATED:
        return name in gated
    return any(
        median([v[name] / v["cold_seconds"] for v in side if name in v]) >= MIN_SHARE
        for side in sides
    )


def counts_of(sample: Sample) -> dict[str, int]:
    """The exact numbers of one process, those that are known."""
    found = {name: value for name, value in sample.counts.items() if value is not None}
    proof = sample.cache
    if proof is not None and proof.requests is not None and proof.hits is not None:
        found["cache_misses"] = proof.requests - proof.hits
    return found


def in_order(names: Collection[str]) -> list[str]:
    """Quantities in the order in which they are shown."""
    return [name for name in QUANTITIES if name in names]
