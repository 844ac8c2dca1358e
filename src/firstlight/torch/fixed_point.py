"""The likelihood at parameters that stay: so few operations that PyTorch does them itself.

At fixed parameters the expected counts are linear in all yields, so that one matrix product, a
logarithm and a sum give the value, and one more product the gradient. A call of JAX would take
longer to make than all of this takes to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from firstlight.histfactory.likelihood import TINY_YIELD


class FixedPoint(NamedTuple):
    """ν = base + slope · yields, and what else the likelihood needs."""

    base: torch.Tensor
    slope: torch.Tensor  # [bin, yield]
    observed: torch.Tensor
    rest: torch.Tensor  # of the negative log-likelihood, beside Σ slope · yields - n ln ν
    total: torch.Tensor  # slope summed over bins

    @classmethod
    def of(cls, base: Any, slope: Any, observed: Any, rest: Any) -> FixedPoint:
        """From a response of the model; see `programs.response`."""
        return cls(base, slope, observed, rest + base.sum(), slope.sum(0))

    def evaluate(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Value, gradient by all yields, and [least, greatest] of these (NaN if any is)."""
        parts = [t.detach().double() for t in tensors]
        yields = parts[0] if len(parts) == 1 else torch.cat(parts)
        counts = torch.addmv(self.base, self.slope, yields)
        # Every operation is a kernel to launch, which is what this takes its time for.
        logs = torch.xlogy(self.observed, counts.clamp_min(0.0)).sum()
        ratio = self.observed / counts.clamp_min(TINY_YIELD)
        value = torch.dot(self.total, yields) - logs + self.rest
        gradient = torch.addmv(self.total, self.slope.T, ratio, alpha=-1)
        return value, gradient, torch.stack(torch.aminmax(yields))
