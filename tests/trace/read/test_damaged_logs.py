"""Damaged or hostile logs, and logs of several runs: read as far as possible, with messages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from trace_logs import Log, whole_log

from firstlight.trace.findings import load
from firstlight.trace.read.log_events import TraceLogError
from firstlight.trace.read.model import Trace
from firstlight.trace.read.redaction import redacted
from firstlight.trace.show.cell import as_text
from firstlight.trace.show.html import render
from firstlight.trace.show.json_report import report

BAD = [
    '{"event":"stage"}',
    '{"event":"imports"}',
    '{"event":"imports","modules":[["a",1]]}',
    '{"event":"begin"}',
    '{"event":"call","call":1}',
    '{"event":"call","call":1,"function":{"place":["a.py",null]}}',
    '{"event":"call","call":1,"function":{},"arrays":[["x"]]}',
    '{"event":"waits","sites":[{"n":1,"span":[1,2],"site":null,"user_site":null}]}',
    '{"event":"first_result","ns":"soon"}',
    '{"event":"end"}',
    '{"event":"end","ns":1' + "0" * 400 + "}",
    '{"event":"backend","platform":"cpu"}',
    '{"event":"torch_region","name":"f"}',
    '{"event":"problem","problems":7}',
    "[" * 50_000,
    '{"event":"problem","problems":' + "[" * 5_000 + "]" * 5_000 + "}",
    '{"event":7}',
    "null",
]


def shown(trace: Trace) -> str:
    """Make all reports of a trace."""
    return as_text(trace) + render(trace) + json.dumps(report(trace))


@pytest.mark.parametrize("line", BAD, ids=lambda line: line[:40])
def test_an_invalid_event_is_counted_and_skipped(line: str, tmp_path: Path) -> None:
    plain = whole_log().read(tmp_path / "a")
    log = whole_log()
    log.lines.insert(3, line)
    trace = log.read(tmp_path / "b")
    assert trace.functions == plain.functions
    assert trace.processes[0].problems == (
        "log: 1 line cannot be read: cut off by a kill or a full disk, or damaged",
    )
    shown(trace)
    assert len(redacted("\n".join(log.lines)).splitlines()) == len(log.lines) - 1


def test_a_log_with_any_value_changed_is_read_or_refused_with_a_message(tmp_path: Path) -> None:
    source, values = random.Random(6), (None, -1, "x", [], {}, [[]], 1.5, True, 10**30, [None])
    lines = whole_log().lines
    for number in range(300):
        changed = [json.loads(line) for line in lines]
        _change(source.choice(changed), source, source.choice(values))
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "1.jsonl").write_text("\n".join(map(json.dumps, changed)))
        try:
            trace = load(folder)
        except TraceLogError as error:
            assert len(str(error)) < 400
            continue
        shown(trace)


def _change(value: Any, source: random.Random, into: Any) -> None:
    """Replace a value at any depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    if not keys:
        return
    key = source.choice(list(keys))
    if isinstance(value[key], (dict, list)) and source.random() < 0.7:
        _change(value[key], source, into)
    else:
        value[key] = into


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": "9"}, "not a log of a trace"),
        ({"version": 9, "pid": "of the future"}, "newer Firstlight"),
        ({"recording_ns": None}, "no event"),
        ({"schema": "x" * 10_000}, "not a log of a trace"),
    ],
)
def test_a_foreign_head_is_refused_with_a_message(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceLogError, match=words) as caught:
        Log(**changed).read(tmp_path)
    assert len(str(caught.value)) < 400


def test_long_texts_are_cut(tmp_path: Path) -> None:
    log = Log().event("problem", problems=["x" * 1_000_000]).end(1000)
    trace = log.read(tmp_path)
    (problem,) = trace.processes[0].problems
    assert len(problem) < 3000
    assert len(shown(trace)) < 500_000


# --- several runs ---------------------------------------------------------------------------------


def run_of(pid: int, started: int, folder: Path, **about: Any) -> None:
    log = Log(pid=pid, started=started, **about).jax().call(1)
    log.stage("compile", 1, 300, 400).first_result(450)
    log.end(500).write(folder)


def test_the_last_of_two_runs_in_a_folder_is_reported_with_a_note(tmp_path: Path) -> None:
    run_of(100, 1000, tmp_path)
    run_of(101, 5000, tmp_path)
    trace = load(tmp_path)
    assert [p.pid for p in trace.processes] == [101]
    assert trace.compile_count == 1
    assert "ranks-compile-the-same" not in {f.kind for f in trace.findings}
    assert "1 earlier run" in trace.processes[0].problems[-1]


@pytest.mark.parametrize(
    "second",
    [
        {"started": 1400},  # at the same time
        {"started": 5000, "parent": 100},  # its parent was killed, and has no end
    ],
)
def test_processes_of_one_run_stay_together(second: dict[str, int], tmp_path: Path) -> None:
    run_of(100, 1000, tmp_path)
    run_of(101, folder=tmp_path, **second)
    trace = load(tmp_path)
    assert [p.pid for p in trace.processes] == [100, 101]
    assert not any("earlier run" in text for p in trace.processes for text in p.problems)


def test_ranks_belong_to_one_job_until_one_repeats(tmp_path: Path) -> None:
    for number, rank in enumerate(("0", "1", "0", "1", "2")):
        run_of(100 + number, 1000 * number, tmp_path, rank=rank)
    trace = load(tmp_path)
    assert [p.pid for p in trace.processes] == [102, 103, 104]


def test_an_equal_pid_does_not_make_two_runs_one(tmp_path: Path) -> None:
    """In a container every run may be process 7: it ended, so it was not replaced (exec)."""
    first, second = Log(pid=7, started=0).end(100), Log(pid=7, started=2000).end(100)
    first.lines += second.lines
    assert len(first.read(tmp_path).processes) == 1
