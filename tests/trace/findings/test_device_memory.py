"""GPU memory that JAX reserves before the first result, with logs made by hand."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from jax._src import xla_bridge
from trace_logs import Log

import firstlight.trace


def started(begin: float, end: float, reserves: bool = True) -> Log:
    """A program with its first use of a GPU (milliseconds), and its first result after 4 s."""
    log = Log().jax()
    log.event("backend", platform="cuda", begin_ns=log.at(300), end_ns=log.at(700), thread=7)
    times = {"begin_ns": log.at(begin), "end_ns": log.at(end), "thread": 7}
    log.event("device_use", platform="cuda", **times, reserves_memory=reserves)
    return log.first_result(4000).end(5000)


def test_a_gpu_whose_memory_is_reserved_before_the_first_result_is_found(tmp_path: Path) -> None:
    trace = started(800, 2500).read(tmp_path)
    (found,) = [f for f in trace.findings if f.kind == "gpu-memory-preallocation"]
    assert found.seconds == found.before_first_result_seconds == pytest.approx(1.7)
    assert "takes 1.70 s" in found.title
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in found.remedy
    # It counts as the start of the device, not as everything else.
    assert trace.processes[0].phases_seconds["backend"] == pytest.approx(0.4 + 1.7)


@pytest.mark.parametrize(
    "cured",
    [
        started(800, 2500, reserves=False),  # as the remedy says
        started(800, 935),  # without reserving memory
        started(4100, 4900),  # after the first result
    ],
)
def test_a_gpu_without_reserved_memory_is_not_reported(tmp_path: Path, cured: Log) -> None:
    assert cured.read(tmp_path).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "reserves"), [(None, True), ("false", False)])
def test_the_first_use_of_a_device_is_recorded_once_with_how_its_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, reserves: bool
) -> None:
    jax.devices()
    monkeypatch.setitem(xla_bridge._backends, "cuda", xla_bridge._backends["cpu"])
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    if setting is not None:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", setting)
    with firstlight.trace.recording() as recorded:
        for _ in range(2):
            jax.device_put(np.ones(3)).block_until_ready()
    (process,) = recorded.trace.processes
    assert process.device_use is not None
    assert process.device_use.platform == "cuda"
    assert process.device_use.reserves_memory is reserves


def test_a_program_on_a_cpu_has_no_such_event() -> None:
    with firstlight.trace.recording() as recorded:
        jax.device_put(np.ones(3)).block_until_ready()
    assert recorded.trace.processes[0].device_use is None
