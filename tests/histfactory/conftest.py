"""For the tests of the HistFactory engine: pyhf as judge, and whether NumPy or XLA computes.

Programs run with JAX's default of 32 bits, as a user's would: the engine must ensure its own
precision. A test that needs a 64-bit program uses `jax.enable_x64`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstlight.histfactory.programs import Patience

Plain = dict[str, Any]


@pytest.fixture(scope="session")
def judge() -> Callable[..., tuple[Any, list[float]]]:
    """pyhf's model of a workspace, and its data."""
    import pyhf

    def model_and_data(
        workspace: Plain, codes: tuple[str, str] = ("code4", "code4p")
    ) -> tuple[Any, list[float]]:
        pyhf.set_backend("numpy")
        parsed = pyhf.Workspace(workspace)
        settings = {"normsys": {"interpcode": codes[0]}, "histosys": {"interpcode": codes[1]}}
        model = parsed.model(modifier_settings=settings)
        return model, parsed.data(model)

    return model_and_data


@pytest.fixture(scope="session")
def code2_of_pyhf_is_corrected() -> bool:
    """Whether this pyhf computes code 2 for α < -1 as HistFactory defines it (0.7.6 does not)."""
    import pyhf

    down, nominal, up = 8.0, 10.0, 13.0
    a, b = (up + down) / 2 - nominal, (up - down) / 2
    code2 = pyhf.interpolators.code2(np.array([[[[down], [nominal], [up]]]]))
    return bool(np.isclose(code2(np.array([[-3.0]])).item(), (b - 2 * a) * (-3.0 + 1)))


class Computing:
    """Selects NumPy or compiled programs, regardless of what earlier tests have compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def by_numpy(self) -> None:
        self._monkeypatch.setattr(Patience, "is_over", lambda *_: False)

    def by_programs(self) -> None:
        self._monkeypatch.setattr(Patience, "is_over", lambda *_: True)


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> Computing:
    return Computing(monkeypatch)
