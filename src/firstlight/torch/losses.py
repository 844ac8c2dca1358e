"""Losses as functions of a histogram and a session, and as a module.

A histogram is a tensor for the session's signal samples, or a mapping from templates to tensors
(`firstlight.histfactory.templates` describes their names), in float32 or float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from firstlight.histfactory.argument_checks import require_number
from firstlight.import_watch import when_imported
from firstlight.losses.binning import LossError
from firstlight.torch.arguments import Histograms, Keys, Templates
from firstlight.torch.autograd import number
from firstlight.torch.programs import HEADER
from firstlight.torch.session import Loadable, Quantity, Session, SessionOptions


def nll_loss(
    signal_histogram: Histograms, session: Session, params: torch.Tensor | None = None
) -> torch.Tensor:
    """Negative log-likelihood at `params` (default: their init); differentiable in both."""
    keys, tensors, _ = _single(session, signal_histogram)
    spec = session.statistic(keys)
    if params is None and session.arguments.are_yields(keys):
        return number(lambda given: session.initial_likelihood(spec, given), None, tensors)
    if params is None:
        params = torch.tensor(
            session.parameter_init(), dtype=torch.float64, device=tensors[0].device
        )
    if tuple(params.shape) != (session.n_params(),):
        raise LossError(
            f"params have shape {tuple(params.shape)}; the model has {session.n_params()} "
            "parameters."
        )
    if params.device != tensors[0].device:
        raise LossError(
            f"params are on {params.device}, signal_histogram on {tensors[0].device}. Move one."
        )
    return number(
        lambda given: _unpacked(session.likelihood(spec, given[:-1], given[-1])),
        None,
        [*tensors, params],
    )


def profiled_q0_loss(signal_histogram: Histograms, session: Session) -> torch.Tensor:
    """Test statistic q0 of the background-only hypothesis; zero if there is no excess."""
    return _profiled(signal_histogram, session)


def profiled_z0_loss(
    signal_histogram: Histograms, session: Session, eps: float = 1e-12
) -> torch.Tensor:
    """Discovery significance √(q0 + eps)."""
    return _profiled(signal_histogram, session, eps=eps)


def profiled_qmu_loss(
    signal_histogram: Histograms, session: Session, mu_test: float
) -> torch.Tensor:
    """Test statistic q̃μ of the signal strength `mu_test`; zero where the best fit is above it."""
    return _profiled(signal_histogram, session, mu_test)


def profiled_zmu_loss(
    signal_histogram: Histograms, session: Session, mu_test: float, eps: float = 1e-12
) -> torch.Tensor:
    """√(q̃μ + eps): the exclusion of `mu_test`, in standard deviations."""
    return _profiled(signal_histogram, session, mu_test, eps=eps)


def batch_profiled_q0_loss(signal_histograms: Histograms, session: Session) -> list[torch.Tensor]:
    """q0 of every row, in one computation."""
    return _rows(signal_histograms, session, None)


def batch_profiled_qmu_loss(
    signal_histogram: Histograms, session: Session, mu_values: Sequence[float]
) -> list[torch.Tensor]:
    """q̃μ of every signal strength in one computation, for one histogram or one row for each."""
    mus = [float(require_number(mu, "mu_values")) for mu in mu_values]
    return _rows(signal_histogram, session, mus) if mus else []


def signal_jacobian(signal_histogram: Histograms, session: Session) -> torch.Tensor:
    """∂q0/∂signal, without autograd."""
    keys, tensors, _ = _single(session, signal_histogram)
    with torch.no_grad():
        packed = session.run(Quantity(session.statistic(keys)), tensors)
        return packed[HEADER:].to(tensors[0].dtype, copy=True)


def signal_jacobian_numpy(signal_histogram: Histograms, session: Session) -> NDArray[np.floating]:
    """∂q0/∂signal as a NumPy array."""
    found: NDArray[np.floating] = signal_jacobian(signal_histogram, session).cpu().numpy()
    return found


def _profiled(
    histograms: Histograms,
    session: Session,
    mu: float | None = None,
    eps: float | None = None,
    sign: float = 1.0,
) -> torch.Tensor:
    keys, tensors, _ = _single(session, histograms)
    spec = session.statistic(keys, tests_mu=mu is not None)
    quantity = Quantity(
        spec, None, 0.0 if mu is None else float(require_number(mu, "mu_test")), eps, sign
    )
    return number(
        lambda given: _unpacked(session.run(quantity, given)),
        lambda given, vectors: session.hessian_product(quantity, given, vectors),
        tensors,
    )


def _rows(
    histograms: Histograms, session: Session, mus: Sequence[float] | None
) -> list[torch.Tensor]:
    keys, tensors, rows = session.arguments.named(histograms)
    if rows is None:
        rows = 1 if mus is None else len(mus)
    if rows == 0:
        return []
    if mus is not None and len(mus) != rows:
        raise LossError(f"{len(mus)} mu_values for {rows} rows of signal_histogram.")
    # A template without rows is shared by all rows.
    tensors = tuple(
        t if t.ndim > session.arguments.axes(key) else t.expand(rows, *t.shape)
        for key, t in zip(keys, tensors, strict=True)
    )
    tested = (0.0,) * rows if mus is None else tuple(mus)
    quantity = Quantity(session.statistic(keys, tests_mu=mus is not None), rows, tested)
    values = number(lambda given: _unpacked(session.run(quantity, given)), None, tensors)
    return list(values.unbind())


def _unpacked(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient. The value is a copy: callers may write to it, and JAX owns the rest."""
    return packed[..., 0].clone(), packed[..., HEADER:]


def _single(session: Session, histograms: Histograms) -> Templates:
    given = session.arguments.named(histograms)
    if given.rows is not None:
        raise LossError(
            "signal_histogram has a leading axis, so it is several histograms. Use the batch forms."
        )
    return given


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
        sign = -1.0 if self.negate else 1.0
        return _profiled(signal_histogram, self._session, eps=self.eps, sign=sign)

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
        """The session of the loss: what it keeps between steps."""
        return self._session


def _keep_from_tracing() -> None:
    """The likelihood is not computed by PyTorch; torch.compile must not trace into it."""
    SignificanceLoss.forward = torch.compiler.disable(SignificanceLoss.forward)  # type: ignore[method-assign]


# `torch.compiler.disable` imports torch.compile, which takes longer than a first gradient. So wait
# until something else has imported it.
when_imported("torch._dynamo", _keep_from_tracing)
