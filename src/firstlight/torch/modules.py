"""The modules for a training loop: `SoftHistogram` and `SignificanceLoss`."""

from __future__ import annotations

from typing import Unpack

import torch

from firstlight.histfactory.array_types import ArrayLike
from firstlight.import_watch import when_imported
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
from firstlight.torch.arguments import Histograms, Keys
from firstlight.torch.binned import Binned, Kernel
from firstlight.torch.functional import negative_significance, profiled_q0_loss, profiled_z0_loss
from firstlight.torch.ranks import sum_over_ranks
from firstlight.torch.session import Loadable, Session, SessionOptions


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
        group: torch.distributed.ProcessGroup | None = None,
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


class SignificanceLoss(torch.nn.Module):
    """-√(q0 + eps): the negative discovery significance, with all systematics profiled.

    model, signal_sample_name, device and all options: see `Session`.
    negate: False returns the significance itself.
    """

    def __init__(
        self,
        model: Loadable,
        signal_sample_name: Keys = "signal",
        *,
        device: str = "auto",
        negate: bool = True,
        eps: float = 1e-12,
        **options: Unpack[SessionOptions],
    ) -> None:
        super().__init__()
        self._session = Session(model, signal_sample_name, device, **options)
        self.negate = negate
        self.eps = eps

    def forward(self, signal_histogram: Histograms) -> torch.Tensor:
        """signal_histogram: yields of the signal, or a mapping from templates to yields."""
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
        """Number of bins of the signal histogram."""
        return self._session.signal_n_bins()

    @property
    def n_params(self) -> int:
        """Number of parameters of the model."""
        return self._session.n_params()

    @property
    def session(self) -> Session:
        """What the loss keeps between steps."""
        return self._session


def _keep_from_tracing() -> None:
    """The likelihood is not PyTorch's; torch.compile must not trace into it."""
    SignificanceLoss.forward = torch.compiler.disable(SignificanceLoss.forward)  # type: ignore[method-assign]


# Saying so loads torch.compile, which takes longer than a first gradient: once others have.
when_imported("torch._dynamo", _keep_from_tracing)
