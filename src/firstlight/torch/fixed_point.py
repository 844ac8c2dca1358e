"""The likelihood at parameters that stay: so few operations that PyTorch does them itself.

At fixed parameters the expected counts are linear in all yields, so that one matrix product, a
logarithm and a sum give the value, and one more product the gradient. A call of JAX would take
longer to make than all of this takes to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from firstlight.histfactory.likelihood import TINY_YIELD
from firstlight.torch.replays import Replays

#: Where the gradient begins in what `evaluate` gives.
HEADER = 3


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """ν = base + slope · yields, and what else the likelihood needs."""

    base: torch.Tensor
    slope: torch.Tensor  # [bin, yield]
    observed: torch.Tensor
    rest: torch.Tensor  # of the negative log-likelihood, beside Σ slope · yields - n ln ν
    total: torch.Tensor  # slope summed over bins
    replays: Replays = field(default_factory=Replays)

    @classmethod
    def of(cls, base: Any, slope: Any, observed: Any, rest: Any) -> FixedPoint:
        """From a response of the model; see `programs.response`."""
        return cls(base, slope, observed, rest + base.sum(), slope.sum(0))

    def evaluate(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """[value, least and greatest of the yields (NaN if any is), gradient by all yields …]."""
        packed: torch.Tensor = self.replays.run(self._evaluate, *(t.detach() for t in tensors))
        return packed

    def _evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        yields = torch.cat([t.double() for t in tensors])
        counts = torch.addmv(self.base, self.slope, yields)
        logs = torch.xlogy(self.observed, counts.clamp_min(0.0)).sum()
        ratio = self.observed / counts.clamp_min(TINY_YIELD)
        value = torch.dot(self.total, yields) - logs + self.rest
        gradient = torch.addmv(self.total, self.slope.T, ratio, alpha=-1)
        return torch.cat([torch.stack([value, *torch.aminmax(yields)]), gradient])
