"""Sides of a gate: revisions and environments, in real repositories and real interpreters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import firstlight
from firstlight.gate.interpreters import SetupError, interpreter_of
from firstlight.gate.own_code import WrongCodeError, package_names, require_own_code
from firstlight.gate.selection import select_cases
from firstlight.gate.sides import (
    Side,
    bare_instrument,
    describe_side,
    from_environments,
    from_revisions,
    same_side_twice,
)
from firstlight.gate.worktrees import RevisionError, checkouts, commit_of, remove_abandoned
from firstlight.measure.case_selection import SelectionError

pytestmark = pytest.mark.slow

Git = Callable[..., str]


def git_in(root: Path) -> Git:
    def call(*arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout

    return call


@pytest.fixture(scope="module")
def two_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two commits of `code.py`: every test works in a copy."""
    root = tmp_path_factory.mktemp("repository")
    call = git_in(root)
    call("init", "-q", "-b", "main")
    (root / ".gitignore").write_text("*.log\n")
    (root / "code.py").write_text("VALUE = 1\n")
    call("add", "-A")
    call("commit", "-qm", "one")
    (root / "code.py").write_text("VALUE = 2\n")
    call("commit", "-qam", "two")
    return root


@pytest.fixture
def git(two_commits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """`git …` in a new repository with two commits; its folder is the current one."""
    root = shutil.copytree(two_commits, tmp_path / "repository")
    monkeypatch.chdir(root)
    return git_in(root)


def state(git: Git) -> tuple[str, ...]:
    """Everything that a gate must not change."""
    return tuple(
        git(*words)
        for words in (
            ("status", "--porcelain"),
            ("rev-parse", "HEAD"),
            ("branch", "--list"),
            ("worktree", "list"),
            ("stash", "list"),
        )
    )


# --- checkouts ------------------------------------------------------------------------------------


def test_each_revision_has_its_own_files_and_the_user_s_are_not_touched(git: Git) -> None:
    Path("code.py").write_text("VALUE = 3\n")
    Path("new.py").write_text("")
    git("add", "code.py")
    before = state(git)
    with checkouts(Path.cwd(), {"base": "HEAD~1", "head": "main"}) as found:
        assert (found["base"].root / "code.py").read_text() == "VALUE = 1\n"
        assert (found["head"].root / "code.py").read_text() == "VALUE = 2\n"
        assert len(str(found["base"].root)) == len(str(found["head"].root))
        folder = found["base"].root.parent
    assert not folder.exists()
    assert state(git) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_checkouts_are_removed_after_any_error(git: Git, error: type[BaseException]) -> None:
    before = state(git)
    with (
        pytest.raises(error),
        checkouts(Path.cwd(), {"base": "HEAD~1", "head": "HEAD"}) as found,
    ):
        folder = found["base"].root.parent
        (found["base"].root / "code.py").write_text("changed by the benchmark")
        raise error
    assert not folder.exists()
    assert state(git) == before


def test_what_a_killed_gate_left_is_removed_by_the_next(git: Git) -> None:
    before = state(git)
    code = """
        import os, signal
        from pathlib import Path
        from firstlight.gate.worktrees import checkouts
        with checkouts(Path.cwd(), {"base": "HEAD~1", "head": "HEAD"}):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert killed.returncode == -9
    left = [line.split()[0] for line in git("worktree", "list").splitlines()[1:]]
    assert len(left) == 2 and all(Path(path).exists() for path in left)
    with checkouts(Path.cwd(), {"base": "HEAD~1", "head": "HEAD"}):
        assert not any(Path(path).parent.exists() for path in left)
    assert state(git) == before


def test_a_gate_that_still_runs_keeps_its_checkouts(git: Git) -> None:
    with checkouts(Path.cwd(), {"base": "HEAD~1", "head": "HEAD"}) as found:
        remove_abandoned(Path.cwd())
        assert (found["base"].root / "code.py").exists()
        assert len(git("worktree", "list").splitlines()) == 3


def test_a_worktree_of_the_user_s_own_stays(git: Git, tmp_path: Path) -> None:
    git("worktree", "add", "-q", str(tmp_path / "mine"), "-b", "topic")
    with checkouts(Path.cwd(), {"base": "HEAD~1", "head": "topic"}):
        pass
    assert (tmp_path / "mine" / "code.py").exists()
    assert "[topic]" in git("worktree", "list")


def test_a_checkout_in_which_submodules_were_fetched_is_removed_too(
    git: Git, tmp_path: Path
) -> None:
    git("clone", "-q", ".", str(tmp_path / "part"))
    allowed = ("-c", "protocol.file.allow=always")
    git(*allowed, "submodule", "--quiet", "add", str(tmp_path / "part"), "part")
    git("commit", "-qm", "with a submodule")
    before = state(git)
    with checkouts(Path.cwd(), {"base": "HEAD", "head": "."}) as found:
        root = found["base"].root
        git("-C", str(root), *allowed, "submodule", "--quiet", "update", "--init")
        assert (root / "part" / "code.py").exists()
    assert not root.exists()
    assert state(git) == before


def test_no_hook_of_the_user_s_runs(git: Git) -> None:
    hook = Path(".git/hooks/post-checkout")
    hook.parent.mkdir(exist_ok=True)
    hook.write_text('#!/bin/sh\ntouch "$(git rev-parse --git-common-dir)/hook-ran"\n')
    hook.chmod(0o755)
    with checkouts(Path.cwd(), {"base": "HEAD~1", "head": "HEAD"}):
        pass
    assert not Path(".git/hook-ran").exists()
    git("checkout", "-q", "HEAD~1")  # the hook itself works
    assert Path(".git/hook-ran").exists()


def test_a_gate_inside_a_git_hook_is_not_led_astray(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git sets GIT_DIR and GIT_INDEX_FILE for its hooks."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    with checkouts(Path.cwd(), {"base": "HEAD~1", "head": "HEAD"}) as found:
        assert (found["base"].root / "code.py").read_text() == "VALUE = 1\n"
    assert not (tmp_path / "index").exists()


def test_the_working_tree_is_taken_as_it_is_without_ignored_files(git: Git) -> None:
    Path("code.py").write_text("VALUE = 3\n")
    Path("new").mkdir()
    Path("new/file with space.py").write_text("x = 1\n")
    Path("noise.log").write_text("ignored")
    Path("gone.py").write_text("")
    git("add", "gone.py")
    Path("gone.py").unlink()
    os.symlink("code.py", "link.py")
    before = state(git)
    with checkouts(Path.cwd(), {"base": "HEAD", "head": "."}) as found:
        root = found["head"].root
        names = {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()}
        assert names - {".git"} == {
            ".gitignore",
            "code.py",
            "link.py",
            "new/file with space.py",
        }
        assert (root / "code.py").read_text() == "VALUE = 3\n"
        assert (root / "link.py").is_symlink()
        once = found["head"].changed
        (root / "code.py").write_text("setup wrote here")
    assert Path("code.py").read_text() == "VALUE = 3\n"
    assert state(git) == before
    Path("code.py").write_text("VALUE = 4\n")
    with checkouts(Path.cwd(), {"base": "HEAD", "head": "worktree"}) as found:
        assert found["head"].changed != once


@pytest.mark.parametrize("revision", ["nowhere", "--help", "-x", "", "HEAD~99"])
def test_an_unknown_revision_is_refused(git: Git, revision: str) -> None:
    with pytest.raises(RevisionError, match=r"not a revision|names no commit"):
        commit_of(Path.cwd(), revision)


def test_the_error_of_a_shallow_clone_says_how_to_fetch_its_history(
    git: Git, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git("clone", "-q", "--depth", "1", f"file://{Path.cwd()}", str(clone))
    with pytest.raises(RevisionError, match="fetch-depth: 0"):
        commit_of(clone, "HEAD~1")


def test_outside_of_a_repository_there_are_no_revisions(tmp_path: Path) -> None:
    with (
        pytest.raises(RevisionError, match="not in a git repository"),
        from_revisions(tmp_path, "a", "b"),
    ):
        pass


# --- sides ----------------------------------------------------------------------------------------


def test_setup_runs_in_each_checkout_and_its_failure_is_shown(git: Git) -> None:
    command = 'echo "$FIRSTLIGHT_SIDE $(cat code.py)" > seen.txt'
    with from_revisions(Path.cwd(), "HEAD~1", "HEAD", setup=command) as sides:
        seen = [(side.file_root / "seen.txt").read_text() for side in sides if side.file_root]
    assert seen == ["base VALUE = 1\n", "head VALUE = 2\n"]
    assert not Path("seen.txt").exists()
    with (
        pytest.raises(SetupError, match=r"(?s)base with exit code 3.*no such wheel"),
        from_revisions(Path.cwd(), "HEAD~1", "HEAD", setup="echo no such wheel; exit 3"),
    ):
        pass


def test_an_interpreter_that_setup_did_not_make_is_missed(git: Git) -> None:
    with (
        pytest.raises(SetupError, match=r"--python .venv/bin/python does not exist"),
        from_revisions(Path.cwd(), "HEAD~1", "HEAD", python=".venv/bin/python"),
    ):
        pass


def test_each_side_imports_its_own_checkout_even_if_pythonpath_says_otherwise(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("bench_it.py").write_text(
        "import code as _; from firstlight import bench\n"
        "import mine\n"
        "@bench(workload=f'value{mine.VALUE}', backend='python')\n"
        "def go(): return lambda: 1.0\n"
    )
    Path("lib").mkdir()
    Path("lib/mine.py").write_text("VALUE = 1\n")
    git("add", "-A")
    git("commit", "-qm", "three")
    Path("lib/mine.py").write_text("VALUE = 2\n")
    git("commit", "-qam", "four")
    monkeypatch.setenv("PYTHONPATH", str(Path("lib").absolute()))
    with (
        from_revisions(Path.cwd(), "HEAD~1", "HEAD") as sides,
        pytest.raises(SelectionError, match=r"value1.*any more.*value2.*only head has it"),
    ):
        select_cases("bench_it.py", sides)


def test_a_file_that_one_side_lacks_can_be_taken_from_the_other(git: Git) -> None:
    text = "from firstlight import bench\n@bench(backend='python')\ndef go(): return lambda: 1.0\n"
    Path("bench_new.py").write_text(text)
    with (
        from_revisions(Path.cwd(), "HEAD", ".") as sides,
        pytest.raises(SelectionError, match="--bench-from head"),
    ):
        select_cases("bench_new.py", sides)
    shared = ("head", Path("bench_new.py"))
    with from_revisions(Path.cwd(), "HEAD", ".", shared_file=shared) as sides:
        found = select_cases("bench_new.py", sides)
        assert [case.id for case in found.cases] == ["go[default]/python/none"]
        files = {case.on(side).file for case in found.cases for side in ("base", "head")}
        assert len(files) == 2


def test_a_case_whose_parameters_changed_is_not_compared(git: Git) -> None:
    text = (
        "from firstlight import bench\n"
        "@bench(backend='python', sizes={'s': {'n': NUMBER}})\n"
        "def go(n): return lambda: 1.0\n"
        "@bench(backend='python')\n"
        "def stays(): return lambda: 1.0\n"
    )
    Path("bench_it.py").write_text(text.replace("NUMBER", "1"))
    git("add", "-A")
    git("commit", "-qm", "three")
    Path("bench_it.py").write_text(text.replace("NUMBER", "2"))
    with from_revisions(Path.cwd(), "HEAD", ".") as sides:
        found = select_cases("bench_it.py", sides)
    assert [case.id for case in found.cases] == ["stays[default]/python/none"]
    assert found.incomparable == {
        "go[s]/python/none": "its parameters are not the same on both sides"
    }


def test_sides_are_described_in_words(git: Git) -> None:
    with from_revisions(Path.cwd(), "HEAD~1", ".") as sides:
        base, head = (describe_side(side) for side in sides)
    commit = git("rev-parse", "HEAD~1")[:9]
    assert base.startswith(f"HEAD~1 ({commit}), Python 3")
    assert head.startswith("the working tree (on ")


# --- environments ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environments") / "empty"
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    return folder


def test_another_environment_sees_nothing_of_the_gate_s_own(
    empty_environment: Path, tmp_path: Path
) -> None:
    """Otherwise a package that it lacks would be found here, and the wrong thing be measured.

    Firstlight is installed beside `decoy`, as in any site-packages; the worker run from there would
    find it, which the second line proves.
    """
    site = tmp_path / "site"
    site.mkdir()
    (site / "firstlight").symlink_to(Path(firstlight.__file__).parent)
    (site / "decoy.py").write_text("")
    (tmp_path / "bench_seen.py").write_text(
        "from firstlight import bench\n"
        "try:\n    import decoy\nexcept ImportError:\n    pass\n"
        "else:\n    decoy = bench(lambda: None)\n"
    )
    code = """
        import os, sys
        from pathlib import Path
        from firstlight.gate.sides import from_environments
        from firstlight.measure.process import run_worker
        del os.environ["PYTHONPATH"]
        job = {"kind": "discover", "file": sys.argv[1]}
        environment = Path(sys.argv[2])
        with from_environments(environment, environment) as (base, _):
            assert base.description["python"]["installed"] == {}
            print(len(base.spawner()(job, os.environ, 60.0).report["benchmarks"]))
        print(len(run_worker(job, os.environ, 60.0, python=base.python).report["benchmarks"]))
        """
    arguments = (str(tmp_path / "bench_seen.py"), str(empty_environment))
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_a_framework_is_looked_for_where_the_side_runs(empty_environment: Path) -> None:
    python = Path(sys.executable)
    with (
        from_environments(empty_environment, python) as sides,
        pytest.raises(SelectionError, match="numpy is not installed"),
    ):
        select_cases("matmul", sides, ("numpy",))


def test_an_environment_without_a_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no Python there"):
        interpreter_of(tmp_path)


def test_the_interpreter_of_an_environment_is_not_resolved(empty_environment: Path) -> None:
    """Its target is the system's Python, which has other packages."""
    assert interpreter_of(empty_environment) == str(empty_environment / "bin" / "python")


def test_the_bare_instrument_holds_firstlight_and_nothing_else() -> None:
    with bare_instrument() as worker:
        assert worker.is_file()
        assert [p.name for p in worker.parents[2].iterdir()] == ["firstlight"]


def test_an_a_a_pair_differs_in_its_names_only() -> None:
    from dataclasses import replace

    with same_side_twice() as (base, head):
        assert replace(base, name="x") == replace(head, name="x")


# --- whose code ran -------------------------------------------------------------------------------


@pytest.fixture
def two_sides(tmp_path: Path) -> tuple[Side, Side]:
    for name in ("base", "head"):
        (tmp_path / name / "src" / "pkg").mkdir(parents=True)
        (tmp_path / name / "src" / "pkg" / "__init__.py").write_text("")
    return tuple(  # type: ignore[return-value]
        Side(name, "python", file_root=tmp_path / name, repository=tmp_path / "mine")
        for name in ("base", "head")
    )


def loaded(tmp_path: Path, base: str, head: str) -> dict[str, dict[str, dict[str, str]]]:
    return {
        "base": {"case": {"pkg": str(tmp_path / base)}},
        "head": {"case": {"pkg": str(tmp_path / head)}},
    }


def test_code_of_both_checkouts_is_what_a_gate_compares(
    two_sides: tuple[Side, Side], tmp_path: Path
) -> None:
    own = loaded(tmp_path, "base/src/pkg/__init__.py", "head/src/pkg/__init__.py")
    assert require_own_code(two_sides, own) == {"base": {"pkg"}, "head": {"pkg"}}


@pytest.mark.parametrize(
    "wrong",
    [
        "head/src/pkg/__init__.py",  # the other side's
        "mine/src/pkg/__init__.py",  # the user's own: an editable installation
        "env/lib/python3.11/site-packages/pkg/__init__.py",  # installed for both
    ],
)
def test_code_from_elsewhere_is_refused(
    two_sides: tuple[Side, Side], tmp_path: Path, wrong: str
) -> None:
    with pytest.raises(WrongCodeError, match=r"base imported 'pkg'.*--setup"):
        require_own_code(two_sides, loaded(tmp_path, wrong, "head/src/pkg/__init__.py"))


def test_a_gate_that_ran_nothing_of_the_checkouts_is_refused(
    two_sides: tuple[Side, Side],
) -> None:
    elsewhere = {"case": {"numpy": "/usr/lib/python3/site-packages/numpy/__init__.py"}}
    with pytest.raises(WrongCodeError, match="both sides ran the same code"):
        require_own_code(two_sides, {"base": elsewhere, "head": elsewhere})


def test_an_environment_inside_the_repository_is_no_code_of_it(
    two_sides: tuple[Side, Side], tmp_path: Path
) -> None:
    own = loaded(tmp_path, "base/src/pkg/__init__.py", "head/src/pkg/__init__.py")
    numpy = str(tmp_path / "mine/.venv/lib/python3.11/site-packages/numpy/__init__.py")
    own["base"]["case"]["numpy"] = numpy
    assert require_own_code(two_sides, own) == {"base": {"pkg"}, "head": {"pkg"}}


def test_packages_of_a_project_are_found_where_projects_keep_them(tmp_path: Path) -> None:
    for place in ("flat", "src/nested/inner", "python/deep", ".venv/lib/hidden", "tests"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    (tmp_path / "src/nested/__init__.py").write_text("")
    assert package_names(tmp_path) == {"flat", "nested", "deep"}
