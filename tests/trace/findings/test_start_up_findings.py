"""Which line is reported for operations run by packages, imports, and JAX's own operations."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trace_samples as samples

from firstlight.trace.findings import thresholds
from firstlight.trace.findings.caching import cache_findings
from firstlight.trace.findings.slow_programs import dominating_function
from firstlight.trace.findings.start_up import expensive_imports, one_op_compiles
from firstlight.trace.read.assembly import read_folder
from firstlight.trace.read.model import (
    CacheUse,
    Compile,
    Finding,
    ImportedPackage,
    SourceLine,
    Span,
    Trace,
)

pytestmark = pytest.mark.slow

#: A package that calls its user's functions, as packages for networks do.
PACKAGE = """
import jax

def network(layer):
    return lambda x: layer(x)
"""
RUNNER = """
def start(main):
    main()
"""
PROGRAM = """
import jax.numpy as jnp
import layers, runner

def definition(x):
    y = jnp.sin(x) + jnp.cos(x)
    return jnp.exp(y) / jnp.sqrt(x) - jnp.tanh(x) * jnp.log(x) + jnp.arctan(y) + jnp.square(y)

def main():
    apply = layers.network(definition)
    apply(jnp.arange(3.0))  # line 11

runner.start(main)
"""


def traced(folder: Path, *command: str, **files: str) -> Trace:
    """A program with packages that look installed."""
    for name, text in files.items():
        path = folder / ("" if name == "program" else "site-packages") / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "FIRSTLIGHT_TRACE": str(folder / "logs"),
            "PYTHONPATH": f"{folder / 'site-packages'}:{folder}",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return read_folder(folder / "logs")


def operations(n: int, line: int = 40, function: str = "main", **changes: Any) -> Trace:
    place = SourceLine(samples.TRAIN, line, function)
    every = tuple(
        samples.function(
            f"op{i}", samples.compiled(f"op{i}", user_site=place, **changes), library=True
        )
        for i in range(n)
    )
    return samples.trace(*every)


def only(findings: Any) -> Finding:
    (one,) = findings
    assert isinstance(one, Finding)
    return one


def test_operations_of_a_layer_are_reported_at_the_call_of_its_network(tmp_path: Path) -> None:
    found = traced(
        tmp_path, "program.py", layers=PACKAGE, runner=RUNNER, program=PROGRAM.lstrip("\n")
    )
    one = only(one_op_compiles(found))
    # Not in `definition`, which cannot be jitted alone; not where the program starts.
    assert one.function == "main"
    assert one.location == f"{tmp_path / 'program.py'}:10"
    assert "line 10" in one.remedy


@pytest.mark.parametrize(
    ("file", "jit"),
    (
        ("flax/linen/linear.py", "jax.jit"),
        ("flax/nnx/nn/linear.py", "flax.nnx.jit"),
        ("equinox/nn/_linear.py", "equinox.filter_jit"),
    ),
)
def test_a_finding_of_operations_in_a_package_names_it_and_its_jit(file: str, jit: str) -> None:
    site = SourceLine(f"/v/site-packages/{file}", 7, "init")
    one = only(one_op_compiles(operations(9, site=site)))
    assert f"run by {file.partition('/')[0]}" in one.remedy
    assert f"a function under {jit} if" in one.remedy
    step = samples.function("step", samples.compiled(took=(0, 0, 3.0), site=site))
    dominating = only(dominating_function(samples.trace(step)))
    option = "XLA_FLAGS=" if jit == "flax.nnx.jit" else f"{jit}(f, compiler_options="
    assert f", {option}" in dominating.remedy


def test_the_remedy_does_not_put_a_test_under_jit() -> None:
    one = only(one_op_compiles(operations(9, function="ClippingTest.test_clip")))
    assert "jax.jit around" not in one.remedy
    assert "assert on its results" in one.remedy


def spread(functions: int) -> Trace:
    """Two operations in each of several functions."""
    parts = [operations(2, line=10 * i, function=f"f{i}").functions for i in range(functions)]
    return samples.trace(*(f for part in parts for f in part))


def test_scattered_operations_are_one_finding_of_the_program() -> None:
    one = only(one_op_compiles(spread(thresholds.ONE_OP_COMPILES_IN_ALL // 2)))
    assert one.function is None
    assert "in 8 places" in one.title
    assert one.seconds == pytest.approx(16 * 0.55)


def test_a_few_scattered_operations_are_not_reported() -> None:
    assert not list(one_op_compiles(spread(thresholds.ONE_OP_COMPILES_IN_ALL // 2 - 1)))


def test_no_line_is_at_fault_where_there_is_no_cache() -> None:
    slow = samples.compiled(took=(0, 0, 3.0), cache=CacheUse("off", None, False))
    one = only(cache_findings(samples.trace(samples.function("step", slow))))
    assert (one.kind, one.function, one.location) == ("cache-off", None, None)


def test_a_missing_cache_is_reported_if_it_would_save_a_tenth_of_the_start() -> None:
    """Diffrax's steady states: a cache saves 6.2 s of 15.7 s, and nothing else helps."""
    off = CacheUse("off", None, False)
    for seconds, told in ((0.2, True), (0.15, False)):  # of 1.75 s until the first result
        one = samples.compiled(took=(0, 0, seconds), cache=off)
        found = list(cache_findings(samples.trace(samples.function("step", one))))
        assert bool(found) is told


