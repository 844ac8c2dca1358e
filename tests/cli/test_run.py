"""`firstlight run` from the outside: real processes, small files, every kind of trouble."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from firstlight.cli import main

pytestmark = pytest.mark.slow

Write = Callable[[str, str], Path]
Firstlight = Callable[..., "subprocess.CompletedProcess[str]"]


class Measured(NamedTuple):
    folder: Path
    stdout: str
    stderr: str


GOOD = """
    import numpy as np
    from firstlight import bench

    @bench(sizes={"small": {"n": 50}}, reference=lambda n: np.arange(n) ** 2.0, tolerance=1e-9)
    def square(n):
        return (lambda x: x * x), (np.arange(n, dtype=float),)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """GOOD, measured once in this process: what was printed, and the folder."""
    folder, out, err = tmp_path_factory.mktemp("measured"), io.StringIO(), io.StringIO()
    (folder / "mine.py").write_text(textwrap.dedent(GOOD))
    with contextlib.chdir(folder), redirect_stdout(out), redirect_stderr(err):
        assert main(["run", "mine.py", "--quick", "--out", "out"]) == 0, err.getvalue()
    return Measured(folder, out.getvalue(), err.getvalue())


@pytest.fixture
def copied(measured: Measured, tmp_path: Path) -> Path:
    """A copy of that run, and of its file, in `tmp_path`."""
    shutil.copytree(measured.folder, tmp_path, dirs_exist_ok=True)
    plan = tmp_path / "out" / "plan.json"
    plan.write_text(plan.read_text().replace(str(measured.folder), str(tmp_path)))
    return tmp_path / "out"


def show(command: Firstlight, run: Path) -> dict[str, dict[str, Any]]:
    done = command("show", run, "--json")
    assert done.returncode == 0, done.stderr
    return {case["case"]: case for case in json.loads(done.stdout)}


def test_your_own_file_is_measured_and_shown(command: Firstlight, measured: Measured) -> None:
    assert "report.html" in measured.stdout and "square" in measured.stdout
    assert {p.name for p in (measured.folder / "out").iterdir()} == {
        "plan.json",
        "samples.jsonl",
        "run.json",
        "report.html",
    }
    case = show(command, measured.folder / "out")["square[small]/numpy/none"]
    assert case["status"] == "ok" and case["correctness"]["max_relative_error"] == 0.0
    cold, warm = case["cold_seconds"], case["warm_call_seconds"]
    assert cold["n"] == 6 and cold["confidence"] >= 0.95
    assert 0 < cold["low"] <= cold["median"] <= cold["high"]
    # On a busy machine the calls may not settle: then there is a reason instead of a number.
    assert case["warm_reason"] if warm is None else warm["n"] == 6
    assert case["warm_class"] in ("flat", "warmup", "slowdown", "inconsistent", "no steady state")
    assert case["phases_seconds"]["compile"] is None  # null, not 0: NumPy does not compile
    assert case["peak_host_bytes"] > 1 << 20
    assert case["protocol"]["data"] == [
        {"shape": [50], "dtype": "float64", "layout": "C", "device": "host"}
    ]


def test_the_phases_of_every_process_add_up_to_its_total(measured: Measured) -> None:
    lines = (measured.folder / "out" / "samples.jsonl").read_text().splitlines()
    timed = [s for s in map(json.loads, lines) if s["kind"] == "timed"]
    assert len(timed) == 6
    for sample in timed:
        cold = sample["cold"]
        known = [s for s in cold["phases_seconds"].values() if s is not None]
        assert sum(known) + cold["unattributed_seconds"] == pytest.approx(
            cold["total_seconds"], abs=1e-9
        )
        assert min(known) >= 0 and cold["unattributed_seconds"] >= 0


def test_a_wrong_result_has_no_timing_and_fails_the_run(
    command: Firstlight, write: Write, tmp_path: Path
) -> None:
    write("mine.py", GOOD.replace("x * x", "x * x + 1e-3"))
    done = command("run", "mine.py", "--quick", "-p", 1, "--out", "out")
    assert done.returncode == 1
    case = show(command, tmp_path / "out")["square[small]/numpy/none"]
    assert case["status"] == "failed" and "exceeds the tolerance" in case["reason"]
    assert case["cold_seconds"] is None and case["warm_call_seconds"] is None
    assert not any(
        json.loads(line)["cold"]
        for line in (tmp_path / "out/samples.jsonl").read_text().split("\n")
        if line
    )


def test_one_failing_benchmark_does_not_stop_the_others(
    command: Firstlight, write: Write, tmp_path: Path
) -> None:
    write(
        "mine.py",
        GOOD
        + """
    @bench
    def crashes():
        import os, signal
        return (lambda: os.kill(os.getpid(), signal.SIGSEGV)), ()

    @bench
    def raises():
        raise RuntimeError("no such detector")

    @bench
    def hangs():
        import time
        return (lambda: time.sleep(600)), ()
    """,
    )
    done = command("run", "mine.py", "--quick", "-p", 1, "--timeout", 3, "--out", "out")
    assert done.returncode == 1
    cases = show(command, tmp_path / "out")
    status = {case["workload"]: case["status"] for case in cases.values()}
    assert status == {"square": "ok", "crashes": "crashed", "raises": "failed", "hangs": "timeout"}
    raised = cases["raises[default]/numpy/none"]
    assert "no such detector" in raised["reason"] and "Traceback" in raised["stderr_tail"]


