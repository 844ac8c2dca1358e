"""Kinds of time: their names and colours, and the seconds of each up to a moment."""

from __future__ import annotations

from collections.abc import Iterable

from firstlight.trace.read.model import Process, Span, Trace

#: kind of a span: (name, class of the palette, style on a terminal, sign without colours)
LOOKS = {
    "interpreter": ("Python starts", "p-interpreter", "white", "·"),
    "import": ("imports", "p-import", "bright_black", "i"),
    "backend": ("backend starts", "p-backend_init", "cyan", "b"),
    "trace": ("tracing", "p-trace", "bright_magenta", "t"),
    "lower": ("lowering", "p-lower", "magenta", "l"),
    "compile": ("compiling", "p-compile", "blue", "C"),
    "wait": ("waiting for results", "p-first_execute", "yellow", "w"),
    "rest": ("everything else", "p-setup", "green", "-"),
    "exit": ("Python ends", "p-later", "white", "x"),
}


def sums(spans: Iterable[Span], moment: float | None = None) -> dict[str, float]:
    """Seconds by kind up to a moment (None: to the end); all kinds are present."""
    found = dict.fromkeys(LOOKS, 0.0)
    for span in spans:
        end = span.end_seconds if moment is None else min(span.end_seconds, moment)
        found[span.kind] = found.get(span.kind, 0.0) + max(0.0, end - span.begin_seconds)
    return found


def until(process: Process, moment: float | None) -> dict[str, float]:
    """Seconds by kind of the main thread, up to a moment (None: to its end)."""
    return _present(process.timeline, moment)


def in_other_threads(process: Process, moment: float | None) -> dict[str, float]:
    """Seconds by kind of all other threads together, up to a moment (None: to their end)."""
    return _present((span for thread in process.threads for span in thread.timeline), moment)


def _present(spans: Iterable[Span], moment: float | None) -> dict[str, float]:
    return {kind: seconds for kind, seconds in sums(spans, moment).items() if seconds > 0}


def lanes(process: Process) -> tuple[tuple[Span, ...], ...]:
    """The timeline of each thread, the main one first."""
    return process.timeline, *(thread.timeline for thread in process.threads)


def compiling_waited_for(process: Process, moment: float) -> float:
    """Seconds up to a moment in which some thread compiled and the main one did nothing else."""
    busy = [s for s in process.timeline if s.kind not in ("compile", "rest", "wait")]
    compiling = [s for lane in lanes(process) for s in lane if s.kind == "compile"]
    return _covered([*busy, *compiling], moment) - _covered(busy, moment)


def _covered(spans: Iterable[Span], moment: float) -> float:
    """Seconds up to a moment that are covered by any of the spans."""
    covered = reached = 0.0
    for span in sorted(spans, key=lambda s: s.begin_seconds):
        end = min(span.end_seconds, moment)
        covered += max(0.0, end - max(reached, span.begin_seconds))
        reached = max(reached, end)
    return covered


def leading(trace: Trace) -> Process | None:
    """The process with the first result; if there is none, the longest one."""
    with_result = [p for p in trace.processes if p.first_result_seconds is not None]
    if with_result:
        return min(with_result, key=lambda p: p.first_result_seconds or 0.0)
    return max(trace.processes, key=lambda p: sum(p.phases_seconds.values()), default=None)


def name_of(kind: str) -> str:
    return LOOKS[kind][0] if kind in LOOKS else kind


def class_of(kind: str) -> str:
    """The CSS class that colours a kind."""
    return LOOKS[kind][1] if kind in LOOKS else "p-later"
