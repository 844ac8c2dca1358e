"""Two traces compared: what is new, gone, slower, compiled more often."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import trace_samples as samples
from rich.console import Console

from firstlight.trace.read.model import SourceLine
from firstlight.trace.show.diff import compare, print_comparison


def statuses(before: list[object], after: list[object]) -> dict[str, str]:
    found = compare(samples.trace(*before), samples.trace(*after))  # type: ignore[arg-type]
    return {change.name: change.status for change in found.functions}


def taking(name: str, seconds: float, **changes: object) -> object:
    return samples.function(name, samples.compiled(name, took=(0.0, 0.0, seconds)), **changes)


def test_functions_are_new_gone_slower_faster_or_the_same() -> None:
    before = [taking("same", 1.0), taking("slow", 1.0), taking("fast", 1.0), taking("gone", 1.0)]
    after = [taking("same", 1.1), taking("slow", 1.4), taking("fast", 0.5), taking("new", 0.1)]
    assert statuses(before, after) == {
        "same": "same",
        "slow": "slower",
        "fast": "faster",
        "gone": "gone",
        "new": "new",
    }


@pytest.mark.parametrize(("before", "after"), [(0.01, 0.05), (10.0, 12.0)])
def test_a_difference_within_the_noise_is_not_reported(before: float, after: float) -> None:
    """Five times ten milliseconds, or a fifth of ten seconds: noise in a single run."""
    assert statuses([taking("f", before)], [taking("f", after)]) == {"f": "same"}


def test_a_function_that_compiles_more_often_comes_with_the_reasons() -> None:
    before = samples.trace(samples.function("step"))
    after = samples.trace(samples.function("step", samples.compiled(), samples.again(2.0, (9, 4))))
    (change,) = compare(before, after).functions
    assert change.status == "recompiled more"
    assert (change.compiles, change.reasons) == ((1, 2), {"shape": 1})
    (back,) = compare(after, before).functions
    assert back.status == "recompiled less" and back.reasons == {}


def test_a_function_is_the_same_after_its_file_moved() -> None:
    moved = taking("f", 1.0, place=SourceLine("/elsewhere/train.py", 99))
    assert statuses([taking("f", 1.0)], [moved]) == {"f": "same"}


def test_lambdas_are_told_apart_by_their_lines() -> None:
    two = [taking("<lambda>", 1.0, line=3), taking("<lambda>", 1.0, line=9)]
    found = compare(samples.trace(*two), samples.trace(two[0]))  # type: ignore[arg-type]
    assert sorted(change.status for change in found.functions) == ["gone", "same"]


def test_the_worst_comes_first_and_totals_and_versions_are_there() -> None:
    before = samples.trace(taking("a", 1.0), taking("b", 1.0))  # type: ignore[arg-type]
    after = samples.trace(
        taking("a", 2.0),  # type: ignore[arg-type]
        taking("b", 4.0),  # type: ignore[arg-type]
        processes=(samples.process(jax_version="0.11.2"),),
        findings=(),
        time_to_first_result_seconds=5.0,
    )
    found = compare(before, after)
    assert [change.name for change in found.functions] == ["b", "a"]
    assert found.versions["JAX"] == ("0.10.2", "0.11.2")
    assert found.compiling_seconds == (2.0, 6.0)
    assert found.time_to_first_result_seconds == (1.75, 5.0)
    assert found.findings == {"shapes": (1, 0)}


def test_control_characters_are_neutralised_on_the_terminal() -> None:
    odd = taking("f\x1b[31m", 1.0)
    text = io.StringIO()
    console = Console(file=text, width=120, highlight=False)
    print_comparison(compare(samples.trace(), samples.trace(odd)), True, console)  # type: ignore[arg-type]
    assert "\x1b" not in text.getvalue() and "new" in text.getvalue()


def test_the_programs_of_both_sides_are_compared(tmp_path: Path) -> None:
    from firstlight.trace.show.diff import _programs

    program = (
        "HloModule jit_f, entry_computation_layout={(f32[])->f32[]}\n\n"
        "ENTRY %main.1 (x.1: f32[]) -> f32[] {\n"
        "  %x.1 = f32[] parameter(0)\n"
        "  ROOT %{kind}.2 = f32[] {kind}(%x.1)\n"
        "}\n"
    )
    for side, kind in (("a", "sine"), ("b", "cosine")):
        (tmp_path / side).mkdir()
        for name, which in (("jit_f", kind), ("jit_g", "tanh")):
            path = tmp_path / side / f"module_0001.{name}.cpu_after_optimizations.txt"
            path.write_text(program.replace("{kind}", which).replace("jit_f", name))
    (only,) = _programs(tmp_path / "a", tmp_path / "b")
    assert (only["name"], only["status"]) == ("jit_f", "changed")
    assert "sine" in only["diff"] and only["by_kind"] == {"cosine": (0, 1), "sine": (1, 0)}
