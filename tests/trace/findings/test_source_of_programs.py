"""Remedies name the line to change: where a value is made, what can be jitted and what cannot."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trace_samples as samples

from firstlight.trace.findings.recompiling import recompiles
from firstlight.trace.findings.source import is_generator, where_made
from firstlight.trace.findings.start_up import one_op_compiles
from firstlight.trace.read.model import Compile, Difference, Function, Reason, SourceLine

Write = Callable[[str, str], Path]

#: The program started long after its file was written.
LATER = math.inf
STARTED_LATER = samples.process(started_at=LATER)

PROGRAM = """
import optax

def step(params, batch, optimizer, rate=0.1):
    return params

def fit(params, optimizer, batches):
    for batch in batches:
        rate = schedule(batch)
        params = step(params, batch, optimizer, rate=rate)  # line 10
    return params

for trial in range(3):
    fit(initial, optax.adam(1e-3), data)  # line 14

def loader(data):
    for one in data:
        yield one  # line 18

def main(config):
    model = prepared(config)

    def improve(model):
        model = better(model)
        return model

    return step(model, None, None)  # line 27

def epoch(state):
    state = step(state, None, None)  # line 30
    return state

def train(seed):
    state = created(seed)  # line 34
    for number in range(9):
        state = epoch(state)
"""


@pytest.fixture
def program(write: Write) -> str:
    return str(write("program.py", PROGRAM))


@pytest.mark.parametrize(
    ("argument", "line"),
    [("rate", 9), ("batch", 8), ("optimizer", 14), ("params", None), ("other", None)],
)
def test_the_line_that_makes_an_argument_is_found(
    program: str, argument: str, line: int | None
) -> None:
    """An assignment, a loop, the only call of the enclosing function."""
    made = where_made(SourceLine(program, 10), "step", argument, LATER)
    assert (made and made.line) == line


def test_a_name_in_an_inner_function_is_a_different_one(program: str) -> None:
    made = where_made(SourceLine(program, 27), "step", "params", LATER)
    assert made is not None and made.line == 21


def test_an_assignment_from_itself_does_not_count(program: str) -> None:
    made = where_made(SourceLine(program, 30), "step", "params", LATER)
    assert made is not None and made.line == 34


def test_without_the_source_no_line_is_given(tmp_path: Path) -> None:
    gone = SourceLine(str(tmp_path / "gone.py"), 10)
    assert where_made(gone, "step", "rate", LATER) is None and not is_generator(gone, LATER)
    (tmp_path / "gone.py").write_text("def f(:")
    assert where_made(gone, "step", "rate", LATER) is None


def test_a_recompile_says_where_the_value_is_made(program: str) -> None:
    again = samples.again(
        2.0,
        (9, 4),
        user_site=SourceLine(program, 10, "fit"),
        recompile_reason=Reason.WEAK,
        recompile_differences=(Difference(Reason.WEAK, "rate", "f32[]", "f32[] (weak)"),),
    )
    step = samples.function("step", samples.compiled(), again)
    (found,) = recompiles(samples.trace(step, processes=(STARTED_LATER,)))
    assert found.remedy.endswith("rate is made at program.py:9.")
    assert found.evidence["made_at"] == f"{program}:9"
    before_it_was_written = samples.process(started_at=os.stat(program).st_mtime - 60)
    (found,) = recompiles(samples.trace(step, processes=(before_it_was_written,)))
    assert "is made at" not in found.remedy


# --- operations outside of jit --------------------------------------------------------------------


def operations(function: str, line: int, names: str, file: str = samples.TRAIN) -> list[Compile]:
    where = SourceLine(file, line, function)
    return [samples.compiled(name, user_site=where, site=where) for name in names.split()]


def remedy_for(compiles: list[Compile], *more: Function) -> str:
    """more: other functions of the program."""
    by_name = [samples.function(c.name, c, library=True) for c in compiles]
    functions = (*by_name, *more)
    (found,) = one_op_compiles(samples.trace(*functions, processes=(STARTED_LATER,)))
    return found.remedy


def test_data_preparation_gets_numpy_as_remedy_without_a_promise_of_one_compile() -> None:
    """91 operations for seven lengths: "one compile instead of 91" was wrong, it took seven."""
    names = " ".join(["pad", "stack", "exp", "multiply"] * 7)
    told = remedy_for(operations("Loader.collate", 30, names))
    assert told.startswith("Prepare the data at line 30 with numpy")
    assert "one compile per combination of shapes" in told and "instead of" not in told


def test_random_values_do_not_get_numpy_as_remedy() -> None:
    names = "random_bits _normal random_wrap add mul sub div exp"
    told = remedy_for(operations("prepare_weights", 30, names))
    assert told.startswith("Put jax.jit around prepare_weights")
    assert "one compile instead of 8" in told


MATHS = "sin cos tan exp log mul add div"


def test_an_epoch_is_not_put_under_jit() -> None:
    where = SourceLine(samples.TRAIN, 60, "train_epoch")
    step = samples.function("step", replace(samples.compiled(), user_site=where))
    told = remedy_for(operations("train_epoch", 55, MATHS), step)
    assert told.startswith("Put line 55 into a function under jax.jit: one compile instead of 8")
    assert "jax.jit around" not in told
    assert remedy_for(operations("train_epoch", 55, MATHS)).startswith("Put jax.jit around")


def test_a_generator_is_not_put_under_jit(program: str) -> None:
    told = remedy_for(operations("loader", 18, MATHS, program))
    assert "jax.jit around" not in told
