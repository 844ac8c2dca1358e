"""What the persistent cache did for a compile, and why it had nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstlight.trace.read.model import CacheStatus, CacheUse, MissReason


def cache_use(compiled: Mapping[str, Any], rank: str | None) -> CacheUse:
    """What a compile's event tells of the cache."""
    counts = compiled.get("cache")
    if not compiled.get("cache_folder"):
        known = "cache_folder" in compiled
        return CacheUse(CacheStatus.OFF if known else CacheStatus.UNKNOWN, None, False)
    if counts is None:
        # A folder is set, and yet nothing was asked of it.
        return CacheUse(CacheStatus.UNKNOWN, None, False)
    if counts.get("hit"):
        return CacheUse(CacheStatus.HIT, None, False)
    if counts.get("disabled") or not counts.get("requested"):
        return CacheUse(CacheStatus.OFF, None, False)
    if counts.get("written"):
        known = compiled.get("cache_entries_of_name", 0) > 0
        return CacheUse(
            CacheStatus.MISS, MissReason.OTHER_KEY if known else MissReason.NO_ENTRY, True
        )
    return CacheUse(CacheStatus.MISS, _why_not_written(compiled, rank), False)


def _why_not_written(compiled: Mapping[str, Any], rank: str | None) -> MissReason:
    """JAX asks in this order: is it process 0, does it call back, did it take long enough."""
    index = compiled.get("process_index")
    if index not in (None, 0):
        return MissReason.RANK
    if compiled.get("callbacks") and not compiled.get("cache_keeps_callbacks"):
        return MissReason.CALLBACKS
    seconds = (compiled["end_ns"] - compiled["begin_ns"]) / 1e9
    least = compiled.get("cache_least_seconds")
    if least is not None and seconds < least:
        return MissReason.BELOW_THRESHOLD
    return MissReason.RANK if index is None and rank not in (None, "0") else MissReason.NOT_WRITTEN
