"""The first result is the program's: not what a package reads, nor what prepares the data."""

from __future__ import annotations

import builtins
import io
import json
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jsonschema
import numpy as np
import pytest
import trace_samples as samples

import firstlight.trace
from firstlight.cli import main
from firstlight.trace import running
from firstlight.trace.findings.ci_limits import Limits, exceeded
from firstlight.trace.read.first_result import first_result
from firstlight.trace.read.log_events import ProcessLog
from firstlight.trace.read.model import Process, Read, SourceLine, Witness
from firstlight.trace.record import marks
from firstlight.trace.running import Outcome
from firstlight.trace.show.json_report import report
from firstlight.trace.show.verdict import headline, unknown, where_first_result

# --- decided from a log ---------------------------------------------------------------------------

HEAD = {"event": "process", "pid": 1, "recording_ns": 0}


def compiled(ns: int, library: bool = False, name: str = "f") -> list[dict[str, Any]]:
    stage = {"event": "stage", "stage": "compile", "name": "f", "thread": 1, "call": ns}
    times = {"begin_ns": ns - 1, "end_ns": ns}
    call = {"event": "call", "call": ns, "function": {"name": name}, "library": library}
    return [call, {**stage, **times}]


def read(ns: int, by: str = "") -> list[dict[str, Any]]:
    first = {"event": "first_result", "ns": ns, "by": by}
    return [first] if by else [first, {"event": "read", "ns": ns}]


def output(ns: int, reads: int = 1) -> list[dict[str, Any]]:
    return [{"event": "output", "ns": ns, "stream": "stdout", "reads": reads}]


def decided(*events: list[dict[str, Any]], **head: Any) -> tuple[int, Witness] | None:
    found = first_result(ProcessLog({**HEAD, **head}, [one for some in events for one in some]))
    return None if found is None else (found.ns, found.witness)


def test_a_value_read_only_by_a_package_is_a_result_once_it_is_output() -> None:
    assert decided(read(20, by="numpyro"), compiled(100), output(144)) == (144, Witness.PUT_OUT)


def test_without_output_a_read_by_a_package_is_not_a_result() -> None:
    assert decided(read(20, by="numpyro"), compiled(100)) is None


def test_the_programs_own_read_that_prepares_data_is_not_a_result() -> None:
    """Neither before the first function was compiled, nor before one that the output needs."""
    early = compiled(5, library=True)
    assert decided(early, read(10), compiled(100), read(120), output(121)) == (120, Witness.READ)
    assert decided(compiled(10), read(15), compiled(100), read(120), output(121)) == (
        (120, Witness.READ)
    )


def test_a_benchmark_that_prints_at_its_end_has_its_result_at_the_read() -> None:
    assert decided(compiled(10), read(15), output(100)) == (15, Witness.READ)
    assert decided(compiled(10), read(15)) == (15, Witness.READ)


def test_a_program_without_functions_of_its_own_has_the_result_of_an_operation() -> None:
    assert decided(compiled(10, library=True), read(15), output(16)) == (15, Witness.READ)


def test_a_loop_outside_jit_counts_as_a_function() -> None:
    """The quick start of blackjax: samples of a scan, read and drawn before any function."""
    scan = compiled(30, library=True, name="scan")
    assert decided(scan, read(40), compiled(100), read(120), output(121)) == (120, Witness.READ)
    assert decided(scan, read(40), output(41), compiled(100), read(120)) == (40, Witness.READ)
    assert decided(scan, read(40), compiled(100)) == (40, Witness.READ)


def test_a_value_that_the_program_reads_and_outputs_is_a_result_even_of_an_operation() -> None:
    """Flax's introduction prints the result of a model that runs operation by operation."""
    early, late = compiled(5, library=True), [*compiled(100), *read(120), *output(121)]
    assert decided(early, read(10), output(11), late) == (10, Witness.READ)
    # Not if something else was compiled in between: it was read for that compile.
    between = compiled(12, library=True)
    assert decided(early, read(10), between, output(13), late) == (120, Witness.READ)


