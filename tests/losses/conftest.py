"""Shared by the tests of the losses: workspaces, compiles counted, the reference data.

Programs run with JAX's own default of 32 bits, as a user's would: the losses have to see to their
precision by themselves. A test that wants a 64-bit program says so with `jax.enable_x64`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import pytest

Plain = dict[str, Any]


class Workspaces:
    """Short spelling of pyhf's JSON."""

    @staticmethod
    def modifier(kind: str, name: str, data: Any = None) -> Plain:
        return {"name": name, "type": kind, "data": data}

    @staticmethod
    def normsys(name: str, lo: float, hi: float) -> Plain:
        return {"name": name, "type": "normsys", "data": {"lo": float(lo), "hi": float(hi)}}

    @staticmethod
    def histosys(name: str, lo: Any, hi: Any) -> Plain:
        data = {"lo_data": [float(x) for x in lo], "hi_data": [float(x) for x in hi]}
        return {"name": name, "type": "histosys", "data": data}

    @staticmethod
    def sample(name: str, nominal: Any, *modifiers: Plain) -> Plain:
        return {"name": name, "data": [float(x) for x in nominal], "modifiers": list(modifiers)}

    @staticmethod
    def channel(name: str, *samples: Plain) -> Plain:
        return {"name": name, "samples": list(samples)}

    @staticmethod
    def workspace(
        channels: list[Plain], data: list[Any], poi: str = "mu", parameters: list[Plain] = ()
    ) -> Plain:
        return {
            "version": "1.0.0",
            "channels": channels,
            "observations": [
                {"name": c["name"], "data": [float(x) for x in d]}
                for c, d in zip(channels, data, strict=True)
            ],
            "measurements": [
                {"name": "meas", "config": {"poi": poi, "parameters": list(parameters)}}
            ],
        }


@pytest.fixture(scope="session")
def make() -> Workspaces:
    return Workspaces()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the reference data, which is no part of the project."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("FIRSTLIGHT_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip(
            f"no reference data: {folder} is not a folder. Set FIRSTLIGHT_SHARED_DATA to the one "
            "with complex_workspace.json and workspace_tHu.json."
        )
    return folder


class Compilations:
    """How many programs XLA compiled since `reset`."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        self.count = 0


@pytest.fixture(scope="session")
def compilations() -> Compilations:
    counter = Compilations()

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counter.count += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counter
