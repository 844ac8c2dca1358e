"""The summary of a trace on the terminal."""

from __future__ import annotations

import io

from rich.console import Console
from trace_samples import compiled, function, process, trace

from firstlight.trace.read.model import ImportedPackage, Trace
from firstlight.trace.show.terminal import print_trace


def shown(one: Trace) -> str:
    output = io.StringIO()
    print_trace(one, Console(file=output, width=100, highlight=False))
    return " ".join(output.getvalue().split())


def test_compiles_after_the_first_result_are_counted_separately() -> None:
    """Two of three compiles of step began after 1.75 s; each took 0.55 s."""
    assert "(2 of them after the first result, in 1.10 s)" in shown(trace())
    assert "after the first result" not in shown(trace(function("step", compiled())))


def test_the_table_does_not_split_a_function_and_its_line() -> None:
    output = io.StringIO()
    nested = function("Trainer._unit.<locals>.of_arrays", line=122)
    print_trace(trace(nested), Console(file=output, width=100, highlight=False))
    (row,) = [line for line in output.getvalue().splitlines() if line.startswith(" of_arrays ")]
    assert " train.py:122 " in row


def test_imports_before_the_first_result_are_listed_by_package() -> None:
    packages = (
        ImportedPackage("jax", 0.6, 0.8, 300, 0.1),
        ImportedPackage("flax", 0.2, 0.2, 100, 0.2),
        ImportedPackage("plots", 0.1, 0.1, 10, 3.0),  # after the first result, at 1.75 s
        ImportedPackage("small", 0.015, 0.015, 10, 0.2),
        ImportedPackage("smaller", 0.005, 0.005, 1, 0.3),
    )
    text = shown(trace(processes=(process(imports=packages),)))
    assert "Imports by package: jax 600 ms, flax 200 ms, 2 others 20 ms." in text
    text = shown(trace(processes=(process(imports=packages, first_result_seconds=None),)))
    assert "jax 600 ms, flax 200 ms, plots 100 ms, 2 others 20 ms." in text
    assert "Imports by package" not in shown(trace(processes=(process(imports=packages[3:]),)))
