"""Maximum-likelihood fits: `fit` and what it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from firstlight.histfactory.argument_checks import ModelError, require_finite, require_number
from firstlight.histfactory.array_types import (
    Array,
    Count,
    DataSet,
    Number,
    Numpy,
    Parameters,
    Truth,
)
from firstlight.histfactory.closed_form import Curvature, assemble, dense_hessian, evaluate
from firstlight.histfactory.engine import Eager, Engine, Traced, engine_for
from firstlight.histfactory.internal_order import data_of, to_internal, to_public
from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.likelihood import Data, Prepared
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.linear_systems import SINGULAR, factorise, solve
from firstlight.histfactory.model import Description, Model
from firstlight.histfactory.newton import Minimum, Problem, Status, is_negative
from firstlight.histfactory.numpy_or_jax import plain, put
from firstlight.histfactory.precision import float64_scope, in_float64, is_traced
from firstlight.histfactory.programs import Program

if TYPE_CHECKING:
    from firstlight.histfactory.sample_yields import SampleYield

#: An eigenvalue of the Hessian with unit diagonal below this is that of a flat direction.
FLAT = 1e-8
#: A parameter with a smaller share in a flat direction does not move along it.
_MOVED = 1e-4

#: Fixed parameters: names, or values to fix at, True (at init), False (free).
Fixed: TypeAlias = "Mapping[str, bool | Number] | Iterable[str] | None"


class _Point(NamedTuple):
    """The point to evaluate the Hessian at, once it is needed."""

    model: Prepared
    data: Data
    theta: Array
    covariance: Array | None = None  # if it is not the inverse Hessian


class BinYield(NamedTuple):
    """What a bin has, and what is expected of it."""

    channel: str
    bin: int  # from 0
    observed: float
    expected: float

    def __str__(self) -> str:
        return (
            f"channel {self.channel!r}, bin {self.bin} ({self.observed:g} observed, "
            f"{self.expected:.4g} expected)"
        )


def yields_where(about: Description, where: Array, data: Data, cells: Array) -> list[BinYield]:
    """The bins for which `where` is true; cells: the expected yields [slot, bin]."""
    pairs = zip(np.asarray(data.main).tolist(), cells.sum(axis=0).tolist(), strict=True)
    bins = zip(about.bins, pairs, where.tolist(), strict=False)  # the rest is padding
    return [BinYield(*place, *pair) for place, pair, chosen in bins if chosen]


@pytree
@dataclass(frozen=True)
class FitResult:
    """The result of a fit. Arrays are in the order of `names`."""

    values: Array  # best-fit parameters
    nll: Number  # with all constants, as in pyhf
    edm: Number
    iterations: Count
    status_code: Count
    is_free: Array  # 1 where a parameter was free to move
    at_bound: Array  # True where a parameter is held by a bound
    branches: Count  # number of minima found; this is the lowest
    _free: Array  # `is_free` in internal order
    _hessian: Curvature | _Point | None
    about: Description = field(metadata={"static": True})

    @property
    def names(self) -> tuple[str, ...]:
        return self.about.parameters

    @property
    def parameters(self) -> dict[str, Number]:
        """Best-fit values by name."""
        return self._by_name(self.values)

    @property
    def uncertainties(self) -> dict[str, Number]:
        """Square roots of the covariance's diagonal by name; 0 for parameters that did not move."""
        return self._by_name(_diagonal(self.covariance) ** 0.5)

    def _by_name(self, values: Array) -> dict[str, Number]:
        if is_traced(values) or np.ndim(values) > 1:
            return {name: values[..., i] for i, name in enumerate(self.names)}
        return dict(zip(self.names, np.asarray(values).tolist(), strict=True))

    @property
    def status(self) -> Status:
        """How one fit ended, with its `.message`; inside jit or vmap use `status_code`."""
        if is_traced(self.status_code) or np.ndim(self.status_code):
            raise ModelError(
                "status is available for a single fit outside jit, grad and vmap. Use status_code, "
                "which is Status.CONVERGED (0) where a fit converged."
            )
        return Status(int(self.status_code))

    @property
    def converged(self) -> Truth:
        """Whether the fit ended in a minimum, with possible expectations: see `Status`."""
        return self.status_code == int(Status.CONVERGED)

    @property
    def undetermined(self) -> tuple[str, ...]:
        """The parameters that can be moved together without changing the likelihood.

        Their uncertainties are NaN. Empty unless the status is `NOT_DETERMINED`.
        """
        if self.status is not Status.NOT_DETERMINED:
            return ()
        curvature = self._hessian
        if isinstance(curvature, _Point):
            curvature = evaluate(*curvature[:3], xp=np).curvature
        assert isinstance(curvature, Curvature)
        matrix, _, (rows, _) = _scaled(Curvature(*map(np.asarray, curvature)), self._free)
        moved = np.zeros(len(self._free), bool)
        moved[rows[:, 0]] = _in_flat_directions(*np.linalg.eigh(matrix))
        held = moved[self.about.structure.positions]
        return tuple(name for name, is_moved in zip(self.names, held, strict=True) if is_moved)

    @property
    def negative_bins(self) -> list[BinYield]:
        """Bins without events of which the fit expects fewer than none.

        There are some if the status is NEGATIVE_EXPECTATION. For a fit outside jit, grad and vmap.
        """
        if not isinstance(self._hessian, _Point) or np.ndim(self.status_code):
            raise ModelError(
                "negative_bins is available for a single fit outside jit, grad and vmap. Compare "
                "expected_data(model, fit.values) with the data."
            )
        if self.status is not Status.NEGATIVE_EXPECTATION:
            return []
        prepared, data, theta, _ = self._hessian
        with np.errstate(all="ignore"):  # the yields as the fit saw them
            cells = evaluate(prepared, data, theta, curvature=False, xp=np).cells
        return yields_where(self.about, is_negative(cells, data.main, np), data, cells)

    @property
    def negative_samples(self) -> list[SampleYield]:
        """Yields below zero of samples whose nominal yields there are not; parameters behind them.

        A fit with `require_positive=True` has none. For a fit outside jit, grad and vmap.
        """
        from firstlight.histfactory.sample_yields import negative_samples  # after the fit

        if not isinstance(self._hessian, _Point) or np.ndim(self.status_code):
            raise ModelError(
                "negative_samples is available for a single fit outside jit, grad and vmap. Call "
                "fit there."
            )
        return negative_samples(self.about, self._hessian.model, self._hessian.theta)

    @property
    def covariance(self) -> Array:
        """Inverse of the exact Hessian of the free parameters; zero for the others.

        Where `require_positive=True` holds a fit, only along the parameters for which the yields
        that it holds stay zero. NaN for parameters that are not determined; under jit and vmap
        then for all.
        Constant under differentiation; differentiate `hessian` instead.
        """
        if self._hessian is None:
            raise ModelError(
                "under jit, grad and vmap the fits of a test have no covariance: it would have to "
                "be compiled into each of them. Call fit there."
            )
        if isinstance(self._hessian, _Point) and isinstance(self._free, np.ndarray):
            prepared, data, theta, inverse = self._hessian
            if inverse is None:
                is_flat = self.status_code == int(Status.NOT_DETERMINED)
                inverted = _inverse_on_host if is_flat else _INVERSE
                inverse = inverted(prepared, data, theta, self._free)
        else:
            with float64_scope():
                inverse = _inverse_over(np.ndim(self._free) - 1)(self._hessian, self._free)
        positions = self.about.structure.positions
        inverse = inverse if is_traced(inverse) else np.asarray(inverse)
        return inverse[..., positions[:, None], positions]

    @property
    def correlation(self) -> Array:
        """Correlations of the free parameters; zero for the others."""
        covariance = self.covariance
        xp: Numpy = jnp if is_traced(covariance) else np
        with contextlib.nullcontext() if xp is np else float64_scope():
            sigma = xp.sqrt(_diagonal(covariance))
            scale = xp.where(sigma > 0, 1 / xp.where(sigma > 0, sigma, 1.0), 0.0)
            return covariance * scale[..., :, None] * scale[..., None, :]


