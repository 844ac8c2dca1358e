"""Why a case is slower: programs of two compilers without noise, functions, phases."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from firstlight.compare.hlo import Program, changes, instruction_counts, normalise, programs_in
from firstlight.gate import explain as explaining
from firstlight.gate.explain import explain, function_changes, moved_phases
from firstlight.gate.measuring import PairedCase
from firstlight.gate.sides import Side
from firstlight.measure.case_selection import SAMPLING
from firstlight.measure.user_file import cases_in
from firstlight.records import Estimate
from firstlight.statistics.effects import Effect
from firstlight.workloads.catalog import registered

sys.path.insert(0, str(Path(__file__).parent))
from test_outputs import comparison, report  # type: ignore[import-not-found]

BASE = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8,16]{1,0})->f32[8]{0}}

FileNames
1 "/home/a/f.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%region_0.1 (reduce_sum.3: f32[], reduce_sum.4: f32[]) -> f32[] {
  %reduce_sum.3 = f32[] parameter(0), metadata={op_name="reduce_sum"}
  %reduce_sum.4 = f32[] parameter(1), metadata={op_name="reduce_sum"}
  ROOT %reduce_sum.5 = f32[] add(%reduce_sum.3, %reduce_sum.4), metadata={op_name="{\\"x\\"}" id=2}
}

ENTRY %main.2 (x.1: f32[8,16]) -> f32[8] {
  %x.1 = f32[8,16]{1,0} parameter(0), metadata={op_name="x"}
  %constant.7 = f32[] constant(0)
  %t = (f32[8]{0}, /*index=1*/s32[]) tuple(%x.1, %constant.7), backend_config={"b":[],"a":{"k":1}}
  ROOT %sum.9 = f32[8]{0} reduce(%x.1, %constant.7), dimensions={1}, to_apply=%region_0.1
}
"""

#: The same program after an upgrade: other numbers, names, places and orders of keys.
SAME = (
    BASE.replace("jit_f,", "jit_f.12,")
    .replace("region_0.1", "region_4.33")
    .replace("reduce_sum.3", "add.101")
    .replace("reduce_sum.4", "add.102")
    .replace("x.1", "arg0.5")
    .replace("constant.7", "c0")
    .replace("/home/a/f.py", "/other/place/g.py")
    .replace('metadata={op_name="x"}', 'metadata={op_name="y" stack_frame_id=77}')
    .replace('{"b":[],"a":{"k":1}}', '{"a":{"k":1}}')
    .replace("/*index=1*/", "")
    .replace("%main.2", "%main.8")
)


def test_what_is_only_a_name_is_no_difference() -> None:
    assert BASE != SAME
    assert normalise(BASE) == normalise(SAME)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("add(%reduce_sum.3, %reduce_sum.4)", "multiply(%reduce_sum.3, %reduce_sum.4)"),
        ("add(%reduce_sum.3, %reduce_sum.4)", "add(%reduce_sum.4, %reduce_sum.3)"),
        ("constant(0)", "constant(1)"),
        ("dimensions={1}", "dimensions={0}"),
        ('parameter(0), metadata={op_name="x"}', "parameter(1)"),
        ('"a":{"k":1}', '"a":{"k":2}'),
        ("f32[8,16]{1,0} parameter", "f32[8,16]{0,1} parameter"),
    ],
)
def test_what_the_program_does_is_a_difference(was: str, now: str) -> None:
    assert was in BASE
    assert normalise(BASE) != normalise(BASE.replace(was, now))


def test_instructions_are_counted_by_kind() -> None:
    assert instruction_counts(BASE) == {
        "parameter": 3,
        "add": 1,
        "constant": 1,
        "tuple": 1,
        "reduce": 1,
    }
    assert instruction_counts(normalise(BASE)) == instruction_counts(BASE)


def test_functions_are_paired_by_name_and_turn() -> None:
    other = BASE.replace("constant(0)", "constant(1)")
    more = BASE.replace("add(%reduce_sum.3", "multiply(%reduce_sum.3")
    found = changes(
        [Program("jit_f", BASE), Program("jit_f", other), Program("jit_old", BASE)],
        [Program("jit_f", SAME), Program("jit_f", more), Program("jit_new", BASE)],
    )
    assert [(c.name, c.status) for c in found] == [
        ("jit_f", "same"),
        ("jit_f", "changed"),
        ("jit_old", "only in base"),
        ("jit_new", "only in head"),
    ]
    assert found[0].diff == "" and found[0].instructions == {}
    assert found[1].instructions == {"add": (1, 0), "multiply": (0, 1)}
    assert "-  ROOT %add = f32[] add(%p0, %p1)" in found[1].diff.splitlines()
    assert found[2].total == (7, 0)


