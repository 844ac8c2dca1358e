"""The server's log: lines, time stamps, JSON, and failures that are held back."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstlight.serve import log
from firstlight.serve.log import LOG, Lines, failed

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z firstlight: ")


@pytest.fixture
def lines(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Lines, Callable[[], list[str]]]]]:
    monkeypatch.setattr(LOG, "propagate", False)  # tests of the command set up the root
    used = []

    def made(**options: Any) -> tuple[Lines, Callable[[], list[str]]]:
        handler = Lines(**options)
        used.append(handler)
        LOG.addHandler(handler)
        LOG.setLevel(logging.INFO)
        return handler, lambda: "".join(capsys.readouterr()).splitlines()

    yield made
    for handler in used:
        LOG.removeHandler(handler)
        handler.flush()


def error(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as raised:
        return raised


@pytest.mark.parametrize("end", ["\n", "\r\n", "\v", "\x85", "\u2028"])
def test_an_event_is_one_line_with_a_time_stamp(lines: Any, end: str) -> None:
    _, written = lines()
    LOG.info("ready after 1.92 s")
    failed("a batch of m", error(f"first{end}last"), "m")
    info, problem = written()
    assert STAMP.match(info) and info.endswith("firstlight: ready after 1.92 s")
    assert STAMP.match(problem) and "a batch of m failed: ValueError: first … last" in problem
    assert "raise ValueError(text)" in problem


def test_json_has_the_same_fields_and_the_whole_traceback(lines: Any) -> None:
    _, written = lines(as_json=True)
    LOG.info("listening on http://127.0.0.1:8000")
    failed("a batch of m", error("no"), "m")
    info, problem = map(json.loads, written())
    assert info.keys() == {"time", "level", "message"} and info["level"] == "info"
    assert problem["model"] == "m" and problem["level"] == "error"
    assert problem["traceback"].splitlines()[-1] == "ValueError: no"


def test_a_failing_model_writes_one_traceback_at_a_time_and_counts_the_others(lines: Any) -> None:
    handler, written = lines(every_seconds=3600)
    for i in range(351):
        failed("a batch of m", error(f"number {i}"), "m")
    failed("a batch of other", error("another model"), "other")
    first, other = written()
    assert "number 0" in first and "another model" in other
    handler.flush()
    assert "number 350" in (last := written()[0]) and "(349 more held back)" in last
    handler.flush()
    assert written() == []


def test_what_was_held_back_is_written_when_the_second_is_over(
    lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, written = lines(every_seconds=0.01)
    done = threading.Event()
    write = handler._write

    def seen(record: logging.LogRecord) -> None:
        write(record)
        if getattr(record, "held_back", None) is not None:
            done.set()

    monkeypatch.setattr(handler, "_write", seen)
    with_lock = handler.lock
    assert with_lock is not None
    with with_lock:  # so that the second cannot end meanwhile
        for i in range(3):
            failed("a batch of m", error(f"number {i}"), "m")
    assert done.wait(60)
    assert "number 2" in written()[-1]


def test_a_failing_callback_is_logged_once_per_second_and_every_line_is_json(
    tmp_path: Path,
) -> None:
    """Through JAX, which logs what fails in a callback as well."""
    program = tmp_path / "program.py"
    program.write_text("""
import jax, numpy as np
from firstlight.serve import log
log.set_up(as_json=True)
def fail(x):
    raise ValueError("a negative energy")
call = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((), np.float32), x))
for _ in range(50):
    try:
        call(np.float32(1)).block_until_ready()
    except Exception as error:
        log.failed("a batch of m", error, "m")
""")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    assert 2 <= len(found) < 20
    assert sum(1 + one.get("held_back", 0) for one in found) == 50
    assert all("a negative energy" in one["message"] for one in found)
    assert len(done.stderr) < 20_000 * len(found)


def test_the_log_is_set_up_by_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from firstlight.cli import main
    from firstlight.serve import running

    seen = []
    monkeypatch.setattr(log, "set_up", seen.append)
    monkeypatch.setattr(running, "run", lambda *_: 0)
    (tmp_path / "app.py").write_text("")
    assert main(["serve", str(tmp_path / "app.py"), "--log-format", "json"]) == 0
    assert main(["serve", str(tmp_path / "app.py")]) == 0
    assert seen == [True, False]
