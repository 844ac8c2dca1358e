"""Stores in a folder of the test; JAX is started only where it is what the claim is about."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firstlight.snapshot.keys import PrivateKey, generate, load_private
from firstlight.warmstart.cache_server.served_entries import ServedEntries
from firstlight.warmstart.cache_server.server import CacheServer, Tokens
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.signing import Signatures
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


@pytest.fixture
def new_key() -> Callable[[Path], PrivateKey]:
    """A key in a folder, where a user has it."""

    def make(folder: Path) -> PrivateKey:
        generate(folder / "signing-key.pem")
        return load_private(folder / "signing-key.pem")

    return make


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of a user, who has none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "firstlight"


@pytest.fixture
def signatures(config: Path, new_key: Callable[[Path], PrivateKey]) -> Signatures:
    """Of a user with a key."""
    new_key(config)
    return Signatures.of_user()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., CacheServer]]:
    """A server in a thread; with a port, one that starts again there."""
    servers: list[CacheServer] = []

    def start(tokens: Tokens = OPEN, port: int = 0, max_bytes: int = 2**30) -> CacheServer:
        entries = ServedEntries(str(tmp_path / "served"), max_bytes, 2**20)
        server = CacheServer(("127.0.0.1", port), entries, tokens)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


OPEN = Tokens()
Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def silence_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """The XLA of jaxlib 0.8.3 logs missing processor features to stderr, which tests read."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


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
