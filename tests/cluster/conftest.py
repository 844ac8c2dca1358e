"""Nodes on this machine, for all tests of a session: Ray takes seconds to start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstlight.cluster.rehearsal import Nodes, rehearsal


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """Three nodes of one core; a test that kills one leaves the others to the next."""
    pytest.importorskip("ray")
    with rehearsal([1, 1, 1]) as running:
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
