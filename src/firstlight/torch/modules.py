"""The two that a training loop is written with: `SoftHistogram` and `SignificanceLoss`."""

from __future__ import annotations

import math
from typing import Any

import torch

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
from firstlight.torch.arguments import Histograms
from firstlight.torch.functional import (
    negative_significance,
    profiled_q0_loss,
    profiled_z0_loss,
)
from firstlight.torch.session import Session


class SoftHistogram(torch.nn.Module):
    """Differentiable yields of bins, float64; `firstlight.losses.binning` says what they are.

    bin_edges: increasing; the outermost may be infinite.
    bandwidth: width of the kernel in units of the scores; "auto": half the mean width of the bins.
    mode: "kde" (Gaussian kernel) or "sigmoid" (logistic kernel).
    overflow: "drop" (only scores within the edges count, each with all of its weight), "clip"
        (those outside count in the outermost bins), "leak" (what of a kernel lies outside of the
        edges is lost).
    If no score is within the edges, "drop" raises `LossError`; on a GPU, where looking would mean
    to wait for the network, the histogram is NaN instead, which the losses refuse.
    """

    def __init__(
        self,
        bin_edges: Any,
        bandwidth: Any = "auto",
        mode: str = "kde",
        *,
        overflow: str = "drop",
    ) -> None:
        super().__init__()
        if isinstance(bin_edges, torch.Tensor):
            bin_edges = bin_edges.detach().cpu().numpy()
        self._checked = checked_edges(bin_edges)
        self.bandwidth = checked_bandwidth(bandwidth, self._checked)
        self.mode = checked_choice("mode", mode, KINDS)
        self.overflow = checked_choice("overflow", overflow, OVERFLOW)
        self._open = open_ends(self._checked, overflow)
        # Not a buffer: `network.float()` must not round them.
        self._edges: dict[torch.device, torch.Tensor] = {}

    def forward(self, scores: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """scores, weights: one number an event."""
        self._require_usable(scores, weights)
        edges = self._edges_on(scores.device)
        x = scores.double()
        w = None if weights is None else weights.double()
        if self.overflow == "drop":
            first, last = float(self._checked[0]), float(self._checked[-1])
            inside = (x >= first) & (x <= last)
            # A score that is no number counts as outside, and so must not reach the kernel.
            x = torch.where(inside, x, float(self._checked[len(edges) // 2]))
            w = inside.double() if w is None else torch.where(inside, w, 0.0)
            w = self._if_any(inside, w)
        elif w is None:
            w = torch.ones_like(x)
        low, high = self._open
        inner = edges[int(low) : len(edges) - int(high)]
        histogram: torch.Tensor = Binned.apply(x, w, inner, self.bandwidth, self.mode, self._open)
        return histogram

    def _if_any(self, inside: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The weights, if any score is inside; an error, or weights that are no numbers, if not."""
        if inside.device.type == "cpu":
            if not bool(inside.any()):
                raise no_score_inside(self._checked)
            return w
        # To know would be to wait for the network. The loss waits anyway, and sees this.
        n = inside.sum()
        return w * (n / n)

    def _edges_on(self, device: torch.device) -> torch.Tensor:
        if device not in self._edges:
            # Kept, and so also used outside of the inference that may be going on.
            with torch.inference_mode(False):
                self._edges[device] = torch.tensor(self._checked, device=device)
        return self._edges[device]

    def _require_usable(self, scores: Any, weights: Any) -> None:
        for name, value in (("scores", scores), ("weights", weights)):
            if value is not None and not isinstance(value, torch.Tensor):
                raise LossError(f"{name} must be a tensor, not {type(value).__name__}.")
        checked_scores(
            tuple(scores.shape),
            str(scores.dtype).removeprefix("torch."),
            None
            if weights is None
            else (tuple(weights.shape), str(weights.dtype).removeprefix("torch.")),
        )
        if weights is not None and weights.device != scores.device:
            raise LossError(f"weights are on {weights.device}, scores on {scores.device}.")

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


class Binned(torch.autograd.Function):
    """The histogram, in few operations: on a GPU it is their number that takes time.

    edges: but for those of `open` ends, where the outermost bin reaches to infinity.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        w: torch.Tensor,
        edges: torch.Tensor,
        h: float,
        mode: str,
        open: tuple[bool, bool],
    ) -> torch.Tensor:
        ctx.save_for_backward(x, w, edges)
        ctx.h, ctx.mode, ctx.open = h, mode, open
        below = _below(_distance(x, edges, h), mode)
        if open[0]:
            below = torch.nn.functional.pad(below, (0, 0, 1, 0))
        if open[1]:
            below = torch.nn.functional.pad(below, (0, 0, 0, 1), value=1.0)
        # Far from an event two integrals differ by rounding alone, which may be negative.
        return torch.diff(below, dim=0).clamp_min(0.0) @ w

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        x, w, edges = ctx.saved_tensors
        distance = _distance(x, edges, ctx.h)
        # What passes an edge leaves one bin for the other.
        low, high = ctx.open
        across = outer[0]
        if not (low and high):
            across = torch.nn.functional.pad(across, (int(not low), int(not high)))
        across = torch.diff(across)
        by_w = None
        if ctx.needs_input_grad[1]:
            by_w = -(across @ _below(distance, ctx.mode))
            by_w = by_w + outer[0][-1] if high else by_w
        by_x = (across * (1 / ctx.h)) @ _density(distance, ctx.mode) * w
        return by_x, by_w, None, None, None, None


def _distance(x: torch.Tensor, edges: torch.Tensor, h: float) -> torch.Tensor:
    return (edges[:, None] - x) / h


def _below(distance: torch.Tensor, mode: str) -> torch.Tensor:
    """How much of a kernel lies below an edge."""
    if mode == "kde":
        return torch.special.erfc(distance * -(0.5**0.5)) * 0.5
    return torch.sigmoid(distance)


def _density(distance: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "kde":
        return torch.exp(distance * distance * -0.5) * (2 * math.pi) ** -0.5
    share = torch.sigmoid(distance)
    return share * (1 - share)


class SignificanceLoss(torch.nn.Module):
    """-√(q0 + eps): the negative discovery significance, with all systematics profiled.

    model, signal_sample_name, device and all options: see `Session`.
    negate: False gives the significance itself.
    """

    def __init__(
        self,
        model: Any,
        signal_sample_name: Any = "signal",
        *,
        device: str = "auto",
        negate: bool = True,
        eps: float = 1e-12,
        **options: Any,
    ) -> None:
        super().__init__()
        self._session = Session(model, signal_sample_name, device, **options)
        self.negate = negate
        self.eps = eps

    # The likelihood is compiled already, by JAX, whose inside is no concern of torch.compile.
    @torch.compiler.disable
    def forward(self, signal_histogram: Histograms) -> torch.Tensor:
        """signal_histogram: yields of the signal, or a mapping of templates to yields."""
        loss = negative_significance if self.negate else profiled_z0_loss
        return loss(signal_histogram, self._session, eps=self.eps)

    def q0(self, signal_histogram: Histograms) -> torch.Tensor:
        """Test statistic q0."""
        return profiled_q0_loss(signal_histogram, self._session)

    def z0(self, signal_histogram: Histograms) -> torch.Tensor:
        """Significance √(q0 + eps)."""
        return profiled_z0_loss(signal_histogram, self._session, eps=self.eps)

    @property
    def n_bins(self) -> int:
        """Bins of the signal histogram."""
        return self._session.signal_n_bins()

    @property
    def n_params(self) -> int:
        """Parameters of the model."""
        return self._session.n_params()

    @property
    def session(self) -> Session:
        """What the loss keeps between its steps."""
        return self._session
