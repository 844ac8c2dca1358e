"""Shared by the tests of the site: one store and one site, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_store import World, fill

from firstlight.site import listing
from firstlight.site.site_building import Options, build
from firstlight.snapshot.keys import generate, load_private


@pytest.fixture(autouse=True)
def settings_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests never read the trusted keys of the user who runs them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    site = root / "served" / "deep" / "er" / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(root / "config"))
        # Small pages, so that a dozen snapshots are more than one of them.
        patch.setattr(listing, "ROWS", 5)
        patch.setattr(listing, "PIECE", 4)
        generate(root / "key.pem")
        ids = fill(root / "store", root / "runs", load_private(root / "key.pem"))
        built = build(str(root / "store"), site, Options(title="Our nights"))
    return World(root / "store", root / "served", site, ids, built)
