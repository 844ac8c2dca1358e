"""A model used by a training: its templates, its device, its last fits, and its failures."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar, Unpack

import numpy as np
import torch

from firstlight.histfactory import templates
from firstlight.histfactory.array_types import ArrayLike
from firstlight.histfactory.blas_threads import one_blas_thread
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.internal_order import data_of
from firstlight.histfactory.lazy_jax import jax
from firstlight.histfactory.loading import LoadOptions, load
from firstlight.histfactory.model import Model
from firstlight.histfactory.precision import float64_scope
from firstlight.losses.binning import LossError, checked_choice
from firstlight.losses.objectives import OBJECTIVES
from firstlight.torch import on_host, programs
from firstlight.torch.arguments import Arguments, Keys, impossible_message
from firstlight.torch.bridge import FixedAddressInputs, jax_device, to_jax, to_torch
from firstlight.torch.failures import (
    POLICIES,
    Failure,
    FitError,
    Header,
    converged,
    explanation,
    repaired,
    require_possible,
    warn_at_users_line,
)
from firstlight.torch.fixed_point import HEADER as POINT_HEADER
from firstlight.torch.fixed_point import FixedPoint
from firstlight.torch.programs import Tree

#: A model or a workspace: JSON text, a file name or a mapping.
Loadable: TypeAlias = "Model | str | bytes | Mapping[str, Any]"
_T = TypeVar("_T")


class Quantity(NamedTuple):
    """A number to compute: a statistic and its transformation."""

    spec: programs.Statistic
    rows: int | None = None
    mu: float | tuple[float, ...] = 0.0
    eps: float | None = None  # √(q + eps) instead of q
    sign: float = 1.0


class SessionOptions(TypedDict, total=False):
    """See `Session`."""

    objective: str
    data: ArrayLike | None
    fixed: Fixed
    variations: str
    warm_start: bool
    on_failure: str


def from_pyhf(workspace: str | bytes | Mapping[str, Any], **options: Unpack[LoadOptions]) -> Model:
    """A model from a workspace, given as JSON text, a mapping or a file name.

    options: those of `firstlight.histfactory.load`.
    """
    if isinstance(workspace, (str, bytes)) and workspace.strip()[:1] in ("{", b"{"):
        workspace = json.loads(workspace)
    return load(workspace, **options)  # type: ignore[arg-type]


def create_session(
    model: Loadable,
    signal_sample_name: Keys = "signal",
    *,
    device: str = "auto",
    **options: Unpack[SessionOptions],
) -> Session:
    """A session for `nll_loss`; the same as `create_profiled_session`."""
    return Session(model, signal_sample_name, device, **options)


def create_profiled_session(
    model: Loadable,
    signal_sample_name: Keys = "signal",
    device: str = "auto",
    **options: Unpack[SessionOptions],
) -> Session:
    """A session for the profiled losses. options: see `Session`."""
    return Session(model, signal_sample_name, device, **options)


class Session:
    """A model in use.

    model: from `from_pyhf` or `firstlight.histfactory.load`; or a workspace.
    signal_sample_name: the sample that a plain histogram holds, with all its channels concatenated;
        or several samples, whose histograms are concatenated too. To replace other templates, pass
        a mapping instead of a histogram; see `firstlight.histfactory.templates`.
    device: "cpu", "cuda", or "auto" for the device of the tensors.
    objective: "observed" or "asimov"; see `firstlight.losses.objectives`.
    data: other observed data. fixed: parameters to fix, as for `histfactory.fit`.
    variations: "absolute" or "relative": what happens to the systematics of a sample whose yields
        are replaced.
    warm_start: whether fits start where those of the previous step ended, and stay in that
        minimum. If the likelihood has only one, this changes the result only by rounding.
    on_failure: if a fit does not converge: "raise" `FitError`, "skip" the step with a zero
        gradient, or reuse value and gradient of the "last_good" step. A failure that is not raised
        is a warning, and is kept in `failures`.
    """

    def __init__(
        self,
        model: Loadable,
        signal_sample_name: Keys = "signal",
        device: str = "auto",
        *,
        objective: str = "observed",
        data: ArrayLike | None = None,
        fixed: Fixed = None,
        variations: str = "absolute",
        warm_start: bool = True,
        on_failure: str = "raise",
    ) -> None:
        self.model = _as_model(model)
        self.objective = checked_choice("objective", objective, OBJECTIVES)
        self.on_failure = checked_choice("on_failure", on_failure, POLICIES)
        self.variations = checked_choice("variations", variations, templates.VARIATIONS)
        if objective == "asimov" and data is not None:
            raise LossError('data are given, but objective="asimov" makes its own. Drop one.')
        self.warm_start = warm_start
        self.arguments = Arguments(self.model, signal_sample_name, device)
        self.step = 0
        self.failures: list[Failure] = []
        self._fixed = tuple(sorted(as_fixed(self.model, fixed).items()))
        self._data = None if data is None else np.asarray(data, np.float64)
        if objective == "observed":
            # Raises if the data are wrong or missing.
            _ = data_of(self.model, self._data)
        self._forget()

    def _forget(self) -> None:
        """Drop everything that is kept only for speed."""
        self._kept: dict[Hashable, Any] = {}
        self._near: dict[Hashable, Tree] = {}
        self._good: dict[Hashable, torch.Tensor] = {}

    def __getstate__(self) -> dict[str, object]:
        # A copy or a checkpoint makes its own: devices cannot be pickled.
        empty = Session.__new__(Session)
        empty._forget()
        return {name: value for name, value in vars(self).items() if name not in vars(empty)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def signal_n_bins(self) -> int:
        """Number of bins of the signal histogram."""
        return self.arguments.n_bins

    def n_params(self) -> int:
        """Number of parameters of the model."""
        return self.model.n_parameters

    def parameter_init(self) -> list[float]:
        """Initial values of the parameters."""
        return [float(x) for x in self.model.init]

    def parameter_names(self) -> list[str]:
        """Names in the order of parameter vectors."""
        return list(self.model.parameter_names)

    def reset(self) -> None:
        """Forget the last fits, and count steps from zero again."""
        self.step = 0
        self.failures.clear()
        self._forget()

    def statistic(
        self, keys: tuple[templates.Key, ...], tests_mu: bool = False
    ) -> programs.Statistic:
        """The statistic of this model with templates of these names."""
        about = (self.model.about, keys, self.objective, self._fixed, self.variations, tests_mu)
        found: programs.Statistic = self._once((keys, tests_mu), lambda: programs.Statistic(*about))
        return found

    def run(self, quantity: Quantity, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A statistic and its gradient, packed; failed fits are handled as `on_failure` says."""
        self.step += 1
        # The fits do not depend on how their result is transformed, and little on the tested μ.
        key = (quantity.spec, quantity.rows, tensors[0].device)
        nearby = self.warm_start and key in self._near
        packed, header = self._call(quantity, tensors, key, nearby)
        if nearby and not converged(header):
            # The warm start may have been a bad one.
            packed, header = self._call(quantity, tensors, key, nearby=False)
        require_possible(quantity.spec, header)
        if converged(header):
            if self.on_failure == "last_good":
                self._good[quantity, tensors[0].device] = packed
            return packed
        return self._after_failure(quantity, packed, header)

    def hessian_product(
        self, quantity: Quantity, tensors: Sequence[torch.Tensor], vectors: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The Hessian of a statistic times vectors, concatenated in one tensor."""
        with self._on(tensors[0].device) as there:
            near = self._start(
                self._near.get((quantity.spec, None, tensors[0].device)), None, there
            )
            values, along = tuple(map(to_jax, tensors)), tuple(map(to_jax, vectors))
            program = programs.hessian_product(quantity.spec)
            return to_torch(program(*self._numbers(quantity, there), near, values, along))

    def likelihood(
        self, spec: programs.Statistic, tensors: Sequence[torch.Tensor], parameters: torch.Tensor
    ) -> torch.Tensor:
        """The negative log-likelihood at given parameters and its gradient, packed."""
        with self._on(tensors[0].device, factorises=False) as there:
            values = tuple(map(to_jax, tensors))
            program = programs.likelihood(spec)
            packed = to_torch(program(*self._model_on(there), to_jax(parameters), values))
        require_possible(spec, [packed[: programs.HEADER].tolist()])
        return packed

    def initial_likelihood(
        self, spec: programs.Statistic, tensors: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The negative log-likelihood at the initial parameters, and its gradient."""
        key = ("fixed point", spec, tensors[0].device)
        packed = self._once(key, lambda: self._fixed_point(spec, tensors)).evaluate(tensors)
        _, smallest, largest = packed[:POINT_HEADER].tolist()  # the only point where the host waits
        if not 0 <= smallest <= largest < math.inf:
            for name, given in zip(spec.keys, tensors, strict=True):
                if not bool(((given >= 0) & torch.isfinite(given)).all()):
                    raise LossError(impossible_message(name))
        return packed[0].clone(), packed[POINT_HEADER:]

    def _fixed_point(self, spec: programs.Statistic, tensors: Sequence[torch.Tensor]) -> FixedPoint:
        with self._on(tensors[0].device, factorises=False) as there:
            point = self._put("init", lambda: np.asarray(self.model.init), there)
            # The derivative is the same for any yields; ones make every bin expect something.
            ones = tuple(to_jax(torch.ones_like(t, dtype=torch.float64)) for t in tensors)
            found = programs.response(spec)(*self._model_on(there), point, ones)
            return FixedPoint.of(*(to_torch(a).clone() for a in found))

    def _call(
        self, quantity: Quantity, tensors: Sequence[torch.Tensor], key: Hashable, nearby: bool
    ) -> tuple[torch.Tensor, Header]:
        """The result and its header, from NumPy at first. Keeps the end of its fits."""
        device = tensors[0].device
        if on_host.is_over(self.model, device, quantity.rows):
            packed = self._compiled(quantity, tensors, key, nearby)
        else:
            near = self._near.get(key)
            near = self._far(quantity.rows) if near is None else np.asarray(near)
            values = [on_host.to_host(t) for t in tensors]
            request = _request(quantity, nearby)
            found, self._near[key] = on_host.packed(
                quantity.spec, self.model, self._data, request, near, values
            )
            packed = torch.from_numpy(found).to(device)
        # The only point where the host waits.
        rows = packed.reshape(-1, packed.shape[-1])[:, : programs.HEADER]
        return packed, rows.tolist()

    def _compiled(
        self, quantity: Quantity, tensors: Sequence[torch.Tensor], key: Hashable, nearby: bool
    ) -> torch.Tensor:
        """The result of a compiled program."""
        on_host.end(self.model)
        program = programs.statistic if quantity.rows is None else programs.batch
        with self._on(tensors[0].device) as there:
            numbers = self._numbers(quantity, there, nearby)
            values = self._inputs(tensors)
            # Popped, because the program overwrites this memory with its result.
            near = self._start(self._near.pop(key, None), quantity.rows, there)
            found, self._near[key] = program(quantity.spec)(*numbers, near, values)
            return to_torch(found)

    def _inputs(self, tensors: Sequence[torch.Tensor]) -> Tree:
        """Tensors as arguments of a program that finishes before the next is called."""
        if tensors[0].device.type == "cpu":
            return tuple(map(to_jax, tensors))
        key = ("inputs", *((t.shape, t.device) for t in tensors))
        return self._once(key, lambda: FixedAddressInputs(tensors)).copy_in(tensors)

    @contextlib.contextmanager
    def _on(self, device: torch.device, factorises: bool = True) -> Iterator[jax.Device]:
        """A JAX device, with the precision and the threads of the engine."""
        there = self._once(device, lambda: jax_device(device))
        by_blas = factorises and device.type == "cpu"
        with float64_scope(), one_blas_thread() if by_blas else contextlib.nullcontext():
            yield there

    def _numbers(self, quantity: Quantity, there: jax.Device, nearby: bool = True) -> Tree:
        """Model, data and request, on a device."""
        request = ("request", quantity[1:], nearby)
        kept = self._put(request, lambda: _request(quantity, nearby), there)
        return *self._model_on(there), kept

    def _model_on(self, there: jax.Device) -> Tree:
        """The arrays of the model and its data."""
        return self._put("model", lambda: (self.model.arrays, self._data), there)

    def _far(self, rows: int | None) -> on_host.Floats:
        """The start of fits when no earlier ones are known."""
        size = 2 * self.n_params() + 1
        return np.zeros(size if rows is None else (rows, size))

    def _start(self, near: Tree | None, rows: int | None, there: jax.Device) -> Tree:
        """Where the fits of a program start; on its device, or it would be compiled twice."""
        near = self._far(rows) if near is None else near
        return jax.device_put(near, there) if isinstance(near, np.ndarray) else near

    def _put(self, name: Hashable, make: Callable[[], Tree], there: jax.Device) -> Tree:
        """The result of `make` on a device."""
        return self._once((name, there), lambda: jax.device_put(make(), there))

    def _once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The result of the first `make` for this key."""
        if key not in self._kept:
            if len(self._kept) > 256:  # a new signal strength at every step
                self._kept.clear()
            self._kept[key] = make()
        kept: _T = self._kept[key]
        return kept

    def _after_failure(
        self, quantity: Quantity, packed: torch.Tensor, rows: Header
    ) -> torch.Tensor:
        message = explanation(rows)
        if self.on_failure == "raise":
            raise FitError(
                f"step {self.step}: {message} To continue after a failed fit, set "
                "on_failure='skip' or 'last_good'."
            )
        self.failures.append(Failure(self.step, message))
        skips = self.on_failure == "skip"
        instead = "its gradient is zero" if skips else "the last good step is used"
        warn_at_users_line(f"step {self.step}: {message} Instead, {instead}.")
        last = None if skips else self._good.get((quantity, packed.device))
        return repaired(packed, rows, last)


def _request(quantity: Quantity, nearby: bool) -> on_host.Floats:
    """The argument `request` of a program; see `programs`."""
    form = (quantity.eps is not None, quantity.eps or 0.0, quantity.sign, nearby)
    if isinstance(quantity.mu, tuple):
        return np.array([[mu, *form] for mu in quantity.mu], np.float64)
    return np.array([quantity.mu, *form], np.float64)


def _as_model(model: Loadable) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, (str, bytes, Mapping)):
        return from_pyhf(model)
    raise LossError(
        f"model is {type(model).__module__}.{type(model).__name__}; give a model from "
        "firstlight.torch.from_pyhf or firstlight.histfactory.load, or a workspace."
    )
