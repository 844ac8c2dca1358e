"""A traced program behaves as alone: output, exit code, signals, arguments, tracebacks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.trace import running
from firstlight.trace.read.log_events import read_logs

pytestmark = pytest.mark.slow

Write = Callable[[str, str], Path]


def both(
    folder: Path, *program: str, before: tuple[str, ...] = (), **options: object
) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of a program alone and traced; before: what starts it."""
    found = []
    traced = ("-m", "firstlight", "trace", "--quiet", "--out", "logs")
    for prefix in ((), traced):
        done = subprocess.run(
            [*before, sys.executable, *prefix, *program],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,  # type: ignore[call-overload]
        )
        # Addresses differ from run to run, and so do trailing blanks in lines of XLA.
        output = (re.sub(r"0x[0-9a-f]+", "0x", text) for text in (done.stdout, done.stderr))
        output = (re.sub(r" +$", "", text, flags=re.MULTILINE) for text in output)
        found.append((done.returncode, *output))
    return found


PROGRAMS = {
    "arguments and main": """
        import sys
        print(sys.argv, sys.orig_argv[1:], __name__, __file__, sys.path[0], __spec__)
        print(sys.flags, sys.stdin.isatty(), sys.excepthook is sys.__excepthook__)
        """,
    "an exception": """
        def inner(x):
            return 1 / x
        def outer(x):
            return inner(x)
        outer(0)
        """,
    "an import that fails within an import": "import first_of_two\n",
    "an import that raises": "import raising\n",
    "an import by import_module that raises": """
        import importlib
        importlib.import_module("raising")
        """,
    "exit with a number": "import sys; print('bye'); sys.exit(3)",
    "exit with a message": "import sys; sys.exit('no such file')",
    "exit with nothing": "import sys; sys.exit()",
    "exit without cleaning up": "import os; os._exit(9)",
    "a syntax error": "def f(:\n",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n",
    "a kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "an abort": "import os; os.abort()",
    "input": "import sys; print(sys.stdin.read()[::-1], file=sys.stderr)",
    "an exception at exit": "import atexit\n@atexit.register\ndef last(): 1 / 0\n",
    "handlers of signals": """
        import signal
        print({s.name: str(signal.getsignal(s)).partition(" at ")[0] for s in signal.Signals})
        """,
    "warnings": "import warnings; warnings.warn('old')\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_with_and_without_the_trace(
    name: str, tmp_path: Path, write: Write
) -> None:
    write("first_of_two.py", "import second_of_two\n")
    write("second_of_two.py", "def f():\n    import no_such_module_anywhere\nf()\n")
    write("raising.py", "class Odd(Exception): pass\nraise Odd('on import')\n")
    write("program.py", PROGRAMS[name])
    alone, traced = both(tmp_path, "program.py", "--epochs", "1", "--", "-m", "x", input="input")
    assert traced == alone
    assert list((tmp_path / "logs").glob("*.jsonl"))  # and it was recorded


def test_a_module_of_a_package_finds_its_relatives(tmp_path: Path, write: Write) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("value = 3\n")
    (package / "tool.py").write_text(
        "import sys\nfrom . import value\nfrom .other import double\n"
        "print(value, double(value), __name__, __package__, sys.argv)\n"
        "raise SystemExit(double(value))\n"
    )
    (package / "other.py").write_text("def double(x): return 2 * x\n")
    alone, traced = both(tmp_path, "-m", "package.tool", "--out", "mine", "-m")
    assert traced == alone
    assert alone[0] == 6 and "'--out', 'mine', '-m'" in alone[1]


def test_a_missing_module_or_script_is_reported_by_python_itself(tmp_path: Path) -> None:
    for program in (["nowhere.py"], ["-m", "no_such_module_anywhere"]):
        alone, traced = both(tmp_path, *program)
        assert alone[0] == traced[0] != 0
        assert traced[2].startswith(alone[2])
        (tmp_path / "logs").rename(tmp_path / f"logs-{len(program)}")


BEFORE_THE_PROGRAM = (
    "record",
    "record.import_clock",
    "record.log_file",
    "record.log_format",
    "record.marks",
    "record.program_errors",
    "record.recorder",
    "record.whole_process",
    "startup",
)


def test_before_the_program_only_the_standard_library_is_loaded(
    tmp_path: Path, write: Write
) -> None:
    write("program.py", "import sys\nprint(*sorted(sys.modules))")
    alone, traced = both(tmp_path, "program.py")
    more = set(traced[1].split()) - set(alone[1].split())
    ours = {name for name in more if name.partition(".")[0] == "firstlight"}
    assert ours <= {
        "firstlight",
        "firstlight.trace",
        *(f"firstlight.trace.{module}" for module in BEFORE_THE_PROGRAM),
    }
    assert {name.partition(".")[0] for name in more - ours} <= set(sys.stdlib_module_names)


