"""torch.compile in a trace: regions, graph breaks, recompiles, compared with torch's own counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from firstlight.trace.findings import load
from firstlight.trace.read.model import Finding, Trace
from firstlight.trace.read.redaction import redact_copy
from firstlight.trace.read.torch_regions import Region, regions
from firstlight.trace.record import torch_hooks
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.show.html import render

pytestmark = pytest.mark.slow

TRACED = "import firstlight.trace.startup"
#: Runs programs one after the other in one process, each as if it were the main one.
DRIVER = """
import runpy, sys
for path in sys.argv[1].split(","):
    runpy.run_path(path, run_name="__main__")
"""
#: What torch itself counted.
COUNTS = """
import json, sys
from torch._dynamo import utils
json.dump({
    "breaks": sum(utils.counters["graph_break"].values()),
    "regions": len(utils.get_compilation_metrics()),
}, open(sys.argv[2], "w"))
"""
SICK = """\
import torch

torch._dynamo.config.recompile_limit = 4

@torch.compile(backend="eager")
def noisy(x):
    y = x + 1
    print("between")  # the break
    return helper(y) * 2

def helper(y):
    return y.sin()

@torch.compile(backend="eager")
def loop(x):
    for i in range(2):
        x = x + 1
        print("step", i)  # the loop's
    return x

@torch.compile(backend="eager", dynamic=False)
def shaped(x, name):
    return x * len(name)

@torch.compile(backend="eager", dynamic=False)
def limited(x):
    return x * 2

for n in (3, 3, 4):
    noisy(torch.ones(n))
loop(torch.ones(3))
for n in (3, 4, 5):
    shaped(torch.ones(n), "mySecretValue")  # the sizes
shaped(torch.ones(5), "another")
for n in (3, 4, 5, 6, 7, 8):
    limited(torch.ones(n))
"""
#: The same program with the remedies of all findings, and a recompile that is not a disease.
CURED = """\
import torch

@torch.compile(backend="eager", fullgraph=True)
def before(x):
    return x + 1

@torch.compile(backend="eager", fullgraph=True)
def after(y):
    return y.sin() * 2

@torch.compile(backend="eager")
def shaped(x):
    return x * 2

for _ in range(2):
    y = before(torch.ones(3))
    print("between")
    after(y)
for n in (3, 4, 5):
    x = torch.ones(n)
    torch._dynamo.mark_dynamic(x, 0)
    shaped(x)
with torch.no_grad():
    after(torch.ones(3))  # with gradients and without: both are needed
"""


class Ran(NamedTuple):
    trace: Trace
    folder: Path
    output: str
    errors: str
    counted: Mapping[str, int]

    def regions_of(self, program: str) -> list[Region]:
        return [r for r in regions(self.trace) if r.place and Path(r.place.file).stem == program]


def start(folder: Path, traced: bool) -> subprocess.Popen[str]:
    """Both programs in one process: importing torch is most of it, and findings are by line."""
    folder.mkdir()
    paths = []
    for name, program in (("sick", SICK), ("cured", CURED), ("counts", COUNTS)):
        paths.append(folder.parent / f"{name}.py")
        paths[-1].write_text(program)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "FIRSTLIGHT"))}
    if traced:
        environment["FIRSTLIGHT_TRACE"] = str(folder)
    driver = TRACED + DRIVER if traced else DRIVER
    return subprocess.Popen(
        [sys.executable, "-c", driver, ",".join(map(str, paths)), str(folder / "counts.json")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Traced and untraced, at the same time."""
    folder = tmp_path_factory.mktemp("torch")
    started = {name: start(folder / name, name == "traced") for name in ("traced", "untraced")}
    done = {}
    for name, process in started.items():
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        where = folder / name
        trace = load(where) if name == "traced" else Trace((), (), (), None, 0, 0)
        counted = json.loads((where / "counts.json").read_text())
        done[name] = Ran(trace, where, output, errors, counted)
    return done


@pytest.fixture(scope="module")
def ran(both: dict[str, Ran]) -> Ran:
    return both["traced"]


def line_of(mark: str) -> int:
    return next(n for n, line in enumerate(SICK.splitlines(), 1) if mark in line)


def found(ran: Ran, kind: str, function: str) -> Finding:
    (one,) = (f for f in ran.trace.findings if f.kind == kind and f.function == function)
    return one


def test_every_region_and_every_break_is_there_as_torch_counts_them(ran: Ran) -> None:
    told = regions(ran.trace)
    assert len(told) == ran.counted["regions"] > 0
    assert sum(len(one.breaks) for one in told) == ran.counted["breaks"] > 0
    assert all(0 < one.own_seconds <= one.seconds for one in told)
    assert len(told) == len(ran.regions_of("sick")) + len(ran.regions_of("cured"))


def test_a_graph_break_is_reported_with_line_reason_and_remedy(ran: Ran) -> None:
    one = found(ran, "torch-graph-breaks", "noisy")
    assert one.location == f"{ran.folder.parent / 'sick.py'}:{line_of('the break')}"
    assert "builtin" in one.title and "print" in one.remedy
    rest = [r for r in ran.regions_of("sick") if r.resumed_at and r.function == "noisy"]
    assert one.seconds >= sum(r.own_seconds for r in rest) > 0


def test_a_function_that_torch_gives_up_on_is_reported(ran: Ran) -> None:
    one = found(ran, "torch-graph-breaks", "loop")
    assert one.location and one.location.endswith(f"sick.py:{line_of('the loop')}")
    assert one.evidence["skipped"] == ["loop"] and one.seconds > 0