def test_ctrl_c_keeps_what_is_there_and_resume_finishes_it(
    command: Firstlight, write: Write, tmp_path: Path
) -> None:
    """The third process waits in a pipe that nobody writes to, so the signal always finds it."""
    out, pipe = tmp_path / "out", tmp_path / "pipe"
    samples = out / "samples.jsonl"
    waiting = f"""
    from pathlib import Path
    samples, pipe = Path({str(samples)!r}), Path({str(pipe)!r})
    if pipe.exists() and samples.exists() and len(samples.read_text().splitlines()) == 2:
        pipe.read_text()
"""
    write("mine.py", GOOD + waiting)
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "firstlight", "run", "mine.py", "-p", "3", "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not samples.exists() or len(samples.read_text().splitlines()) < 2:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            raise AssertionError(process.communicate())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    first = samples.read_text().splitlines()
    assert len(first) == 2
    run = json.loads((out / "run.json").read_text())
    assert run["complete"] is False and run["cases"][0]["status"] == "incomplete"

    pipe.unlink()
    done = command("run", "--resume", "out")
    assert done.returncode == 0, done.stderr
    second = samples.read_text().splitlines()
    assert second[: len(first)] == first and len(second) == 4
    assert json.loads((out / "run.json").read_text())["complete"] is True
    assert sorted(json.loads(line)["order"] for line in second) == list(range(4))


def test_a_run_that_was_killed_can_be_shown_as_far_as_it_got(
    command: Firstlight, copied: Path
) -> None:
    (copied / "run.json").unlink()
    samples = (copied / "samples.jsonl").read_text().splitlines(keepends=True)
    (copied / "samples.jsonl").write_text("".join(samples[:2]) + samples[2][:100])
    case = show(command, copied)["square[small]/numpy/none"]
    assert case["status"] == "incomplete" and case["cold_seconds"]["n"] == 1
    assert (case["processes_ok"], case["processes_planned"]) == (1, 6)


def test_resume_refuses_to_mix_two_environments(command: Firstlight, copied: Path) -> None:
    plan = json.loads((copied / "plan.json").read_text())
    plan["fingerprint"]["packages"]["numpy"] = "1.0"
    (copied / "plan.json").write_text(json.dumps(plan))
    done = command("run", "--resume", "out")
    assert done.returncode == 2 and "the installed packages changed" in done.stderr


@pytest.mark.usefixtures("copied")
def test_resume_refuses_a_program_that_was_edited(command: Firstlight, write: Write) -> None:
    write("mine.py", GOOD.replace("x * x", "x ** 2"))
    done = command("run", "--resume", "out")
    assert done.returncode == 2 and "the benchmark file changed" in done.stderr


