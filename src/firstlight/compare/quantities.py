"""The quantities of a process that are compared: times by name, and exact counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from firstlight.records import PHASES, Sample, WarmCalls
from firstlight.statistics.intervals import median
from firstlight.statistics.steady_state import classify, level

#: In display order. Times in seconds, one value per process.
QUANTITIES = ("cold_seconds", *PHASES, "unattributed", "warm_call_seconds", "batch_call_seconds")

#: Decisive by default. Few, because each one makes Holm's correction stricter.
GATED = ("cold_seconds", "compile", "warm_call_seconds")

#: By default, a phase is gated only if it takes at least this share of the time to first result.
#: A phase of 1 % that grows by a tenth is no regression, and the shortest phases are the noisiest.
MIN_SHARE = 0.1

#: Counts of which more is worse. The others (traces, lowerings) depend on the internals of a
#: framework and are only reported.
GATED_COUNTS = ("compiles", "warm_compiles", "cache_misses", "equations")

#: With fewer alternating windows, the warm levels of whole processes are compared.
MIN_WINDOWS = 5


def sample_times(sample: Sample) -> dict[str, float]:
    """The times of one process; those missing or 0 are left out.

    `warm_call_seconds` is the level at which its calls settled (if they did not, that of the last
    quarter); `batch_call_seconds` is per call, synchronised once per batch.
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


def round_times(base: Sample, head: Sample) -> tuple[dict[str, float], dict[str, float]]:
    """The times of both processes of a round.

    If warm calls were made in turns, each window is compared with its neighbour: the median ratio
    of the windows replaces the ratio of the two warm levels, whose geometric mean is kept.
    """
    one, other = sample_times(base), sample_times(head)
    ratio = _ratio_in_turns(base.warm, head.warm) if base.warm and head.warm else None
    name = "warm_call_seconds"
    if ratio is not None and name in one and name in other:
        middle = math.sqrt(one[name] * other[name])
        one[name], other[name] = middle / math.sqrt(ratio), middle * math.sqrt(ratio)
    return one, other


def _ratio_in_turns(base: WarmCalls, head: WarmCalls) -> float | None:
    """The median ratio of head to base over common windows, without the first quarter (warm-up)."""
    pairs = list(zip(_windows(base), _windows(head), strict=False))
    settled = pairs[len(pairs) // 4 :]
    if len(settled) < MIN_WINDOWS or not all(low > 0 for pair in settled for low in pair):
        return None
    return math.exp(median([math.log(other / one) for one, other in settled]))


def _windows(warm: WarmCalls) -> list[float]:
    """The median seconds per call of each window."""
    ends = list(itertools.accumulate(warm.turn_calls))
    spans = zip([0, *ends], ends, strict=False)
    return [median(warm.call_seconds[begin:end]) for begin, end in spans if end > begin]


def is_decisive(
    name: str, sides: Sequence[Sequence[Mapping[str, float]]], gated: Collection[str] = GATED
) -> bool:
    """Whether a quantity is decisive; by default, phases are only if long enough (`MIN_SHARE`)."""
    if name not in gated or name not in PHASES or name not in GATED or tuple(gated) != GATED:
        return name in gated
    return any(
        median([v[name] / v["cold_seconds"] for v in side if name in v]) >= MIN_SHARE
        for side in sides
    )


def sample_counts(sample: Sample) -> dict[str, int]:
    """The exact counts of one process that are known."""
    found = {name: value for name, value in sample.counts.items() if value is not None}
    proof = sample.cache
    if proof is not None and proof.requests is not None and proof.hits is not None:
        found["cache_misses"] = proof.requests - proof.hits
    return found


def in_display_order(names: Collection[str]) -> list[str]:
    """Quantities in display order."""
    return [name for name in QUANTITIES if name in names]
