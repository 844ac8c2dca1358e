"""A program under `firstlight exec` is the program; its JAX code is compiled once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src import compilation_cache

from firstlight.cli import main
from firstlight.warmstart import enable

pytestmark = pytest.mark.slow

Write = Callable[[str, str], Path]
Program = Callable[..., "subprocess.CompletedProcess[str]"]

#: Counts what JAX says of its cache, and answers.
FITS = """
import json, sys
from collections import Counter

import jax, jax.numpy as jnp

seen = Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))

@jax.jit
def slope(x):
    for _ in range(20):
        x = x - 0.1 * jnp.sin(x) * x.sum()
    return x

@jax.jit
def total(x):
    return jnp.linalg.norm(x)

sys.stdin.read()  # all begin at once
answer = float(total(slope(jnp.arange(3.0))))
jax.jit(lambda x: x + 1)(jnp.ones(4))
print(json.dumps({"answer": answer, **seen}))
"""


def counted(output: str) -> tuple[Any, int, int, int]:
    """(answer, compiles that may be cached, hits, entries written) of a run of FITS."""
    about = json.loads(output.splitlines()[-1])
    names = ("answer", "compile_requests_use_cache", "cache_hits", "cache_misses")
    return tuple(about.get(name, 0) for name in names)  # type: ignore[return-value]


def test_the_second_run_compiles_nothing_also_where_the_folder_was_moved(
    execute: Program, write: Write, tmp_path: Path
) -> None:
    write("fits.py", FITS)
    first = execute(sys.executable, "fits.py", input="")
    answer, requests, hits, written = counted(first.stdout)
    assert (hits, written) == (0, requests) and requests >= 3, first.stderr
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").rename(tmp_path / "elsewhere" / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "moved")
    second = execute(sys.executable, "fits.py", cache="link", input="")
    assert counted(second.stdout) == (answer, requests, requests, 0)
    assert not first.stderr and not second.stderr


def test_processes_that_start_together_compile_each_program_exactly_once(
    write: Write, tmp_path: Path
) -> None:
    """Two real ones; `test_leases` has eight, which do not take a second each to import JAX."""
    write("fits.py", FITS)
    command = [sys.executable, "-m", "firstlight", "exec", "--cache", "cache"]
    processes = [
        subprocess.Popen(
            [*command, sys.executable, "fits.py"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        process.stdin.close()  # type: ignore[union-attr]
    runs = []
    for process in processes:
        with process:
            runs.append(counted(process.stdout.read()))  # type: ignore[union-attr]
    requests = {run[1] for run in runs}
    assert len(requests) == 1 and len({run[0] for run in runs}) == 1
    assert sum(run[3] for run in runs) == requests.pop()
    assert all(run[1] == run[2] + run[3] for run in runs)


PARTS = """
import resource, sys
import firstlight

firstlight.warmstart.enable("cache")
assert "jax" not in sys.modules and "pathlib" not in sys.modules

import jax, jax.numpy as jnp
from jax._src import compilation_cache
from glob import glob

def leases():
    return glob("cache/**/*.lease", recursive=True)

held = []

def host(x):
    held.append(leases())
    return x

x = jnp.ones(3)
jax.jit(lambda x: jax.pure_callback(host, x, x))(x).block_until_ready()
assert len(held) == 1, "the callback was called"
try:
    jax.jit(lambda x: x + 1, compiler_options={"no_such_option": True})(x)
except Exception as error:
    print(type(error).__name__)
print(leases())
jax.config.update("jax_compilation_cache_dir", "of the program")
compilation_cache.reset_cache()
firstlight.warmstart.enable("again")
jax.jit(lambda x: x + 2)(x)
print(type(compilation_cache._cache).__module__, *glob("again/*"), *glob("of the program*"))
open("file", "w").close()
firstlight.warmstart.enable("file")
assert jax.jit(lambda x: x + 3)(x).sum() == 12
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
firstlight.warmstart.enable("full disk")
assert jax.jit(lambda x: x + 4)(x).sum() == jax.jit(lambda x: x + 5)(x).sum() - 3
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """What PARTS prints, and its warnings: one process, because JAX takes a second to import."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "parts.py").write_text(PARTS)
    command = [sys.executable, "-B", "parts.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_no_lease_outlasts_a_compile_that_fails_or_is_not_stored(
    parts: tuple[list[str], list[str]],
) -> None:
    assert parts[0][:2] == ["JaxRuntimeError", "[]"]


def test_a_later_enable_replaces_the_folder_that_the_program_has_set(
    parts: tuple[list[str], list[str]],
) -> None:
    assert parts[0][2:] == ["firstlight.warmstart.store again/compiled-2"]


def test_a_program_answers_where_its_cache_cannot_be_used_after_one_warning(
    parts: tuple[list[str], list[str]],
) -> None:
    said = [line for line in parts[1] if "firstlight: compilation cache" in line]
    assert len(said) == 2, parts[1]
    assert "is not a folder" in said[0] and "File too large" in said[1]


def test_a_program_has_its_own_arguments_input_exit_code_and_signals(
    execute: Program, tmp_path: Path
) -> None:
    program = (
        "import os, signal, sys; print(sys.argv[1:], sys.stdin.read(), os.getppid()); "
        "sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler or 7)"
    )
    done = execute(sys.executable, "-c", program, "--cache", "x", "--", input="input")
    assert done.stdout == f"['--cache', 'x', '--'] input {os.getpid()}\n"
    assert (done.returncode, done.stderr) == (7, "")
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert execute(sys.executable, "-c", kill).returncode == -signal.SIGTERM
    assert execute("sh", "-c", "kill -PIPE $$").returncode == -signal.SIGPIPE
    missing = execute("no-such-program-anywhere")
    assert missing.returncode == 127 and "No such file" in missing.stderr
    assert execute(str(tmp_path)).returncode == 126


def test_a_program_without_jax_loads_three_small_modules_and_so_do_its_children(
    execute: Program, write: Write
) -> None:
    modules = "import sys; print(*sorted(sys.modules))"
    write(
        "parent.py", f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {modules!r}])"
    )
    alone = subprocess.run(
        [sys.executable, "-c", modules], capture_output=True, text=True, check=True
    )
    more = Counter(execute(sys.executable, "parent.py").stdout.split())
    assert set(more) - set(alone.stdout.split()) == {
        "firstlight", "firstlight.warmstart", "firstlight.import_watch",
        "firstlight.warmstart.startup",
    }  # fmt: skip


def test_the_cache_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = compilation_cache.get_file_cache, jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("FIRSTLIGHT_CACHE", "off")
    enable(tmp_path / "cache")
    assert (compilation_cache.get_file_cache, jax.config.jax_compilation_cache_dir) == before


def test_exec_warns_of_a_python_without_firstlight(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def executed(program: str, arguments: list[str]) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    (tmp_path / "python3").touch(0o700)
    monkeypatch.setattr(os, "execvp", executed)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    for name in ("FIRSTLIGHT_WARMSTART", "FIRSTLIGHT_CACHE_DIR"):
        monkeypatch.setenv(name, "")
    assert main(["exec", str(tmp_path / "python3"), "x.py"]) == 127
    assert "not the Python that Firstlight is installed for" in capsys.readouterr().err
    assert main(["exec", sys.executable, "x.py"]) == 127
    assert capsys.readouterr().err == f"firstlight: {sys.executable}: No such file or directory\n"
    with pytest.raises(SystemExit):
        main(["exec", "--cache", "", "python"])
    assert "give a folder or a URL" in capsys.readouterr().err