def test_a_damaged_plan_is_refused(command: Firstlight, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/plan.json").write_text("{}")
    done = command("run", "--resume", "out")
    assert done.returncode == 2 and "damaged" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "quik"), "Did you mean 'quick'"),
        (("run", "matmull"), "Did you mean 'matmul'"),
        (("run", "--backend", "jax-jti"), "Did you mean 'jax-jit'"),
        (("run", "-b", "nothing_like_it"), "matches none"),
        (("run", "-b", "["), "not a regular expression"),
        (("run", "missing.py"), "no such file"),
        (("run", "--resume", "nowhere"), "plan.json"),
        (("run", "--processes", "0"), "from 1 to 2000"),
        (("run", "--processes", "2001"), "from 1 to 2000"),
        (("run", "--timeout", "-1"), "positive"),
        (("run", "--affinity", "9999"), "usable CPUs"),
        (("show", "nowhere"), "run directory"),
    ],
)
def test_wrong_usage_is_explained_with_exit_code_2(
    command: Firstlight, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('bad constant')", "bad constant"),
        ("def f(:\n", "SyntaxError"),
        ("x = 1\n", "no function is marked"),
        ("from firstlight import bench\n@bench(sise={})\ndef f(): ...\n", "Did you mean 'sizes'"),
        (
            "from firstlight import bench\n@bench(backend='jaxx')\ndef f(): ...\n",
            "unknown backend",
        ),
        ("from firstlight import bench\n@bench(sizes=3)\ndef f(): ...\n", "sizes must be"),
        (
            "from firstlight import bench\n@bench(workload='a\\n::error::b')\ndef f(): ...\n",
            r"the workload 'a\n::error::b' is not a valid name",
        ),
        (
            "from firstlight import bench\n@bench(sizes={'\\x1b[2J': {}})\ndef f(): ...\n",
            r"the size '\x1b[2J' is not a valid name",
        ),
        ("from firstlight import bench\n@bench(tolerance='x')\ndef f(): ...\n", "tolerance must"),
        ("from firstlight import bench\n@bench(backend=['a'])\ndef f(): ...\n", "unknown backend"),
        (
            "from firstlight import bench\n@bench(environment={'A': 1})\ndef f(): ...\n",
            "environment must",
        ),
        (
            "from firstlight import bench\n@bench(reference=[1.0])\ndef f(): ...\n",
            "reference must be a function",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(
    command: Firstlight, write: Write, text: str, words: str
) -> None:
    write("bad.py", text)
    done = command("run", "bad.py", "--out", "out")
    assert done.returncode == 2 and words in done.stderr
    assert "firstlight/measure" not in done.stderr.split("Traceback")[0]


def test_a_step_that_returns_nothing_is_explained_with_exit_code_2(
    command: Firstlight, write: Write
) -> None:
    write("mine.py", "from firstlight import bench\n@bench\ndef f(): return lambda: None\n")
    done = command("run", "mine.py", "--quick", "--out", "out")
    assert done.returncode == 2
    assert "returned nothing" in done.stdout


def test_an_existing_output_is_refused_before_anything_runs(
    command: Firstlight, write: Write, tmp_path: Path
) -> None:
    write("mine.py", GOOD)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    done = command("run", "mine.py", "--out", "out")
    assert done.returncode == 2 and "Nothing is overwritten" in done.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_a_missing_framework_is_reported_once_and_its_cases_are_skipped(
    firstlight: Firstlight, tmp_path: Path, write: Write
) -> None:
    """`torch` hidden by a finder in sitecustomize: the rest of the environment stays as it is."""
    write(
        "sitecustomize.py",
        """
        import sys
        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")
        sys.meta_path.insert(0, Hide())
        """,
    )
    done = firstlight(
        "run", "matmul", "-b", "small", "--backend", "numpy", "--backend", "torch-eager",
        "--quick", "-p", 1, "--out", "out", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("torch is not installed") == 1
    assert "pip install 'firstlight[torch]'" in done.stderr
    status = {c["backend"]: c["status"] for c in show(firstlight, tmp_path / "out").values()}
    assert status == {"numpy": "ok", "torch-eager": "skipped"}


def test_a_backend_and_a_workload_of_another_package_are_found(
    firstlight: Firstlight, tmp_path: Path, write: Write
) -> None:
    write(
        "plugin.py",
        """
        from firstlight.measure.adapters import Adapter
        from firstlight.workloads.catalog import Backend, Size, Workload

        class Doubling(Adapter):
            def compile(self, function):
                return lambda *a: function(*a) + function(*a)

        BACKEND = Backend("doubling", "Twice", "numpy", "plugin:Doubling", ("numpy",), True)
        WORKLOAD = Workload("half", "Half", {"numpy": "plugin:build"}, "plugin:reference",
                            {"tiny": Size({"n": 3})}, 1e-9, backends=("doubling",))

        def build(compile, seed, n):
            import numpy as np
            return compile(lambda x: x / 2), (np.ones(n),)

        def reference(seed, n):
            import numpy as np
            return np.ones(n)
        """,
    )
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[firstlight.backends]\nd = plugin:BACKEND\n[firstlight.workloads]\nw = plugin:WORKLOAD\n"
    )
    done = firstlight("run", "half", "--quick", "-p", 1, "--out", "out", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    cases = show(firstlight, tmp_path / "out")
    assert cases["half[tiny]/doubling/none"]["correctness"]["max_relative_error"] == 0.0


def test_a_broken_plugin_is_named(firstlight: Firstlight, tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[firstlight.backends]\nb = no_such_module:X\n")
    done = firstlight("list", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and "no_such_module" in done.stderr


def test_progress_is_plain_lines_without_a_terminal(measured: Measured) -> None:
    lines = [line for line in measured.stderr.splitlines() if line.startswith("[")]
    assert len(lines) == 7 and "\x1b" not in measured.stderr
    assert lines[-1].startswith("[7/7] timing square[small]/numpy/none") and "left" in lines[-1]


def test_a_run_goes_on_when_its_output_is_no_longer_read(write: Write, tmp_path: Path) -> None:
    write("mine.py", GOOD)
    command = [sys.executable, "-m", "firstlight", "run", "mine.py", "--quick", "-p", "1"]
    process = subprocess.Popen(
        [*command, "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert json.loads((tmp_path / "out/run.json").read_text())["complete"] is True


def test_the_run_order_is_shuffled_reproducibly_and_recorded() -> None:
    from firstlight.measure.case_selection import select
    from firstlight.records import rounds
    from firstlight.workloads.catalog import registered

    backends, workloads = registered()
    cases = select("standard", workloads, backends)
    one, same, other = (rounds(cases, 4, seed) for seed in (1, 1, 2))
    assert one == same != other
    for index in range(4):
        block = one[index * len(cases) : (index + 1) * len(cases)]
        assert {case.id for case, _ in block} == {case.id for case in cases}


def test_system_shows_what_a_run_records(command: Firstlight) -> None:
    done = command("system", "--json")
    assert done.returncode == 0
    host = json.loads(done.stdout)["host"]
    assert host["cpu"]["logical_cores"] == os.cpu_count()
    assert host["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    import numpy

    assert host["packages"]["numpy"] == numpy.__version__
    assert "numpy" in command("system").stdout