def _diagonal(matrix: Array) -> Array:
    return matrix.diagonal(axis1=-2, axis2=-1)


def _inverse(prepared: Prepared, data: Data, theta: Array, free: Array, xp: Numpy = jnp) -> Array:
    """The inverse Hessian of the free parameters; NaN where it is not positive definite."""
    curvature = evaluate(prepared, data, theta, xp=xp).curvature
    assert curvature is not None
    return (_dense_inverse if xp is np else _block_inverse)(curvature, free)


_INVERSE = Program(_inverse, evaluations=2)
_inverse_on_host = partial(_inverse, xp=np)


def _dense_inverse(curvature: Curvature, free: Array) -> Array:
    matrix, scale, block = _scaled(curvature, free)
    inverse = np.zeros((len(free), len(free)))
    try:
        factor = np.linalg.cholesky(matrix)
        if np.min(np.diagonal(factor), initial=1.0) ** 2 < SINGULAR:
            raise np.linalg.LinAlgError
        half = np.linalg.inv(factor)
        inverse[block] = scale[:, None] * (half.T @ half) * scale
    except np.linalg.LinAlgError:
        inverse[block] = scale[:, None] * _inverse_where_determined(matrix) * scale
    return inverse


def _scaled(curvature: Curvature, free: Array) -> tuple[Array, Array, Any]:
    """The Hessian of the free parameters with a unit diagonal, its scale and where it stands."""
    hessian = dense_hessian(curvature, np)
    (moving,) = np.nonzero(free)
    scale = 1 / np.sqrt(np.abs(np.diagonal(hessian)[moving]))
    block = np.ix_(moving, moving)
    return scale[:, None] * hessian[block] * scale, scale, block


