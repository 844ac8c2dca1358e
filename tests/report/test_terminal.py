from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from firstlight.present.progress import Progress
from firstlight.records import Run, load_run
from firstlight.report.terminal import print_run, print_system

RUN = Path(__file__).parent.parent / "fixtures" / "run-1.json"


def text_of(run: Run, width: int = 150) -> str:
    out = io.StringIO()
    print_run(run, Console(file=out, width=width))
    return out.getvalue()


def test_every_number_of_an_ok_case_is_in_the_table() -> None:
    run = load_run(RUN)
    case = next(c for c in run.cases if c.status == "ok" and c.cold_seconds)
    text = text_of(replace(run, cases=(case,)))
    assert case.backend in text and "first result" in text and case.cold_seconds is not None
    seconds = case.cold_seconds.median
    assert (f"{seconds:.2f}" if seconds >= 1 else f"{seconds * 1000:.0f}") in text
    assert "float32" in text and "fresh process" in text  # the protocol goes with the number


def test_without_a_protocol_no_number_is_printed() -> None:
    run = load_run(RUN)
    naked = tuple(replace(c, protocol=None) for c in run.cases)
    table = text_of(replace(run, cases=naked)).split("Median over")[0]
    assert "ms" not in table and "µs" not in table and "MiB" not in table


def test_a_failed_case_shows_its_reason_and_the_end_of_its_output() -> None:
    run = load_run(RUN)
    case = replace(
        run.cases[0],
        status="crashed",
        reason="ended by signal 11",
        stderr_tail="line 1\n[red]not markup[/red]",
        cold_seconds=None,
        warm_call_seconds=None,
    )
    text = text_of(replace(run, cases=(case,)))
    assert "ended by signal 11" in text and "[red]not markup[/red]" in text


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150])
def test_the_table_fits_the_terminal(width: int) -> None:
    assert max(map(len, text_of(load_run(RUN), width).splitlines())) <= width


def test_system_prints_nested_facts() -> None:
    out = io.StringIO()
    host = {"cpu": {"model": "[bold]X[/bold]"}, "memory_bytes": 1 << 30, "gpus": []}
    print_system({"version": "1"}, host, ["it is loud"], Console(file=out, width=100))
    text = out.getvalue()
    assert "[bold]X[/bold]" in text and "GiB" in text and "Note: it is loud." in text


class Named:
    def __init__(self, name: str) -> None:
        self.id = name


def test_the_remaining_time_is_what_each_case_took_last() -> None:
    ticks = iter([0.0, 0.0, 10.0, 12.0, 22.0])
    out = io.StringIO()
    progress = Progress(out, clock=lambda: next(ticks))
    a, b = Named("a"), Named("b")
    jobs = [(a, "check", 0), (b, "check", 0), (a, "timed", 0), (b, "timed", 0)]
    for number in range(4):
        progress.before(number, jobs)
    lines = out.getvalue().splitlines()
    assert lines[0] == "[1/4] checking a"
    assert lines[1] == "[2/4] checking b, 30 s left"  # a took 10, and b is taken to be like it
    assert lines[2] == "[3/4] timing a, 12 s left"  # 10 for a, 2 for b
    assert lines[3] == "[4/4] timing b, 2 s left"
