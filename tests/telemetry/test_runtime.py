"""What a process exports about its platform and its deployment."""

from __future__ import annotations

import pytest
from tests.telemetry.conftest import Scrape

from firstlight.telemetry import metrics
from firstlight.telemetry.runtime import DeployWindows, expected_platform, watch_runtime
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.functions import Function
from firstlight.telemetry.watch.process import ProcessWatch


def current(values: Values) -> dict[tuple[str, tuple[str, ...]], object]:
    return {(sample.metric.name, sample.labels): sample.value for sample in values}


def test_a_deployment_ends_some_time_after_the_last_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_DEPLOY_SECONDS", "60")
    now, values = [0.0], Values()
    windows = DeployWindows(values, lambda: now[0])
    key = (metrics.DEPLOY_IN_PROGRESS.name, ("demo",))
    windows.open("demo")
    seen = []
    for moment in (0.0, 59.0, 61.0):
        now[0] = moment
        seen.append(current(values)[key])
    assert seen == [1.0, 1.0, 0.0]
    windows.open("demo")
    now[0] = 120.0
    assert current(values)[key] == 1.0


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"FIRSTLIGHT_EXPECT_PLATFORM": "cuda"}, "gpu"),
        ({"FIRSTLIGHT_EXPECT_PLATFORM": "tpu", "JAX_PLATFORMS": "cpu"}, "tpu"),
        ({"JAX_PLATFORMS": "cpu"}, None),  # an explicit choice
    ],
)
def test_the_expected_platform_is_the_variables(
    variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRSTLIGHT_EXPECT_PLATFORM", "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert expected_platform() == expected


def test_a_process_on_another_platform_than_expected_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import jax

    values, key = Values(), (metrics.DEVICE_FALLBACK.name, ())
    monkeypatch.setenv("FIRSTLIGHT_EXPECT_PLATFORM", jax.devices()[0].platform)
    watch_runtime(values)
    assert current(values)[key] == 0.0
    monkeypatch.setenv("FIRSTLIGHT_EXPECT_PLATFORM", "no-such")
    watch_runtime(values)
    assert current(values)[key] == 1.0


def test_an_out_of_memory_step_is_counted_separately() -> None:
    values = Values()
    function = Function("embed", values)
    function.failed(ValueError("a shape"))
    key = (metrics.OUT_OF_MEMORY.name, ("embed",))
    assert key not in current(values)
    function.failed(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."))
    assert current(values)[key] == 1
    assert function.errors.value == 2


def test_a_step_that_fails_during_the_wait_for_its_result_counts_as_an_error(
    watch: ProcessWatch, value: Scrape
) -> None:
    def original(_: object) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16 PiB")

    import jax  # noqa: F401 (the watch begins with it)

    assert watch._jax is not None
    here = watch.steps.here()
    here.of = watch.steps.functions.of_steps("embed")
    with pytest.raises(RuntimeError):
        watch._jax._waiting(original)(object())
    assert value("steps_total", function="embed", result="error") == 1
    assert value("device_out_of_memory_total", model="embed") == 1