def _inverse_where_determined(matrix: Array) -> Array:
    """The inverse without its flat directions; NaN for the parameters in them.

    NaN everywhere if the matrix has negative curvature: there is no minimum.
    """
    if not np.all(np.isfinite(matrix)):
        return np.full_like(matrix, np.nan)
    values, vectors = np.linalg.eigh(matrix)
    if values[0] < -FLAT:
        return np.full_like(matrix, np.nan)
    curved = values > FLAT
    inverse: Array = (vectors[:, curved] / values[curved]) @ vectors[:, curved].T
    flat = _in_flat_directions(values, vectors)
    inverse[flat] = inverse[:, flat] = np.nan
    return inverse


def _in_flat_directions(values: Array, vectors: Array) -> Array:
    """The parameters that the flat directions of a scaled Hessian move."""
    moved: Array = np.abs(vectors[:, values <= FLAT]).max(axis=1, initial=0.0) > _MOVED
    return moved


def _block_inverse(curvature: Curvature, free: Array) -> Array:
    factors = factorise(assemble(curvature), free)
    pivots = jnp.diagonal(factors.cholesky) ** 2
    inverse = jax.vmap(lambda unit: solve(factors, unit))(jnp.eye(len(free)))
    return jnp.where(jnp.all(pivots > SINGULAR), inverse, jnp.nan)


@cache
def _inverse_over(axes: int) -> Callable[[Curvature | _Point, Array], Array]:
    """The inverse of a `Curvature` or at a `_Point`, mapped over leading axes."""

    def function(hessian: Curvature | _Point, free: Array) -> Array:
        if isinstance(hessian, _Point):
            return _inverse(*hessian[:3], free)
        return _block_inverse(hessian, free)

    for _ in range(axes):
        function = jax.vmap(function)
    compiled: Callable[[Curvature | _Point, Array], Array] = jax.jit(function)
    return compiled


