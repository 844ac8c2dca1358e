"""The stack of a compile, and where the large constants of a program come from."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import trace_samples as samples

from firstlight.trace.findings import load
from firstlight.trace.findings.slow_programs import large_constants
from firstlight.trace.read.model import Compile, Constant, SourceLine, Trace
from firstlight.trace.read.redaction import redact_copy
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.show.html import render
from firstlight.trace.show.json_report import report

pytestmark = pytest.mark.slow

PROGRAM = """\
import jax, jax.numpy as jnp, numpy as np

TABLE = np.ones((600, 600), np.float32)
DOUBLE = np.ones((450, 450))  # JAX copies it, in single precision
HELD = {"weights": np.ones((400, 400), np.float32)}

class Model:
    def __init__(self):
        self.kernel = jax.device_put(np.ones((350, 350), np.float32))

    def __call__(self, x):
        return (self.kernel * x).sum()

def make(model):
    closed = np.ones((300, 300), np.float32)

    @jax.jit
    def step(x):
        y = jnp.sin(TABLE).sum() * x + jnp.cos(DOUBLE).sum()
        y += (x * HELD["weights"]).sum() + jnp.exp(closed).sum() + model(x)
        return y + jnp.asarray(np.ones((250, 250), np.float32) * 2).sum()

    return step

def train(step):
    return float(step(2.0))

train(make(Model()))
"""


@cache
def logs() -> Path:
    folder = Path(mkdtemp())
    (folder / "train.py").write_text(PROGRAM)
    subprocess.run(
        [sys.executable, folder / "train.py"],
        env={**os.environ, "FIRSTLIGHT_TRACE": str(folder / "logs")},
        check=True,
        timeout=300,
    )
    return folder / "logs"


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


def step_of(trace: Trace) -> Compile:
    (step,) = (f for f in trace.functions if f.name == "make.<locals>.step")
    return step.compiles[0]


def test_captured_arrays_have_their_names_in_the_function() -> None:
    found = {one.name: one for one in step_of(load(logs())).constants}
    expected = {
        "TABLE": ("global", (600, 600), "jnp.sin(TABLE)"),
        "DOUBLE": ("global", (450, 450), "jnp.cos(DOUBLE)"),
        "HELD['weights']": ("global", (400, 400), 'HELD["weights"]'),
        "model.kernel": ("closure", (350, 350), "self.kernel * x"),
        "closed": ("closure", (300, 300), 'HELD["weights"]'),
        None: (None, (250, 250), "250, 250"),
    }
    assert set(found) == set(expected)
    for name, (origin, shape, line) in expected.items():
        one = found[name]
        assert (one.origin, one.shape, one.dtype) == (origin, shape, "float32")
        assert one.bytes == 4 * shape[0] * shape[1]
        assert one.place and one.place.line == line_of(line)


def test_a_finding_names_the_constants_and_what_to_pass() -> None:
    table = Constant(
        "TABLE", "global", "float32", (600, 600), 1_440_000, SourceLine(samples.TRAIN, 6)
    )
    one = samples.compiled(constant_bytes=1_440_000, constants=(table,))
    (found,) = large_constants(samples.trace(samples.function("step", one)))
    assert "TABLE f32[600,600] (global, used at train.py:6)" in found.title
    assert found.remedy.startswith("Pass TABLE to step as arguments")


def test_every_compile_has_the_stack_that_led_to_it_from_the_call_outwards() -> None:
    stack = step_of(load(logs())).stack
    told = [(Path(place.file).name, place.line, place.function) for place in stack]
    assert told == [
        ("train.py", line_of("return float(step(2.0))"), "train"),
        ("train.py", line_of("train(make(Model()))"), "<module>"),
    ]
    plain = report(load(logs()))
    (calls,) = (f["calls"] for f in plain["functions"] if f["name"] == "make.<locals>.step")
    assert calls[0]["stack"] == [f"{place.file}:{place.line}" for place in stack]


def test_the_page_shows_the_lines_of_the_stack_as_they_are_written() -> None:
    page = render(load(logs()))
    assert '<ol class="stack"><li>' in page
    assert "<code>return float(step(2.0))</code>" in page
    assert "<code>train(make(Model()))</code>" in page


def test_a_file_that_was_changed_since_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("@jit\n@again(\n    1)\ndef f():\n    return 1\n")
    os.utime(file, (1000.0, 1000.0))

    def at(started: float | None, line: int) -> str:
        process = samples.process(started_at=started)
        return SourceLines(samples.trace(processes=(process,))).of(SourceLine(str(file), line))

    assert at(2000.0, 5) == "return 1"
    assert at(2000.0, 1) == "def f():"  # a function begins with its decorators
    assert at(500.0, 5) == at(None, 5) == at(2000.0, 99) == ""


def test_a_redacted_log_contains_no_source_and_no_path(tmp_path: Path) -> None:
    redact_copy(logs(), tmp_path)
    page = render(load(tmp_path))
    assert "float(step(2.0))" not in page
    assert str(logs().parent) not in page and "train.py" not in page
    assert pytest.approx(1_440_000) == step_of(load(tmp_path)).constants[0].bytes
