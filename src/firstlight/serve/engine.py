"""Gathers requests into batches and runs them whenever the device is free, never on a timer.

Everything except the execution of long batches happens on the event loop's thread, so there are no
locks. A short batch runs on that thread too, because handing it over would take longer than running
it, but only if its program surely ends: no loop that depends on data, no callback.

A batch that does not end costs its own requests only. They are answered at their deadlines, other
models go on, and `Engine.stuck` names the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from firstlight.serve import log
from firstlight.serve.compiled_models import Loaded
from firstlight.serve.jobs import Job, Reason, Refusal, Result
from firstlight.serve.lanes import INLINE_SECONDS, PACE_WEIGHT, Batch, Lane
from firstlight.serve.workers import Workers
from firstlight.telemetry.values import Values

if TYPE_CHECKING:
    from firstlight.serve.traces import Traces

#: Lanes whose batches may run at once, on other threads. Two models with heavy batches get as much
#: done as in turns, and neither waits for the other.
LANES_IN_FLIGHT = 2
#: An overdue batch that has run for so long no longer counts among the lanes in flight.
_RELEASE_SECONDS = 1.0
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
#: A program that takes the core from another one rarely keeps it for longer.
_LONGEST_TURN = 0.02
#: Deadlines are enforced by a timer, which is exact to so many seconds.
_TICK_SECONDS = 0.005
_LONGEST_TIMER = 3600.0
#: The backlog may take so many times longer than expected. A request that would then miss its
#: deadline is refused at once, while its client can still send it elsewhere.
_BACKLOG_MARGIN = 2.0


class Engine:
    """Owns the device: queues jobs, forms batches, and finishes jobs with their outcome."""

    def __init__(
        self,
        values: Values,
        compiles: Callable[[], int] = lambda: 0,
        slots: int = LANES_IN_FLIGHT,
        lane_slots: int = 1,
    ) -> None:
        """How much may run at once on other threads: batches in all, and batches of one lane.

        compiles: Returns the number of compiles of the calling thread so far.
        """
        self._compiles = compiles
        self._lanes: list[Lane] = []
        self._slots, self._lane_slots = slots, lane_slots
        self._in_flight: list[Batch] = []  # on other threads
        self._occupied = 0  # those of them that are not released
        self._scheduled = False
        self._busy_since: float | None = None  # end of the last batch, if the queue was not empty
        self._workers = Workers("firstlight-device")
        self._values = values
        self._preemptions = _preemptions()  # at the last slow batch
        self._check_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self.departures = self._dropped_departures = 0  # of clients with rows in a queue
        self.traces: Traces | None = None

    def add(self, loaded: Loaded) -> dict[tuple[int, ...], Lane]:
        """Make lanes for all axis sizes of a model."""
        lanes = {s: Lane(loaded, buckets, self._values) for s, buckets in loaded.lanes.items()}
        self._lanes += lanes.values()
        return lanes

    def remove(self, lanes: Iterable[Lane]) -> None:
        """Retire lanes: they are forgotten once all their jobs have ended."""
        for lane in lanes:
            lane.retired = True
        self._forget_retired()

    def move(self, old: Lane, new: Lane, to: object) -> None:
        """Have jobs that wait in one lane computed by another, as those of the version `to`."""
        for job in old.queue:
            job.move(to)
        new.queue.extend(old.queue)
        new.queued_rows += old.queued_rows
        old.queue.clear()
        old.queued_rows = 0
        if new.queue:
            self._wake()

    def _forget_retired(self) -> None:
        self._lanes = [
            lane for lane in self._lanes if lane.has_work or lane.running or not lane.retired
        ]

    @property
    def idle(self) -> bool:
        return not self._in_flight and not any(lane.has_work for lane in self._lanes)

    @property
    def is_computing(self) -> bool:
        """Whether a batch runs on another thread."""
        return bool(self._in_flight)

    def stuck(self, seconds: float) -> dict[str, float]:
        """Models with a batch that is overdue after more than `seconds`, and how long it runs."""
        now = time.perf_counter()
        running: dict[str, float] = {}
        for batch in self._in_flight:
            if (age := now - batch.began) > max(batch.limit, seconds):
                name = batch.lane.loaded.model.name
                running[name] = max(age, running.get(name, 0.0))
        return running

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
            if not active and not self._occupied:
                self._busy_since = None  # the queue may have emptied because clients have left
            lane.device_seconds = max([lane.device_seconds, min(active, default=0.0)])
        lane.queue.append(job)
        lane.queued_rows = waiting
        if job.deadline < self._check_at:
            self._check_by(job.deadline)
        self._wake()
        return None

    def _drop_departed(self) -> None:
        """Drop the rows of clients that have left since the last time."""
        self._dropped_departures = self.departures
        for lane in self._lanes:
            lane.drop_departed()
        self._forget_retired()

    def _refusal(self, lane: Lane, job: Job, reason: Reason, retry: float = 0.0) -> Refusal:
        if self.traces is not None:
            context, model = job.trace_context(), lane.loaded.model
            self.traces.refused(model, context, job.arrived, reason, job.rows)
        return Refusal(reason, retry)

    def _backlog_seconds(self) -> float:
        """The expected time to compute all queued rows, at the pace of the last batches."""
        # Other models do not wait for a lane whose batch does not end.
        return sum(lane.queued_rows * lane.row_seconds for lane in self._lanes if not lane.released)

    def close(self) -> None:
        for lane in self._lanes:
            while lane.queue:
                lane.queue.popleft().finish(Refusal(Reason.STOPPED))
        if self._timer is not None:
            self._timer.cancel()
        self._workers.close()

    def _wake(self) -> None:
        """Dispatch after all requests that the event loop has read, so that they share a batch."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _may_run(self, lane: Lane, now: float) -> bool:
        """Whether the next batch of this lane, which has work, may begin now."""
        if lane.running >= self._lane_slots:
            return False
        if self._occupied >= self._slots and not lane.is_next_inline:
            return False
        if now < lane.aside_until and now < (later := lane.waits_until()):
            self._check_by(later)
            return False
        return True

    def _dispatch(self) -> None:
        self._scheduled = False
        now = time.perf_counter()
        waiting = [
            lane for lane in self._lanes if (lane.queue or lane.again) and self._may_run(lane, now)
        ]
        if not waiting:
            if not self._occupied:  # what is queued waits for its turn, not for the device
                self._busy_since = None
            return
        lane = min(waiting, key=lambda lane: lane.device_seconds)
        batch, expired = lane.take(now)
        for job in expired:
            job.finish(self._refusal(lane, job, Reason.EXPIRED))
        if batch is not None:
            for job in batch.jobs:
                lane.queue_duration.observe(now - job.arrived)
            self._start(batch)
        if lane.retired:
            self._forget_retired()
        if len(waiting) > 1 or lane.queue or lane.again:
            self._wake()

    def _start(self, batch: Batch) -> None:
        lane = batch.lane
        if lane.is_inline(batch.bucket):
            batch.run(self._compiles)
            if batch.seconds > INLINE_SECONDS and not self._may_have_lost_the_core(batch):
                lane.was_slow_inline()
            self._finished(batch)
            return
        lane.running += 1
        self._in_flight.append(batch)
        self._occupied += 1
        batch.began = time.perf_counter()
        self._check_by(batch.began + max(batch.limit, _RELEASE_SECONDS))
        loop = asyncio.get_running_loop()

        def run() -> None:
            batch.run(self._compiles)
            with contextlib.suppress(RuntimeError):  # the server has stopped meanwhile
                loop.call_soon_threadsafe(self._ended, batch)

        self._workers.run(run)

    def _may_have_lost_the_core(self, batch: Batch) -> bool:
        """Whether another program, rather than the batch, may be what took long."""
        before, self._preemptions = self._preemptions, _preemptions()
        return self._preemptions > before and batch.seconds < _LONGEST_TURN

    def _ended(self, batch: Batch) -> None:
        lane = batch.lane
        lane.running -= 1
        self._in_flight.remove(batch)
        if batch.is_released:
            lane.released -= 1
        else:
            self._occupied -= 1
            lane.usual_seconds += PACE_WEIGHT * (batch.seconds - lane.usual_seconds)
        if batch.seconds < INLINE_SECONDS:
            lane.was_fast_elsewhere()
        self._finished(batch)
        if lane.retired:
            self._forget_retired()
        self._wake()

    def _check_by(self, when: float) -> None:
        """Have `_check` called at this time, or before."""
        if when < self._check_at:
            if self._timer is not None:
                self._timer.cancel()
            seconds = min(max(when - time.perf_counter(), _TICK_SECONDS), _LONGEST_TIMER)
            self._check_at = when
            self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        """Answer jobs whose deadline has passed, and let others run beside overdue batches."""
        self._check_at, self._timer, now = math.inf, None, time.perf_counter()
        for lane in self._lanes:
            self._expire(lane, now)
        self._forget_retired()
        for batch in self._in_flight:
            release_at = batch.began + max(batch.limit, _RELEASE_SECONDS)
            if batch.is_released:
                continue
            if now < release_at:
                self._check_by(release_at)
                continue
            batch.is_released = True
            batch.lane.released += 1
            self._occupied -= 1
        self._wake()

    def _expire(self, lane: Lane, now: float) -> None:
        """Answer those jobs of a lane whose deadline has passed, also while they are computed."""
        late = [job for job in lane.queue if job.deadline <= now]
        if late:
            lane.queue = deque(job for job in lane.queue if job.deadline > now)
            lane.queued_rows -= sum(job.rows for job in late)
        begun = [
            job
            for batch in (*lane.again, *(b for b in self._in_flight if b.lane is lane))
            for job in batch.jobs
            if not job.over
        ]
        late += [job for job in begun if job.deadline <= now]
        for job in late:
            job.over = True
            job.finish(self._refusal(lane, job, Reason.EXPIRED))
        left = (job.deadline for job in (*lane.queue, *begun) if not job.over)
        self._check_by(min(left, default=math.inf))

    def _finished(self, batch: Batch) -> None:
        lane = batch.lane
        now = time.perf_counter()
        lane.device_seconds += batch.seconds
        if now < lane.aside_until:
            lane.note(batch, now)
        if not batch.is_released:
            self._update_pace(lane, batch.rows, now)
        if batch.error is not None:
            self._failed(batch)
            return
        batch.cold = not lane.ran or batch.compiles != 0
        lane.ran = True
        lane.execute_duration.observe(batch.seconds)
        lane.batch_rows.observe(batch.rows)
        lane.rows_total.add(batch.rows)
        lane.padding_total.add(batch.bucket.rows - batch.rows)
        rows_with_nan = _count_nans(batch)
        if lane.arm is not None:
            lane.arm.add(*_tried(batch, rows_with_nan))
        start = 0
        for job in batch.jobs:
            if not job.over:
                job.finish(Result(batch, start, start + job.rows))
            start += job.rows
        if self.traces is not None:
            self.traces.computed(batch)

    def _update_pace(self, lane: Lane, rows: int, now: float) -> None:
        """Update seconds per row, overhead included; measured only while the queue is not empty."""
        before = self._busy_since
        self._busy_since = now if any(other.queue for other in self._lanes) else None
        if before is not None:
            lane.row_seconds += PACE_WEIGHT * ((now - before) / rows - lane.row_seconds)

    def _failed(self, batch: Batch) -> None:
        """Run both halves again, until a request fails only because of itself."""
        lane, jobs = batch.lane, batch.jobs
        assert batch.error is not None
        log.failed(f"a batch of {lane.loaded.model.name}", batch.error, lane.loaded.model.name)
        if "RESOURCE_EXHAUSTED" in str(batch.error):
            lane.out_of_memory.add()
            # From now on, only a single request of this size uses this bucket.
            if smaller := [b for b in lane.buckets if b.rows < batch.bucket.rows]:
                lane.plan_for(smaller)
        if len(jobs) > 1:
            for half in batch.halves():
                lane.again.append(half)
            self._wake()
            return
        lane.failed(jobs[0], time.perf_counter())
        if lane.arm is not None and jobs[0].is_drawn():
            lane.arm.add(1, 1)
        if not jobs[0].over:
            jobs[0].finish(self._refusal(lane, jobs[0], Reason.FAILED))


