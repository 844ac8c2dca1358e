"""`firstlight gate` and `calibrate` as a user runs them: real repositories, real processes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from firstlight.gate import breakage
from firstlight.gate.directory import GatePlan
from firstlight.measure.case_selection import SAMPLING
from firstlight.records import to_json

pytestmark = pytest.mark.slow

Firstlight = Callable[..., "subprocess.CompletedProcess[str]"]
Git = Callable[..., str]

#: One decisive quantity, so that six rounds are enough for a verdict (p = 2 / 2^6), and no control.
FEW = ("--rounds", "6", "--control", "none", "--gate-on", "warm_call_seconds", "--no-calibration")
FEW += ("--warm-seconds", "0.02")

BENCH = """
    from firstlight import bench
    from project import WORK

    def spin():
        total = 0
        for number in range(WORK):
            total += number
        return float(total > -1)

    @bench(backend="python", reference=lambda: 1.0)
    def spins():
        return spin
    """


@pytest.fixture(autouse=True)
def brief_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few calls per process: what is compared here differs by far more than noise."""
    brief = replace(SAMPLING["gate"], warm_calls_least=5, batches=2, batch_seconds=0.001)
    monkeypatch.setitem(SAMPLING, "gate", brief)


def git_in(root: Path) -> Git:
    def call(*arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout

    return call


@pytest.fixture(scope="module")
def slowed_down(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose second commit makes a call fifty times as long."""
    root = tmp_path_factory.mktemp("slowed-down")
    call = git_in(root)
    call("init", "-q", "-b", "main")
    (root / ".gitignore").write_text("out*\nfirstlight-gates\n")
    (root / "bench_it.py").write_text(textwrap.dedent(BENCH))
    (root / "src" / "project").mkdir(parents=True)
    (root / "src" / "project" / "__init__.py").write_text("WORK = 1_000\n")
    call("add", "-A")
    call("commit", "-qm", "fast")
    (root / "src" / "project" / "__init__.py").write_text("WORK = 50_000\n")
    call("commit", "-qam", "slow")
    return root


@pytest.fixture
def git(slowed_down: Path, tmp_path: Path) -> Git:
    """`git …` in `tmp_path`, a copy of that repository."""
    shutil.copytree(slowed_down, tmp_path, dirs_exist_ok=True)
    return git_in(tmp_path)


def test_a_real_regression_is_found_and_reported_in_every_format(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    before = (git("status", "--porcelain"), git("worktree", "list"), git("branch"))
    summary = tmp_path / "out-summary.md"
    done = command(
        *("gate", "--base", "HEAD~1", "--head", "HEAD", "bench_it.py", *FEW, "--out", "out"),
        *("--markdown", "out.md", "--junit", "out.xml"),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "out/gate.json").read_text())
    assert report["verdict"] == "regression" and report["rounds"] == 6
    [found] = [c for c in report["comparisons"] if c["gated"]]
    assert found["case"] == "spins[default]/python/none"
    assert found["effect"]["ratio"] > 20  # fifty times the work
    assert (tmp_path / "out.md").read_text() == (tmp_path / "out/gate.md").read_text()
    assert summary.read_text().startswith("### Firstlight gate failed")
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    assert suite.get("failures") == "1"
    [annotation] = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert annotation.startswith(
        "::error file=bench_it.py,line=12,title=spins[default]/python/none"
    )
    # Both sides are runs in their own right.
    for side, commit in (("base", "HEAD~1"), ("head", "HEAD")):
        run = json.loads((tmp_path / "out" / side / "run.json").read_text())
        assert run["complete"] and run["host"]["commit"]["id"] == git("rev-parse", commit).strip()
        assert command("show", f"out/{side}").returncode == 0
        published = command("publish", f"out/{side}", "--out", f"out-{side}")
        assert published.returncode == 0, published.stderr
        [snapshot] = [p.parent for p in (tmp_path / f"out-{side}").glob("*/index.json")]
        assert command("verify", snapshot).returncode == 0
    assert (git("status", "--porcelain"), git("worktree", "list"), git("branch")) == before


def test_no_round_proves_nothing_and_leaves_nothing_behind(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    """That equal sides pass is tested with a worker whose times are known."""
    scratch = tmp_path.parent / f"{tmp_path.name}-scratch"
    scratch.mkdir()
    done = command(
        *("gate", "--base", "HEAD", "--head", ".", "bench_it.py", "--max-minutes", "0.0001"),
        *("--out", "out", "--json"),  # the checks, and no round
        TMPDIR=str(scratch),
    )
    report = json.loads(done.stdout)
    assert done.returncode == 2 == report["exit_code"], done.stderr
    assert "not measured on either side" in report["reasons"][0]
    assert report["control"] == "control/numpy/none"
    assert os.listdir(scratch) == []
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert plan["sides"]["head"]["uncommitted"] is not None
    assert plan["sides"]["base"]["uncommitted"] is None
    assert plan["options"]["base"] == git("rev-parse", "HEAD").strip()  # HEAD may move
    assert plan["options"]["seed"] is not None and plan["options"]["head"] == "."
    read = GatePlan.load(tmp_path / "out")
    assert to_json(read) == plan
    assert [look.rounds for look in read.looks] == [12, 24, 48, 96]
    head = json.loads((tmp_path / "out/head/run.json").read_text())
    assert f"numpy=={head['host']['packages']['numpy']}" in head["host"]["lock"]


@pytest.fixture
def one_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat a broken process once; how often otherwise is tested with a worker in memory."""
    monkeypatch.setattr(breakage, "REPEATS", 1)


@pytest.mark.parametrize(
    ("bad", "words"),
    [("2.0", "head failed in 2 of 2 processes"), ("__import__('os').abort()", "head crashed")],
)
@pytest.mark.usefixtures("one_repetition")
def test_a_head_that_is_wrong_or_crashes_fails_and_is_not_timed(
    command: Firstlight, git: Git, tmp_path: Path, bad: str, words: str
) -> None:
    path = tmp_path / "bench_it.py"
    path.write_text(path.read_text().replace("float(total > -1)", bad))
    done = command(
        *("gate", "--base", "HEAD", "bench_it.py", *FEW, "--out", "out", "--junit", "out.xml"),
        "--annotations",
    )
    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "out/gate.json").read_text())
    assert (report["verdict"], report["comparisons"]) == ("regression", [])
    assert words in report["broken"]["spins[default]/python/none"]
    assert ElementTree.parse(tmp_path / "out.xml").getroot()[0].get("failures") == "1"
    assert "\n::error file=bench_it.py,line=12" in done.stdout
    assert "error rate" not in done.stdout  # no time was judged