def test_dumps_are_read_in_the_order_of_compilation_on_any_platform(tmp_path: Path) -> None:
    for name in (
        "module_0010.jit_g.sm_9.0_gpu_after_optimizations.txt",
        "module_0002.jit_f.cpu_after_optimizations.txt",
        "module_0011.jit_f.cpu_after_optimizations.txt",  # the same once more
    ):
        (tmp_path / name).write_text(BASE)
    for name in (
        "module_0002.jit_f.before_optimizations.txt",
        "module_0002.jit_f.cpu_after_optimizations-buffer-assignment.txt",
        "module_0002.jit_f.obj-file.x.o",
    ):
        (tmp_path / name).write_text("noise")
    assert [p.name for p in programs_in(tmp_path)] == ["jit_f", "jit_g"]


def test_a_function_that_is_compiled_more_often_or_longer_comes_first() -> None:
    def process(*steps: tuple[str, str, float]) -> list[dict[str, object]]:
        return [{"function": f, "phase": p, "seconds": s} for f, p, s in steps]

    base = process(("f", "trace", 0.1), ("jit(f)", "compile", 1.0), ("jit(g)", "compile", 0.2))
    head = process(
        ("f", "trace", 0.1),
        ("jit(f)", "compile", 1.0),
        ("jit(f)", "compile", 0.5),
        ("jit(g)", "compile", 0.3),
    )
    found = function_changes({"base": [base] * 3, "head": [head] * 3})
    assert [(f.function, f.phase) for f in found[:2]] == [("f", "compile"), ("g", "compile")]
    assert (found[0].base_seconds, found[0].head_seconds) == (1.0, 1.5)
    assert (found[0].base_times, found[0].head_times) == (1, 2)


def test_phases_that_account_for_the_shift_are_listed_largest_first() -> None:
    def quantity(name: str, base: float, head: float) -> object:
        return comparison(
            "a",
            quantity=name,
            base=Estimate(base, base, base, 12, 0.95),
            head=Estimate(head, head, head, 12, 0.95),
            effect=Effect(head / base, head / base, head / base, 0.95, 0.001, 12, True),
        )

    found = report(
        quantity("cold_seconds", 2.0, 3.0),
        quantity("import", 1.0, 1.01),
        quantity("trace", 0.2, 0.4),
        quantity("compile", 0.5, 1.3),
    )
    assert [c.quantity for c in moved_phases(found, "a")] == ["compile", "trace"]


def test_equations_inside_loops_and_inner_functions_are_counted() -> None:
    """By hand: scan + (mul, add) is 3; twice an inner jit with one mul, and an add, is 5."""
    import jax

    from firstlight.measure.adapters.jax import count_equations

    def loop(x: float) -> object:
        return jax.lax.scan(lambda c, _: (c * 2.0 + 1.0, None), x, None, length=3)[0]

    inner = jax.jit(lambda x: x * 2.0)
    assert count_equations(jax.make_jaxpr(loop)(1.0), {}) == 3
    assert count_equations(jax.make_jaxpr(lambda x: inner(x) + inner(x))(1.0), {}) == 5


@pytest.mark.slow
def test_a_program_that_grew_is_found_in_real_compilations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders with one file each; the head's function does more, `stays` is moved by a line."""
    text = (
        "import jax, jax.numpy as jnp\n"
        "from firstlight import bench\n"
        "MORE"
        "@jax.jit\n"
        "def stays(x): return jnp.cos(x)\n"
        "@jax.jit\n"
        "def grows(x): return BODY\n"
        "@bench(backend='jax')\n"
        "def both(): return (lambda x: grows(stays(x))), (jax.device_put(2.0),)\n"
    )
    backends, _ = registered()
    found, sides = {}, []
    for name, more, body in (
        ("base", "", "jnp.sin(x)"),
        ("head", "# a line more\n", "jnp.sin(x) + jnp.exp(x) * jnp.tanh(x)"),
    ):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "bench_both.py"
        file.write_text(text.replace("MORE", more).replace("BODY", body))
        [found[name]] = cases_in(file, backends, None, None)
        sides.append(Side(name, sys.executable))
    monkeypatch.setattr(explaining, "_PROCESSES", 1)
    pair = PairedCase(found["base"], found["head"])
    settings = replace(SAMPLING["quick"], timeout_seconds=120.0)
    explanation = explain(
        report(comparison(pair.id)), pair, settings, (sides[0], sides[1]), tmp_path / "explain"
    )
    assert explanation.problem is None
    status = {p.name: p.status for p in explanation.programs}
    assert status["jit_stays"] == "same" and status["jit_grows"] == "changed"
    [grows] = [p for p in explanation.programs if p.name == "jit_grows"]
    assert grows.instructions["tanh"] == (0, 1)
    assert {f.phase for f in explanation.functions if f.function == "grows"} == {
        "trace",
        "lower",
        "compile",
    }
    diffs = list((tmp_path / "explain").rglob("*jit_grows.diff"))
    assert len(diffs) == 1 and "tanh" in diffs[0].read_text()
    assert not list((tmp_path / "explain").rglob("*jit_stays.diff"))
