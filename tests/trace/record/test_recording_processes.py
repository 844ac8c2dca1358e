"""The log is complete and the program undisturbed, whatever it does to its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from firstlight.trace.findings import load
from firstlight.trace.read.log_events import ProcessLog, read_logs
from firstlight.trace.read.model import Trace
from firstlight.trace.record.log_file import LogFile, encoded

pytestmark = pytest.mark.slow

Write = Callable[[str, str], Path]


def traced(folder: Path, *program: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program with only the variable set, its logs in `folder`/logs."""
    return subprocess.run(
        [sys.executable, *program],
        cwd=folder,
        env={**os.environ, "FIRSTLIGHT_TRACE": "logs", **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


MODEL = """
    import jax, numpy as np
    log = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: log.append(event))
    @jax.jit
    def f(x):
        for n in range(25):
            x = jax.numpy.sin(x @ x) + n
        return x
    value = float(f(np.ones((4, 4), np.float32)).sum())
"""


def test_compiles_during_an_import_are_recorded(tmp_path: Path, write: Write) -> None:
    """Even if that import loads JAX; the time is not counted as importing."""
    write("model.py", MODEL)
    write(
        "program.py",
        "import model\nprint(sum('backend_compile_duration' in event for event in model.log))\n",
    )
    counted = int(traced(tmp_path, "program.py").stdout)
    trace = load(tmp_path / "logs")
    assert trace.compile_count == counted >= 2
    (process,) = trace.processes
    assert process.first_result_site is not None
    assert Path(process.first_result_site.file).name == "model.py"
    (model,) = [p for p in process.imports if p.name == "model"]
    compiling = sum(f.seconds for f in trace.functions if f.name == "f")
    # It contains JAX's import and its compiles; neither is its own time.
    assert model.seconds < compiling and model.beyond_jax_seconds < compiling


def test_a_recording_has_compiles_during_an_import_too(tmp_path: Path, write: Write) -> None:
    write("model.py", MODEL)
    code = (
        "import firstlight.trace\n"
        "with firstlight.trace.recording() as t:\n    import model\n"
        "print(t.compile_count, sum('backend_compile_duration' in event for event in model.log))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    heard, counted = map(int, done.stdout.split())
    assert heard == counted >= 2


def test_a_program_that_closes_all_descriptors_gets_nothing_of_ours_into_its_files(
    tmp_path: Path, write: Write
) -> None:
    """It gets the same descriptors as alone."""
    write(
        "program.py",
        """
        import os
        os.closerange(3, 2000)
        files = [open(f"data{n}", "wb") for n in range(500)]
        import decimal, fractions
        for file in files:
            file.write(b"mine"); file.close()
        print({open(f"data{n}").read() for n in range(500)}, files[0].name)
        print(os.open("data0", os.O_RDONLY))
        import unittest
        """,
    )
    assert traced(tmp_path, "program.py").stdout == "{'mine'} data0\n3\n"
    (log,) = read_logs(tmp_path / "logs")
    imported = {module[0] for event in log.of("imports") for module in event["modules"]}
    assert {"decimal", "fractions", "unittest"} <= imported and log.first("end")


def test_the_recorder_needs_nothing_that_a_program_may_replace(
    tmp_path: Path, write: Write
) -> None:
    write("json.py", "print('my json')\ndumps = lambda value: 'mine'\n")
    write("re.py", "print('my re')\n")
    write(
        "program.py",
        """
        import json, os, re
        def shouting(*_): print("called"); return 0
        print(json.dumps(1))
        os.write = os.getpid = os.open = os.fstat = shouting
        import this_one, fractions_of_mine
        """,
    )
    write("this_one.py", "pass")
    write("fractions_of_mine.py", "pass")
    assert traced(tmp_path, "program.py").stdout == "my json\nmy re\nmine\n"
    (log,) = read_logs(tmp_path / "logs")
    imported = {module[0] for event in log.of("imports") for module in event["modules"]}
    assert {"this_one", "fractions_of_mine"} <= imported and log.first("end")


def test_events_are_written_as_json_would_write_them() -> None:
    class Number(int):
        def __repr__(self) -> str:
            raise AssertionError("the program's own code")

    value: dict[str, Any] = {
        "text": 'a"b\\c\n\u20ac\U0001f600\ud800\x7f',
        "numbers": [0, -1, 10**30, 1.5, 1e-300, float("inf"), float("-inf"), True, False, None],
        "nested": {"empty": {}, "list": [], "tuple": (1, ("x",))},
        "own": Number(7),
    }
    assert json.loads(encoded(value)) == json.loads(json.dumps(value))
    assert json.loads(encoded({"path": Path("/a"), 3: float("nan")}))["path"] == "/a"


def test_a_log_that_could_not_be_opened_is_opened_later(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in its place")
    log = LogFile(str(tmp_path / "logs"))
    try:
        log.write({"event": "lost"})
    except OSError:
        (tmp_path / "logs").unlink()
    log.write({"event": "kept"})
    (path,) = (tmp_path / "logs").iterdir()
    assert path.read_text() == '{"event":"kept"}\n'


def test_threads_that_write_at_the_same_time_lose_no_line(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path))

    def work(thread: int) -> None:
        for number in range(500):
            log.write({"thread": thread, "number": number})

    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        log.write({"thread": -1, "number": 0})
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    finally:
        sys.setswitchinterval(switch_seconds)
    (path,) = tmp_path.iterdir()
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((one["thread"], one["number"]) for one in written) == [
        (-1, 0),
        *((thread, number) for thread in range(8) for number in range(500)),
    ]
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert opened.count(os.path.realpath(path)) == 1


HELD = """
    import os, sys, threading
    from firstlight.trace.record.log_file import LogFile
    log, held, over = LogFile("logs"), threading.Event(), threading.Event()
    log.write({"of": "parent"})
    def work():
        with log._lock:
            held.set()
            over.wait()
    thread = threading.Thread(target=work)
    thread.start()
    held.wait()
    child = os.fork()
    log.write({"of": "child"}) if not child else over.set()
    os._exit(0) if not child else thread.join()
    sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_process_forked_while_a_thread_writes_has_a_log(tmp_path: Path, write: Write) -> None:
    subprocess.run([sys.executable, write("held", HELD)], cwd=tmp_path, timeout=60, check=True)
    assert sorted(path.read_text() for path in (tmp_path / "logs").iterdir()) == [
        '{"of":"child"}\n',
        '{"of":"parent"}\n',
    ]


def _by_pid(folder: Path) -> dict[int, ProcessLog]:
    return {log.head["pid"]: log for log in read_logs(folder)}


FORKS = """
    import os, sys, warnings, multiprocessing
    warnings.simplefilter("ignore")
    import jax, numpy as np
    x = jax.jit(lambda a: a + 1)(np.ones(10))
    for _ in range(5):
        float(x[0])
    def work():
        pass
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start(); worker.join()
    plain = os.fork()
    if not plain:
        sys.exit(0)
    os.waitpid(plain, 0)
    print(os.getpid(), worker.pid, plain)
"""


@pytest.mark.skipif(
    tuple(map(int, version("jax").split(".")[:2])) < (0, 10),
    reason="with this JAX a fork may hang, traced or not",
)
def test_a_fork_records_only_itself_and_has_an_end(tmp_path: Path, write: Write) -> None:
    write("program.py", FORKS)
    done = traced(tmp_path, "program.py")
    parent, worker, plain = map(int, done.stdout.split())
    logs = _by_pid(tmp_path / "logs")
    assert {parent, worker, plain} == set(logs)
    assert sum(event["short"] for event in logs[parent].of("waits")) >= 1
    for pid in (worker, plain):
        assert len(list(logs[pid].of("end"))) == 1
        waited = [(event["short"], event["sites"]) for event in logs[pid].of("waits")]
        assert waited == [(0, [])] and not logs[pid].first("first_result")
    trace: Trace = load(tmp_path / "logs")
    assert all(process.wall_seconds is not None for process in trace.processes)
    assert not [p for process in trace.processes for p in process.problems]


def test_removed_listeners_are_reported_and_restored(tmp_path: Path, write: Write) -> None:
    write(
        "program.py",
        """
        import jax
        jax.monitoring.clear_event_listeners()
        x = jax.jit(lambda x: jax.pure_callback(
            lambda y: __import__("time").sleep(1.1) or y, x, x))(1.0)
        float(x)
        float(jax.jit(lambda x: x + 1)(1.0))
        """,
    )
    traced(tmp_path, "program.py")
    trace = load(tmp_path / "logs")
    (process,) = trace.processes
    assert any("removed the listeners" in problem for problem in process.problems)
    # If JAX also forgets the listeners of begins, the first is lost.
    assert trace.compile_count in (1, 2) and trace.time_to_first_result_seconds is not None
    assert process.unfinished is None


def test_children_of_a_program_that_changes_its_folder_write_to_the_same_place(
    tmp_path: Path, write: Write
) -> None:
    write(
        "program.py",
        """
        import os, subprocess, sys
        os.mkdir("sub"); os.chdir("sub")
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        """,
    )
    traced(tmp_path, "program.py")
    assert len(list((tmp_path / "logs").iterdir())) == 2
    assert not list((tmp_path / "sub").iterdir())
