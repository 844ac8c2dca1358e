"""Measures with only the processes that a test needs, because frameworks load slowly."""

from __future__ import annotations

from collections.abc import Sequence

from firstlight.measure.runner import Runner
from firstlight.records import Case, Sample, Settings, jobs


def timed_samples(cases: Sequence[Case], settings: Settings) -> dict[str, Sample]:
    """The timed sample of each case, by its id; only cases with a reference get a check process."""
    samples: list[Sample] = []
    with Runner(cases, settings, samples.append) as runner:
        for case, kind, index in jobs(cases, settings):
            if kind != "check" or case.reference is not None:
                runner.take(case, kind, index)
    return {sample.case: sample for sample in samples if sample.kind == "timed"}