def test_beside_the_program_neither_records_nor_rich_nor_numpy_is_loaded(
    tmp_path: Path, write: Write
) -> None:
    write("program.py", "print()")
    code = "import sys; from firstlight.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, "trace", "--quiet", "--out", "logs", "program.py"]
    loaded = set(subprocess.check_output(command, cwd=tmp_path, text=True).split())
    assert "firstlight.trace.show.html" in loaded
    assert not {"firstlight.records", "rich", "numpy"} & loaded


def test_descriptors_of_the_shell_reach_the_program(tmp_path: Path, write: Write) -> None:
    write("program.py", "import os, sys\nprint(os.read(int(sys.argv[1]), 9))")
    (tmp_path / "data").write_text("from fd")
    found = []
    for prefix in ((), ("-m", "firstlight", "trace", "--quiet", "--out", "logs")):
        with open(tmp_path / "data", "rb") as data:
            command = [sys.executable, *prefix, "program.py", str(data.fileno())]
            found.append(
                subprocess.run(
                    command, cwd=tmp_path, capture_output=True, pass_fds=[data.fileno()], check=True
                ).stdout
            )
    assert found == [b"b'from fd'\n"] * 2


def children_of(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


SIGNALLED = """
    import signal, sys, time
    caught = []
    for one in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda number, frame: caught.append(signal.Signals(number).name))
    print("ready", flush=True)
    end = time.monotonic() + 60  # if a signal is lost, the test must not hang
    seen = 0
    while seen < 3 and time.monotonic() < end:
        time.sleep(0.05)
        seen = len(caught)
        print(seen, flush=True)
    time.sleep(0.5)
    print(*caught)
    sys.exit(5)
"""


def test_the_program_gets_each_signal_once(tmp_path: Path, write: Write) -> None:
    """Whether sent to the whole group, as from the terminal, or to us alone."""
    write("program.py", SIGNALLED)
    process = subprocess.Popen(
        [sys.executable, "-m", "firstlight", "trace", "--quiet", "--out", "logs", "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    sent = [
        (os.killpg, signal.SIGINT),
        (os.kill, signal.SIGINT),
        (os.killpg, signal.SIGTERM),
    ]
    for number, (send, what) in enumerate(sent, 1):
        before, deadline = children_of(process.pid), time.monotonic() + 60
        send(process.pid, what)
        while int(process.stdout.readline()) < number:
            pass
        # A signal to the group uses up the witness: the next one is told apart by another.
        while send is os.killpg and len(children_of(process.pid) - before) != 1:
            assert time.monotonic() < deadline
    last = process.stdout.read().splitlines()[-1]
    assert last == "SIGINT SIGINT SIGTERM"
    assert process.wait(60) == 5
    process.stdout.close()


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, write: Write) -> None:
    """As under nohup."""
    write("program.py", "import signal\nprint(repr(signal.getsignal(signal.SIGHUP)))")

    alone, traced = both(
        tmp_path, "program.py", before=("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    )
    assert alone == traced and "SIG_IGN" in alone[1]


def test_an_error_in_our_listener_never_reaches_the_program(tmp_path: Path, write: Write) -> None:
    write(
        "program.py",
        """
        import sys
        import jax
        if "firstlight.trace.record.calls" in sys.modules:
            def broken(*_):
                raise RuntimeError("injected")
            hooks = sys.modules["firstlight.trace.record.jax_hooks"]
            hooks.calls.call_of = hooks.calls.stack = hooks.calls.sites = broken
            hooks.program_contents.lowered = hooks.program_contents.compiled = broken
        print(jax.jit(lambda x: x + 1)(2.0))
        """,
    )
    command = [sys.executable, "-m", "firstlight", "trace", "--quiet", "--out", "logs"]
    done = subprocess.run(
        [*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3.0\n", "")
    (log,) = read_logs(tmp_path / "logs")
    problems = [text for event in log.of("problem") for text in event["problems"]]
    assert any("injected" in text for text in problems)


def test_every_process_has_a_log(tmp_path: Path, write: Write) -> None:
    write(
        "program.py",
        """
        import multiprocessing, subprocess, sys
        def work(n):
            print(n * n, flush=True)
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                process = multiprocessing.get_context(method).Process(target=work, args=(3,))
                process.start(); process.join()
            subprocess.run([sys.executable, "-c", "print('another')"], check=True)
        """,
    )
    alone, traced = both(tmp_path, "program.py")
    assert traced == alone
    logs = read_logs(tmp_path / "logs")
    pids = {log.head["pid"] for log in logs}
    # Ours, a fork, a spawned one, the resource tracker of multiprocessing, and the subprocess.
    assert len(pids) >= 4
    assert {log.head["parent"] for log in logs} & pids


def test_without_the_hook_the_program_is_not_run(tmp_path: Path, write: Write) -> None:
    """An hour of training without a trace would be worse than an error."""
    write("program.py", "print('ran')")
    code = (
        "import firstlight.trace.running as r, sys\n"
        "r.HOOK = 'no-such-file.pth'\nr._starts_recorder = lambda: False\n"
        "from firstlight.cli import main\nsys.exit(main(['trace', 'program.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "ran" not in done.stdout
    assert "no-such-file.pth" in done.stderr and "pip install" in done.stderr


def test_a_python_that_does_not_read_the_hook_is_named(tmp_path: Path, write: Write) -> None:
    """With -S, Python does not read the hook."""
    from firstlight.trace.running import Outcome, run, why_no_log

    with open(os.devnull, "w") as nobody:
        for option, recorded in (("-S", False), ("-I", True)):
            command = [sys.executable, option, "-c", "print(1)"]
            outcome = run(command, tmp_path, output=nobody.fileno())
            assert isinstance(outcome, Outcome) and outcome.succeeded
            assert any(tmp_path.glob("*.jsonl")) == recorded
    assert "-S" in why_no_log([sys.executable]) and "-I" not in why_no_log([sys.executable])


@pytest.mark.parametrize("quiet", ((), ("--quiet",)))
def test_the_exit_code_does_not_depend_on_whether_our_output_can_be_written(
    quiet: tuple[str, ...], tmp_path: Path, write: Write
) -> None:
    """A limit of four blocks per file stands for a full disk."""
    write("failing.py", "import sys; sys.exit(7)")
    write("good.py", "import fractions")
    firstlight = f"{sys.executable} -m firstlight trace {' '.join(quiet)} "
    for shell, program, expected in (
        ("{} 2>&1 | true", "failing.py", 7),
        ("{} 2>&1 | true", "--max-ttfr 1 good.py", 1),
        ("{} 2>&-", "--max-ttfr 1 good.py", 1),
        ("{} 2>/dev/full", "good.py", 0),
        ("ulimit -f 4; {}", "failing.py", 7),
    ):
        script = shell.format(firstlight + program) + "; exit ${PIPESTATUS[0]}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == expected, (shell, program, done.stderr)


def test_limits_are_checked_even_if_the_report_cannot_be_written(
    tmp_path: Path, write: Write
) -> None:
    write("good.py", "import fractions")
    (tmp_path / "page.html").mkdir()
    options = ("trace", "--html", "page.html", "--max-ttfr", "1", "good.py")
    done = subprocess.run(
        [sys.executable, "-m", "firstlight", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no report" in done.stderr and "--max-ttfr" in done.stderr


def test_errors_while_tracing_and_while_waiting_read_the_same(tmp_path: Path, write: Write) -> None:
    write(
        "late.py",
        """
        import jax, jax.numpy as jnp, traceback
        def bad(x):
            raise ValueError("only when it runs")
        jax.config.update("jax_traceback_filtering", "off")  # show JAX's frames, too
        kind = jax.ShapeDtypeStruct((), jnp.float32)
        waits = (float, lambda y: y.block_until_ready(), lambda y: jax.block_until_ready([y, y]))
        for wait in waits:
            try:
                wait(jax.jit(lambda x: jax.pure_callback(bad, kind, x))(1.0))
            except Exception:
                traceback.print_exc()
        jax.config.update("jax_traceback_filtering", "auto")
        @jax.jit
        def step(x):
            if x > 0:
                return x
            return -x
        print(jnp.ones(3).sum())
        step(jnp.ones(()))
        """,
    )
    without, traced = both(tmp_path, "late.py")
    assert without[2].count("ValueError: only when it runs") >= 3
    assert "TracerBoolConversionError" in without[2]
    assert traced == without


def test_a_traced_pytest_gives_no_additional_warnings(tmp_path: Path, write: Write) -> None:
    """Our plugin belongs to this package, which a traced pytest has already imported."""
    write("test_nothing.py", "def test_nothing():\n    assert 1 + 1 == 2\n")
    options = ("-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:xdist", "test_nothing.py")
    alone, traced = both(tmp_path, "-m", "pytest", *options)
    assert alone[0] == traced[0] == 0, traced[1] + traced[2]
    assert "1 passed" in traced[1] and "warning" not in traced[1]


def test_the_loading_thread_gets_no_signals() -> None:
    """A signal to another thread would not wake the main one, which has to pass it on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    blocked: list[set[int]] = []
    done = threading.Event()

    def work() -> None:
        blocked.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        done.set()

    running._start_without_signals(work)
    assert done.wait(60)
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1} <= blocked[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
