"""Names of `nextstat.torch` for what `firstlight.torch` calls otherwise.

NextStat's classes are called through `.apply`, so here they are names for that call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from firstlight.interpret import rank_impact
from firstlight.losses.binning import LossError
from firstlight.torch.arguments import Histograms
from firstlight.torch.losses import (
    nll_loss,
    profiled_q0_loss,
    profiled_qmu_loss,
    profiled_z0_loss,
)
from firstlight.torch.session import Loadable, Session

__all__ = [
    "MetalProfiledQ0Loss",
    "MetalProfiledQmuLoss",
    "NextStatNLL",
    "NextStatQ0",
    "NextStatZ0",
    "ProfiledQ0Loss",
    "ProfiledQmuLoss",
    "discovery_z0",
    "rank_impact",
]


class NextStatNLL:
    """`nll_loss` as a class."""

    @staticmethod
    def apply(
        signal_histogram: Histograms, session: Session, params_tensor: torch.Tensor | None
    ) -> torch.Tensor:
        """Negative log-likelihood at `params_tensor` (None: at the initial parameters)."""
        return nll_loss(signal_histogram, session, params_tensor)


class ProfiledQ0Loss:
    """`profiled_q0_loss` as a class."""

    @staticmethod
    def apply(signal_histogram: Histograms, session: Session) -> torch.Tensor:
        """Test statistic q0 of the background-only hypothesis."""
        return profiled_q0_loss(signal_histogram, session)


class ProfiledQmuLoss:
    """`profiled_qmu_loss` as a class."""

    @staticmethod
    def apply(signal_histogram: Histograms, session: Session, mu_test: float) -> torch.Tensor:
        """Test statistic q̃μ of the signal strength `mu_test`."""
        return profiled_qmu_loss(signal_histogram, session, mu_test)


#: A session runs on the device of the tensors, so there is one class for all of them.
MetalProfiledQ0Loss, MetalProfiledQmuLoss = ProfiledQ0Loss, ProfiledQmuLoss


class NextStatQ0:
    """q0 of a model with other yields of one sample in one channel."""

    @staticmethod
    def apply(
        nominal: torch.Tensor, *, mle: object, model: Loadable, channel: str, sample: str
    ) -> torch.Tensor:
        """Test statistic q0 of the background-only hypothesis.

        nominal: the yields. mle: not used, for example None; fits need no estimator object.
        """
        return _of_yields(profiled_q0_loss, nominal, model, channel, sample)


class NextStatZ0:
    """Z0 of a model with other yields of one sample in one channel."""

    @staticmethod
    def apply(
        nominal: torch.Tensor,
        *,
        mle: object,
        model: Loadable,
        channel: str,
        sample: str,
        eps: float = 1e-12,
    ) -> torch.Tensor:
        """Discovery significance √(q0 + eps); the arguments are those of `NextStatQ0`."""

        def z0(histogram: Histograms, session: Session) -> torch.Tensor:
            return profiled_z0_loss(histogram, session, eps)

        return _of_yields(z0, nominal, model, channel, sample)


def discovery_z0(
    nominal: torch.Tensor,
    *,
    mle: object,
    model: Loadable,
    channel: str,
    sample: str,
    eps: float = 1e-12,
) -> torch.Tensor:
    """Discovery significance √(q0 + eps) of a model with other yields; see `NextStatQ0`.

    Each call is independent. In a training use `SignificanceLoss`, whose fits start where those of
    the previous step ended.
    """
    return NextStatZ0.apply(nominal, mle=mle, model=model, channel=channel, sample=sample, eps=eps)


def _of_yields(
    loss: Callable[[Histograms, Session], torch.Tensor],
    nominal: torch.Tensor,
    model: Loadable,
    channel: str,
    sample: str,
) -> torch.Tensor:
    if not isinstance(nominal, torch.Tensor):
        raise LossError(f"nominal is {type(nominal).__name__}; give a tensor of yields.")
    return loss(nominal, Session(model, [(channel, sample)]))
