"""Claims about several devices of one host: the same numbers as on one, from one program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from firstlight import histfactory as hf
from firstlight.histfactory import synthetic
from firstlight.histfactory.devices import devices_for

ROUNDING = 1e-13


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Everything in one process, because starting one with eight devices takes seconds."""
    script = Path(__file__).with_name("on_eight_devices.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_toys_on_eight_devices_equal_those_on_one(found: dict[str, Any]) -> None:
    assert found["toys"]["data"] == found["toys"]["branches"] == 0
    assert found["toys"]["values"] < ROUNDING
    assert found["toys"]["nll"] < ROUNDING
    assert found["toys not converged"] == 0
    assert found["CLs"][0] == found["CLs"][1]


@pytest.mark.slow
def test_scans_and_likelihoods_on_eight_devices_equal_those_on_one(found: dict[str, Any]) -> None:
    assert found["scan"] < ROUNDING
    assert max(found["likelihoods"]) < ROUNDING


@pytest.mark.slow
def test_one_program_serves_all_devices_and_other_numbers_of_toys(found: dict[str, Any]) -> None:
    assert found["compiled"] == {
        "first toys": 1,
        "other toys of that size": 0,
        "likelihoods": 1,
        "other likelihoods": 0,
    }


@pytest.mark.slow
def test_all_devices_are_used_if_there_are_enough_rows_and_no_default(
    found: dict[str, Any],
) -> None:
    assert found["devices of many points"] == 8
    assert found["devices of few points"] == 1
    assert found["where a default is set"] == [3]


@pytest.mark.slow
def test_a_data_parallel_step_has_the_gradient_of_all_events(found: dict[str, Any]) -> None:
    """Although devices have different numbers of events, two of them none."""
    assert found["gradient of the step"] > 0.1
    assert max(found["step in 64 bits"]) < 1e-12
    assert max(found["step in 32 bits"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_gradient_that_is_taken_on_each_device_is_checked_under_watch(
    found: dict[str, Any], is_checked: bool
) -> None:
    """Two of them, in turns: of a value of each device, and of one that is the same on all."""
    assert found[f"gradients 2.0 {is_checked}"] == {"ok": 6}
    wrong = found[f"gradients 1.0 {is_checked}"]
    assert set(wrong) == {"uncertain", "wrong"} and wrong["wrong"] >= 2


@pytest.mark.parametrize("devices", [0, 10**6, "cpu", [], ["cpu:0"], True])
def test_invalid_devices_are_refused(devices: Any) -> None:
    """Also where there is too little to do for any."""
    model = hf.load(synthetic.preset("complex-8p"))
    with pytest.raises(hf.ModelError, match="devices"):
        hf.toys(model, 1, devices=devices)


def test_a_device_may_not_be_given_twice() -> None:
    with pytest.raises(hf.ModelError, match="distinct devices"):
        devices_for(10, [jax.devices()[0]] * 2)