@pytest.mark.usefixtures("one_repetition")
def test_a_base_that_is_wrong_is_reported_and_not_blamed_on_the_head(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    path = tmp_path / "bench_it.py"
    good = path.read_text()
    path.write_text(good.replace("float(total > -1)", "2.0"))
    git("commit", "-qam", "wrong")
    path.write_text(good)
    done = command("gate", "--base", "HEAD", "bench_it.py", *FEW, "--out", "out", "--json")
    assert done.returncode == 3, done.stderr
    [why] = json.loads(done.stdout)["broken"].values()
    assert "base failed" in why and "nothing to compare head with" in why


@pytest.mark.usefixtures("one_repetition")
def test_a_syntax_error_in_the_head_is_reported_with_its_line_and_fails(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    (tmp_path / "src" / "project" / "__init__.py").write_text("WORK = 1\ndef (\n")
    done = command(
        *("gate", "--base", "HEAD~1", "bench_it.py", *FEW, "--out", "out", "--junit", "out.xml")
    )
    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "out/gate.json").read_text())
    assert report["reasons"][0] == (
        "The benchmark file of head cannot be imported: src/project/__init__.py, line 2: "
        "SyntaxError: invalid syntax."
    )
    assert "Traceback" not in done.stderr and "Traceback" not in done.stdout
    assert ElementTree.parse(tmp_path / "out.xml").getroot()[0].get("failures") == "1"
    git("commit", "-qam", "broken")
    done = command("gate", "--base", "HEAD", "bench_it.py", *FEW, "--out", "out-2")
    assert done.returncode == 2
    assert "can be imported on neither side" in done.stderr
    assert "base: src/project/__init__.py, line 2: SyntaxError" in done.stderr


