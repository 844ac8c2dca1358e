"""The command line in this process: what it measures is in processes of its own anyway."""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.cli import main


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call `firstlight …` in `tmp_path`; keywords are environment variables of that call.

    Starting Python and importing everything anew takes longer than most commands. Tests of how a
    process starts, is interrupted or finds packages use `firstlight`, a real one.
    """

    def call(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        words = [str(argument) for argument in arguments]
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in environment.items():
                patch.setenv(name, value)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = main(words)
                except SystemExit as stopped:
                    code = int(stopped.code or 0)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    return call
