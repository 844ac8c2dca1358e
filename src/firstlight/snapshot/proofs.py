"""Whether what was recorded of the cache bears out the label, from the numbers alone.

The harness judged each process when it ran, with the names of the cache entries before it. Here the
recorded counts are judged again, so that a `proven` beside counts that contradict it is found.
"""

from __future__ import annotations

from firstlight.records import CacheProof, Case, Sample


def unproven_labels(case: Case, samples: list[Sample]) -> list[str]:
    """What contradicts the label of a case, in words; nothing if every process proves it."""
    found = []
    for sample in samples:
        if sample.kind != "timed":
            continue
        reason = "no proof was recorded" if sample.cache is None else _objection(case, sample.cache)
        if reason is not None:
            found.append(f"process {sample.index}: {reason}")
    return found


def _objection(case: Case, proof: CacheProof) -> str | None:
    if not proof.proven:
        return proof.reason or "marked as not proven"
    if proof.policy != case.cache:
        return f"the proof is of the policy {proof.policy!r}, the label says {case.cache!r}"
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
        return "entries were added: not everything was there before"
    return None