@in_float64
@first_gradient_by("firstlight.histfactory.fit_gradients:fit")
def fit(
    model: Model,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    *,
    require_positive: bool = False,
) -> FitResult:
    """Maximum-likelihood fit of the parameters.

    data: main counts, or main and auxiliary data, in pyhf's order; default: the observed data.
    fixed: names to fix at their init, or a mapping from names to the values to fix them at
        (True: at init; False: free although the workspace fixes it).
    init: starting values, a mapping of names or a whole vector.
    require_positive: the lowest fit at which no sample whose nominal yield is not negative is below
        zero in any bin. Outside jit, grad and vmap.

    Never raises for numerical trouble: check `.status`.
    """
    fixed = as_fixed(model, fixed)
    engine = engine_for(model, data, fixed, init, require_positive=require_positive)
    problem = problem_of(engine, data_of(model, data), fixed, init)
    (found,) = engine.chain([problem])
    if isinstance(engine, Traced):
        at = evaluate(*jax.lax.stop_gradient((engine.prepared, problem.data, found.theta)))
        found = found._replace(curvature=at.curvature)
    return result_of(engine, found._replace(theta=engine.followed(found, problem)), problem)


def precompile(model: Model) -> None:
    """Compile now the programs of fits, tests, limits and toys of models of this size.

    Plain calls start in NumPy and compile only once that pays; the call that compiles takes a
    second or more. After `precompile`, none of them does: for servers, and for timing a single fit.
    First gradients without `jit` are then compiled, too, each at its first call.
    """
    engine = Eager(model)
    start = to_internal(model, model.init)
    engine.precompile(problem_of(engine, engine.asimov(start)))


def problem_of(engine: Engine, data: Data, fixed: Fixed = None, init: Parameters = None) -> Problem:
    """A fit in internal order. Bounds do not apply to fixed parameters."""
    model, settings = engine.model, engine.model._settings
    start = settings.init if init is None else _start(model, init)
    held = model.about.structure.fixed
    for name, value in as_fixed(model, fixed).items():
        position = int(model._order[model.index(name)])
        held = put(held, position, 0.0 if value is False else 1.0)
        if not isinstance(value, bool):
            start = put(start, position, value)
    start = engine.xp.asarray(start)
    return Problem(data, start, held, settings.lower, settings.upper, start)


def _start(model: Model, init: Parameters) -> Array:
    """Starting values in internal order."""
    start = require_finite(model.vector(init), "init")
    if np.ndim(start) != 1:
        raise ModelError(f"init has shape {np.shape(start)}; one fit has one starting point.")
    return to_internal(model, start)


def as_fixed(model: Model, fixed: Fixed) -> dict[str, bool | Number]:
    """Fixed parameters by name: a value, True (at its init) or False (free).

    The name of a set, such as a staterror, stands for all of its parameters.
    """
    if fixed is None:
        return {}
    if isinstance(fixed, str):
        fixed = [fixed]
    if not isinstance(fixed, Mapping):
        try:
            fixed = dict.fromkeys(fixed, True)
        except TypeError:
            raise ModelError(
                f"fixed is {fixed!r}; give names of parameters, or a mapping from names to values."
            ) from None
    held: dict[str, bool | Number] = {}
    for name, value in fixed.items():
        flag = isinstance(value, (bool, np.bool_))
        checked = bool(value) if flag else require_number(value, f"the value to fix {name!r} at")
        held.update(dict.fromkeys(_members(model, name), checked))
    return held


def _members(model: Model, name: str) -> list[str]:
    """The parameters that a name stands for: itself, or all of a set (`staterror_SR`)."""
    if not isinstance(name, str):
        raise ModelError(f"{model.about.source}: parameters are given by name, not by {name!r}.")
    members = [p for p in model.about.parameters if p.rpartition("[")[0] == name]
    return members or [model.about.parameters[model.index(name)]]


def result_of(engine: Engine, found: Minimum, problem: Problem) -> FitResult:
    """A minimum in the public order, with the constants of the likelihood."""
    model = engine.model
    held = (found.theta <= problem.lower) | (found.theta >= problem.upper)
    held = held & (found.free == 0) & (problem.fixed == 0)
    point = _Point(engine.prepared, problem.data, found.theta, found.covariance)
    return FitResult(
        values=to_public(model, found.theta),
        nll=plain(found.nll + engine.constants(problem.data)),
        edm=plain(found.edm),
        iterations=plain(found.iterations),
        status_code=plain(found.status),
        is_free=to_public(model, found.free),
        at_bound=to_public(model, held),
        branches=plain(found.branches),
        _free=found.free,
        _hessian=found.curvature if isinstance(engine, Traced) else point,
        about=model.about,
    )