def test_recompiles_have_the_guard_that_failed_and_the_call(ran: Ran) -> None:
    one = found(ran, "torch-recompiles", "shaped")
    assert one.evidence["guards"] == [
        "tensor 'x' size mismatch at index 0. expected 3, actual 4",
        "tensor 'x' size mismatch at index 0. expected 4, actual 5",
    ]
    assert one.location and one.location.endswith(f"sick.py:{line_of('the sizes')}")
    assert "mark_dynamic(x, 0)" in one.remedy
    numbers = [r.number for r in ran.regions_of("sick") if r.name == "limited"]
    assert [n and n.split("/")[1] for n in numbers] == ["0", "1", "2", "3", "4"]


def test_the_rest_after_a_break_is_compiled_again_with_its_function(ran: Ran) -> None:
    one = found(ran, "torch-recompiles", "noisy")
    again = [r for r in ran.regions_of("sick") if r.function == "noisy" and r.recompile_kind]
    assert [r.resumed_at is None for r in again] == [True, False]
    assert one.evidence["recompiles"] == one.evidence["recompiles_after_breaks"] == 1
    assert one.seconds == pytest.approx(sum(r.own_seconds for r in again))


def test_the_recompile_limit_is_reported_with_its_function(ran: Ran) -> None:
    one = found(ran, "torch-recompiles", "limited")
    assert one.evidence["recompiles"] == 3 and one.evidence["limit_reached"] is True


def test_the_cured_program_has_no_findings(ran: Ran) -> None:
    assert all("sick.py" in (finding.location or "") for finding in ran.trace.findings)
    cured = ran.regions_of("cured")
    assert {one.name for one in cured} == {"before", "after", "shaped"}
    assert any(one.recompile_kind == "global state" for one in cured)


def test_the_program_prints_the_same_without_us(both: dict[str, Ran]) -> None:
    def without_times(text: str) -> str:
        return re.sub(r"(?m)^W\d+ [\d:.]+ \d+ ", "", text)

    traced, untraced = both["traced"], both["untraced"]
    assert traced.output == untraced.output
    assert without_times(traced.errors) == without_times(untraced.errors)
    assert "recompile_limit" in traced.errors  # of torch itself
    assert traced.counted == untraced.counted
    assert traced.trace.processes[0].problems == ()
    assert traced.trace.processes[0].torch_version


def test_a_redacted_log_keeps_no_value_and_no_path(ran: Ran, tmp_path: Path) -> None:
    plain = "".join(p.read_text() for p in ran.folder.glob("*.jsonl"))
    assert "mySecretValue" in plain
    redact_copy(ran.folder, tmp_path)
    text = "".join(p.read_text() for p in tmp_path.glob("*.jsonl"))
    assert "mySecretValue" not in text and "sick.py" not in text
    kinds = [f.kind for f in load(tmp_path).findings]
    assert sorted(kinds) == sorted(f.kind for f in ran.trace.findings)


def test_page_and_summary_show_the_regions(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    from firstlight.trace.show.terminal import print_trace

    page = render(ran.trace)
    assert f"noisy from line {line_of('the break')} on" in page
    print_trace(ran.trace)
    assert "Compiled by torch" in capsys.readouterr().err


# --- a torch that is not as we know it ------------------------------------------------------------


def attached(monkeypatch: pytest.MonkeyPatch, **names: Any) -> tuple[list[Any], ModuleType, Any]:
    """Hooks on a torch that has only these names."""
    utils = ModuleType("torch._dynamo.utils")
    vars(utils).update(names)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    events: list[Any] = []
    return events, utils, torch_hooks.attach(Recorder(events.append))


def problems(events: list[Any]) -> str:
    return "\n".join(p for e in events if e["event"] == "problem" for p in e["problems"])


def test_missing_names_of_torch_are_reported_as_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    events, _, _ = attached(monkeypatch)
    assert "what torch.compile compiles" in problems(events)
    events, utils, _ = attached(monkeypatch, log_compilation_event=lambda metrics: None)
    assert "where its graphs break" in problems(events)
    assert "why it compiles again" in problems(events)
    utils.log_compilation_event(SimpleNamespace(co_name="f", co_filename="f.py", co_firstlineno=3))
    region = next(e for e in events if e["event"] == "torch_region")
    assert (region["name"], region["seconds"], region["breaks"]) == ("f", 0.0, [])


def test_a_torch_that_reports_no_compiles_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"log_compilation_event": print, "get_compilation_metrics": lambda: [object()]}
    events, _, hooks = attached(monkeypatch, **told)
    hooks.check_heard()
    assert "reported none of them" in problems(events)


def test_our_errors_are_caught_and_those_of_torch_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def original(metrics: Any) -> None:
        raise KeyError("of torch")

    events, utils, _ = attached(monkeypatch, log_compilation_event=original)
    with pytest.raises(KeyError, match="of torch"):
        utils.log_compilation_event(SimpleNamespace(entire_frame_compile_time_s="no number"))
    assert "ValueError" in problems(events)


def test_importing_torch_alone_hooks_nothing(tmp_path: Path) -> None:
    """A package named torch that compiles nothing."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '9.1'\ndef compile(): ...\n")
    (tmp_path / "main.py").write_text(
        "import torch, json, sys\nprint('firstlight.trace.record.torch_hooks' in sys.modules)\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    environment = {**os.environ, "FIRSTLIGHT_TRACE": str(out), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", TRACED + DRIVER, str(tmp_path / "main.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert load(out).processes[0].torch_version == "9.1"


def test_a_region_of_another_version_may_lack_fields() -> None:
    trace = Trace((), (), (), None, 0, 0, ({"event": "torch_region"}, {"event": "torch_x"}))
    (one,) = regions(trace)
    assert isinstance(one, Region) and one.number is None and one.seconds == 0.0
