"""Summaries recomputed from the raw samples, to compare with the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from firstlight.records import CaseSummary, Plan, Sample, to_json
from firstlight.snapshot.errors import UnusableSnapshotError
from firstlight.statistics.summary import summarise

#: How samples become summaries. Counts up when the statistics, or the words of a protocol, change
#: what the same samples give. History: 1, first release.
METHOD = 1

#: Sums in another order, on another processor, may differ in the last digits.
_TOLERANCE = 1e-9


def recomputed(plan: Plan, samples: Sequence[Sample], name: str) -> tuple[CaseSummary, ...]:
    """The summaries that follow from plan and samples."""
    known = {case.id for case in plan.cases}
    for sample in samples:
        if sample.case not in known:
            raise UnusableSnapshotError(f"{name}: no case {sample.case[:80]!r} was planned.")
    try:
        return summarise(plan.cases, samples, plan.settings.processes)
    except (ValueError, KeyError, TypeError, ZeroDivisionError, IndexError) as error:
        raise UnusableSnapshotError(
            f"{name}: its samples cannot be summarised ({type(error).__name__}: {error})."
        ) from None


def differences(published: Any, computed: Any, where: str = "") -> Iterator[str]:
    """Where two plain values differ, each as `path: one, not the other`."""
    published, computed = to_json(published), to_json(computed)
    if isinstance(published, dict) and isinstance(computed, dict):
        for key in sorted({*published, *computed}):
            path = f"{where}.{key}" if where else str(key)
            yield from differences(published.get(key), computed.get(key), path)
    elif isinstance(published, list) and isinstance(computed, list):
        if len(published) != len(computed):
            yield f"{where}: {len(published)} items, not {len(computed)}"
        for i, (one, other) in enumerate(zip(published, computed, strict=False)):
            yield from differences(one, other, f"{where}[{i}]")
    elif not _same(published, computed):
        yield f"{where}: {_short(published)}, not {_short(computed)}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        numbers = (int, float)
        if isinstance(one, numbers) and isinstance(other, numbers):
            return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-300)
    return type(one) is type(other) and bool(one == other)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
