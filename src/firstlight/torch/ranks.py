"""Histograms summed over the ranks of a data-parallel training.

The significance of a batch is not the mean of that of its parts, so what DistributedDataParallel
averages must be the gradient of one loss of all events: each rank fills a histogram with its own
events, the histograms are summed, and every rank makes the same fits with the same result. That
costs one small exchange per step; fits on one rank alone would cost a second one, and the others
would wait.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx

from firstlight.losses.binning import LossError


def sum_over_ranks(histogram: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum of a tensor over the ranks of a process group (default: all of them).

    Its derivative is multiplied by the number of ranks, because DistributedDataParallel divides by
    it: averaged over ranks, the gradient of a loss of the sum is that of all events together.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise LossError(
            "ranks: torch.distributed has no process group. Call "
            "torch.distributed.init_process_group first, or drop group."
        )
    found: torch.Tensor = _Sum.apply(histogram, group)
    return found


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, histogram: torch.Tensor, group: dist.ProcessGroup | None
    ) -> torch.Tensor:
        ctx.ranks = dist.get_world_size(group)
        total = histogram.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The loss is the same on every rank, so this is the sum of their derivatives.
        return outer[0] * ctx.ranks, None
