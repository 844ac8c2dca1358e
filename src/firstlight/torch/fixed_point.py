"""The likelihood at fixed parameters, in a few operations of PyTorch.

At fixed parameters the expected counts are linear in all yields, so one matrix product, a logarithm
and a sum give the value, and one more product gives the gradient. A call of JAX alone would take
longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from firstlight.histfactory.likelihood import TINY_YIELD
from firstlight.torch.replays import Replays

#: Where the gradient begins in the result of `evaluate`.
HEADER = 3


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """The coefficients of ν = base + slope · yields, and other constants of the likelihood."""

    base: torch.Tensor
    slope: torch.Tensor  # [bin, yield]
    observed: torch.Tensor
    rest: torch.Tensor  # the negative log-likelihood without Σ slope · yields - n ln ν
    total: torch.Tensor  # slope summed over bins
    replays: Replays = field(default_factory=Replays)

    @classmethod
    def of(
        cls, base: torch.Tensor, slope: torch.Tensor, observed: torch.Tensor, rest: torch.Tensor
    ) -> FixedPoint:
        """From the model's response; see `programs.response`."""
        return cls(base, slope, observed, rest + base.sum(), slope.sum(0))

    def evaluate(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """[value, smallest and largest yield (NaN if any is NaN), gradient …]."""
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
