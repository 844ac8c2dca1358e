"""The queue of one model, from which its batches are taken."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

import numpy as np

from firstlight.serve.canaries import Arm
from firstlight.serve.compiled_models import Arrays, Bucket, Loaded, rows_for_xla
from firstlight.serve.jobs import Job, Outputs, is_aside
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

#: Batches below this many seconds run on the event loop's thread.
INLINE_SECONDS = 5e-4
#: A lane that was slow there once comes back after so many fast batches, twice as many each time.
_FAST_BATCHES, _MAX_FAST_BATCHES = 256, 65_536
#: A batch is overdue after so many times its usual duration.
_OVERDUE = 10.0
#: Weight of the last batch in moving averages.
PACE_WEIGHT = 0.1
#: Sources that are aside get at most this share of the device's time, while others use it.
_ASIDE_SHARE, _ASIDE_SECONDS = 0.1, 60.0


class Batch(Outputs):
    """Rows of several jobs, and their outputs."""

    def __init__(self, lane: Lane, bucket: Bucket, jobs: list[Job], rows: int) -> None:
        super().__init__(lane.loaded.signature, [])
        self.lane, self.bucket, self.jobs, self.rows = lane, bucket, jobs, rows
        self.began = self.seconds = 0.0
        self.compiles = 0  # on its thread while it ran
        self.error: Exception | None = None
        self.is_aside = self.is_released = False

    @property
    def limit(self) -> float:
        """It is overdue when it has run for so many seconds."""
        return _OVERDUE * max(self.bucket.seconds, self.lane.usual_seconds)

    def run(self, compiles: Callable[[], int]) -> None:
        """Compute the outputs, or keep the exception in `error`."""
        before, self.began = compiles(), time.perf_counter()
        try:
            self.outputs = self.lane.loaded.run(self.bucket, self._inputs())
        except Exception as error:
            self.error = error
        self.seconds = time.perf_counter() - self.began
        self.compiles = compiles() - before

    def halves(self) -> list[Batch]:
        """Its jobs in two batches."""
        middle = len(self.jobs) // 2
        parts = self.jobs[:middle], self.jobs[middle:]
        return [self.lane.batch_of(jobs, self.is_aside) for jobs in parts]

    def _inputs(self) -> Arrays:
        if len(self.jobs) == 1 and self.rows == self.bucket.rows:
            return self.jobs[0].arrays
        inputs = []
        for parts in zip(*(job.arrays for job in self.jobs), strict=True):
            first = parts[0]
            whole = rows_for_xla((self.bucket.rows, *first.shape[1:]), first.dtype)
            np.concatenate(parts, out=whole[: self.rows])
            whole[self.rows :] = first[0]  # a valid row as padding
            inputs.append(whole)
        return inputs


class Lane:
    """The queue of one model at one choice of axis sizes, with its buckets."""

    def __init__(self, loaded: Loaded, buckets: Iterable[Bucket], values: Values) -> None:
        self.loaded = loaded
        self.queue: deque[Job] = deque()
        self.again: deque[Batch] = deque()  # parts of batches that failed
        self.queued_rows = 0
        self.device_seconds = 0.0  # time on the device so far, for fairness
        self.ran = self.retired = False
        self.arm: Arm | None = None  # while a canary is compared with the current version
        self.running = self.released = 0  # batches on other threads; those of them overdue
        self._fast_batches_left, self._patience = 0, _FAST_BATCHES
        self.aside_until = -math.inf  # until then, sources may be aside
        self._aside_credit = 0.0  # seconds on the device
        self._others_ended = -math.inf
        self.buckets = list(buckets)
        self.usual_seconds = self.buckets[-1].seconds
        self.plan_for(self.buckets)
        model, version = loaded.model.name, loaded.model.version
        self.queue_duration = values.histogram(metrics.QUEUE_DURATION, model)
        self.execute_duration = values.histogram(metrics.EXECUTE_DURATION, model)
        self.batch_rows = values.histogram(metrics.BATCH_ROWS, model)
        self.rows_total = values.counter(metrics.ROWS, model, version)
        self.padding_total = values.counter(metrics.PADDING_ROWS, model)
        self.nan_rows = values.counter(metrics.NAN_ROWS, model, version)
        self.cancelled = values.counter(metrics.CANCELLED, model)
        self.out_of_memory = values.counter(metrics.OUT_OF_MEMORY, model)

    @property
    def has_work(self) -> bool:
        return bool(self.queue or self.again)

    @property
    def is_next_inline(self) -> bool:
        """Whether the next batch runs on the event loop's thread."""
        if self.again:
            return self.is_inline(self.again[0].bucket)
        return self.is_inline(self.bucket_for(self._planned_rows()))

    def is_inline(self, bucket: Bucket) -> bool:
        return (
            bucket.seconds < INLINE_SECONDS
            and not bucket.may_not_end
            and not self._fast_batches_left
        )

    def was_slow_inline(self) -> None:
        """Leave the event loop's thread for some time."""
        self._fast_batches_left = self._patience
        self._patience = min(2 * self._patience, _MAX_FAST_BATCHES)

    def was_fast_elsewhere(self) -> None:
        self._fast_batches_left -= self._fast_batches_left > 0

    def batch_of(self, jobs: list[Job], is_aside: bool) -> Batch:
        rows = sum(job.rows for job in jobs)
        batch = Batch(self, self.bucket_for(rows), jobs, rows)
        batch.is_aside = is_aside
        return batch

    def plan_for(self, buckets: list[Bucket]) -> None:
        """Plan how many rows to put into a batch, for every number of rows in the queue."""
        largest = buckets[-1]
        self.max_queued_rows = self.loaded.model.queue_rows + largest.rows
        self.row_seconds = largest.seconds / largest.rows
        self._plan = [_cheapest(buckets, rows).rows for rows in range(1, largest.rows + 1)]

    def bucket_for(self, rows: int) -> Bucket:
        return next(bucket for bucket in self.buckets if bucket.rows >= rows)

    def _planned_rows(self) -> int:
        """How many of the queued rows the next batch should have."""
        limit = self._plan[min(self.queued_rows, len(self._plan)) - 1]
        return min(self.queued_rows, limit)

    def drop_departed(self) -> None:
        """Forget jobs whose clients have left: they must not take the place of others."""
        self.queue = deque(self._without_departed(self.queue))
        self.queued_rows = sum(job.rows for job in self.queue)

    def _without_departed(self, jobs: Collection[Job]) -> list[Job]:
        staying = [job for job in jobs if not job.is_gone()]
        if len(staying) < len(jobs):
            self.cancelled.add(len(jobs) - len(staying))
        return staying

    def take(self, now: float) -> tuple[Batch | None, list[Job]]:
        """The next batch, and jobs that would miss their deadline; cancelled ones are dropped."""
        while self.again:
            batch = self.again.popleft()
            if jobs := self._without_departed([job for job in batch.jobs if not job.over]):
                return self.batch_of(jobs, batch.is_aside), []
        if not self.queue:
            return None, []
        if now < self.aside_until:
            return self._take_with_some_aside(now)
        return self._take(self.queue, now)

    def _take(self, queue: deque[Job], now: float) -> tuple[Batch | None, list[Job]]:
        expired: list[Job] = []
        chosen: list[Job] = []
        rows = 0
        planned = self._planned_rows()
        end = now + self.bucket_for(planned).seconds
        while queue:
            job = queue[0]
            if job.deadline < end:
                expired.append(job)
            elif job.is_gone():
                self.cancelled.add()
            elif rows and rows + job.rows > planned:
                break
            else:
                chosen.append(job)
                rows += job.rows
            queue.popleft()
            self.queued_rows -= job.rows
        if not chosen:
            return None, expired
        return Batch(self, self.bucket_for(rows), chosen, rows), expired

    def _take_with_some_aside(self, now: float) -> tuple[Batch | None, list[Job]]:
        """Jobs of one source that is aside, in its turn, or those of all others."""
        aside = [job for job in self.queue if is_aside(job)]
        if not aside:
            return self._take(self.queue, now)
        if now >= self.aside_from():
            source = aside[0].source()
            turn = deque(job for job in aside if job.source() is source)
        else:
            turn = deque(job for job in self.queue if not is_aside(job))
        of_turn = set(turn)
        rest = [job for job in self.queue if job not in of_turn]
        batch, expired = self._take(turn, now)
        # In the order of arrival.
        self.queue = deque(sorted([*rest, *turn], key=lambda job: job.arrived))
        if batch is not None:
            batch.is_aside = is_aside(batch.jobs[0])
        return batch, expired

    def aside_from(self) -> float:
        """When sources that are aside may have a batch: within their share, or on a free device."""
        if self._aside_credit > 0:
            return -math.inf
        return self._others_ended + self.usual_seconds / _ASIDE_SHARE

    def waits_until(self) -> float:
        """When the next batch may begin, as far as sources that are aside decide."""
        if self.again:
            return -math.inf
        return self.aside_from() if all(map(is_aside, self.queue)) else -math.inf

    def note(self, batch: Batch, now: float) -> None:
        """Account for a batch that has ended, while some sources may be aside."""
        if batch.is_aside:
            self._aside_credit -= batch.seconds
        else:
            earned = self._aside_credit + _ASIDE_SHARE * batch.seconds
            self._aside_credit, self._others_ended = min(earned, self.usual_seconds), now
        for job in batch.jobs if batch.error is None else ():
            if source := job.source():
                source.succeeded()

    def failed(self, job: Job, now: float) -> None:
        """The model fails on this job alone."""
        if source := job.source():
            source.failed()
            self.aside_until = now + _ASIDE_SECONDS


def _cheapest(buckets: list[Bucket], rows: int) -> Bucket:
    """The bucket with the most useful rows per second, which is not always the next larger one."""
    above = next(bucket for bucket in buckets if bucket.rows >= rows)
    below = [bucket for bucket in buckets if bucket.rows < rows]
    return max([above, *below], key=lambda b: min(rows, b.rows) / max(b.seconds, 1e-9))
