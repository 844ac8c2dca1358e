"""Limits on what a program may compile, for CI: what exceeds them, with its offenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from firstlight.errors import FirstlightError
from firstlight.present.quantities import counted, duration
from firstlight.trace.read import phases
from firstlight.trace.read.model import Compile, Function, Trace
from firstlight.trace.wording import compile_line, function_line

_MOST_OFFENDERS = 10
_MOST_PHASES = 4


class LimitError(FirstlightError):
    """A limit that cannot be one."""


@dataclass(frozen=True)
class Limits:
    """What is allowed; None: anything."""

    max_compiles: int | None = None
    max_recompiles: int | None = None
    max_ttfr_seconds: float | None = None
    forbid_compile_after_seconds: float | None = None
    forbid_compile_after_results: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            whole = not name.endswith("_seconds")  # a count
            if value is not None and not (number and 0 <= value < inf):
                raise LimitError(f"{name}: {value!r} is not a limit; give a number, 0 or more.")
            if value is not None and whole and value != int(value):
                raise LimitError(f"{name}: {value!r} is not a limit; give a whole number.")

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


@dataclass(frozen=True)
class Excess:
    """A limit that does not hold."""

    limit: str
    allowed: float
    found: float | None  # None: it cannot be told
    sentence: str
    offenders: tuple[str, ...]


def after(text: str) -> dict[str, float | int]:
    """`30s` or `2min` from the start of the process; `100`: once so many results have been read."""
    for ending, unit in (("ms", 1e-3), ("min", 60.0), ("s", 1.0)):
        number = text.removesuffix(ending)
        if number != text:
            return {"forbid_compile_after_seconds": _positive(number, text) * unit}
    value = _positive(text, text)
    if value != int(value):
        raise LimitError(f"{text!r}: a number of results is whole; for seconds write {text}s.")
    return {"forbid_compile_after_results": int(value)}


def _positive(number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise LimitError(
            f"{text!r} is not a time: give seconds (30s) or a number of results (100)."
        )
    return value


def exceeded(trace: Trace, limits: Limits) -> tuple[Excess, ...]:
    """All limits that do not hold. What cannot be told does not hold."""
    found = (
        _cannot_be_told(trace, limits),
        _compiles(trace, limits),
        _recompiles(trace, limits),
        _first_result(trace, limits),
        _late_by_time(trace, limits),
        _late_by_results(trace, limits),
    )
    return tuple(excess for excess in found if excess is not None)


def _cannot_be_told(trace: Trace, limits: Limits) -> Excess | None:
    """Of a log that lacks something, no number of compiles is known to be small enough."""
    why = next((p.incomplete for p in trace.processes if p.incomplete), None)
    for name, allowed in (
        ("max-compiles", limits.max_compiles),
        ("max-recompiles", limits.max_recompiles),
        ("forbid-compile-after", limits.forbid_compile_after_seconds),
        ("forbid-compile-after", limits.forbid_compile_after_results),
    ):
        if why and allowed is not None:
            return Excess(name, allowed, None, f"compiles may be missing: {why}", ())
    return None


def _compiles(trace: Trace, limits: Limits) -> Excess | None:
    allowed = limits.max_compiles
    if allowed is None or trace.compiles <= allowed:
        return None
    often = sorted(trace.functions, key=lambda f: (-_compiled(f), -f.seconds))
    return Excess(
        "max-compiles",
        allowed,
        trace.compiles,
        f"{counted(trace.compiles, 'compile')}, {allowed} allowed",
        _cut([function_line(f) for f in often if _compiled(f)]),
    )


def _recompiles(trace: Trace, limits: Limits) -> Excess | None:
    allowed = limits.max_recompiles
    if allowed is None or trace.recompiles <= allowed:
        return None
    again = [
        compile_line(f, c)
        for f in sorted(trace.functions, key=lambda f: -f.recompiles)
        for c in f.compiles
        if c.recompile_reason is not None and not f.library
    ]
    return Excess(
        "max-recompiles",
        allowed,
        trace.recompiles,
        f"{counted(trace.recompiles, 'recompile')}, {allowed} allowed",
        _cut(again),
    )


def _first_result(trace: Trace, limits: Limits) -> Excess | None:
    allowed, found = limits.max_ttfr_seconds, trace.time_to_first_result_seconds
    if allowed is None or (found is not None and found <= allowed):
        return None
    if found is None:
        return Excess("max-ttfr", allowed, None, "no first result was seen", ())
    sentence = f"first result after {duration(found)}, {duration(allowed)} allowed"
    return Excess("max-ttfr", allowed, found, sentence, _cut(_before_first_result(trace)))


def _before_first_result(trace: Trace) -> list[str]:
    """Where the time until then went, and what was compiled in it, the longest first."""
    process = phases.leading(trace)
    moment = process.first_result_seconds if process else None
    if process is None or moment is None:
        return []
    spent = sorted(phases.until(process, moment).items(), key=lambda item: -item[1])
    compiles = [
        (f, c)
        for f in trace.functions
        for c in f.compiles
        if c.compiled and c.process == process.number and c.before_first_result
    ]
    compiles.sort(key=lambda pair: -pair[1].seconds)
    kinds = [f"{phases.name_of(kind)}: {duration(value)}" for kind, value in spent]
    return [*kinds[:_MOST_PHASES], *(compile_line(f, c) for f, c in compiles)]


def _late_by_time(trace: Trace, limits: Limits) -> Excess | None:
    moment = limits.forbid_compile_after_seconds
    if moment is None:
        return None
    starts = [p.starts_at_seconds for p in trace.processes]
    late = _late(trace, lambda c: c.begin_seconds - starts[c.process] > moment)
    words = f"after {duration(moment)}"
    return _late_excess(moment, late, words) if late else None


def _late_by_results(trace: Trace, limits: Limits) -> Excess | None:
    moment = limits.forbid_compile_after_results
    if moment is None:
        return None
    compiles = [c for f in trace.functions for c in f.compiles if c.compiled]
    if any(c.results_before is None for c in compiles):
        sentence = "the log does not tell how many results had been read at each compile"
        return Excess("forbid-compile-after", moment, None, sentence, ())
    late = _late(trace, lambda c: (c.results_before or 0) >= moment)
    words = f"after {counted(moment, 'result')} had been read"
    return _late_excess(moment, late, words) if late else None


def _late(trace: Trace, is_late: Callable[[Compile], bool]) -> list[tuple[Function, Compile]]:
    return sorted(
        ((f, c) for f in trace.functions for c in f.compiles if c.compiled and is_late(c)),
        key=lambda pair: pair[1].begin_seconds,
    )


def _late_excess(moment: float, late: Sequence[tuple[Function, Compile]], words: str) -> Excess:
    offenders = _cut([compile_line(f, c) for f, c in late])
    sentence = f"{counted(len(late), 'compile')} {words}, none allowed"
    return Excess("forbid-compile-after", moment, len(late), sentence, offenders)


def _compiled(function: Function) -> int:
    return sum(c.compiled for c in function.compiles)


def _cut(lines: Sequence[str]) -> tuple[str, ...]:
    more = len(lines) - _MOST_OFFENDERS
    return (*lines[:_MOST_OFFENDERS], *([f"and {more} more"] if more > 0 else []))
