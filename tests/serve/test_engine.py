"""Batching, with plain functions in place of executables."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_serving import SeenJob, fake_loaded

from firstlight.serve import engine as engine_module
from firstlight.serve import lanes as lanes_module
from firstlight.serve.compiled_models import Loaded
from firstlight.serve.engine import Engine
from firstlight.serve.jobs import Reason, Refusal, Result, Source
from firstlight.serve.lanes import INLINE_SECONDS
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

INLINE = {1: 1e-5, 4: 1e-5, 8: 1e-5}


def run(values: Values, given: list[tuple[Loaded, list[SeenJob]]]) -> list[Refusal | None]:
    """Submit jobs together and wait for all; returns the immediate refusals."""

    async def body() -> list[Refusal | None]:
        engine = Engine(values)
        refused = []
        for loaded, jobs in given:
            (lane,) = engine.add(loaded).values()
            refused += [engine.submit(lane, job) for job in jobs]
        while not engine.idle:
            await asyncio.sleep(0)
        engine.close()
        return refused

    return asyncio.run(body())


def simulate(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Let the engine see another clock, on which all batches are short enough for one thread."""
    for module in (engine_module, lanes_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
        monkeypatch.setattr(module, "INLINE_SECONDS", 1.0)


def count(values: Values, metric: Any) -> float:
    return sum(s.value for s in values if s.metric is metric and not hasattr(s.value, "counts"))


class Calls:
    """A function that records the number of rows of each call."""

    def __init__(self, function: Callable[[Any], Any] = lambda x: 2 * x) -> None:
        self.function, self.rows = function, []

    def __call__(self, x: Any) -> Any:
        self.rows.append(len(x))
        return self.function(x)


def test_queued_requests_share_a_batch_and_get_their_own_rows(values: Values) -> None:
    calls = Calls()
    jobs = [SeenJob([i, i + 0.5]) for i in range(3)]
    run(values, [(fake_loaded(calls, INLINE), jobs)])
    assert calls.rows == [8]  # six rows, in the bucket of eight
    assert [job.numbers for job in jobs] == [[0, 1], [2, 3], [4, 5]]
    assert count(values, metrics.PADDING_ROWS) == 2
    assert count(values, metrics.ROWS) == 6


def test_large_batches_begin_where_xla_reads_them_in_place(values: Values) -> None:
    starts = []

    def call(x: Any) -> Any:
        starts.append(x.ctypes.data % 64)
        return x

    jobs = [SeenJob([i] * 20_000) for i in range(3)]
    run(values, [(fake_loaded(call, {65536: 1e-5}), jobs)])
    assert starts == [0] and jobs[2].numbers == [2] * 20_000


def test_more_rows_than_the_largest_bucket_are_several_batches_in_order(values: Values) -> None:
    calls = Calls()
    jobs = [SeenJob([i]) for i in range(19)]
    run(values, [(fake_loaded(calls, INLINE), jobs)])
    assert calls.rows == [8, 8, 4]
    assert [job.numbers for job in jobs] == [[2 * i] for i in range(19)]


def test_the_bucket_is_chosen_by_what_it_costs(values: Values) -> None:
    """For five rows: the bucket of eight costs ten times that of four, so four go first."""
    calls = Calls()
    costs = {1: 1e-5, 4: 1e-5, 8: 1e-4}
    run(values, [(fake_loaded(calls, costs), [SeenJob([i]) for i in range(5)])])
    assert calls.rows == [4, 1]


def test_a_full_queue_refuses_at_once_with_the_time_to_retry(values: Values) -> None:
    loaded = fake_loaded(lambda x: x, {1: 0.25}, max_queue_rows=3)
    jobs = [SeenJob([i]) for i in range(6)]
    refused = run(values, [(loaded, jobs)])
    assert [r and r.reason for r in refused] == [None] * 4 + [Reason.QUEUE_FULL] * 2
    last = refused[-1]
    assert last is not None and last.retry_seconds == pytest.approx(4 * 0.25)


def test_a_deadline_that_the_queue_would_miss_is_refused_at_once(values: Values) -> None:
    """The backlog may take twice as long as expected: 2 · 0.25 + 0.25 < 0.8 < 2 · 0.5."""
    loaded = fake_loaded(lambda x: x, {1: 0.25})
    now = time.perf_counter()
    jobs = [SeenJob([i], deadline=now + 0.8, arrived=now) for i in range(4)]
    refused = run(values, [(loaded, jobs)])
    assert [r and r.reason for r in refused] == [None, None, Reason.DEADLINE, Reason.DEADLINE]


def test_expired_and_cancelled_rows_are_dropped_before_dispatch(values: Values) -> None:
    calls = Calls()
    long_ago = time.perf_counter() - 100
    expired = SeenJob([1], deadline=long_ago + 50, arrived=long_ago)
    cancelled, wanted = SeenJob([2], gone=True), SeenJob([3])
    run(values, [(fake_loaded(calls, INLINE), [expired, cancelled, wanted])])
    assert expired.outcome == Refusal(Reason.EXPIRED)
    assert cancelled.outcome is None
    assert wanted.numbers == [6]
    assert count(values, metrics.CANCELLED) == 1
    assert calls.rows[0] < 8 and count(values, metrics.ROWS) == 1


def test_rows_of_clients_that_left_do_not_take_the_place_of_others(values: Values) -> None:
    async def body() -> None:
        engine = Engine(values)
        loaded = fake_loaded(Calls(), {1: 1e-5, 4: 1e-5}, max_queue_rows=4)
        (lane,) = engine.add(loaded).values()
        left = [SeenJob([1.0]) for _ in range(8)]
        assert not any(engine.submit(lane, job) for job in left)
        late = SeenJob([2.0])
        refused = engine.submit(lane, late)
        assert refused is not None and refused.reason is Reason.QUEUE_FULL
        for job in left:
            job.gone = True
            engine.departures += 1
        assert engine.refusal_of([lane], None) is None
        assert engine.submit(lane, late) is None
        while not engine.idle:
            await asyncio.sleep(0)
        assert late.numbers == [4.0] and count(values, metrics.CANCELLED) == 8

    asyncio.run(body())


def test_the_time_after_clients_have_left_does_not_count_as_slowness(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue empties without a batch; what is then measured is not the pace of batches."""
    clock = [1000.0]
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    async def body() -> None:
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(Calls(), {1: 1e-5})).values()
        first, gone = SeenJob([1.0]), SeenJob([2.0])
        engine.submit(lane, first)
        engine.submit(lane, gone)
        while first.outcome is None:
            await asyncio.sleep(0)
        gone.gone = True
        while not engine.idle:
            await asyncio.sleep(0)
        clock[0] += 3600
        for _ in range(2):
            engine.submit(lane, SeenJob([3.0]))
        while not engine.idle:
            await asyncio.sleep(0)
        assert lane.row_seconds < 1e-3

    asyncio.run(body())


def test_a_poisoned_request_fails_alone(values: Values, caplog: Any) -> None:
    def strict(x: Any) -> Any:
        if (x == 13).any():
            raise ValueError("unlucky")
        return x

    jobs = [SeenJob([i]) for i in (1, 13, 5)]
    run(values, [(fake_loaded(strict, INLINE), jobs)])
    assert jobs[0].numbers == [1] and jobs[2].numbers == [5]
    assert jobs[1].outcome == Refusal(Reason.FAILED)
    assert "unlucky" in caplog.text


def test_out_of_memory_is_answered_by_a_smaller_bucket_and_counted(values: Values) -> None:
    def small(x: Any) -> Any:
        if len(x) > 4:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        return x

    calls = Calls(small)
    jobs = [SeenJob([i]) for i in range(8)]
    loaded = fake_loaded(calls, INLINE)
    run(values, [(loaded, jobs)])
    assert [job.numbers for job in jobs] == [[i] for i in range(8)]
    assert calls.rows[0] == 8 and max(calls.rows[1:]) <= 4
    assert count(values, metrics.OUT_OF_MEMORY) == 1


def test_out_of_memory_in_the_smallest_bucket_fails_that_request_only(values: Values) -> None:
    def never(x: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED")

    jobs = [SeenJob([1]), SeenJob([2])]
    run(values, [(fake_loaded(never, INLINE), jobs)])
    assert [job.outcome for job in jobs] == [Refusal(Reason.FAILED)] * 2


def test_rows_with_nan_are_counted_and_padding_is_not(values: Values) -> None:
    jobs = [SeenJob([np.nan]), SeenJob([1]), SeenJob([np.nan, 2])]
    run(values, [(fake_loaded(lambda x: x, INLINE), jobs)])
    assert count(values, metrics.NAN_ROWS) == 2


def test_two_models_get_equal_shares_of_the_device(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has slow batches, the other fast ones; both have a long queue."""
    order: list[str] = []
    now = time.perf_counter()
    simulate(monkeypatch, lambda: now)

    def lasting(name: str, seconds: float) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            nonlocal now
            order.append(name)
            now += seconds
            return x

        return call

    slow = fake_loaded(lasting("slow", 2e-3), {1: 1e-5}, "slow")
    fast = fake_loaded(lasting("fast", 2e-4), {1: 1e-5}, "fast")
    run(values, [(slow, [SeenJob([i]) for i in range(10)]),
                 (fast, [SeenJob([i]) for i in range(40)])])  # fmt: skip
    # When the fast one ends, both have used the device for 8 ms.
    last_fast = len(order) - 1 - order[::-1].index("fast")
    assert 4 <= order[:last_fast].count("slow") <= 5


def test_under_triple_load_accepted_requests_meet_their_deadlines_and_the_rest_is_refused(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated clock: batches of 4 take 4 ms, and a request comes every 1/3 ms for 10 s."""
    now, cost, deadline = 0.0, 4e-3, 0.25
    simulate(monkeypatch, lambda: now)
    ended: dict[SeenJob, float] = {}

    def call(x: Any) -> Any:
        nonlocal now
        now += cost
        return x

    class TimedJob(SeenJob):
        def finish(self, outcome: Result | Refusal) -> None:
            super().finish(outcome)
            ended[self] = now

    async def body() -> None:
        nonlocal now
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(call, {1: 3e-3, 4: cost})).values()
        taken: list[TimedJob] = []
        due, refused, longest = 0.0, 0, 0
        while due < 10.0:
            while due <= now:  # arrived while the device was busy
                job = TimedJob([due], due + deadline, due)
                if engine.submit(lane, job) is None:
                    taken.append(job)
                else:
                    refused += 1
                due += 1 / 3000
            longest = max(longest, lane.queued_rows)
            before = now
            await asyncio.sleep(0)
            now = max(now, due) if now == before else now
        while not engine.idle:
            await asyncio.sleep(0)
        assert all(isinstance(job.outcome, Result) for job in taken)
        assert max(ended[job] - job.arrived for job in taken) <= deadline
        assert 0.95 < len(taken) / 10_000 < 1.05  # the capacity of the device: 1000 rows per second
        assert refused > 19_000 and longest < 140  # 125 rows take half of 0.25 s
        after = TimedJob([1.0], now + deadline, now)  # the overload has no after-effect
        assert engine.submit(lane, after) is None
        while not engine.idle:
            await asyncio.sleep(0)
        assert ended[after] - after.arrived <= cost
        engine.close()

    asyncio.run(body())


def test_a_long_batch_leaves_the_event_loop_free(values: Values) -> None:
    released = threading.Event()

    def blocked(x: Any) -> Any:
        assert released.wait(30)
        return x

    async def body() -> list[float]:
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(blocked, {1: 1.0})).values()
        job = SeenJob([7])
        engine.submit(lane, job)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        released.set()  # reached only if the loop is free while the batch runs
        while not engine.idle:
            await asyncio.sleep(0)
        engine.close()
        return job.numbers

    assert asyncio.run(body()) == [7]


def test_the_first_batch_is_cold_and_so_is_one_that_compiled(values: Values) -> None:
    compiled = 0

    def call(x: Any) -> Any:
        nonlocal compiled
        compiled += bool((x == 2).any())
        return x

    async def body() -> list[bool]:
        engine = Engine(values, lambda: compiled)
        (lane,) = engine.add(fake_loaded(call, INLINE)).values()
        cold = []
        for number in (0, 1, 2, 3):
            job = SeenJob([number])
            engine.submit(lane, job)
            while not engine.idle:
                await asyncio.sleep(0)
            assert isinstance(job.outcome, Result)
            cold.append(job.outcome.batch.cold)
        engine.close()
        return cold

    assert asyncio.run(body()) == [True, False, True, False]


def test_a_retired_lane_computes_its_queue_before_it_is_forgotten(values: Values) -> None:
    async def body() -> tuple[list[float], int]:
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(lambda x: x, INLINE)).values()
        job = SeenJob([7])
        engine.submit(lane, job)
        engine.remove([lane])
        while not engine.idle:
            await asyncio.sleep(0)
        engine.close()
        return job.numbers, len(engine._lanes)

    assert asyncio.run(body()) == ([7], 0)


def test_a_large_request_after_out_of_memory_still_gets_its_bucket(values: Values) -> None:
    """The memory of the device was exhausted only once."""
    failures = [RuntimeError("RESOURCE_EXHAUSTED")]

    def once(x: Any) -> Any:
        if len(x) > 4 and failures:
            raise failures.pop()
        return x

    loaded = fake_loaded(once, INLINE)
    many, large = [SeenJob([i]) for i in range(8)], SeenJob(range(7))
    run(values, [(loaded, [*many, large])])
    assert [job.numbers for job in many] == [[i] for i in range(8)]
    assert large.numbers == list(range(7))


def test_a_failing_batch_is_halved_until_only_the_bad_request_fails(values: Values) -> None:
    def strict(x: Any) -> Any:
        if (x == 13).any():
            raise ValueError("unlucky")
        return x

    calls = Calls(strict)
    jobs = [SeenJob([i]) for i in range(32)]
    run(values, [(fake_loaded(calls, {1: 1e-5, 32: 1e-5}), jobs)])
    assert [job.outcome == Refusal(Reason.FAILED) for job in jobs] == [i == 13 for i in range(32)]
    assert len(calls.rows) == 1 + 2 * 5  # both halves, five times: not one call per request


@pytest.mark.parametrize("seed", range(6))
def test_random_jobs_get_their_own_rows_whatever_fails(values: Values, seed: int) -> None:
    """Against an evaluation of each job alone."""
    draw = np.random.default_rng(seed)
    bad = set(draw.choice(1000, 40, replace=False).tolist())

    def strict(x: Any) -> Any:
        if bad.intersection(x.tolist()):
            raise ValueError("unlucky")
        return 3 * x + 1

    sources = [Source() for _ in range(5)]
    jobs = [
        SeenJob(draw.integers(0, 1000, draw.integers(1, 9)), source=sources[draw.integers(5)])
        for _ in range(60)
    ]
    costs = {int(rows): float(draw.choice([1e-5, 1.0])) for rows in (1, 4, 8, 16)}
    run(values, [(fake_loaded(strict, costs), jobs)])
    for job in jobs:
        given = job.arrays[0].tolist()
        if bad.intersection(given):
            assert job.outcome == Refusal(Reason.FAILED)
        else:
            assert job.numbers == [3 * x + 1 for x in given]


def test_a_source_that_fails_again_and_again_does_not_cost_the_others(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight clients in a closed loop on a simulated clock, one of which always fails."""
    now, batches = 0.0, 0
    simulate(monkeypatch, lambda: now)

    def strict(x: Any) -> Any:
        nonlocal now, batches
        now += 7e-3
        batches += 1
        if (x == 13).any():
            raise ValueError("unlucky")
        return x

    async def body() -> None:
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(strict, {1: 7e-3, 8: 7e-3})).values()
        sources = [Source() for _ in range(8)]
        answered = 0
        jobs: dict[int, SeenJob] = {}
        while now < 10.0:
            for i, source in enumerate(sources):
                if i not in jobs or jobs[i].outcome is not None:
                    answered += i in jobs and isinstance(jobs[i].outcome, Result)
                    jobs[i] = SeenJob([13 if i == 0 else i], 1e9, now, source=source)
                    assert engine.submit(lane, jobs[i]) is None
            await asyncio.sleep(0)
        assert isinstance(jobs[0].outcome, Refusal | None) and batches > 1000
        assert answered > 0.85 * 7 * batches  # nearly as if the eighth client were not there
        engine.close()

    asyncio.run(body())


def test_a_source_aside_alone_gets_the_whole_device(
    values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(x: Any) -> Any:
        if (x == 13).any():
            raise ValueError("unlucky")
        return x

    source = Source()
    jobs = [SeenJob([13 if i % 3 else i], source=source) for i in range(60)]
    run(values, [(fake_loaded(strict, INLINE), jobs)])
    assert source.is_aside
    assert all(job.outcome is not None for job in jobs)


class Gate:
    """A function that blocks for numbers below zero until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.threads: list[int] = []

    def __call__(self, x: Any) -> Any:
        self.threads.append(threading.get_ident())
        if (x < 0).any():
            self.entered.set()
            assert self.opened.wait(30)
        return x


def open_ended(gate: Gate, name: str, cost: float = 1e-5) -> Loaded:
    """A fast model whose program might not end."""
    loaded = fake_loaded(gate, {1: cost, 4: cost}, name)
    lanes = {(): tuple(replace(b, may_not_end=True) for b in loaded.buckets)}
    return replace(loaded, lanes=lanes)


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.001)


def test_a_batch_that_does_not_end_costs_its_own_requests_only(values: Values) -> None:
    """Three hung models on two slots: deadlines are kept, the others answer, late results drop."""

    async def body() -> None:
        engine, gates = Engine(values), [Gate() for _ in range(4)]
        lanes = [
            next(iter(engine.add(open_ended(gate, f"m{i}")).values()))
            for i, gate in enumerate(gates)
        ]
        now = time.perf_counter()
        late = [SeenJob([-1.0], now + 0.05, now) for _ in range(3)]
        for lane, job in zip(lanes, late, strict=False):
            assert engine.submit(lane, job) is None
        queued = SeenJob([2.0], time.perf_counter() + 0.05, time.perf_counter())
        await until(gates[0].entered.is_set)
        assert engine.submit(lanes[0], queued) is None
        well = SeenJob([5.0], time.perf_counter() + 60, time.perf_counter())
        assert engine.submit(lanes[3], well) is None
        await until(lambda: well.outcome is not None)
        assert well.numbers == [5]
        await until(lambda: all(job.outcome is not None for job in [*late, queued]))
        assert {job.outcome for job in [*late, queued]} == {Refusal(Reason.EXPIRED)}
        assert set(engine.stuck(0.0)) >= {"m0"} and not engine.stuck(3600.0)
        for gate in gates:
            gate.opened.set()
        await until(lambda: engine.idle)
        assert all(job.outcome == Refusal(Reason.EXPIRED) for job in late)
        assert engine.stuck(0.0) == {}
        again = SeenJob([7.0])  # and the lane works again
        engine.submit(lanes[0], again)
        await until(lambda: again.outcome is not None)
        assert again.numbers == [7]
        engine.close()

    asyncio.run(body())


def test_a_program_that_might_not_end_never_runs_on_the_loops_thread(values: Values) -> None:
    gate = Gate()
    run(values, [(open_ended(gate, "m"), [SeenJob([1.0])])])
    assert threading.get_ident() not in gate.threads


def test_a_lane_that_was_slow_once_leaves_the_loops_thread_and_comes_back(values: Values) -> None:
    from firstlight.serve.lanes import _FAST_BATCHES

    threads, blocked = [], threading.Event()

    def call(x: Any) -> Any:
        threads.append(threading.get_ident())
        if x[0] == 1:
            blocked.wait(20 * INLINE_SECONDS)  # longer than a batch on that thread may take
        return x

    async def body() -> None:
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(call, {1: 1e-6})).values()

        async def ask(number: float) -> None:
            job = SeenJob([number])
            engine.submit(lane, job)
            await until(lambda: job.outcome is not None)

        here = threading.get_ident()
        for _ in range(8):  # a core lost meanwhile to another program excuses it
            await ask(1)
            if not lane.is_next_inline:
                break
        seen = len(threads)
        await ask(0)
        assert here not in threads[seen:]
        while not lane.is_inline(lane.buckets[0]):
            await ask(0)
        assert len(threads) - seen >= _FAST_BATCHES
        await ask(0)
        assert threads[-1] == here
        engine.close()

    asyncio.run(body())


def test_a_batch_is_cold_only_if_its_own_thread_compiled(values: Values) -> None:
    here = threading.local()

    def compiles() -> int:
        return getattr(here, "count", 0)

    def call(x: Any) -> Any:
        other = threading.Thread(target=lambda: setattr(here, "count", compiles() + 1))
        other.start()
        other.join()
        here.count = compiles() + bool((x == 2).any())
        return x

    async def body() -> list[bool]:
        engine, cold = Engine(values, compiles), []
        (lane,) = engine.add(fake_loaded(call, {1: 1.0})).values()
        for number in (0, 1, 2, 3):
            job = SeenJob([number])
            engine.submit(lane, job)
            await until(lambda: engine.idle)
            assert isinstance(job.outcome, Result)
            cold.append(job.outcome.batch.cold)
        engine.close()
        return cold

    assert asyncio.run(body()) == [True, False, True, False]


def test_a_model_retired_while_its_batch_runs_still_answers_all_its_requests(
    values: Values,
) -> None:
    """Its batch fails after the last request has left the queue: the halves must still run."""
    gate = Gate()

    def strict(x: Any) -> Any:
        gate(x)
        if (x == 13).any():
            raise ValueError("unlucky")
        return x

    async def body() -> None:
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(strict, {1: 1e-3, 4: 1e-3})).values()
        jobs = [SeenJob([number]) for number in (-1, 13, 2)]
        late = SeenJob([-2], deadline=time.perf_counter() + 0.2)
        for job in (*jobs, late):
            engine.submit(lane, job)
        await until(gate.entered.is_set)
        engine.remove([lane])
        await until(lambda: late.outcome is not None)  # at its deadline, while the batch runs
        assert late.outcome == Refusal(Reason.EXPIRED)
        gate.opened.set()
        await until(lambda: all(job.outcome is not None for job in jobs))
        assert (jobs[0].numbers, jobs[2].numbers) == ([-1], [2])
        assert jobs[1].outcome == Refusal(Reason.FAILED)
        assert engine.idle and not engine._lanes
        engine.close()

    asyncio.run(body())


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_that_leaves_while_its_batch_runs_costs_no_further_batch(
    values: Values, fails: bool
) -> None:
    gate = Gate()

    def strict(x: Any) -> Any:
        gate(x)
        if fails and len(x) > 1:
            raise ValueError("unlucky")
        return 2 * x

    calls = Calls(strict)

    async def body() -> None:
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(calls, {1: 1.0, 4: 1.0})).values()
        stays, leaves, waits = SeenJob([-1]), SeenJob([5]), SeenJob([7])
        for job in (stays, leaves):
            assert engine.submit(lane, job) is None
        await until(gate.entered.is_set)
        leaves.gone = True
        engine.departures += 1
        assert engine.submit(lane, waits) is None
        gate.opened.set()
        await until(lambda: engine.idle)
        assert (stays.numbers, waits.numbers) == ([-2], [14])
        # The row of the client that has left was only in the batch that ran already.
        assert calls.rows == ([4, 1, 1] if fails else [4, 1])
        assert count(values, metrics.CANCELLED) == fails
        assert lane.queued_rows == 0
        engine.close()

    asyncio.run(body())


@pytest.mark.parametrize("leaves", [False, True])
def test_the_waiting_of_a_source_aside_does_not_look_slow_and_ends_when_it_leaves(
    values: Values, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    now = 0.0
    simulate(monkeypatch, lambda: now)

    def strict(x: Any) -> Any:
        nonlocal now
        now += 7e-3
        if (x == 13).any():
            raise ValueError("unlucky")
        return x

    async def body() -> None:
        nonlocal now
        engine = Engine(values)
        (lane,) = engine.add(fake_loaded(strict, {1: 7e-3})).values()
        bad, good = Source(), Source()
        for source, number in ((bad, 13), (bad, 13), (good, 1), (bad, 13), (bad, 13)):
            engine.submit(lane, SeenJob([number], source=source))
        while len(lane.queue) > 1:
            await asyncio.sleep(0)
        (waiting,) = lane.queue  # it would have to wait for its share of the device
        pace = lane.row_seconds
        assert isinstance(waiting, SeenJob) and bad.is_aside
        for _ in range(3):
            await asyncio.sleep(0)
        now += 0.03
        assert lane.queue
        waiting.gone = leaves
        engine.departures += leaves
        honest = [SeenJob([i], arrived=now, deadline=now + 0.1, source=good) for i in range(3)]
        assert [engine.submit(lane, job) for job in honest] == [None] * 3
        await until(lambda: all(job.outcome is not None for job in honest))
        assert [job.numbers for job in honest] == [[0], [1], [2]]
        assert lane.row_seconds == pytest.approx(pace, rel=1e-6)
        now += 1.0
        await until(lambda: engine.idle)
        assert waiting.outcome == (None if leaves else Refusal(Reason.FAILED))
        assert count(values, metrics.CANCELLED) == leaves
        engine.close()

    asyncio.run(body())
