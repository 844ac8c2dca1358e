"""A tool about latency starts lightly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from firstlight.cli import COMMANDS, build_parser, main

HEAVY = {"jax", "jaxlib", "numpy", "torch", "scipy", "rich", "psutil", "jsonschema"}


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_nothing_heavy() -> None:
    code = "from firstlight.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    loaded = modules_after(code)
    assert not HEAVY & loaded
    assert {name for name in loaded if name.startswith("firstlight.cli.")} == set()


def test_a_command_loads_no_other_command() -> None:
    code = (
        "from firstlight.cli import main\ntry: main(['verify', '--help'])\nexcept SystemExit: pass"
    )
    loaded = {name for name in modules_after(code) if name.startswith("firstlight.cli.")}
    assert loaded == {"firstlight.cli.values", "firstlight.cli.verify"}


def test_every_command_has_a_parser_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            build_parser(command).parse_args([command, "--help"])
        assert capsys.readouterr().out.startswith(f"usage: firstlight {command} ")


def test_output_that_nobody_reads_is_never_reported_as_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as unread:
        monkeypatch.setattr("sys.stdout", unread)
        assert main(["list"]) == 141


def test_the_decorator_imports_nothing() -> None:
    assert modules_after("from firstlight import bench") - modules_after("") == {"firstlight"}
