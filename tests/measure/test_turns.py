"""Two processes that take turns with their warm calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from firstlight.measure.turns import WINDOWS, Turns

#: Takes turns like a worker; reports when each of its windows began and ended.
PROCESS = """
import json, os, signal, sys, time
from firstlight.measure.turns import Turns
job = json.loads(sys.argv[1])
turns, spans = Turns(job), []
for window in range(turns.windows):
    turns.begin()
    if job.get("dies_at") == window: os.kill(os.getpid(), signal.SIGKILL)
    if job.get("hangs_at") == window: time.sleep(60)
    begin = time.monotonic_ns()
    time.sleep(0.002)
    spans.append((begin, time.monotonic_ns()))
    turns.end(3)
turns.close()
os.write(job["fd"], json.dumps({"spans": spans, "calls": turns.calls}).encode())
"""


class Process:
    """One of the two processes, with a pipe for its reports."""

    def __init__(self, wait: int, pass_on: int, first: bool, **more: Any) -> None:
        self.reading, writing = os.pipe()
        job = {"turn": (wait, pass_on, first), "fd": writing, "timeout_seconds": 20.0, **more}
        self.child = subprocess.Popen(
            [sys.executable, "-c", PROCESS, json.dumps(job)], pass_fds=(wait, pass_on, writing)
        )
        os.close(writing)
        os.close(wait)
        os.close(pass_on)

    def told(self) -> Any:
        text = b""
        while chunk := os.read(self.reading, 1 << 16):
            text += chunk
        os.close(self.reading)
        self.child.wait(30)
        return json.loads(text.removeprefix(b"ready\n") or b"null")


def two(first: dict[str, Any], second: dict[str, Any]) -> tuple[Process, Process]:
    (read_1, write_1), (read_2, write_2) = os.pipe(), os.pipe()
    return Process(read_1, write_2, False, **first), Process(read_2, write_1, True, **second)


def test_windows_of_two_processes_alternate_and_never_overlap() -> None:
    one, other = (process.told() for process in two({}, {}))
    spans = sorted(
        [(*span, "one") for span in one["spans"]] + [(*span, "other") for span in other["spans"]]
    )
    assert [name for _, _, name in spans] == ["other", "one"] * WINDOWS
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert one["calls"] == other["calls"] == [3] * WINDOWS


@pytest.mark.parametrize("dies", ["first", "second"])
def test_when_one_process_dies_the_other_continues_and_reports_its_windows_in_turns(
    dies: str,
) -> None:
    more: dict[str, Any] = {"dies_at": 7}
    pair = two(more, {}) if dies == "first" else two({}, more)
    left = pair[1 if dies == "first" else 0].told()
    gone = pair[0 if dies == "first" else 1]
    assert gone.told() is None and gone.child.returncode == -signal.SIGKILL
    assert len(left["spans"]) == WINDOWS
    # The one that went first was in the eighth window when the other died.
    assert len(left["calls"]) == (8 if dies == "first" else 7)


def test_waiting_for_a_hanging_process_ends() -> None:
    pair = two({"hangs_at": 2}, {"timeout_seconds": 2.0})
    left = pair[1].told()
    assert len(left["spans"]) == WINDOWS and len(left["calls"]) == 3
    assert pair[0].child.poll() is None  # the other hangs still, and was not waited for
    pair[0].child.kill()
    pair[0].told()


def test_a_single_process_has_one_window_and_no_turns(tmp_path: Path) -> None:
    turns = Turns({"turn": None})
    turns.begin()
    turns.end(5)
    turns.close()
    assert turns.windows == 1 and turns.calls == []
