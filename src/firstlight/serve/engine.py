"""Gathers requests into batches and runs them whenever the device is free, never on a timer.

Everything except the execution of long batches happens on the event loop's thread, so there are no
locks. A short batch runs on that thread too: handing it over would take longer than running it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from firstlight.serve import log
from firstlight.serve.compiled_models import Arrays, Bucket, Loaded, rows_for_xla
from firstlight.serve.signature import Signature
from firstlight.serve.tensors import Rows
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

if TYPE_CHECKING:
    from firstlight.serve.traces import Traces

#: Batches below this many seconds run on the event loop's thread.
INLINE_SECONDS = 5e-4
#: Weight of the last batch in the moving average of seconds per row.
_PACE_WEIGHT = 0.1
#: The backlog may take so many times longer than expected. A request that would then miss its
#: deadline is refused at once, while its client can still send it elsewhere.
_BACKLOG_MARGIN = 2.0


class Reason(Enum):
    """Why a request is not computed; the values are labels of metrics."""

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    EXPIRED = "expired"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Refusal:
    """Why a request gets no result, and after how many seconds it may be sent again."""

    reason: Reason
    retry_seconds: float = 0.0


class Job:
    """One request: its rows, its deadline, and what to do with the outcome."""

    __slots__ = ("arrays", "arrived", "deadline", "extents", "rows")

    def __init__(self, rows: Rows, deadline: float, arrived: float) -> None:
        self.arrays, self.rows, self.extents = rows.arrays, rows.rows, rows.extents
        self.deadline, self.arrived = deadline, arrived

    def finish(self, outcome: Result | Refusal) -> None:
        raise NotImplementedError

    def is_gone(self) -> bool:
        """Whether the client has left."""
        return False

    def trace_context(self) -> tuple[bytes | None, bytes | None]:
        """The headers traceparent and tracestate of the request."""
        return None, None


class Outputs:
    """The outputs for some rows."""

    def __init__(self, signature: Signature, outputs: Arrays) -> None:
        self.signature, self.outputs = signature, outputs
        self.cold = False

    @cached_property
    def flat(self) -> list[list[Any]]:
        """Outputs as flat lists of Python numbers, converted once for all jobs."""
        return [output.ravel().tolist() for output in self.outputs]

    @cached_property
    def nested(self) -> list[list[Any]]:
        """Outputs as nested lists, one per row."""
        return [output.tolist() for output in self.outputs]


class Batch(Outputs):
    """Rows of several jobs, and their outputs."""

    def __init__(self, lane: Lane, bucket: Bucket, jobs: list[Job], rows: int) -> None:
        super().__init__(lane.loaded.signature, [])
        self.lane, self.bucket, self.jobs, self.rows = lane, bucket, jobs, rows
        self.began = self.seconds = 0.0
        self.compiles = 0  # while it ran
        self.error: Exception | None = None

    def run(self) -> None:
        """Compute the outputs, or keep the exception in `error`."""
        self.began = time.perf_counter()
        try:
            self.outputs = self.lane.loaded.run(self.bucket, self._inputs())
        except Exception as error:
            self.error = error
        self.seconds = time.perf_counter() - self.began

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


class Result(NamedTuple):
    """Rows `start` to `stop` of a batch."""

    batch: Outputs
    start: int
    stop: int

    def array(self, i: int, extents: dict[str, int] | None = None) -> np.ndarray[Any, Any]:
        """Output i, without the padding of variable axes."""
        rows = self.batch.outputs[i][self.start : self.stop]
        if extents is None:
            return rows
        shape = self.batch.signature.outputs[i].shape
        cut = (slice(extents[size]) if isinstance(size, str) else slice(None) for size in shape)
        return rows[(slice(None), *cut)]


class Lane:
    """The queue of one model at one choice of axis sizes, with its buckets."""

    def __init__(self, loaded: Loaded, buckets: Iterable[Bucket], values: Values) -> None:
        self.loaded = loaded
        self.queue: deque[Job] = deque()
        self.queued_rows = 0
        self.device_seconds = 0.0  # time on the device so far, for fairness
        self.ran = self.retired = False
        self.buckets = list(buckets)
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

    def plan_for(self, buckets: list[Bucket]) -> None:
        """Plan how many rows to put into a batch, for every number of rows in the queue."""
        largest = buckets[-1]
        self.max_queued_rows = self.loaded.model.queue_rows + largest.rows
        self.row_seconds = largest.seconds / largest.rows
        self._plan = [_cheapest(buckets, rows).rows for rows in range(1, largest.rows + 1)]

    def bucket_for(self, rows: int) -> Bucket:
        return next(bucket for bucket in self.buckets if bucket.rows >= rows)

    def drop_departed(self) -> None:
        """Forget jobs whose clients have left: they must not take the place of others."""
        gone = [job for job in self.queue if job.is_gone()]
        if gone:
            self.cancelled.add(len(gone))
            self.queued_rows -= sum(job.rows for job in gone)
            self.queue = deque(job for job in self.queue if not job.is_gone())

    def take(self, now: float) -> tuple[Batch | None, list[Job]]:
        """The next batch, and jobs that would miss their deadline; cancelled ones are dropped."""
        queue, expired = self.queue, []
        chosen: list[Job] = []
        rows = 0
        limit = self._plan[min(self.queued_rows, len(self._plan)) - 1]
        end = now + self.bucket_for(min(self.queued_rows, limit)).seconds
        while queue:
            job = queue[0]
            if job.deadline < end:
                expired.append(job)
            elif job.is_gone():
                self.cancelled.add()
            elif rows and rows + job.rows > limit:
                break
            else:
                chosen.append(job)
                rows += job.rows
            queue.popleft()
            self.queued_rows -= job.rows
        if not chosen:
            return None, expired
        return Batch(self, self.bucket_for(rows), chosen, rows), expired


def _cheapest(buckets: list[Bucket], rows: int) -> Bucket:
    """The bucket with the most useful rows per second, which is not always the next larger one."""
    above = next(bucket for bucket in buckets if bucket.rows >= rows)
    below = [bucket for bucket in buckets if bucket.rows < rows]
    return max([above, *below], key=lambda b: min(rows, b.rows) / max(b.seconds, 1e-9))


class Engine:
    """Owns the device: queues jobs, forms batches, and finishes jobs with their outcome."""

    def __init__(
        self, values: Values, compiles: Callable[[], int] = lambda: 0, slots: int = 1
    ) -> None:
        """compiles: Returns the number of compiles so far; slots: Batches that may run at once."""
        self._lanes: list[Lane] = []
        self._compiles = compiles
        self._slots, self._running = slots, 0
        self._scheduled = False
        self._busy_since: float | None = None  # end of the last batch, if the queue was not empty
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="firstlight-device")
        self._values = values
        self.departures = self._dropped_departures = 0  # of clients with rows in a queue
        self.traces: Traces | None = None

    def add(self, loaded: Loaded) -> dict[tuple[int, ...], Lane]:
        """Make lanes for all axis sizes of a model."""
        lanes = {s: Lane(loaded, buckets, self._values) for s, buckets in loaded.lanes.items()}
        self._lanes += lanes.values()
        return lanes

    def remove(self, lanes: Iterable[Lane]) -> None:
        """Retire lanes: they are forgotten once their queues are empty."""
        for lane in lanes:
            lane.retired = True
        self._forget_retired()

    def _forget_retired(self) -> None:
        self._lanes = [lane for lane in self._lanes if lane.queue or not lane.retired]

    @property
    def idle(self) -> bool:
        return not self._running and not any(lane.queue for lane in self._lanes)

    def refusal_of(self, lanes: Iterable[Lane], seconds: float | None) -> Refusal | None:
        """Why a request would be refused whatever its size, asked before parsing it.

        seconds: Its timeout, if already known.
        """
        if self.departures != self._dropped_departures:
            self._drop_departed()
        backlog = self._backlog_seconds()
        if all(lane.queued_rows >= lane.max_queued_rows for lane in lanes):
            return Refusal(Reason.QUEUE_FULL, backlog)
        if seconds is not None and _BACKLOG_MARGIN * backlog > seconds:
            return Refusal(Reason.DEADLINE, backlog)
        return None

    def submit(self, lane: Lane, job: Job) -> Refusal | None:
        """Queue a job, or return why it is refused."""
        if self.departures != self._dropped_departures:
            self._drop_departed()
        waiting = lane.queued_rows + job.rows
        backlog = self._backlog_seconds()
        if waiting > lane.max_queued_rows:
            return self._refusal(lane, job, Reason.QUEUE_FULL, backlog)
        wait = _BACKLOG_MARGIN * backlog + job.rows * lane.row_seconds
        if job.arrived + wait > job.deadline:
            return self._refusal(lane, job, Reason.DEADLINE, backlog)
        if not lane.queue:  # an idle lane earns no credit
            active = [other.device_seconds for other in self._lanes if other.queue]
            if not active and not self._running:
                self._busy_since = None  # the queue may have emptied because clients have left
            lane.device_seconds = max([lane.device_seconds, min(active, default=0.0)])
        lane.queue.append(job)
        lane.queued_rows = waiting
        self._wake()
        return None

    def _drop_departed(self) -> None:
        """Drop the rows of clients that have left since the last time."""
        self._dropped_departures = self.departures
        for lane in self._lanes:
            lane.drop_departed()

    def _refusal(self, lane: Lane, job: Job, reason: Reason, retry: float = 0.0) -> Refusal:
        if self.traces is not None:
            context, model = job.trace_context(), lane.loaded.model
            self.traces.refused(model, context, job.arrived, reason, job.rows)
        return Refusal(reason, retry)

    def _backlog_seconds(self) -> float:
        """The expected time to compute all queued rows, at the pace of the last batches."""
        return sum(lane.queued_rows * lane.row_seconds for lane in self._lanes)

    def close(self) -> None:
        for lane in self._lanes:
            while lane.queue:
                lane.queue.popleft().finish(Refusal(Reason.STOPPED))
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _wake(self) -> None:
        """Dispatch after all requests that the event loop has read, so that they share a batch."""
        if not self._scheduled and self._running < self._slots:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        waiting = [lane for lane in self._lanes if lane.queue]
        if not waiting or self._running >= self._slots:
            return
        lane = min(waiting, key=lambda lane: lane.device_seconds)
        now = time.perf_counter()
        batch, expired = lane.take(now)
        for job in expired:
            job.finish(self._refusal(lane, job, Reason.EXPIRED))
        if batch is not None:
            for job in batch.jobs:
                lane.queue_duration.observe(now - job.arrived)
            self._start(batch)
        if lane.retired:
            self._forget_retired()
        if any(lane.queue for lane in self._lanes):
            self._wake()

    def _start(self, batch: Batch) -> None:
        before = self._compiles()
        if batch.bucket.seconds < INLINE_SECONDS:
            batch.run()
            self._finished(batch, before)
            return
        self._running += 1
        loop = asyncio.get_running_loop()

        def run() -> None:
            batch.run()
            loop.call_soon_threadsafe(self._ended, batch, before)

        self._threads.submit(run)

    def _ended(self, batch: Batch, compiles_before: int) -> None:
        self._running -= 1
        self._finished(batch, compiles_before)
        self._wake()

    def _finished(self, batch: Batch, compiles_before: int) -> None:
        lane = batch.lane
        lane.device_seconds += batch.seconds
        self._update_pace(lane, batch.rows)
        if batch.error is not None:
            self._failed(batch)
            return
        batch.compiles = self._compiles() - compiles_before
        batch.cold = not lane.ran or batch.compiles != 0
        lane.ran = True
        lane.execute_duration.observe(batch.seconds)
        lane.batch_rows.observe(batch.rows)
        lane.rows_total.add(batch.rows)
        lane.padding_total.add(batch.bucket.rows - batch.rows)
        _count_nans(batch)
        start = 0
        for job in batch.jobs:
            job.finish(Result(batch, start, start + job.rows))
            start += job.rows
        if self.traces is not None:
            self.traces.computed(batch)

    def _update_pace(self, lane: Lane, rows: int) -> None:
        """Update seconds per row, overhead included; measured only while the queue is not empty."""
        now, before = time.perf_counter(), self._busy_since
        self._busy_since = now if any(other.queue for other in self._lanes) else None
        if before is not None:
            lane.row_seconds += _PACE_WEIGHT * ((now - before) / rows - lane.row_seconds)

    def _failed(self, batch: Batch) -> None:
        """Run every job again alone, so that a request fails only because of itself."""
        lane, jobs = batch.lane, batch.jobs
        assert batch.error is not None
        log.failed(f"a batch of {lane.loaded.model.name}", batch.error, lane.loaded.model.name)
        if "RESOURCE_EXHAUSTED" in str(batch.error):
            lane.out_of_memory.add()
            # From now on, only a single request of this size uses this bucket.
            if smaller := [b for b in lane.buckets if b.rows < batch.bucket.rows]:
                lane.plan_for(smaller)
        if len(jobs) == 1:
            jobs[0].finish(self._refusal(lane, jobs[0], Reason.FAILED))
            return
        for job in jobs:
            self._start(Batch(lane, lane.bucket_for(job.rows), [job], job.rows))


def _count_nans(batch: Batch) -> None:
    for output in batch.outputs:
        # The minimum is NaN if any number is: one fast pass.
        if output.dtype.kind == "f" and np.isnan(output[: batch.rows].min(initial=np.inf)):
            nans = np.isnan(output[: batch.rows].reshape(batch.rows, -1))
            batch.lane.nan_rows.add(int(nans.any(axis=1).sum()))
