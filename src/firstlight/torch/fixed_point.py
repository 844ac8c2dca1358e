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
    rest: torch.Tensor  # of the negative log-likelihood, beside Σ ν - n ln ν

    def evaluate(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Value, gradient by all yields, and the least yield (not a number if any is not)."""
        parts = [t.detach().double() for t in tensors]
        yields = parts[0] if len(parts) == 1 else torch.cat(parts)
        counts = torch.addmv(self.base, self.slope, yields)
        possible = counts > TINY_YIELD
        log_part = torch.xlogy(self.observed, torch.where(possible, counts, 0.0))
        ratio = torch.where(possible, self.observed / counts, 0.0)
        value = (counts - log_part).sum() + self.rest
        return value, torch.mv(self.slope.T, 1 - ratio), yields.amin()
