"""Train on significance: differentiable histograms and profiled test statistics, in JAX.

    from firstlight import histfactory as hf, losses

    model = hf.load("workspace.json")

    def loss(weights, events):
        scores = network(weights, events)
        signal = losses.soft_histogram(scores, edges)
        return -losses.significance(model, {"signal": signal}, objective="asimov")

`firstlight.torch` offers the same for PyTorch. Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstlight.lazy_names import lazy_names

if TYPE_CHECKING:
    from firstlight.losses.binning import LossError
    from firstlight.losses.objectives import (
        nll,
        q0,
        qmu,
        qmu_tilde,
        significance,
        statistic_and_state,
        upper_limit,
        z_mu,
    )
    from firstlight.losses.soft_histogram import soft_histogram
    from firstlight.losses.state import State, initial_state

__all__ = [
    "LossError",
    "State",
    "initial_state",
    "nll",
    "q0",
    "qmu",
    "qmu_tilde",
    "significance",
    "soft_histogram",
    "statistic_and_state",
    "upper_limit",
    "z_mu",
]

_HOME = {
    "objectives": tuple(__all__),  # but for these:
    "binning": ("LossError",),
    "soft_histogram": ("soft_histogram",),
    "state": ("State", "initial_state"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)
