"""The verdict depends neither on the load of the machine nor on how JAX is set up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import trace_samples as samples
from trace_samples import compiled, function, process

from firstlight.trace.findings import find
from firstlight.trace.findings.caching import cache_findings
from firstlight.trace.read.model import (
    CacheUse,
    Finding,
    ImportedPackage,
    Reason,
    SourceLine,
    Span,
    Thread,
    Trace,
    Wait,
)
from firstlight.trace.show.cell import as_text
from firstlight.trace.show.verdict import headline, nothing_found

OFF, HIT = CacheUse("off", None, False), CacheUse("hit", None, False)


def slower(value: Any, factor: float, name: str = "") -> Any:
    """The same trace on a machine that is slower by a factor."""
    if is_dataclass(value) and not isinstance(value, type):
        told = {f.name: slower(getattr(value, f.name), factor, f.name) for f in fields(value)}
        return replace(value, **told)
    if isinstance(value, dict):
        return {k: slower(v, factor, name) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(slower(v, factor, name) for v in value)
    return value * factor if "seconds" in name and isinstance(value, float) else value


def programs() -> Iterator[Trace]:
    """Compiles of several lengths, above and below the thresholds."""
    for took in (0.05, 0.15, 0.6, 2.0, 8.0):
        for status in (OFF, CacheUse("miss", "below threshold", False), HIT):
            step = compiled("step", took=(0.1 * took, 0.1 * took, took), cache=status)
            late = replace(step, begin_seconds=3.1, end_seconds=3.2, before_first_result=False)
            again = replace(late, recompile_reason=Reason.SHAPE)
            op = function("iota", replace(step, name="iota"), library=True)
            plots = ImportedPackage(
                "plots", took, took, 9, 0.2, None, SourceLine(samples.TRAIN, 3), took
            )
            jax = ImportedPackage("jax", 0.6, 0.8, 300, 0.1)
            line, waited = SourceLine(samples.TRAIN, 50), 0.03 * took
            wait = Wait(line, line, 30, waited, 1.8, 1.8 + 2 * waited)
            run = process(imports=(jax, plots), waits=(wait,))
            short = function(
                "short", compiled(), samples.again(2.0, (9, 4), took=(0.0, 0.0, 0.01 * took))
            )
            functions = (function("step", step, again), short, op)
            yield samples.trace(*functions, processes=(run,))


def kinds(trace: Trace) -> list[str]:
    return [finding.kind for finding in find(trace)]


@pytest.mark.parametrize("factor", (0.2, 3.0, 20.0))
def test_a_machine_that_takes_longer_for_everything_has_the_same_verdict(factor: float) -> None:
    every = list(programs())
    told = [kinds(trace) for trace in every]
    at_times = ("cache-off", "expensive-import", "synchronisation")
    assert [kind for kind in at_times if all(kind in t for t in told)] == []
    assert {*at_times, "late-stall"} <= {kind for t in told for kind in t}
    assert all("shape-recompiles" in t for t in told)
    assert [kinds(slower(trace, factor)) for trace in every] == told


def without_cache(*compiles: Any, **changes: Any) -> Trace:
    trace = samples.trace(function("step", *compiles), **changes)
    return replace(trace, findings=find(trace))


def test_a_missing_cache_is_reported_once_after_all_other_findings() -> None:
    trace = without_cache(
        compiled(took=(0.1, 0.0, 3.0), cache=OFF),
        samples.again(2.0, (9, 4), took=(0.1, 0.0, 3.0), cache=OFF),
    )
    assert [(f.kind, f.apart) for f in trace.findings][-1] == ("cache-off", True)
    assert [f.apart for f in trace.findings].count(True) == 1
    # It costs most, but comes last.
    assert trace.findings[-1].seconds == max(f.seconds for f in trace.findings)
    assert headline(trace).endswith(" 1 thing to improve:")


def test_if_only_the_cache_is_missing_nothing_is_found_in_the_program() -> None:
    one = compiled(took=(0.1, 0.05, 0.9), cache=OFF)
    other = compiled("other", took=(0.1, 0.05, 0.9), cache=OFF)
    trace = samples.trace(function("step", one), function("other", other, line=3))
    trace = replace(trace, findings=find(trace))
    assert [f.kind for f in trace.findings] == ["cache-off"]
    assert "2 programs are compiled at every start" in trace.findings[0].title
    assert nothing_found(trace).startswith("Nothing found in the program itself")
    assert "to improve" not in headline(trace)
    assert "There is no persistent cache" in as_text(trace)


def only(trace: Trace) -> Finding:
    (one,) = cache_findings(trace)
    return one


def test_the_first_result_with_a_cache_is_estimated_without_xla() -> None:
    """First result at 1.75 s, XLA from 1.15 to 1.55 s: 1.35 s remain."""
    slow = compiled(took=(0.1, 0.05, 3.0), cache=OFF)
    found = only(samples.trace(function("step", slow)))
    assert found.evidence["first_result_with_cache_seconds"] == pytest.approx(1.35)
    assert "after about 1.35 s instead of 1.75 s" in found.remedy
    assert "1 program is compiled" in found.title


def test_compiles_in_threads_are_subtracted_only_while_the_main_thread_is_idle() -> None:
    """0.5 to 0.9 s the main thread imports; from 1.55 s on it waits for the thread."""
    beside = Thread(7, "pool", (Span("compile", 0.5, 0.8, "f"), Span("compile", 1.5, 1.7, "g")))
    slow = compiled(took=(0.1, 0.05, 3.0), cache=OFF)
    found = only(samples.trace(function("step", slow), processes=(process(threads=(beside,)),)))
    assert found.evidence["first_result_with_cache_seconds"] == pytest.approx(1.75 - 0.55)


def test_programs_that_were_found_in_the_cache_are_not_called_compiled() -> None:
    hits = [function(f"f{n}", compiled(cache=HIT), line=n) for n in range(5)]
    every = replace(samples.trace(*hits), findings=())
    assert "5 programs found in the persistent cache, none compiled, in" in headline(every)
    some = samples.trace(*hits, function("g", compiled()))
    assert "1 program compiled and 5 programs found in the persistent cache" in headline(some)


def test_with_a_gap_in_the_log_nothing_is_claimed_about_the_gap() -> None:
    why = "the log breaks off within a line, as on a full disk"
    gone = process(jax_version=None, first_result_seconds=None, wall_seconds=None, incomplete=why)
    empty = Trace((gone,), (), (), None, 0, 0)
    assert headline(empty) == f"Nothing is known of JAX in this program: {why}."
    assert nothing_found(empty) == ""
    some = samples.trace(processes=(process(incomplete=why, unfinished="step"),))
    assert f"There may be more: {why}." in headline(some)
    assert "ended while" not in headline(some)
