"""The soft histogram as a module: `SoftHistogram`, its kernel, and sums over ranks.

A histogram and its derivatives take a few operations that never make the host wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx

from firstlight.histfactory.array_types import ArrayLike
from firstlight.losses.binning import (
    KINDS,
    OVERFLOW,
    LossError,
    checked_bandwidth,
    checked_choice,
    checked_edges,
    checked_scores,
    no_score_inside,
    open_ends,
)
from firstlight.torch.replays import Replays, Results

Slopes = tuple[torch.Tensor, torch.Tensor | None]
#: Up to this many (event, edge) pairs, launching takes longer than computing, so it is recorded.
RECORDED_PAIRS = 1 << 21


@dataclass(frozen=True, eq=False)
class Kernel:
    """How events spread over bins; `firstlight.losses.binning` defines it."""

    edges: torch.Tensor
    bandwidth: float
    mode: str
    open: tuple[bool, bool]  # whether the first and the last bin extend to infinity
    drops: bool  # whether events outside the edges are dropped
    nan_if_empty: bool = True  # rather than zero, if all events are dropped
    replays: Replays = field(default_factory=Replays)

    def yields(self, scores: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """The histogram."""
        found: torch.Tensor = self._run(self._yields, scores, weights)
        return found

    def slopes(
        self, scores: torch.Tensor, weights: torch.Tensor | None, outer: torch.Tensor, by_w: bool
    ) -> Slopes:
        """Gradient with respect to scores and, if wanted, weights, given that of the histogram."""
        function = self._slopes_by_both if by_w else self._slopes
        if torch.is_grad_enabled():  # create_graph=True: these operations are differentiated
            return function(scores, weights, outer)
        found: Slopes = self._run(function, scores, weights, outer)
        return found

    def _run(
        self, function: Callable[..., Results], scores: torch.Tensor, *others: torch.Tensor | None
    ) -> Results:
        if len(scores) * len(self.edges) > RECORDED_PAIRS:
            return function(scores, *others)
        return self.replays.run(function, scores, *others)

    def _yields(self, scores: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        x, w, _ = self._counted(scores, weights)
        below = self._below(self._distance(x))
        low, high = self.open
        if low:
            below = torch.nn.functional.pad(below, (0, 0, 1, 0))
        if high:
            below = torch.nn.functional.pad(below, (0, 0, 0, 1), value=1.0)
        # Far from an event, two integrals differ only by rounding, which may be negative.
        return torch.diff(below, dim=0).clamp_min(0.0) @ w

    def _slopes(
        self,
        scores: torch.Tensor,
        weights: torch.Tensor | None,
        outer: torch.Tensor,
        by_weights: bool = False,
    ) -> Slopes:
        x, w, inside = self._counted(scores, weights)
        distance = self._distance(x)
        # Weight that crosses an edge leaves one bin for the other.
        low, high = self.open
        across = torch.diff(torch.nn.functional.pad(outer, (int(not low), int(not high))))
        by_x = (across * (1 / self.bandwidth)) @ self._density(distance) * w
        if inside is not None:
            by_x = torch.where(inside, by_x, 0.0)
        by_x = by_x.to(scores.dtype)
        if not by_weights or weights is None:
            return by_x, None
        by_w = -(across @ self._below(distance))
        by_w = by_w + outer[-1] if high else by_w
        if inside is not None:
            by_w = torch.where(inside, by_w, 0.0)
        return by_x, by_w.to(weights.dtype)

    def _slopes_by_both(
        self, scores: torch.Tensor, weights: torch.Tensor | None, outer: torch.Tensor
    ) -> Slopes:
        return self._slopes(scores, weights, outer, by_weights=True)

    def _counted(
        self, scores: torch.Tensor, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Scores and weights of the events, and which of them count, if not all."""
        x = scores.double()
        w = torch.ones_like(x) if weights is None else weights.double()
        if not self.drops:
            return x, w, None
        inside = (x >= self.edges[0]) & (x <= self.edges[-1])
        # A NaN score counts as outside the edges, so it must not reach the kernel.
        x = torch.where(inside, x, self.edges[len(self.edges) // 2])
        w = torch.where(inside, w, 0.0)
        if not self.nan_if_empty:
            return x, w, inside
        # Checking whether any is inside would mean waiting for the network. The loss waits anyway,
        # and rejects the NaN.
        n = inside.sum()
        return x, w * (n / n), inside

    def _distance(self, x: torch.Tensor) -> torch.Tensor:
        low, high = self.open
        inner = self.edges[int(low) : len(self.edges) - int(high)]
        return (inner[:, None] - x) / self.bandwidth

    def _below(self, distance: torch.Tensor) -> torch.Tensor:
        """The fraction of the kernel below an edge."""
        if self.mode == "kde":
            return torch.special.erfc(distance * -(0.5**0.5)) * 0.5
        return torch.sigmoid(distance)

    def _density(self, distance: torch.Tensor) -> torch.Tensor:
        if self.mode == "kde":
            return torch.exp(distance * distance * -0.5) * (2 * math.pi) ** -0.5
        share = torch.sigmoid(distance)
        return share * (1 - share)


class Binned(torch.autograd.Function):
    """The histogram for autograd."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, kernel: Kernel, scores: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.kernel = kernel
        ctx.save_for_backward(scores, weights)
        return kernel.yields(scores, weights)

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scores, weights = ctx.saved_tensors
        return (None, *ctx.kernel.slopes(scores, weights, outer[0], ctx.needs_input_grad[2]))


class SoftHistogram(torch.nn.Module):
    """Differentiable yield per bin in float64; `firstlight.losses.binning` defines it.

    bin_edges: increasing; the outermost may be infinite.
    bandwidth: width of the kernel in units of the scores; "auto" is half the mean bin width.
    mode: "kde" (Gaussian kernel) or "sigmoid" (logistic kernel).
    overflow: "drop" (only scores within the edges count, each with its full weight), "clip" (those
        outside count in the outermost bins), "leak" (the part of a kernel outside the edges is
        lost).
    group: a process group of `torch.distributed`, such as `torch.distributed.group.WORLD`: the
        histogram is that of the events of all its ranks, which may have different numbers of them;
        see `sum_over_ranks`.
    If no score is within the edges, "drop" raises `LossError`; on a GPU, where checking would mean
    waiting for the network, the histogram is NaN instead, which the losses reject.
    """

    def __init__(
        self,
        bin_edges: ArrayLike | torch.Tensor,
        bandwidth: float | str = "auto",
        mode: str = "kde",
        *,
        overflow: str = "drop",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        if isinstance(bin_edges, torch.Tensor):
            bin_edges = bin_edges.detach().cpu().numpy()
        self._checked = checked_edges(bin_edges)
        self.bandwidth = checked_bandwidth(bandwidth, self._checked)
        self.mode = checked_choice("mode", mode, KINDS)
        self.overflow = checked_choice("overflow", overflow, OVERFLOW)
        self._open = open_ends(self._checked, overflow)
        # Edges are not a buffer: `network.float()` must not round them.
        self._kernels: dict[torch.device, Kernel] = {}

    def forward(self, scores: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """scores, weights: one number per event."""
        self._require_usable(scores, weights)
        histogram: torch.Tensor
        if self.group is not None:
            histogram = Binned.apply(self._kernel(scores.device), scores, weights)
            return self._of_all_ranks(histogram, scores)
        if self.overflow == "drop" and scores.device.type == "cpu" and not self._inside(scores):
            raise no_score_inside(self._checked)
        histogram = Binned.apply(self._kernel(scores.device), scores, weights)
        return histogram

    def _inside(self, scores: torch.Tensor) -> torch.Tensor:
        """How many scores are within the edges."""
        first, last = float(self._checked[0]), float(self._checked[-1])
        return ((scores >= first) & (scores <= last)).sum()

    def _of_all_ranks(self, histogram: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.overflow != "drop":
            return sum_over_ranks(histogram, self.group)
        # One exchange for both, after which all ranks agree on whether any score is inside.
        inside = self._inside(scores).to(histogram.dtype)
        total = sum_over_ranks(torch.cat([histogram, inside[None]]), self.group)
        if scores.device.type == "cpu" and not total[-1]:
            raise no_score_inside(self._checked)
        return total[:-1] * (total[-1] / total[-1]).detach()

    def _kernel(self, device: torch.device) -> Kernel:
        if device not in self._kernels:
            # Kept beyond this call, so these must not be inference tensors.
            with torch.inference_mode(False):
                edges = torch.tensor(self._checked, device=device)
            drops, alone = self.overflow == "drop", self.group is None
            self._kernels[device] = Kernel(
                edges, self.bandwidth, self.mode, self._open, drops, nan_if_empty=alone
            )
        return self._kernels[device]

    def _require_usable(self, scores: torch.Tensor, weights: torch.Tensor | None) -> None:
        for name, value in (("scores", scores), ("weights", weights)):
            if value is not None and not isinstance(value, torch.Tensor):
                raise LossError(f"{name} must be a tensor, not {type(value).__name__}.")
        checked_scores(scores, weights, may_be_empty=self.group is not None)
        if weights is not None and weights.device != scores.device:
            raise LossError(
                f"weights are on {weights.device}, scores on {scores.device}. Move one."
            )

    @property
    def n_bins(self) -> int:
        return len(self._checked) - 1

    @property
    def bin_edges(self) -> torch.Tensor:
        return torch.tensor(self._checked)

    @property
    def bin_centers(self) -> torch.Tensor:
        return torch.tensor(0.5 * (self._checked[:-1] + self._checked[1:]))

    def extra_repr(self) -> str:
        return (
            f"{self.n_bins} bins, bandwidth={self.bandwidth:g}, mode={self.mode!r}, "
            f"overflow={self.overflow!r}"
        )


def sum_over_ranks(histogram: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum of a tensor over the ranks of a process group (default: all of them).

    Its derivative is multiplied by the number of ranks, because DistributedDataParallel divides by
    it: averaged over ranks, the gradient of a loss of the sum is that of all events together.

    The significance of a batch is not the mean of that of its parts. So each rank fills a histogram
    with its own events, the histograms are summed, and every rank makes the same fits. That takes
    one small exchange per step; with fits on one rank alone there would be a second one, and the
    other ranks would wait.
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
