"""A soft histogram and its derivatives, in a few operations that never make the host wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.autograd.function import FunctionCtx

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