def test_a_loop_outside_jit_is_not_a_finding_of_operations() -> None:
    """Its body would be compiled under jit too."""
    place = SourceLine(samples.TRAIN, 52, "inference_loop")
    once = samples.compiled(user_site=place, took=(0.0, 0.0, 3.0))
    for name, told in (("scan", False), ("_normal", True)):
        run = samples.function(name, replace(once, name=name), library=True)
        assert bool(list(one_op_compiles(samples.trace(run)))) is told


def test_operations_that_run_while_a_function_is_traced_are_not_reported() -> None:
    apart = operations(9).functions
    step = samples.compiled(begin=0.9, took=(1.0, 0.1, 0.1))
    around = replace(step, stages=(Span("trace", 0.9, 1.9, "step"),))
    for thread, told in ((step.thread, False), (step.thread + 1, True)):
        stepping = samples.function("step", replace(around, thread=thread))
        assert bool(list(one_op_compiles(samples.trace(stepping, *apart)))) is told


def test_a_dominating_operation_of_jax_is_reported_at_its_call_with_a_remedy() -> None:
    slow: Compile = samples.compiled("_truncated_normal", took=(0, 0, 3.0))
    trace = samples.trace(samples.function("_truncated_normal", slow, library=True))
    one = only(dominating_function(trace))
    assert one.location == f"{samples.TRAIN}:40"
    assert "compiler_options" not in one.remedy
    assert "train.py:40" in one.remedy


def imports_found(site: SourceLine | None, begin_seconds: float = 0.1) -> list[Finding]:
    package = ImportedPackage("pytest", 0.5, 0.5, 90, begin_seconds, None, site, 0.5)
    jax = ImportedPackage("jax", 0.6, 0.8, 300, 0.1)
    process = samples.process(imports=(jax, package), first_result_seconds=1.5)
    return list(expensive_imports(samples.trace(processes=(process,))))


def test_a_package_that_starts_the_program_is_not_an_import_to_move() -> None:
    assert imports_found(SourceLine(samples.TRAIN, 3, "<module>"))
    assert not imports_found(None)


def test_an_import_after_the_first_result_is_not_reported() -> None:
    assert not imports_found(SourceLine(samples.TRAIN, 3, "plot"), begin_seconds=1.6)


def test_an_import_within_a_function_is_not_to_be_moved_into_one() -> None:
    (at_top,) = imports_found(SourceLine(samples.TRAIN, 3, "<module>"))
    (within,) = imports_found(SourceLine(samples.TRAIN, 30, "plot"))
    assert "move the import from train.py:3 into" in at_top.remedy
    assert within.remedy == (
        "If the first result needs neither pytest nor a package that imports it, call plot, which "
        "imports it at train.py:30, only after that result."
    )


SLOW = "import time; time.sleep(0.05)"


def test_an_import_is_at_the_line_that_asked_for_it(tmp_path: Path) -> None:
    program = "import importlib\nimportlib.import_module('slow')\n"
    found = traced(tmp_path, "-m", "program", slow=SLOW, program=program)
    sites = {p.name: p.site for p in found.processes[0].imports}
    assert sites["slow"] == SourceLine(str(tmp_path / "program.py"), 2, "<module>")


def test_a_module_run_with_python_m_has_no_import_line(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__init__.py").write_text(SLOW)
    (tmp_path / "tool" / "program.py").write_text("import fractions")
    found = traced(tmp_path, "-m", "tool.program")
    sites = {p.name: p.site for p in found.processes[0].imports}
    assert sites["tool"] is None
