"""Numbers as they are written, against what a person would write."""

from __future__ import annotations

import math

import pytest

from firstlight.present import quantities
from firstlight.records import Estimate


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0003215, "322 µs"),
        (0.9996, "1.00 s"),
        (0.00099951, "1.00 ms"),
        (12.345, "12.3 s"),
        (1234.5, "1 230 s"),
        (4.2e-8, "42.0 ns"),
        (0, "0 s"),
        (None, "—"),
        (math.nan, "—"),
        (math.inf, "—"),
    ],
)
def test_seconds_have_three_digits_and_a_fitting_unit(value: float | None, shown: str) -> None:
    assert quantities.seconds(value).replace("\u202f", " ") == shown


def test_bytes_are_in_powers_of_1024() -> None:
    assert quantities.size(641728512) == "612\u202fMiB"
    assert quantities.size(1023.9 * 2**20) == "1.00\u202fGiB"
    assert quantities.size(1023.4 * 2**20) == "1\u202f020\u202fMiB"
    assert quantities.size(0) == "0\u202fB"


@pytest.mark.parametrize(
    ("median", "low", "high", "shown"),
    [
        (0.21344, 0.2087, 0.21762, "213 ms [209, 218]"),
        (0.21344, 0.21341, 0.21349, "213.4 ms [213.4, 213.5]"),  # 213 [213, 213] says nothing
        (0.015986, 3.07e-05, 0.015988, "16.0 ms [0.031, 16.0]"),  # not [0.0, 16.0]
        (0.5, 0.5, 0.5, "500 ms [500, 500]"),
        (1234.0, 1100.0, 1400.0, "1 230 s [1 100, 1 400]"),
        (0.5, math.nan, math.nan, "500 ms"),
    ],
)
def test_an_interval_is_in_the_unit_and_places_of_its_median(
    median: float, low: float, high: float, shown: str
) -> None:
    written = quantities.estimate(Estimate(median, low, high, 10, 0.95))
    assert written.replace("\u202f", " ") == shown


def test_counts_are_exact_below_a_thousand_and_rounded_above() -> None:
    assert quantities.calls(999) == "999"
    assert quantities.calls(1243) == "1\u202f240"
    assert quantities.calls(123456789) == "1.23·10⁸"
    assert quantities.calls("never") == "never"


def test_relative_errors_are_powers_of_ten() -> None:
    assert quantities.scientific(3.2e-7) == "3.2·10⁻⁷"
    assert quantities.scientific(0.0) == "0"


def test_a_value_that_rounds_up_to_a_unit_is_shown_in_it() -> None:
    assert quantities.size(2**30).split("\u202f") == ["1.00", "GiB"]
    assert quantities.size(2**20).split("\u202f") == ["1.00", "MiB"]
    assert quantities.seconds(1e-3).split("\u202f") == ["1.00", "ms"]
    assert quantities.seconds(0.9996).split("\u202f") == ["1.00", "s"]
