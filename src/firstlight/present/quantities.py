"""Formats of numbers, times and counts: significant digits, units, intervals, words.

Every function returns text without markup. Null and non-finite values are an em dash, never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from firstlight.records import Estimate

ABSENT = "—"
THIN_SPACE = "\u202f"  # groups digits and does not break the line

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTE_UNITS = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
Units = tuple[tuple[float, str], ...]


def known(value: float | None) -> TypeGuard[float]:
    """Whether the value is a finite number."""
    return value is not None and not isinstance(value, str) and math.isfinite(value)


def has_interval(estimate: Estimate) -> bool:
    """Whether the interval is meaningful: with one process it is not."""
    return known(estimate.low) and known(estimate.high) and estimate.confidence >= 0.5


def decimals(value: float, digits: int = 3) -> int:
    """The decimal places that give `value` so many significant digits."""
    if value == 0:
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(_rounded(value, digits)))))


def _rounded(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits - 1}e}")


def plain(value: float, places: int | None = None) -> str:
    """Grouped thousands, by default with three significant digits: 24300.7 is '24 300'."""
    if places is None:
        places = decimals(value)
        value = _rounded(value)
    return f"{value:,.{places}f}".replace(",", THIN_SPACE).replace("-", "−")


def unit_of(value: float, units: Units) -> tuple[float, str]:
    """The largest unit in which `value`, once rounded, is at least 1."""
    fits = (unit for unit in units if value and abs(_rounded(value / unit[0])) >= 1)
    return next(fits, units[-1])


def _with_unit(value: float | None, units: Units) -> str:
    if not known(value):
        return ABSENT
    scale, name = unit_of(value, units) if value else (1.0, "s" if units is TIME_UNITS else "B")
    return f"{plain(value / scale)}{THIN_SPACE}{name}"


def axis_labels(end: float, ticks: Sequence[float], units: Units) -> list[str]:
    """The ticks of a linear axis, in the unit of its end: '0', '0.5 s', '1 s'."""
    scale, name = unit_of(end, units)
    return [f"{tick / scale:.4g}{THIN_SPACE}{name}" if tick else "0" for tick in ticks]


def tick_seconds(value: float) -> str:
    """A tick of a logarithmic axis: '20 µs', '10⁵ s'."""
    if value >= 1e4:
        return f"{power(value)}{THIN_SPACE}s"
    scale, unit = unit_of(value, TIME_UNITS)
    return f"{plain(value / scale, decimals(value / scale, 1))}{THIN_SPACE}{unit}"


def power(value: float) -> str:
    """A power of ten as a tick: '1 000', '10⁴'."""
    return count(value) if value < 1e4 else scientific(value).replace("1.0·", "")


def probability(p: float) -> str:
    """'0.0123', '0.42', '< 0.0001'."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.1 else f"{p:.2f}"


def seconds(value: float | None) -> str:
    """A measured time to three significant digits: 0.0003215 is '322 µs'."""
    return _with_unit(value, TIME_UNITS)


def plain_seconds(value: float | None) -> str:
    """Like `seconds`, with normal spaces, for a terminal or Markdown."""
    return unbroken(seconds(value))


def unbroken(text: str) -> str:
    """The text without thin spaces, at which a terminal would break the line."""
    grouped = re.sub(f"(?<=[0-9]){THIN_SPACE}(?=[0-9])", "", text)
    return grouped.replace(THIN_SPACE, " ")


def size(value: float | None) -> str:
    """Bytes in powers of 1024: 641728512 is '612 MiB'."""
    return _with_unit(value, BYTE_UNITS)


def count(value: float | None) -> str:
    """A count, from a thousand on to three significant digits: 1243 is '1 240'."""
    if not known(value):
        return ABSENT
    if abs(value) >= 1e7:
        return _power_of_ten(value, 2)
    return plain(value) if abs(value) >= 1000 else f"{value:.0f}"


def calls(value: int | str | None) -> str:
    """A break-even count, which may be the word 'never'."""
    return value if isinstance(value, str) else count(value)


def scientific(value: float | None) -> str:
    """A relative error: 3.2e-07 is '3.2·10⁻⁷'."""
    if not known(value):
        return ABSENT
    return _power_of_ten(value, 1) if value else "0"


def _power_of_ten(value: float, places: int) -> str:
    mantissa, exponent = f"{value:.{places}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{raised}"


def percent(fraction: float) -> str:
    """A share or a confidence: 0.95 is '95 %'."""
    return f"{fraction * 100:.3g}{THIN_SPACE}%"


def interval(estimate: Estimate, units: Units | None = TIME_UNITS) -> tuple[str, str]:
    """('213 ms', '[209, 218]'): the ends with the unit and decimal places of the median.

    Up to two places are added if otherwise both ends would equal the median.
    """
    scale, name = unit_of(estimate.median, units) if units else (1.0, "")
    ends = [estimate.low, estimate.high] if has_interval(estimate) else []
    values = [value / scale for value in (estimate.median, *ends)]
    places = decimals(values[0])
    tried = [[_at(value, places + extra) for value in values] for extra in range(3)]
    texts = next((some for some in tried if len(set(some)) > 1), tried[0])
    median = f"{texts[0]}{THIN_SPACE}{name}" if name else texts[0]
    return median, f"[{texts[1]}, {texts[2]}]" if ends else ""


def _at(value: float, places: int) -> str:
    """At least two significant digits of a small value, three of one above a thousand."""
    if places == 0 and abs(value) >= 1000:
        return plain(value)
    return plain(value, max(places, decimals(value, 2)))


def estimate(value: Estimate | None) -> str:
    """'213 ms [209, 218]'."""
    if value is None or not known(value.median):
        return ABSENT
    return " ".join(part for part in interval(value, TIME_UNITS) if part)


def duration(value: float | None) -> str:
    """A single duration: '12 ms', '12.3 s', '12 min 34 s', with at most three digits."""
    if value is None:
        return "unknown"
    if value < 0:
        return "−" + duration(-value)
    if value < 0.0005:
        return f"{value * 1e6:.0f} µs" if value else "0 s"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms" if value >= 0.00995 else f"{value * 1e3:.1f} ms"
    if value < 120:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """'1 compile', '2 compiles'."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def listed(words: Iterable[str], most: int = 6) -> str:
    """`a, b, c and 4 more`."""
    every = list(words)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
