"""Counts of compiles and cache results, for known compiles."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import monitoring
from jax._src import compilation_cache, compiler
from scraping import Scrape

from firstlight.telemetry import events
from firstlight.telemetry.watch.process import ProcessWatch
from firstlight.trace.record import calls


def test_recompiles_are_counted_by_function_and_stage(value: Scrape) -> None:
    before = value("compile_duration_seconds_count", stage="compile")

    @jax.jit
    def shifted(x: Any) -> Any:
        return x + 1

    for size in (1, 2, 3, 3):
        shifted(np.ones(size, np.float32)).block_until_ready()
    assert shifted._cache_size() == 3
    assert value("compiles_total", function="shifted", source="compiler") == 3
    assert value("recompiles_total", function="shifted") == 2
    assert value("compile_duration_seconds_count", stage="compile") == before + 3
    assert value("compile_seconds_total", function="shifted") > 0


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn off JAX's cache, which other tests in this process may have turned on."""
    before = jax.config.jax_compilation_cache_dir
    jaxs_own = getattr(compilation_cache.get_file_cache, "_get_file_cache", None)
    if jaxs_own is not None:
        monkeypatch.setattr(compilation_cache, "get_file_cache", jaxs_own)
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture
def cache_folder(tmp_path: Path) -> Any:
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, setting in settings.items():
        jax.config.update(name, setting)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, setting in before.items():
        jax.config.update(name, setting)
    compilation_cache.reset_cache()


def test_time_saved_by_the_cache_is_part_of_the_cost_of_a_compile(watch: ProcessWatch) -> None:
    for saved in (
        9.0,
        -0.1,
    ):  # JAX stores whole seconds: for a short compile, the saving can be negative
        monitoring.record_event_duration_secs(events.SAVED, saved)
        for event in events.STAGES:
            monitoring.record_event_duration_secs(event, 0.5, fun_name="jit(read)")
    assert watch.steps.functions.of_compiles("read").cost_seconds == (2 * 3 * 0.5 + 9) / 2
    assert f'"{events.SAVED}"' in inspect.getsource(compiler).replace("'", '"')


def test_a_hit_and_a_miss_are_what_the_cache_folder_had(value: Scrape, cache_folder: Path) -> None:
    def kept(x: Any) -> Any:
        return x * 7

    for _ in range(3):
        jax.jit(kept)(np.float32(1)).block_until_ready()
        jax.clear_caches()
    assert len(list(cache_folder.glob("jit_kept*-cache"))) == 1
    assert value("compile_cache_requests_total", result="miss") == 1
    assert value("compile_cache_requests_total", result="hit") == 2
    assert value("compiles_total", function="kept", source="compiler") == 1
    assert value("compiles_total", function="kept", source="cache") == 2


def test_without_a_cache_no_miss_is_counted(value: Scrape) -> None:
    assert not jax.config.jax_compilation_cache_dir
    jax.jit(lambda x: x * 9)(np.float32(1)).block_until_ready()
    assert value("compile_cache_requests_total", result="miss") == 0


def test_a_failing_listener_causes_one_warning_and_the_program_continues(
    watch: ProcessWatch, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(watch.steps.functions, "of_compiles", broken)
    for size in (5, 6):
        assert jax.jit(lambda x: x * 11)(np.ones(size)).tolist() == [11] * size
    said = [line for line in capfd.readouterr().err.splitlines() if "a bug of ours" in line]
    assert len(said) == 1


def test_a_trace_of_a_watched_program_names_the_programs_line(watch: ProcessWatch) -> None:
    from jax import monitoring

    found = []

    def listener(event: str, seconds: float, **_: Any) -> None:
        if "backend_compile" in event:
            found.append(calls.sites(calls.stack(sys._getframe(1))))

    monitoring.register_event_duration_secs_listener(listener)
    try:
        jax.jit(lambda x: x * 17)(np.float32(1)).block_until_ready()
    finally:
        monitoring.unregister_event_duration_listener(listener)
    ((near, user),) = found
    assert near is not None and near[0] == __file__
    assert user is not None and user[0] == __file__
