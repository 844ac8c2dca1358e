"""Numbers and lists in words."""

from __future__ import annotations

from collections.abc import Iterable


def seconds(value: float | None) -> str:
    """Three digits at most: 0.0123 is '12 ms', 12.34 is '12.3 s', 754 is '12 min 34 s'."""
    if value is None:
        return "unknown"
    if value < 0:
        return "−" + seconds(-value)
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
