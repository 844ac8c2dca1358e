"""An unchanged program, watched from outside, and the processes that it starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from scraping import Sent, receiver, samples
from test_otlp import decoded, flattened

from firstlight.cli import exec_program, main

EXEC = (sys.executable, "-m", "firstlight", "exec")
PROGRAM = """\
import json, os, signal, sys, time, urllib.request
import jax
import numpy as np

@jax.jit
def train(x):
    return x * 2

assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL
for _ in range(25):
    train(np.ones(4, np.float32)).block_until_ready()

def asked(port):
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        return urllib.request.urlopen(url, timeout=10).read().decode()
    except OSError:
        return ""

first, last = map(int, sys.argv[1].split("-"))
child = os.fork()
if child == 0:  # counts from zero, at a port of its own
    texts = [text for port in range(first, last + 1) if (text := asked(port))]
    print(json.dumps(texts), flush=True)
    os._exit(0)
os.waitpid(child, 0)
os.kill(os.getpid(), signal.SIGUSR2)
for _ in range(600):
    if any("train" in name for _, _, names in os.walk("profiles") for name in names):
        break
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Watched:
    """A watched program that has ended, and the messages that a collector got from it."""

    folder: Path
    done: subprocess.CompletedProcess[str]
    messages: list[Sent]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("watched")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    ports = free_ports(2)
    variables = {
        "PYTHONWARNINGS": "ignore",
        "FIRSTLIGHT_PROFILE_SECONDS": "0.2",
        "OTEL_RESOURCE_ATTRIBUTES": "team=higgs%20group",
    }
    with receiver() as (url, messages):
        options = ["--metrics", f"127.0.0.1:{ports}", "--profiles", "profiles", "--otlp", url]
        done = subprocess.run(
            [*EXEC, *options, sys.executable, str(program), ports],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    return Watched(folder, done, messages)


def test_a_watched_program_gives_its_own_output_and_exit_code(watched: Watched) -> None:
    assert watched.done.returncode == 0, watched.done.stderr
    (said,) = watched.done.stderr.splitlines()
    assert said.startswith("firstlight: profile written to ")  # which the program requested
    assert watched.done.stdout.count("\n") == 1


def test_an_unchanged_program_is_watched_and_its_forks_too(watched: Watched) -> None:
    texts = json.loads(watched.done.stdout)
    steps = ("firstlight_steps_total", frozenset({("function", "train"), ("result", "ok")}))
    started = ("process_start_time_seconds", frozenset())
    counted = sorted((found[steps], found[started]) for found in map(samples, texts))
    assert [count for count, _ in counted] == [0, 25]
    assert counted[0][1] >= counted[1][1]  # the child, which began later
    assert list((watched.folder / "profiles").rglob("perfetto_trace.json.gz"))
    assert list((watched.folder / "profiles").rglob("jit_train.*.hlo.txt"))


def test_a_program_that_ends_has_sent_everything_to_the_collector(watched: Watched) -> None:
    message = decoded(watched.messages[-1])
    steps = ("firstlight_steps_total", frozenset({("function", "train"), ("result", "ok")}))
    found = flattened(message)
    assert found[steps] == 25
    assert found[("process_resident_memory_bytes", frozenset())] > 2**20
    about = message.resource_metrics[0].resource.attributes
    named = {pair.key: pair.value.string_value for pair in about}
    assert named["service.name"] == "program.py" and named["team"] == "higgs group"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--metrics", "nonsense"], "HOST:PORT"),
        (["--push", "gateway:9091"], "http://HOST:9091"),
        (["--otlp", "collector:4318"], "http://HOST:4318"),
        (["--metrics", ":0", "--token-file", "/no/such/file"], "No such file"),
        (["--profiles", "here"], "--metrics, --push or --otlp"),
    ],
)
def test_an_invalid_address_is_reported_before_the_program_starts(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["exec", *options, "python", "-c", "pass"])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_an_installation_without_the_hook_gets_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exec_program, "WATCH_HOOK", "no-such-file.pth")
    exec_program._warn_of_other_pythons(sys.executable, is_watched=False)
    assert capsys.readouterr().err == ""
    exec_program._warn_of_other_pythons(sys.executable, is_watched=True)
    assert "nothing is watched: no-such-file.pth" in capsys.readouterr().err


def test_a_process_without_jax_loads_nothing_and_opens_no_port() -> None:
    code = "import sys; print([m for m in sys.modules if m.startswith('firstlight')])"
    done = subprocess.run(
        [sys.executable, "-c", f"import firstlight.telemetry.startup; {code}"],
        env={**os.environ, "FIRSTLIGHT_METRICS": "nonsense"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {"firstlight", "firstlight.telemetry", "firstlight.telemetry.startup"}
    assert set(eval(done.stdout)) <= loaded | {"firstlight.import_watch"}
    assert done.stderr == ""


def free_ports(count: int) -> str:
    """A range `FIRST-LAST` of ports that are free now."""
    for first in range(21000, 30000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
        return f"{first}-{first + count - 1}"
    raise AssertionError("no free ports")
