from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from firstlight.errors import FirstlightError
from firstlight.records import NewerSchemaError
from firstlight.statistics.calibration import (
    AAResult,
    CalibrationError,
    Thresholds,
    load_thresholds,
    min_results,
    save_thresholds,
    threshold,
)

MACHINE = "a kind of machine"


def results(
    case: str, ratios: list[float], rounds: int = 12, quantity: str = "cold_seconds"
) -> list[AAResult]:
    return [AAResult(case, quantity, r, rounds, f"run {i}") for i, r in enumerate(ratios)]


@pytest.mark.parametrize("k", [19, 20, 39, 50])
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_the_next_aa_ratio_exceeds_the_threshold_with_probability_alpha_at_most(
    k: int, alpha: float
) -> None:
    """The exact probability is (K + 1 - r) / (K + 1) for the r-th smallest of K ratios."""
    generator, trials = np.random.default_rng([k, int(alpha * 100)]), 4000
    exceeded = 0
    for _ in range(trials):
        ratios = np.exp(0.1 * generator.standard_t(2, k + 1))
        limit = threshold(list(ratios[:-1]), alpha)
        assert limit is not None
        exceeded += max(ratios[-1], 1 / ratios[-1]) > limit
    exact = math.floor((k + 1) * alpha + 1e-9) / (k + 1)
    assert exact <= alpha
    assert abs(exceeded / trials - exact) <= 4 * math.sqrt(exact * (1 - exact) / trials)


def test_nineteen_aa_runs_are_the_fewest_for_5_percent() -> None:
    assert threshold([1.01] * 18, 0.05) is None
    assert threshold([1.01] * 18 + [1.2], 0.05) == 1.2
    assert min_results(0.05) == 19
    assert min_results(0.01) == 99
    assert threshold([], 0.05) is None


def test_a_ratio_below_one_counts_as_much_as_its_inverse() -> None:
    assert threshold([1.01] * 18 + [0.8], 0.05) == pytest.approx(1.25)


def test_ratios_that_are_not_positive_and_finite_are_refused() -> None:
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive"):
            threshold([bad], 0.05)


def test_a_case_with_enough_ratios_is_judged_by_its_own() -> None:
    thresholds = Thresholds(MACHINE, 0.05).with_results(
        results("calm", [1.01] * 19) + results("wild", [1.5] * 19)
    )
    calm, wild = (thresholds.of(c, "cold_seconds", 12) for c in ("calm", "wild"))
    assert calm is not None and wild is not None
    assert (calm.ratio, wild.ratio) == (1.01, 1.5)
    assert calm.source == "19 A/A ratios of this case"


def test_cases_with_few_ratios_share_those_of_all_cases() -> None:
    thresholds = Thresholds(MACHINE, 0.05).with_results(
        results("one", [1.01] * 10) + results("other", [1.02] * 10)
    )
    pooled = thresholds.of("one", "cold_seconds", 12)
    assert pooled is not None and pooled.ratio == 1.02
    assert pooled.source == "20 A/A ratios of all cases"
    unseen = thresholds.of("never measured", "cold_seconds", 12)
    assert unseen == pooled
    assert thresholds.of("one", "compile", 12) is None  # quantities are never pooled


def test_aa_runs_of_more_rounds_are_not_used_for_fewer() -> None:
    thresholds = Thresholds(MACHINE, 0.05).with_results(results("one", [1.01] * 19, rounds=24))
    assert thresholds.of("one", "cold_seconds", 12) is None
    assert thresholds.of("one", "cold_seconds", 48) is not None


def test_the_same_run_added_twice_counts_once() -> None:
    new = results("one", [1.01] * 19)
    once = Thresholds(MACHINE, 0.05).with_results(new)
    assert once.with_results(new) == once


def test_a_calibration_survives_the_disk_and_grows_by_merging(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "calibration.json"
    first = Thresholds(MACHINE, 0.05).with_results(results("one", [1.01] * 10))
    save_thresholds(path, first)
    merged = load_thresholds(path, MACHINE).with_results(results("other", [1.03] * 10))
    save_thresholds(path, merged)
    again = load_thresholds(path, MACHINE)
    assert again == merged and len(again.results) == 20
    assert [p.name for p in path.parent.iterdir()] == ["calibration.json"]


def test_a_calibration_of_another_class_of_machine_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    save_thresholds(path, Thresholds("somewhere else", 0.05))
    with pytest.raises(CalibrationError, match=r"'somewhere else', this is 'a kind of machine'"):
        load_thresholds(path, MACHINE)
    assert load_thresholds(path, None).machine_class == "somewhere else"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "something.else"}, "not a Firstlight calibration"),
        ({"alpha": 7}, "damaged"),
        ({"alpha": "x"}, "damaged"),
        ({"results": [{"case": "one"}]}, "damaged"),
        ({"results": 3}, "damaged"),
        ({"machine_class": None}, "damaged"),
        (
            {
                "results": [
                    {"case": "a", "quantity": "b", "ratio": -1, "rounds": 3, "measured_at": ""}
                ]
            },
            "damaged",
        ),
    ],
)
def test_a_damaged_calibration_is_refused_with_its_name(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "calibration.json"
    save_thresholds(path, Thresholds(MACHINE, 0.05, tuple(results("one", [1.1]))))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FirstlightError, match=message) as caught:
        load_thresholds(path, MACHINE)
    assert "calibration.json" in str(caught.value)


def test_a_newer_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    save_thresholds(path, Thresholds(MACHINE, 0.05))
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(NewerSchemaError, match="Update Firstlight"):
        load_thresholds(path, MACHINE)


def test_an_invalid_calibration_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    with pytest.raises(FirstlightError, match="not valid"):
        save_thresholds(path, Thresholds("", 0.05))
    assert not path.exists()
