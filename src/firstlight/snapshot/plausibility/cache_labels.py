"""Whether the label of a case is valid, and whether the recorded cache counts support it.

The harness judged each process when it ran, by the names of the cache entries. Here only counts are
left, and they are judged again, so that a `proven` beside counts that contradict it is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firstlight.records import CacheProof, Case, Sample
from firstlight.snapshot.layout import PLAN
from firstlight.workloads.catalog import BACKENDS

_CACHE_KINDS = {backend.name: backend.cache for backend in BACKENDS}
#: The control of a gate is a case of the catalogue under a name of its own.
_CONTROL = ("control", "control/numpy/none")


def mislabelled(case: Case) -> Iterator[str]:
    """The id is what people quote, so it says what the fields say."""
    named = f"{case.workload}[{case.size}]/{case.backend}/{case.cache}"
    if case.id != named and (case.workload, case.id) != _CONTROL:
        yield f"{PLAN}: the case {case.id} is {named} by its fields"
    if case.cache_kind is None and case.cache != "none":
        yield f"{case.id} is labelled {case.cache!r}, but its backend has no such cache"
    kind = _CACHE_KINDS.get(case.backend, case.cache_kind)
    if kind != case.cache_kind:
        said = f"{PLAN} gives it the cache {case.cache_kind!r}"
        yield f"{case.id}: {said}, {case.backend} has {kind!r}"


def unproven_labels(case: Case, samples: Sequence[Sample]) -> list[str]:
    """What contradicts the label of a case, in words; nothing if every process proves it."""
    found = [(s.index, _objection(case, s.cache)) for s in samples if s.kind == "timed"]
    return [f"process {index}: {reason}" for index, reason in found if reason is not None]


def _objection(case: Case, proof: CacheProof | None) -> str | None:
    if proof is None:
        return "no proof was recorded"
    if not proof.proven:
        return proof.reason or "marked as not proven"
    if proof.policy != case.cache:
        return f"the proof is for the policy {proof.policy!r}, the label says {case.cache!r}"
    if case.cache_kind is None:
        return None  # no persistent cache: nothing that could be in another state
    if case.cache == "none":
        return f"{proof.requests} requests to a cache that is off" if proof.requests else None
    if not proof.requests:
        return "the cache was never asked"
    if case.cache == "cold":
        if proof.entries_before:
            return f"{proof.entries_before} entries before the process: not cold"
        return None if proof.entries_after else "nothing was stored: the cache was not on"
    if proof.hits is None or proof.hits < proof.requests:
        return f"{proof.hits} hits of {proof.requests} requests: not warm"
    if (proof.entries_after or 0) > (proof.entries_before or 0):
        return "entries were added: not everything was cached before"
    return None
