"""Which compiles are counted as compiles that requests wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
import numpy as np
import pytest

from firstlight import serve
from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.compiled_models import load
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

pytestmark = pytest.mark.slow


def compile_something(constant: float) -> None:
    jax.jit(lambda x: x * constant + 1)(np.ones(13)).block_until_ready()


def on_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_compiles_of_other_threads_during_preparation_are_preparation(watch: CompileWatch) -> None:
    with watch.preparing():
        compile_something(1.25)
        on_a_thread(lambda: compile_something(2.25))  # such as one that runs callbacks
    assert watch.request_path.value == 0
    on_a_thread(lambda: compile_something(3.25))
    assert watch.request_path.value == 1


def test_a_batch_that_compiles_while_a_model_is_prepared_is_counted(watch: CompileWatch) -> None:
    seen = []

    def batch() -> None:
        before = watch.compiles_in_batches()
        compile_something(4.25)
        seen.append(watch.compiles_in_batches() - before)

    with watch.preparing():
        on_a_thread(batch)
    assert watch.compiles_in_batches() == 0  # of this thread
    assert watch.request_path.value == 1 and seen == [1]


def test_executables_loaded_by_name_are_hits_of_the_cache(
    values: Values, watch: CompileWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstlight.serve import kept_programs

    kept: dict[str, bytes] = {}

    class Shelf:
        look, put = staticmethod(kept.get), staticmethod(kept.__setitem__)

    monkeypatch.setattr(kept_programs, "current_store", lambda: Shelf)
    inputs = {"x": serve.Input("float32", (3,))}
    model = serve.model(inputs=inputs, buckets=(1, 2), program="a", name="m")(lambda x: x * 5.25)

    def hits() -> float:
        return values.counter(metrics.COMPILE_CACHE_REQUESTS, "hit").value

    load(model, watch)
    assert hits() == 0
    load(model, watch)
    assert hits() == 2
