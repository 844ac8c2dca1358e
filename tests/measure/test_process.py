"""Real processes: what the parent sees of one that behaves and of those that do not."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstlight.measure.process import WORKER, run_worker
from firstlight.measure.user_file import cases_in
from firstlight.workloads.catalog import registered

ADAPTER = "firstlight.measure.adapters:NumPy"
MARK = "from firstlight import bench\n"
Write = Callable[[str, str], Path]


def job(path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "timed",
        "adapter": ADAPTER,
        "backend": "numpy",
        "program": "build",
        "file": str(path),
        "size": "default",
        "timeout_seconds": 60.0,
        "seed": 0,
        "reference": None,
        "reference_path": "",
        "tolerance": 1e-6,
        "warm_calls": 30,
        "warm_calls_least": 5,
        "warm_seconds": 0.2,
        "batches": 2,
        "batch_seconds": 0.001,
        **changes,
    }


def test_phases_are_contiguous_and_inside_the_parents_window(write: Write) -> None:
    path = write(
        "ok.py",
        MARK + "import numpy\n@bench\ndef build(): return (lambda x: x @ x), (numpy.eye(4),)",
    )
    outcome = run_worker(job(path), os.environ, 60)
    assert outcome.report is not None
    spans = outcome.report["spans_ns"]
    edges = [outcome.spawned_ns, outcome.report["started_ns"]]
    for name in ("import", "setup", "first_execute"):
        edges += spans[name]
    edges.append(outcome.done_ns)
    assert edges == sorted(edges)


def test_a_program_that_prints_does_not_disturb_the_report(write: Write) -> None:
    path = write(
        "loud.py",
        """
        import os, numpy
        from firstlight import bench
        @bench
        def build():
            print('{"done": 1}\\ndone\\n' * 50)
            os.write(2, b"noise\\n" * 5000)
            return (lambda: numpy.ones(3)), ()
        """,
    )
    outcome = run_worker(job(path), os.environ, 60)
    assert outcome.report is not None and outcome.report["correctness"]["passed"]
    assert outcome.output_tail.endswith("noise\n") and len(outcome.output_tail) <= 4000


def test_a_hanging_process_is_killed_with_its_children(write: Write, tmp_path: Path) -> None:
    path = write(
        "hang.py",
        f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        time.sleep(600)
        """,
    )
    outcome = run_worker(job(path), os.environ, 3.0)
    assert outcome.timed_out and outcome.report is None
    pid = int((tmp_path / "pid").read_text())
    with contextlib.suppress(ProcessLookupError):  # it is gone, or about to go: then wait for that
        child = os.pidfd_open(pid)
        assert select.select([child], [], [], 30)[0]
        os.close(child)


def test_a_crash_is_a_signal_not_a_report(write: Write) -> None:
    path = write("crash.py", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    outcome = run_worker(job(path), os.environ, 60)
    assert outcome.exit_code == -11 and outcome.report is None and not outcome.out_of_memory


def test_out_of_memory_is_distinguished_from_other_errors(write: Write) -> None:
    path = write(
        "memory.py",
        """
        import resource, numpy
        from firstlight import bench
        @bench
        def build():
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            return (lambda: numpy.ones(1 << 40)), ()
        """,
    )
    outcome = run_worker(job(path), os.environ, 60)
    assert outcome.report is not None and outcome.out_of_memory


def test_the_worker_can_be_pinned(write: Write) -> None:
    cpu = sorted(os.sched_getaffinity(0))[0]
    before = os.sched_getaffinity(0)
    path = write(
        "pin.py",
        f"""
        import os, numpy
        from firstlight import bench
        @bench(reference=lambda: numpy.array([{cpu}]))
        def build():
            return (lambda: numpy.array(sorted(os.sched_getaffinity(0)))), ()
        """,
    )
    outcome = run_worker(
        job(path, kind="check", reference="yes", reference_path=str(path) + ".npz"),
        os.environ,
        60,
        affinity=(cpu,),
    )
    assert outcome.report is not None and outcome.report["correctness"]["passed"]
    assert os.sched_getaffinity(0) == before


def test_before_the_framework_only_an_allow_list_of_modules_is_loaded(
    write: Write, tmp_path: Path
) -> None:
    """What `python -P` loads by itself, plus the instrument, and nothing that jax also loads."""
    write(
        "probe.py",
        f"""
        import sys
        from firstlight.measure.adapters import Adapter
        class Probe(Adapter):
            def load(self):
                open({str(tmp_path / "modules")!r}, "w").write("\\n".join(sys.modules))
        def build(compile, seed):
            return (lambda: 1.0), ()
        """,
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    built_in = {"file": None, "program": "probe:build", "parameters": {}, "adapter": "probe:Probe"}
    outcome = run_worker(job(tmp_path, **built_in), environment, 60)
    assert outcome.report is not None and "correctness" in outcome.report, outcome
    bare = subprocess.run(
        [sys.executable, "-P", "-c", "import sys; print('\\n'.join(sys.modules))"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    loaded = set((tmp_path / "modules").read_text().split()) - set(bare)
    assert loaded <= {
        "probe",
        "firstlight",
        "firstlight.measure",
        "firstlight.measure.instrument",
        "firstlight.measure.program",
        "firstlight.measure.adapters",
    }


def test_the_worker_script_is_short_because_it_is_compiled_at_every_start() -> None:
    assert len(WORKER.read_text().splitlines()) < 30


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@bench\ndef build(): return (lambda: None), ()", "returned nothing"),
        ("@bench\ndef build(): return 3", "not a step"),
    ],
)
def test_a_violated_contract_is_explained(write: Write, body: str, message: str) -> None:
    outcome = run_worker(job(write("broken.py", MARK + body)), os.environ, 60)
    assert outcome.report is not None and message in outcome.report["error"]


def test_a_file_that_hides_a_module_is_explained(write: Write) -> None:
    path = write("numpy.py", "def build(): return (lambda: 1), ()")
    outcome = run_worker(job(path), os.environ, 60)
    assert outcome.report is not None and "Rename the file" in outcome.report["error"]


@pytest.mark.parametrize(
    ("imports", "backend"),
    [("", "python"), ("numpy", "numpy"), ("torch, numpy", "torch"), ("numpy, jax", "jax")],
)
def test_a_file_is_measured_as_the_framework_that_it_imports(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str, backend: str
) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("jax", "numpy", "torch"):
        (stubs / f"{name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(stubs))
    mark = f"import {imports}\n{MARK}" if imports else MARK
    path = write("mine.py", mark + "@bench\ndef build(): return lambda: None")
    assert [case.backend for case in cases_in(path, registered()[0], None, None)] == [backend]
