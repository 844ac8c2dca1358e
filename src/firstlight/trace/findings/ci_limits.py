"""Limits on what a program may compile, for CI: which are exceeded, and by what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from firstlight.errors import FirstlightError
from firstlight.present.quantities import counted, duration
from firstlight.trace.read import phases
from firstlight.trace.read.model import Compile, Function, Trace
from firstlight.trace.wording import compile_line, function_line

_Pair = tuple[Function, Compile]
_MAX_OFFENDERS = 10
_MAX_PHASES = 4


class LimitError(FirstlightError):
    """The value of a limit is not valid."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run; None: no limit."""

    max_compiles: int | None = None
    max_recompiles: int | None = None
    max_ttfr_seconds: float | None = None
    forbid_compile_after_seconds: float | None = None
    forbid_compile_after_results: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and 0 <= value < inf):
                raise LimitError(f"{name}: {value!r} is not a limit; give a number, 0 or more.")
            if not name.endswith("_seconds") and value != int(value):
                raise LimitError(f"{name}: {value!r} is not a limit; give a whole number.")

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


@dataclass(frozen=True)
class Excess:
    """A limit that is exceeded."""

    limit: str
    allowed: float
    found: float | None  # None: unknown
    sentence: str
    offenders: tuple[str, ...] = ()


def after(text: str) -> dict[str, float | int]:
    """The `Limits` field for `30s` or `2min` after the start of the process, or `100` results."""
    units = (("ms", 1e-3), ("min", 60.0), ("s", 1.0))
    ending, unit = next(((e, u) for e, u in units if text.endswith(e)), ("", 0.0))
    try:
        value = float(text.removesuffix(ending))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise LimitError(
            f"{text!r} is not a moment: give seconds (30s) or a number of results (100)."
        )
    if unit:
        return {"forbid_compile_after_seconds": value * unit}
    if value != int(value):
        raise LimitError(f"{text!r}: give a whole number of results, or seconds: {text}s.")
    return {"forbid_compile_after_results": int(value)}


def exceeded(trace: Trace, limits: Limits) -> tuple[Excess, ...]:
    """All limits that are exceeded, or cannot be checked."""
    checks = (_incomplete, _counts, _first_result, _late)
    return tuple(excess for check in checks for excess in check(trace, limits))


def _incomplete(trace: Trace, limits: Limits) -> Iterator[Excess]:
    """With an incomplete log, no limit on compiles can be checked."""
    why = next((p.incomplete for p in trace.processes if p.incomplete), None)
    checked = (
        ("max-compiles", limits.max_compiles),
        ("max-recompiles", limits.max_recompiles),
        ("forbid-compile-after", limits.forbid_compile_after_seconds),
        ("forbid-compile-after", limits.forbid_compile_after_results),
    )
    given = [(name, allowed) for name, allowed in checked if allowed is not None]
    if why and given:
        yield Excess(*given[0], None, f"compiles may be missing: {why}")


def _counts(trace: Trace, limits: Limits) -> Iterator[Excess]:
    allowed, found = limits.max_compiles, trace.compile_count
    if allowed is not None and found > allowed:
        counts = [(sum(c.compiled for c in f.compiles), f) for f in trace.functions]
        often = sorted(counts, key=lambda pair: (-pair[0], -pair[1].seconds))
        sentence = f"{counted(found, 'compile')}, {allowed} allowed"
        offenders = _cut([function_line(f) for count, f in often if count])
        yield Excess("max-compiles", allowed, found, sentence, offenders)
    allowed, found = limits.max_recompiles, trace.recompiles
    if allowed is not None and found > allowed:
        again = [
            compile_line(f, c)
            for f in sorted(trace.functions, key=lambda f: -f.recompiles)
            for c in f.compiles
            if c.recompile_reason is not None and not f.library
        ]
        sentence = f"{counted(found, 'recompile')}, {allowed} allowed"
        yield Excess("max-recompiles", allowed, found, sentence, _cut(again))


def _first_result(trace: Trace, limits: Limits) -> Iterator[Excess]:
    """Offenders are the phases until then and the compiles in it, the longest first."""
    allowed, found = limits.max_ttfr_seconds, trace.time_to_first_result_seconds
    process = phases.leading(trace)
    if allowed is None or (found is not None and found <= allowed):
        return
    if found is None or process is None:
        yield Excess("max-ttfr", allowed, None, "no first result was seen")
        return
    by_kind = phases.until(process, process.first_result_seconds)
    spent = sorted(by_kind.items(), key=lambda item: -item[1])[:_MAX_PHASES]
    early = [
        (f, c) for f, c in _compiled(trace) if c.process == process.number and c.before_first_result
    ]
    early.sort(key=lambda pair: -pair[1].seconds)
    offenders = [f"{phases.name_of(kind)}: {duration(value)}" for kind, value in spent]
    offenders += [compile_line(f, c) for f, c in early]
    sentence = f"first result after {duration(found)}, {duration(allowed)} allowed"
    yield Excess("max-ttfr", allowed, found, sentence, _cut(offenders))


def _late(trace: Trace, limits: Limits) -> Iterator[Excess]:
    compiled = sorted(_compiled(trace), key=lambda pair: pair[1].begin_seconds)
    seconds, results = limits.forbid_compile_after_seconds, limits.forbid_compile_after_results
    if seconds is not None:
        starts = [p.starts_at_seconds for p in trace.processes]
        late = [(f, c) for f, c in compiled if c.begin_seconds - starts[c.process] > seconds]
        yield from _late_excess(seconds, late, f"after {duration(seconds)}")
    if results is not None and any(c.results_before is None for _, c in compiled):
        sentence = "the log does not say how many results had been read at each compile"
        yield Excess("forbid-compile-after", results, None, sentence)
    elif results is not None:
        late = [(f, c) for f, c in compiled if (c.results_before or 0) >= results]
        yield from _late_excess(results, late, f"after {counted(results, 'result')} had been read")


def _late_excess(moment: float, late: Sequence[_Pair], when: str) -> Iterator[Excess]:
    if late:
        sentence = f"{counted(len(late), 'compile')} {when}, none allowed"
        offenders = _cut([compile_line(f, c) for f, c in late])
        yield Excess("forbid-compile-after", moment, len(late), sentence, offenders)


def _compiled(trace: Trace) -> list[_Pair]:
    return [(f, c) for f in trace.functions for c in f.compiles if c.compiled]


def _cut(lines: Sequence[str]) -> tuple[str, ...]:
    more = len(lines) - _MAX_OFFENDERS
    return (*lines[:_MAX_OFFENDERS], *([f"and {more} more"] if more > 0 else []))
