"""Shared by the tests of snapshots: a made-up run, a key, and a user without settings."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import made_up_run
import pytest

from firstlight.snapshot.keys import PrivateKey, generate, load_private
from firstlight.snapshot.publishing import Published, publish
from firstlight.snapshot.storage import LocalStore


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests never read or write the settings of the user who runs them."""
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory, not to be changed."""
    return made_up_run.make_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    path = tmp_path_factory.mktemp("key") / "key.pem"
    generate(path)
    return load_private(path)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(scope="session")
def published_once(
    made_up: Path, key: PrivateKey, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Published]:
    place = tmp_path_factory.mktemp("published") / "store"
    return place, publish([made_up], LocalStore(place), key=key, archive=True)


@pytest.fixture
def signed(published_once: tuple[Path, Published], store: LocalStore) -> Published:
    """A signed snapshot of the made-up run with its archive, in the test's own store."""
    place, done = published_once
    shutil.copytree(place, store.path, symlinks=True)
    archive = str(store.path / f"{done.id}.tar")
    return replace(done, location=str(store.path / done.id), archive=archive)
