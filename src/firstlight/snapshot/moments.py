"""Times as records have them: UTC, ISO 8601, one spelling, so that texts sort like moments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from firstlight.records import Sample
from firstlight.snapshot.layout import RUN, SAMPLES

_SPELLING = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?\+00:00", re.ASCII)
#: Seconds by which a clock may be put right during a run.
CORRECTION = 1.0


def moment(text: str) -> float | None:
    """Seconds since 1970, or None if `text` is no time."""
    if not _SPELLING.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # the thirtieth of February
        return None


def disorder(created_at: str, finished_at: str | None, samples: Sequence[Sample]) -> Iterator[str]:
    """Where a run did not begin, measure and end in this order, in words."""
    begin, end = moment(created_at), moment(finished_at) if finished_at is not None else None
    if begin is None:
        yield f"{RUN}: created_at is {created_at!r:.60}, no time in UTC"
    if finished_at is not None and end is None:
        yield f"{RUN}: finished_at is {finished_at!r:.60}, no time in UTC"
    if begin is not None and end is not None and end < begin - CORRECTION:
        yield f"{RUN}: it ended ({finished_at}) before it began ({created_at})"
    for sample in samples:
        where = f"{SAMPLES}: {sample.case}, {sample.kind} process {sample.index}"
        started = moment(sample.started_at)
        if started is None:
            yield f"{where}: started_at is {sample.started_at!r:.60}, no time in UTC"
        elif (begin is not None and started < begin - CORRECTION) or (
            end is not None and started > end + CORRECTION
        ):
            yield f"{where}: it started at {sample.started_at}, outside of its run"
