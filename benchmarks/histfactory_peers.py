"""The peers of `firstlight.histfactory` behind one interface: NextStat, pyhf on JAX, pyhf on NumPy.

    peer = NextStat.load(workspace)
    value, gradient = peer.nll_and_gradient(peer.initial)
    peer.fit().nll

All three return -ln L including its constants, with interpolation codes code4 and code4p.
Parameters are in the peer's own order (`peer.names`; `arranged` converts). Toys are the same for
every peer: `toy_data` draws them from the workspace, auxiliary data stay nominal.

A peer is imported when it is loaded. A missing one raises `PeerMissingError`, which says what to
install.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from firstlight.errors import FirstlightError

Floats = npt.NDArray[np.float64]
Workspace = Mapping[str, Any]

#: pyhf's defaults since 0.6, and NextStat's; spelled out because a benchmark must not drift.
INTERPOLATION = {"normsys": {"interpcode": "code4"}, "histosys": {"interpcode": "code4p"}}


class PeerMissingError(FirstlightError):
    """The peer is not installed."""


class NotOfferedError(FirstlightError):
    """The peer does not have this operation."""


@dataclass(frozen=True)
class Fit:
    """Where the peer's minimiser stopped, at its default settings."""

    nll: float  # -ln L, constants included
    parameters: Floats  # in the peer's order
    converged: bool  # as the peer says


def arranged(values: Floats, names: Sequence[str], wanted: Sequence[str]) -> Floats:
    """`values`, given in the order `names`, in the order `wanted`."""
    place = {name: index for index, name in enumerate(names)}
    return values[[place[name] for name in wanted]]


def toy_data(workspace: Workspace, n: int, seed: int) -> dict[str, Floats]:
    """Poisson counts about the nominal expectation, by channel: (n, bins) each."""
    generator = np.random.default_rng(seed)
    return {
        channel["name"]: generator.poisson(
            np.sum([sample["data"] for sample in channel["samples"]], axis=0),
            size=(n, len(channel["samples"][0]["data"])),
        ).astype(np.float64)
        for channel in workspace["channels"]
    }


def _imported(module: str, install: str) -> Any:
    # By name: a type checker must not ask for peers that are not installed.
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PeerMissingError(
            f"{module} is not installed ({error}). Install it with: pip install '{install}'"
        ) from error


class NextStat:
    """NextStat on the CPU (the wheel on PyPI has no CUDA)."""

    label: ClassVar[str] = "nextstat"

    def __init__(self, workspace: Workspace, threads: int | None) -> None:
        self._nextstat = _imported("nextstat", "nextstat==0.10.1")
        if threads is not None and not self._nextstat.set_threads(threads):
            raise NotOfferedError(
                f"NextStat cannot change to {threads} threads: its pool can be set once, before "
                "its first parallel call. Set RAYON_NUM_THREADS before the process starts."
            )
        self.workspace = workspace
        self._model = self._nextstat.from_pyhf(json.dumps(workspace))
        self.names: tuple[str, ...] = tuple(self._model.parameter_names())
        self.initial: Floats = np.array(self._model.suggested_init())

    @classmethod
    def load(cls, workspace: Workspace, threads: int | None = None) -> Self:
        """The model of a pyhf workspace; `threads` None: all cores, for toys only."""
        return cls(workspace, threads)

    def nll(self, theta: Floats) -> float:
        return float(self._model.nll(theta))

    def nll_and_gradient(self, theta: Floats) -> tuple[float, Floats]:
        """Two calls, because version 0.10.1 has none that returns both."""
        return self.nll(theta), np.array(self._model.grad_nll(theta))

    def fit(self, tolerance: float = 1e-6) -> Fit:
        """L-BFGS-B without a covariance, NextStat's fastest; its default tolerance is 1e-6."""
        return _nextstat_fit(self._estimator(tolerance).fit_minimum(self._model))

    def q0(self) -> float:
        """Discovery test statistic from a free and a conditional fit; there is no call for it."""
        estimator, poi = self._estimator(1e-6), self._model.poi_index()
        free = estimator.fit_minimum(self._model)
        if free.bestfit[poi] <= 0.0:
            return 0.0
        bounds, start = self._model.suggested_bounds(), self._model.suggested_init()
        bounds[poi], start[poi] = (0.0, 0.0), 0.0
        conditional = estimator.fit_minimum(self._model, init_pars=start, bounds=bounds)
        return max(0.0, 2.0 * (float(conditional.nll) - float(free.nll)))

    def upper_limits(self, strengths: Sequence[float]) -> tuple[float, list[float]]:
        """Observed and expected limits from a scan of signal strengths, as in pyhf."""
        observed, expected = self._nextstat.upper_limits(self._model, list(strengths))
        return float(observed), [float(limit) for limit in expected]

    def toys(self, n: int, seed: int) -> list[float]:
        """NLL of the fit of every toy, in parallel over the cores."""
        drawn = toy_data(self.workspace, n, seed)
        order = [channel["channel_name"] for channel in self._model.observed_main_by_channel()]
        data = np.concatenate([drawn[name] for name in order], axis=1)
        return [float(fit.nll) for fit in self._nextstat.fit_batch(self._model, data.tolist())]

    def _estimator(self, tolerance: float) -> Any:
        return self._nextstat.MaximumLikelihoodEstimator(tol=tolerance)