def test_an_array_read_invisibly_by_numpy_is_a_result_when_it_is_output() -> None:
    assert decided(output(5, 0), compiled(10), output(15, 0)) == (15, Witness.PUT_OUT)
    # If reads are visible, an output before all of them has no result.
    assert decided(compiled(10), output(12, 0), read(15, by="numpyro"), output(20)) == (
        (20, Witness.PUT_OUT)
    )


def test_a_mark_counts_even_after_earlier_reads() -> None:
    mark = [{"event": "marked", "ns": 50, "how": "code"}]
    assert decided(compiled(10), read(15), output(16), mark) == (50, Witness.MARKED)


def test_there_is_no_result_if_the_requested_one_does_not_come() -> None:
    assert decided(compiled(10), read(15), output(16), first_result_pattern="epoch") is None


# --- recorded -------------------------------------------------------------------------------------


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function of a package that works with JAX, which reads an array."""
    module = ModuleType("sampler")
    source = "import jax\ndef check(x):\n    x.block_until_ready()\n"
    exec(compile(source, "/v/site-packages/sampler/checks.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "sampler", module)
    return module.check  # type: ignore[no-any-return]


@pytest.fixture
def untouched() -> Iterator[None]:
    """Python's streams and functions are restored."""

    def state() -> list[object]:
        return [sys.stdout, dict(vars(sys.stdout)), sys.stderr, builtins.open, io.open]

    before = state()
    yield
    assert state() == before
    assert not marks.LISTENERS


def double() -> Any:
    """The result of a new function."""
    return jax.jit(lambda x: x * 2)(np.ones(3, np.float32))


