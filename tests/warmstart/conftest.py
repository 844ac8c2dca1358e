"""Stores in a folder of the test; JAX is started only where it is what the claim is about."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.warmstart.entries import Entries
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.store import Store


@pytest.fixture
def entries(tmp_path: Path) -> Entries:
    return Entries(str(tmp_path / "root"), "kind", 2**32)


@pytest.fixture
def store(entries: Entries) -> Store:
    return Store(entries, Leases())


@pytest.fixture
def belongs_to_another(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Give a file or a folder to another user; where that is not allowed, become another one."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 54321, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 54321)

    return give


Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def execute(tmp_path: Path) -> Program:
    """`firstlight exec --cache CACHE program…` in `tmp_path`, where CACHE is `cache` by default."""

    def call(*program: str, cache: str = "cache", **options: object) -> Program:
        command = [sys.executable, "-m", "firstlight", "exec", "--cache", cache, *program]
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            command, cwd=tmp_path, text=True, timeout=120, check=False,
            **{"capture_output": True, **options},
        )  # fmt: skip

    return call
