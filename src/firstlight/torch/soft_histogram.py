"""The soft histogram as a module: `SoftHistogram`, its kernel, and sums over ranks.

A histogram and its derivatives take a few operations that never make the host wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    nan_scores,
    no_score_inside,
    open_ends,
)
from firstlight.torch.autograd import Gradients, applied, row_by_row
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
    inspects: bool  # whether scores are inspected first; otherwise a NaN score makes bins NaN
    nan_if_empty: bool  # rather than zero, if all events are dropped
    replays: Replays = field(default_factory=Replays)

    def require_usable(self, scores: torch.Tensor) -> None:
        """Raise a `LossError` if scores are NaN, or if none of them counts."""
        low, high = (end.item() for end in torch.aminmax(scores))  # NaN if any is
        if math.isnan(low):
            raise nan_scores(f"{int(scores.isnan().sum())} of {len(scores)}")
        first, last = self.edges[0].item(), self.edges[-1].item()
        if self.drops and not (first <= low and high <= last):
            x = scores.double()
            if not bool(((x >= first) & (x <= last)).any()):
                raise no_score_inside(first, last)

    def count(self, scores: torch.Tensor) -> torch.Tensor:
        """How many scores count; NaN if any is NaN."""
        x = scores.double()
        counted = (x >= self.edges[0]) & (x <= self.edges[-1]) if self.drops else x == x
        return torch.where(x.isnan().any(), math.nan, counted.sum().double())

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

    def moved(
        self,
        scores: torch.Tensor,
        weights: torch.Tensor | None,
        by_scores: torch.Tensor | None,
        by_weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """The change of the histogram along a change of scores and weights."""
        x, w, inside = self._counted(scores, weights)
        distance = self._distance(x)
        none = torch.zeros_like(x)
        dx = none if by_scores is None else by_scores.double()
        dw = none if by_weights is None else by_weights.double()
        if inside is not None:
            dx, dw = torch.where(inside, dx, 0.0), torch.where(inside, dw, 0.0)
        change = self._below(distance) @ dw - self._density(distance) @ (w * dx) / self.bandwidth
        low, high = self.open
        change = torch.nn.functional.pad(change, (int(low), 0))
        return torch.diff(torch.cat([change, dw.sum()[None]]) if high else change)

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
        # Inspecting scores would mean waiting for the network. The loss waits anyway, and rejects
        # the NaN.
        broken = None if self.inspects else x.isnan()
        inside = None
        if self.drops:
            inside = (x >= self.edges[0]) & (x <= self.edges[-1])
            x = torch.where(inside, x, self.edges[len(self.edges) // 2])
            w = torch.where(inside, w, 0.0)
            if self.nan_if_empty:
                n = inside.sum()
                w = w * (n / n)
        return x, w if broken is None else torch.where(broken, math.nan, w), inside

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
    """The histogram for autograd, in the form that torch.compile traces."""

    @staticmethod
    def forward(kernel: Kernel, scores: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        if kernel.inspects:
            kernel.require_usable(scores)
        return kernel.yields(scores, weights)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.kernel, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> Gradients:
        scores, weights = ctx.saved_tensors
        return (None, *ctx.kernel.slopes(scores, weights, outer[0], ctx.needs_input_grad[2]))


class Transformable(Binned):
    """The same for forward mode and `torch.func`."""

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: torch.Tensor | None) -> torch.Tensor:
        moved: torch.Tensor = ctx.kernel.moved(*ctx.saved_tensors, *tangents[1:])
        return moved

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        return row_by_row(Transformable, info, in_dims, *given)


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
    A NaN score raises `LossError`, and so does "drop" if no score is within the edges; in
    torch.compile and on a GPU, where checking would mean waiting for the network, the histogram is
    NaN instead, which the losses reject.
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
        self._kernels: dict[tuple[torch.device, bool], Kernel] = {}

    def forward(self, scores: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """scores, weights: one number per event."""
        self._require_usable(scores, weights)
        histogram: torch.Tensor
        compiling = torch.compiler.is_compiling()
        kernel = self._kernel(scores.device, seen=scores.device.type == "cpu" and not compiling)
        histogram = applied(Binned if compiling else Transformable, kernel, scores, weights)
        return histogram if self.group is None else self._of_all_ranks(histogram, kernel, scores)

    def _of_all_ranks(
        self, histogram: torch.Tensor, kernel: Kernel, scores: torch.Tensor
    ) -> torch.Tensor:
        # One exchange for both, after which all ranks agree on whether the scores can be used.
        counted = kernel.count(scores.detach())
        total = sum_over_ranks(torch.cat([histogram, counted[None]]), self.group)
        if scores.device.type == "cpu" and not torch.compiler.is_compiling():
            if math.isnan(total[-1]):
                raise nan_scores("those of a rank")
            if kernel.drops and not total[-1]:
                raise no_score_inside(self._checked[0], self._checked[-1])
        return total[:-1] * (total[-1] / total[-1]).detach() if kernel.drops else total[:-1]

    def _kernel(self, device: torch.device, seen: bool) -> Kernel:
        """seen: whether scores can be inspected."""
        if (device, seen) not in self._kernels:
            # Kept beyond this call, so these must not be inference tensors.
            with torch.inference_mode(False):
                edges = torch.tensor(self._checked, device=device)
            alone = self.group is None
            self._kernels[device, seen] = Kernel(
                edges,
                self.bandwidth,
                self.mode,
                self._open,
                drops=self.overflow == "drop",
                inspects=alone and seen,
                nan_if_empty=alone and not seen,
            )
        return self._kernels[device, seen]

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
    found: torch.Tensor = applied(_Sum, histogram, group)
    return found


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(histogram: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        total = histogram.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.ranks = dist.get_world_size(inputs[1])

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The loss is the same on every rank, so this is the sum of their derivatives.
        return outer[0] * ctx.ranks, None

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        raise LossError("the sum over ranks is one exchange: call it outside torch.func.vmap.")