def line_of(words: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    (found,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {words}")]
    return found


@pytest.mark.usefixtures("untouched")
def test_a_package_that_reads_first_is_named_next_to_the_programs_own_result(sampler: Any) -> None:
    with firstlight.trace.recording() as t:
        sampler(double())  # for the package
        print("sampling", 100 * "\r50 %")
        value = double()
        print("mean", float(value[0]))  # for the program
    (process,) = t.trace.processes
    assert process.first_result_witness is Witness.READ
    assert process.first_result_site and process.first_result_site.line == line_of(
        "for the program"
    )
    assert process.first_read and process.first_read.package == "sampler"
    assert process.first_read.site and process.first_read.site.line == line_of("for the package")
    assert process.first_read.seconds < (process.first_result_seconds or 0)


@pytest.mark.usefixtures("untouched")
def test_an_output_after_a_later_read_is_recorded() -> None:
    with firstlight.trace.recording() as t:
        value = jax.numpy.sin(np.arange(7.0, dtype=np.float32))
        print("shape 7")
        print("values", value.tolist())  # shown
        double()
        print(2)
    (process,) = t.trace.processes
    assert process.first_result_site and process.first_result_site.line == line_of("shown")
    assert process.first_output and process.first_output.site == process.first_result_site


@pytest.mark.usefixtures("untouched")
def test_a_value_read_by_a_package_and_output_by_the_program_is_its_result(
    sampler: Any, tmp_path: Path
) -> None:
    with firstlight.trace.recording() as t:
        sampler(double())
        print("no number in this")
        print("summary of 1000 samples")  # put out
    with firstlight.trace.recording() as saved:
        sampler(double())
        (tmp_path / "samples.txt").write_text("…")  # saved
    for one, words in ((t, "put out"), (saved, "saved")):
        (process,) = one.trace.processes
        assert process.first_result_witness is Witness.PUT_OUT
        assert process.first_result_site and process.first_result_site.line == line_of(words)


@pytest.mark.usefixtures("untouched")
def test_a_read_in_code_being_traced_is_not_a_result() -> None:
    """Also outside any jit: JAX reports nothing about the body of a scan that it traces."""
    table = double()

    def body(state: Any, x: Any) -> Any:
        table.block_until_ready()
        return state, x

    with firstlight.trace.recording() as t:
        jax.lax.scan(body, np.float32(0), np.ones(3, np.float32))
    (process,) = t.trace.processes
    assert t.compile_count and process.first_read is None and process.first_result_seconds is None


@pytest.mark.usefixtures("untouched")
def test_a_program_can_mark_its_first_result() -> None:
    firstlight.trace.mark_first_result()  # nobody listens
    with firstlight.trace.recording() as t:
        print(float(double()[0]))
        firstlight.trace.mark_first_result()  # marked
        firstlight.trace.mark_first_result()
    (process,) = t.trace.processes
    assert process.first_result_witness is Witness.MARKED
    assert process.first_result_site and process.first_result_site.line == line_of("marked")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("pattern", [r"epoch 2\b", "test_first_result.py:LINE", "epoch 7"])
def test_the_first_result_is_the_requested_line_or_output(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pattern.replace("LINE", str(line_of("read here")))
    monkeypatch.setenv("FIRSTLIGHT_FIRST_RESULT", asked)
    with firstlight.trace.recording() as t:
        for epoch in (1, 2):
            value = double()
            print("epoch", epoch, float(value[0]))  # printed
        value.block_until_ready()  # read here
    (process,) = t.trace.processes
    if pattern == "epoch 7":
        assert process.first_result_seconds is None
        assert any("matched --first-result (epoch 7)" in told for told in unknown(t.trace))
        return
    where = "read here" if "LINE" in pattern else "printed"
    assert process.first_result_witness is Witness.MARKED
    assert process.first_result_site and process.first_result_site.line == line_of(where)


def test_an_invalid_pattern_is_refused_before_the_program_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["trace", "--first-result", "epoch (", "nowhere.py"])
    assert stopped.value.code == 2
    assert "not a regular expression" in capsys.readouterr().err


def test_the_command_passes_the_pattern_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def run(command: Any, folder: Any, variables: Any, **options: Any) -> Outcome:
        given.append(variables)
        return Outcome(0, None, 1.0)

    monkeypatch.setattr(running, "run", run)
    out = ["--out", str(tmp_path / "logs")]
    main(["trace", *out, "--first-result", "train.py:27", "train.py"])
    main(["trace", *out, "train.py"])
    assert given == [{"FIRSTLIGHT_FIRST_RESULT": "train.py:27"}, {}]


# --- told -----------------------------------------------------------------------------------------


def late(**changes: Any) -> Process:
    """Output after 14.4 s, read by a package after 2."""
    early = Read(2.05, SourceLine(samples.TRAIN, 13), "numpyro")
    put_out = {"first_result_seconds": 14.4, "first_result_witness": Witness.PUT_OUT}
    return samples.process(**{**put_out, "first_read": early, **changes})


def test_both_moments_are_reported_and_the_limit_applies_to_the_result() -> None:
    trace = samples.trace(processes=(late(),), time_to_first_result_seconds=14.4)
    begin = "First result after 14.4 s (numpyro read an array after 2.05 s); "
    assert headline(trace).startswith(begin)
    told = where_first_result(trace.processes[0])
    assert told == (
        "The first result was put out at /home/alice/secret/train.py:41. Apart from that, numpyro "
        "read an array after 2.05 s (at /home/alice/secret/train.py:13)."
    )
    (excess,) = exceeded(trace, Limits(max_ttfr_seconds=5.0))
    assert (excess.limit, excess.found) == ("max-ttfr", 14.4)


def test_nothing_is_added_if_all_moments_are_the_same() -> None:
    read = Read(1.74, SourceLine(samples.TRAIN, 41))
    same = samples.process(first_read=read, first_output=Read(1.76, read.site))
    assert headline(samples.trace(processes=(same,))).startswith("First result after 1.75 s; ")


def test_a_missing_first_result_is_explained_with_a_remedy() -> None:
    none = {"first_result_seconds": None, "first_result_site": None}
    by_package = samples.trace(
        processes=(late(**none, first_result_witness=None),), time_to_first_result_seconds=None
    )
    assert headline(by_package).startswith("No first result (numpyro read an array after 2.05 s); ")
    (told,) = unknown(by_package)
    assert "only numpyro read arrays" in told and "mark_first_result()" in told


def test_the_json_report_has_all_moments_and_keeps_to_its_schema() -> None:
    schema = files("firstlight") / "schemas" / "trace-report-1.schema.json"
    plain = json.loads(json.dumps(report(samples.trace(processes=(late(),)))))
    jsonschema.validate(plain, json.loads(schema.read_text()))
    (process,) = plain["processes"]
    assert process["first_result_witness"] == "put out"
    assert process["first_read"]["package"] == "numpyro" and process["first_output"] is None