def _preemptions() -> int:
    """How often this thread (the process, where threads are not counted) has lost its core."""
    return resource.getrusage(_THREAD).ru_nivcsw


def _count_nans(batch: Batch) -> np.ndarray[Any, Any] | None:
    """Count the rows with NaN; returns which they are, if there are any."""
    found: np.ndarray[Any, Any] | None = None
    for output in batch.outputs:
        # The minimum is NaN if any number is: one fast pass.
        if output.dtype.kind == "f" and np.isnan(output[: batch.rows].min(initial=np.inf)):
            nans = np.isnan(output[: batch.rows].reshape(batch.rows, -1))
            of_rows: np.ndarray[Any, Any] = np.any(nans, axis=1)
            batch.lane.nan_rows.add(int(of_rows.sum()))
            found = of_rows if found is None else found | of_rows
    return found


def _tried(batch: Batch, rows_with_nan: np.ndarray[Any, Any] | None) -> tuple[int, int]:
    """How many jobs of a batch got its version at random, and how many of them got NaN."""
    drawn = bad = start = 0
    for job in batch.jobs:
        if job.is_drawn():
            drawn += 1
            rows = slice(start, start + job.rows)
            bad += rows_with_nan is not None and bool(rows_with_nan[rows].any())
        start += job.rows
    return drawn, bad
