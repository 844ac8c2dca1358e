"""Cures point to the line to change: where a value is made, what can be under jit and what not."""

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

#: The program started when its file had long been written.
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
def test_what_a_call_is_given_is_found_where_it_is_made(
    program: str, argument: str, line: int | None
) -> None:
    """An assignment, a loop, the one call of the function around it."""
    made = where_made(SourceLine(program, 10), "step", argument, LATER)
    assert (made and made.line) == line


def test_a_name_of_a_function_within_is_another_one(program: str) -> None:
    made = where_made(SourceLine(program, 27), "step", "params", LATER)
    assert made is not None and made.line == 21


def test_what_is_made_of_itself_was_made_before(program: str) -> None:
    made = where_made(SourceLine(program, 30), "step", "params", LATER)
    assert made is not None and made.line == 34


def test_without_the_source_nothing_is_told(tmp_path: Path) -> None:
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


def test_data_are_prepared_by_numpy_and_jit_is_not_said_to_compile_once() -> None:
    """91 operations for seven lengths were "one compile instead of 91", and then were seven."""
    names = " ".join(["pad", "stack", "exp", "multiply"] * 7)
    told = remedy_for(operations("Loader.collate", 30, names))
    assert told.startswith("Prepare the data at line 30 with numpy")
    assert "one compile for each combination of shapes" in told and "instead of" not in told


def test_what_is_drawn_at_random_is_not_numpys() -> None:
    names = "random_bits _normal random_wrap add mul sub div exp"
    told = remedy_for(operations("prepare_weights", 30, names))
    assert told.startswith("Put jax.jit around prepare_weights")
    assert "one compile instead of 8" in told


MATHS = "sin cos tan exp log mul add div"


def test_no_jit_is_put_around_an_epoch() -> None:
    where = SourceLine(samples.TRAIN, 60, "train_epoch")
    step = samples.function("step", replace(samples.compiled(), user_site=where))
    told = remedy_for(operations("train_epoch", 55, MATHS), step)
    assert told.startswith("Put line 55 into a function under jax.jit: one compile instead of 8")
    assert "jax.jit around" not in told
    assert remedy_for(operations("train_epoch", 55, MATHS)).startswith("Put jax.jit around")


def test_no_jit_is_put_around_what_yields(program: str) -> None:
    told = remedy_for(operations("loader", 18, MATHS, program))
    assert "jax.jit around" not in told
