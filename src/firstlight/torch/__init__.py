"""Train PyTorch networks on significance. Names, arguments and defaults are those of
`nextstat.torch`: a training script runs with the import changed.

    from firstlight.torch import SignificanceLoss, SoftHistogram, from_pyhf

    model = from_pyhf(open("workspace.json").read())
    histogram, loss = SoftHistogram(edges), SignificanceLoss(model, "signal")
    loss(histogram(network(events))).backward()

The likelihood runs in float64: in NumPy for the first steps, which wait for no compiler, then in
JAX, on the device of the tensors. Nothing is imported until it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from firstlight.lazy_names import lazy_names

if TYPE_CHECKING:
    from firstlight.torch.autograd import DerivativeError
    from firstlight.torch.bridge import as_tensor
    from firstlight.torch.failures import FitError
    from firstlight.torch.losses import (
        SignificanceLoss,
        batch_profiled_q0_loss,
        batch_profiled_qmu_loss,
        nll_loss,
        profiled_q0_loss,
        profiled_qmu_loss,
        profiled_z0_loss,
        profiled_zmu_loss,
        signal_jacobian,
        signal_jacobian_numpy,
    )
    from firstlight.torch.nextstat_names import (
        MetalProfiledQ0Loss,
        MetalProfiledQmuLoss,
        NextStatNLL,
        NextStatQ0,
        NextStatZ0,
        ProfiledQ0Loss,
        ProfiledQmuLoss,
        discovery_z0,
        rank_impact,
    )
    from firstlight.torch.session import (
        Session,
        create_profiled_session,
        create_session,
        from_pyhf,
    )
    from firstlight.torch.soft_histogram import SoftHistogram, sum_over_ranks

# Two frameworks share the GPU's memory here, and JAX would reserve three quarters of it at startup.
# It reads this setting once, before its first computation.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

__all__ = [
    "DerivativeError",
    "FitError",
    "MetalProfiledQ0Loss",
    "MetalProfiledQmuLoss",
    "NextStatNLL",
    "NextStatQ0",
    "NextStatZ0",
    "ProfiledQ0Loss",
    "ProfiledQmuLoss",
    "Session",
    "SignificanceLoss",
    "SoftHistogram",
    "as_tensor",
    "batch_profiled_q0_loss",
    "batch_profiled_qmu_loss",
    "create_profiled_session",
    "create_session",
    "discovery_z0",
    "from_pyhf",
    "nll_loss",
    "profiled_q0_loss",
    "profiled_qmu_loss",
    "profiled_z0_loss",
    "profiled_zmu_loss",
    "rank_impact",
    "signal_jacobian",
    "signal_jacobian_numpy",
    "sum_over_ranks",
]

_HOME = {
    "losses": tuple(__all__),  # but for these:
    "autograd": ("DerivativeError",),
    "bridge": ("as_tensor",),
    "soft_histogram": ("SoftHistogram", "sum_over_ranks"),
    "failures": ("FitError",),
    "nextstat_names": (
        "MetalProfiledQ0Loss",
        "MetalProfiledQmuLoss",
        "NextStatNLL",
        "NextStatQ0",
        "NextStatZ0",
        "ProfiledQ0Loss",
        "ProfiledQmuLoss",
        "discovery_z0",
        "rank_impact",
    ),
    "session": ("Session", "create_profiled_session", "create_session", "from_pyhf"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)
