"""Nodes on this machine, for all tests of a session: Ray takes seconds to start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstlight.cluster.connection import connected
from firstlight.cluster.rehearsal import Nodes, rehearsal


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """Three nodes of one core, and this process connected to them, so that it keeps its workers.

    A test that kills a node leaves the others to the next.
    """
    pytest.importorskip("ray")
    with rehearsal([1, 1, 1]) as running, connected(running.address):
        yield running


@pytest.fixture(scope="session")
def workspace(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with all kinds of constraints."""
    content = make.counting(
        [5.0, 10.0, 3.0],
        [50.0, 60.0, 40.0],
        [52.0, 63.0, 41.0],
        make.normsys("xsec", 0.9, 1.1),
        make.histosys("shape", [48, 61, 39], [52, 59, 41]),
        make.modifier("shapesys", "mc", [4.0, 5.0, 3.0]),
    )
    path = tmp_path_factory.mktemp("workspace") / "workspace.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="session")
def mass_scan(
    make: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, dict[str, Any]]:
    """A workspace, a patchset of two signals, and the workspaces that its patches lead to."""
    from firstlight.histfactory.patches import digest

    background = make.sample("background", [50.0, 60.0], make.normsys("xsec", 0.9, 1.1))
    base = make.workspace([make.channel("SR", background)], [[52.0, 63.0]])
    patches, patched = [], {}
    for mass, yields in ((300, [5.0, 10.0]), (500, [2.0, 3.0])):
        signal = make.sample("signal", yields, make.modifier("normfactor", "mu"))
        operation = {"op": "add", "path": "/channels/0/samples/0", "value": signal}
        patches.append({"metadata": {"name": f"m{mass}", "values": [mass]}, "patch": [operation]})
        patched[f"m{mass}"] = make.workspace(
            [make.channel("SR", signal, background)], [[52.0, 63.0]]
        )
    metadata = {"digests": {"sha256": digest(base, "sha256")}, "labels": ["mass"], "name": "scan"}
    folder = tmp_path_factory.mktemp("mass-scan")
    workspace, patchset = folder / "background.json", folder / "patchset.json"
    workspace.write_text(json.dumps(base))
    patchset.write_text(json.dumps({"metadata": metadata, "patches": patches, "version": "1.0.0"}))
    return workspace, patchset, patched