def _nextstat_fit(result: Any) -> Fit:
    return Fit(float(result.nll), np.array(result.bestfit), bool(result.converged))


class _Pyhf:
    """The common parts of pyhf's backends. The backend is a global of pyhf: each call sets it.

    Changing it makes pyhf recompute every model's tensors: time one backend after the other, not
    interleaved call by call.
    """

    label: ClassVar[str]
    backend: ClassVar[str]

    def __init__(self, workspace: Workspace, optimizer: str) -> None:
        self._pyhf = _imported("pyhf", "pyhf[jax,minuit]==0.7.6")
        self._optimizer = optimizer
        self._backend: Any = None
        self._use_backend()
        self.workspace = workspace
        parsed = self._pyhf.Workspace(workspace)
        self._model = parsed.model(modifier_settings=INTERPOLATION)
        self._data = np.array(parsed.data(self._model), dtype=np.float64)
        self.names: tuple[str, ...] = tuple(self._model.config.par_names)
        self.initial: Floats = np.array(self._model.config.suggested_init())

    @classmethod
    def load(cls, workspace: Workspace, optimizer: str = "scipy") -> Self:
        """The model of a pyhf workspace; `optimizer` is "scipy" (SLSQP) or "minuit"."""
        return cls(workspace, optimizer)

    def _use_backend(self) -> None:
        if self._backend is None or self._pyhf.get_backend() != self._backend:
            self._pyhf.set_backend(self.backend, self._optimizer, precision="64b")
            self._backend = self._pyhf.get_backend()

    def nll(self, theta: Floats) -> float:
        self._use_backend()
        return -float(self._model.logpdf(theta, self._data)[0])

    def nll_and_gradient(self, theta: Floats) -> tuple[float, Floats]:
        raise NotOfferedError(f"{self.label} has no gradient: its minimisers use differences.")

    def fit(self) -> Fit:
        self._use_backend()
        return self._fit(self._data)

    def _fit(self, data: Floats) -> Fit:
        try:
            parameters, twice_nll = self._pyhf.infer.mle.fit(
                data, self._model, return_fitted_val=True
            )
        except self._pyhf.exceptions.FailedMinimization:
            return Fit(float("nan"), np.full(len(self.names), np.nan), False)
        return Fit(float(twice_nll) / 2.0, np.asarray(parameters, dtype=np.float64), True)

    def q0(self) -> float:
        """Discovery test statistic by pyhf's own two fits."""
        self._use_backend()
        config = self._model.config
        return float(
            self._pyhf.infer.test_statistics.q0(
                0.0,
                self._data,
                self._model,
                config.suggested_init(),
                config.suggested_bounds(),
                config.suggested_fixed(),
            )
        )

    def toys(self, n: int, seed: int) -> list[float]:
        """NLL of the fit of every toy, one after the other; NaN where pyhf gives up."""
        self._use_backend()
        drawn = toy_data(self.workspace, n, seed)
        main = np.concatenate([drawn[name] for name in self._model.config.channels], axis=1)
        auxiliary = self._data[main.shape[1] :]
        return [self._fit(np.concatenate([row, auxiliary])).nll for row in main]


class PyhfNumpy(_Pyhf):
    """pyhf on NumPy: nothing to compile, no gradient."""

    label = "pyhf-numpy"
    backend = "numpy"


class PyhfJax(_Pyhf):
    """pyhf on JAX: its fits are jitted with gradients; NLL and gradient are jitted here."""

    label = "pyhf-jax"
    backend = "jax"

    def __init__(self, workspace: Workspace, optimizer: str) -> None:
        self._jax = _imported("jax", "jax")
        super().__init__(workspace, optimizer)
        data = self._jax.numpy.asarray(self._data)

        def nll(theta: Any) -> Any:
            return -self._model.logpdf(theta, data)[0]

        # pyhf's own logpdf runs operation by operation on JAX, a hundred times slower.
        self._nll = self._jax.jit(nll)
        self._nll_and_gradient = self._jax.jit(self._jax.value_and_grad(nll))

    def nll(self, theta: Floats) -> float:
        self._use_backend()
        return float(self._nll(theta))

    def nll_and_gradient(self, theta: Floats) -> tuple[float, Floats]:
        self._use_backend()
        value, gradient = self._nll_and_gradient(theta)
        return float(value), np.asarray(gradient)


PEERS: tuple[type[NextStat] | type[PyhfJax] | type[PyhfNumpy], ...] = (NextStat, PyhfJax, PyhfNumpy)