def test_the_same_shape_with_other_contents_is_other_data(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    text = (
        "import numpy as np\nfrom firstlight import bench\nimport project\n"
        "@bench\ndef total(): return np.sum, (np.full(100, VALUE),)\n"
    )
    path = tmp_path / "bench_it.py"
    path.write_text(text.replace("VALUE", "1.0"))
    git("commit", "-qam", "ones")
    path.write_text(text.replace("VALUE", "2.0"))
    done = command("gate", "--base", "HEAD", "bench_it.py", *FEW, "--out", "out")
    assert done.returncode == 2
    assert "input 0 has other contents" in done.stderr


def test_other_data_on_the_head_are_not_compared(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    """The parameters are equal, but an array is twice as long: only the checks notice."""
    text = (
        "import numpy as np\nfrom firstlight import bench\nimport project\n"
        "@bench\ndef total(): return np.sum, (np.ones(SIZE),)\n"
    )
    path = tmp_path / "bench_it.py"
    path.write_text(text.replace("SIZE", "100"))
    git("commit", "-qam", "short")
    path.write_text(text.replace("SIZE", "200"))
    done = command("gate", "--base", "HEAD", "bench_it.py", *FEW, "--out", "out")
    assert done.returncode == 2
    assert "no case can be compared" in done.stderr and "[200]" in done.stderr


def test_code_that_is_installed_for_both_sides_is_not_compared(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    """A project in an unusual place, which both sides find through their environment."""
    git("mv", "src", "code")
    git("commit", "-qm", "moved")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-installed"
    (elsewhere / "project").mkdir(parents=True)
    (elsewhere / "project" / "__init__.py").write_text("WORK = 1\n")
    done = command(
        *("gate", "--base", "HEAD", "bench_it.py", *FEW, "--out", "out"),
        PYTHONPATH=str(elsewhere),
    )
    assert done.returncode == 2
    assert "imported 'project' from" in done.stderr and "--setup" in done.stderr


def test_a_catalogue_workload_proves_nothing_about_a_repository_that_it_does_not_import(
    command: Firstlight, git: Git
) -> None:
    done = command("gate", "--base", "HEAD~1", "matmul", "-b", "small.*numpy", *FEW, "--out", "out")
    assert done.returncode == 2
    assert "both sides ran the same code" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to compare with"),
        (("--base", "main", "--base-env", "x", "--head-env", "y"), "no revisions with them"),
        (("--base-env", "x"), "give both --base-env and --head-env"),
        (("--base", "nowhere", "bench_it.py"), "names no commit"),
        (("--base", "HEAD", "missing.py"), "does not exist in base"),
        (("--base", "HEAD", "../outside.py"), "outside of the repository"),
        (("--base", "HEAD", "bench_it.py", "--control", "nothing"), "is not one of: spins"),
        (
            ("--base", "HEAD", "bench_it.py", "--gate-on", "cold_second"),
            "Did you mean 'cold_seconds'",
        ),
        (("--base", "HEAD", "bench_it.py", "--setup", "exit 7"), "exit code 7"),
        (("--base", "HEAD", "bench_it.py", "--rounds", "6"), "At least 7 are needed"),
        (("--base", "HEAD", "bench_it.py", "--calibration", "bench_it.py"), "cannot be read"),
        (("--base", "HEAD", "quick", "--bench-from", "head"), "needs a FILE.py"),
        (("--resume", "."), "no such file"),
    ],
)
def test_wrong_usage_is_two_and_says_what_to_do(
    git: Git,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    from firstlight.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["gate", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert len(git("worktree", "list").splitlines()) == 1


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            raise AssertionError(process.communicate())


def test_an_interrupted_gate_loses_nothing_and_is_resumed(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    asked = ["gate", "--base", "HEAD~1", "--head", "HEAD", "bench_it.py", *FEW, "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "firstlight", *asked],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    samples = tmp_path / "out" / "base" / "samples.jsonl"
    wait_for(lambda: samples.exists() and samples.read_text().count('"timed"') >= 1, process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "firstlight gate --resume out" in stderr
    assert len(git("worktree", "list").splitlines()) == 1
    kept = samples.read_text()
    done = command("gate", "--resume", "out", "--json")
    assert done.returncode == 1, done.stderr
    assert samples.read_text().startswith(kept)
    assert json.loads(done.stdout)["rounds"] == 6
    indices = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [s["index"] for s in indices if s["kind"] == "timed"] == list(range(6))


def test_a_gate_is_not_resumed_with_other_code(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    few = (*FEW, "--max-minutes", "0.0001")  # the checks, and no round
    command("gate", "--base", "HEAD", "--head", ".", "bench_it.py", *few, "--out", "out")
    (tmp_path / "src" / "project" / "__init__.py").write_text("WORK = 5\n")
    done = command("gate", "--resume", "out")
    assert done.returncode == 2
    assert "head is not what it was when this gate began" in done.stderr


def test_two_environments_are_compared_by_their_own_interpreters(
    command: Firstlight, tmp_path: Path
) -> None:
    """Two wrappers around this Python, each with another version of the project installed."""
    (tmp_path / "bench_it.py").write_text(textwrap.dedent(BENCH))
    for name, work in (("one", 1_000), ("two", 50_000)):
        folder = tmp_path / name / "site"
        (folder / "project").mkdir(parents=True)
        (folder / "project" / "__init__.py").write_text(f"WORK = {work}\n")
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    done = command(
        *("gate", "--base-env", "one", "--head-env", "two", "bench_it.py", *FEW, "--out", "out"),
        "--json",
    )
    assert done.returncode == 1, done.stderr
    [found] = [c for c in json.loads(done.stdout)["comparisons"] if c["gated"]]
    assert found["effect"]["ratio"] > 20


def test_calibrating_adds_whole_gates_to_the_file_of_this_machine(
    command: Firstlight, git: Git, tmp_path: Path
) -> None:
    data = {"XDG_DATA_HOME": str(tmp_path / "out-data")}
    done = command(
        *("calibrate", "bench_it.py", "--rev", "HEAD~1", "--gates", "2", "--rounds", "1"),
        *("--keep", "out-gates", "--warm-seconds", "0.02"),
        **data,
    )
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "out-data/firstlight/calibration").iterdir()
    results: list[dict[str, Any]] = json.loads(file.read_text())["results"]
    case = "spins[default]/python/none"
    own = [r for r in results if (r["case"], r["quantity"]) == (case, "cold_seconds")]
    assert [r["rounds"] for r in own] == [1, 1]
    assert len({r["measured_at"] for r in own}) == 2
    assert {r["case"] for r in results} == {case, "control/numpy/none"}
    assert "17 more are needed" in done.stdout
    for number, result in enumerate(own):
        seconds = []
        for side in ("base", "head"):
            lines = (tmp_path / f"out-gates/00{number}/{side}/samples.jsonl").read_text()
            samples = [json.loads(line) for line in lines.splitlines()]
            [timed] = [s for s in samples if s["case"] == case and s["kind"] == "timed"]
            seconds.append(timed["cold"]["total_seconds"])
        assert result["ratio"] == pytest.approx(seconds[1] / seconds[0])
    # A gate finds the file by itself.
    gate = ("gate", "--base", "HEAD", "--head", ".", "bench_it.py", "--json")
    few = ("--control", "none", "--max-minutes", "0.0001")  # the checks, and no round
    done = command(*gate, *few, "--out", "out", **data)
    assert "2 A/A runs" in json.loads(done.stdout)["calibration"]


def documented_commands() -> list[str]:
    """Every `firstlight gate` and `firstlight calibrate` in the guide and in the workflow."""
    docs = Path(__file__).parents[2] / "docs"
    text = "\n".join((docs / name).read_text() for name in ("gate.md", "github-workflow.yml"))
    joined = text.replace("\\\n", " ")
    lines = [line.strip().removeprefix("run: ") for line in joined.splitlines()]
    starts = ("firstlight gate --base", "firstlight calibrate ")
    return [line.split(" || ")[0] for line in lines if line.startswith(starts)]


def test_every_documented_command_is_one_that_the_parser_takes() -> None:
    from firstlight.cli import build_parser

    commands = documented_commands()
    assert len(commands) >= 7
    for command in commands:
        words = shlex.split(command.replace("$base", "abc"), comments=True)
        assert build_parser().parse_args(words[1:]).handle


def test_the_workflow_is_yaml_and_its_scripts_are_bash() -> None:
    import yaml

    path = Path(__file__).parents[2] / "docs" / "github-workflow.yml"
    workflow = yaml.safe_load(path.read_text())
    assert set(workflow["jobs"]) == {"gate", "calibrate"}
    assert set(workflow[True]) == {"pull_request", "schedule"}  # YAML 1.1 reads `on` as true
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    for step in steps:
        if "run" in step:
            # A text that somebody else chose must not become part of a script.
            assert "${{" not in step["run"]
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True)
