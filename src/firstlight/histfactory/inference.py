"""Tests and limits from the profile likelihood: asymptotic formulae of arXiv:1007.1727.

Every function takes `data` (default: the observed data) and `fixed`, as `fit` does. All of them
are differentiable with respect to every array of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from firstlight.histfactory.engine import Engine, Traced, engine_for
from firstlight.histfactory.fitting import FitResult, Fixed, as_fixed, problem_of, result_of
from firstlight.histfactory.internal_order import data_of, data_vector, poi_position, to_internal
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.model import Model, ModelError, require_number
from firstlight.histfactory.newton import Minimum, Problem, WarmStart
from firstlight.histfactory.precision import in_float64, is_traced

#: Bands of an expected result, in standard deviations of background-only data.
BANDS = (-2, -1, 0, 1, 2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Discovery:
    """How strongly the data disagree with no signal."""

    q0: Any
    z0: Any  # significance, √q0
    p0: Any
    muhat: Any  # constant under differentiation, like the fits: use `fit` for derivatives
    free: FitResult
    conditional: FitResult  # without signal

    @property
    def converged(self) -> Any:
        """Whether both fits converged."""
        good = (self.free.status_code == 0) & (self.conditional.status_code == 0)
        return good if is_traced(good) or np.ndim(good) else bool(good)

    @property
    def branches(self) -> Any:
        """The larger of the numbers of minima that the fits found."""
        return _most(self.free.branches, self.conditional.branches)

    @property
    def warm_start(self) -> WarmStart:
        """Where fits of a similar model or similar data can start."""
        return warm_start_of(self.free, self.conditional)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ratio:
    """A profile likelihood ratio: the test statistic and its two fits."""

    q: Any
    muhat: Any
    free: FitResult | None  # None if the minimum is known without a fit
    conditional: FitResult


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CLs:
    """CLs of one signal strength: observed, and expected without signal at -2, -1, 0, 1, 2 σ."""

    observed: Any
    expected: Any
    mu: Any
    clsb: Any
    clb: Any
    q: Any
    q_asimov: Any
    muhat: Any
    converged: Any
    branches: Any  # the largest number of minima found by one of its fits


@in_float64
def discovery(
    model: Model,
    data: Any = None,
    fixed: Fixed = None,
    init: Any = None,
    warm_start: WarmStart | None = None,
) -> Discovery:
    """Test statistic q0 of the background-only hypothesis, its significance and its p-value.

    Zero, with zero derivative, if the best fit has no excess (μ̂ ≤ 0). The best fit may exceed the
    workspace's upper bound on the signal strength: a bound would hide significance.

    warm_start: the `warm_start` of a similar problem's result; both fits start there.
    """
    engine = engine_for(model, data, fixed, init, warm_start)
    found = likelihood_ratio(model, None, "q0", data, fixed, init, warm_start)
    z0 = square_root(found.q)
    return Discovery(
        q0=found.q,
        z0=z0,
        p0=_number(engine.tail(z0)),
        muhat=found.muhat,
        free=cast(FitResult, found.free),
        conditional=found.conditional,
    )


@in_float64
def likelihood_ratio(
    model: Model,
    mu: Any,
    statistic: str,
    data: Any = None,
    fixed: Fixed = None,
    init: Any = None,
    warm_start: WarmStart | None = None,
) -> Ratio:
    """The test statistic q0 (`mu` None), q or qtilde (Eqs. 12, 14, 16), and its two fits."""
    require_statistic(statistic, ("q0", "q", "qtilde"))
    fixed = as_fixed(model, fixed)
    engine = engine_for(model, mu, data, fixed, init, warm_start)
    tested = 0.0 if mu is None else mu
    free, at_mu = hypotheses(engine, data_of(model, data), [None, tested], fixed, init)
    free = _bounded(engine, free, statistic)
    found = _tested(engine, free, at_mu, _internal(model, warm_start))
    muhat = _poi_value(engine, found[0])
    # Written so that NaN stays NaN.
    without = muhat <= 0 if statistic == "q0" else muhat > tested
    return Ratio(
        q=_number(engine.xp.where(without, 0.0, _difference(engine, found[1], found[0]))),
        muhat=_number(muhat),
        free=result_of(engine, found[0], free),
        conditional=result_of(engine, found[1], at_mu),
    )


@in_float64
def expected_ratio(
    model: Model, mu: Any, mu_true: float, fixed: Fixed = None, warm_start: WarmStart | None = None
) -> Ratio:
    """The test statistic of data without fluctuations, as the model expects them before any fit.

    mu: the tested value; mu_true: the value that the data are made with, all other parameters at
    their init. That is their minimum, so only the conditional fit is made, and `free` is None.
    """
    fixed = as_fixed(model, fixed)
    engine = engine_for(model, mu, fixed, warm_start)
    held = {name: value for name, value in fixed.items() if not isinstance(value, bool)}
    theta = to_internal(model, model.vector({**held, str(model.poi): mu_true}))
    (problem,) = hypotheses(engine, engine.asimov(theta), [mu], fixed, None)
    (found,) = engine.chain([problem], _internal(model, warm_start))
    return Ratio(
        q=_number(engine.xp.maximum(2 * (found.nll - engine.floor), 0.0)),
        muhat=mu_true,
        free=None,
        conditional=result_of(engine, found, problem),
    )


def warm_start_of(free: FitResult | None, conditional: FitResult) -> WarmStart:
    """Where two fits ended; without a free fit, the conditional one stands for both."""
    free = conditional if free is None else free
    converged = (free.status_code == 0) & (conditional.status_code == 0)
    return WarmStart(free.values, conditional.values, converged)


def _internal(model: Model, warm_start: WarmStart | None) -> WarmStart | None:
    return warm_start and warm_start.map(partial(to_internal, model))


@in_float64
def qmu(model: Model, mu: Any, data: Any = None, fixed: Fixed = None, init: Any = None) -> Any:
    """Test statistic for upper limits, Eq. 14: the best fit may have a negative signal."""
    return likelihood_ratio(model, mu, "q", data, fixed, init).q


@in_float64
def qmu_tilde(
    model: Model, mu: Any, data: Any = None, fixed: Fixed = None, init: Any = None
) -> Any:
    """Test statistic for upper limits, Eq. 16: a negative best fit counts as zero signal."""
    return likelihood_ratio(model, mu, "qtilde", data, fixed, init).q


@in_float64
def asimov(
    model: Model, mu: Any = None, data: Any = None, fixed: Fixed = None, parameters: Any = None
) -> Any:
    """The data set without fluctuations, main and auxiliary, in pyhf's order.

    With `mu`, the other parameters are fitted to the data at this signal strength; with
    `parameters` (a mapping or a vector), nothing is fitted.
    """
    if (mu is None) == (parameters is None):
        raise ModelError("asimov needs either mu=... or parameters=...")
    fixed = as_fixed(model, fixed)
    engine = engine_for(model, mu, data, fixed, parameters)
    if parameters is not None:
        theta = to_internal(model, model.vector(parameters))
    else:
        (problem,) = hypotheses(engine, data_of(model, data), [mu], fixed, None)
        theta = engine.followed(engine.chain([problem])[0], problem)
    return data_vector(model, engine.asimov(theta))


@in_float64
def cls(
    model: Model,
    mu: Any,
    data: Any = None,
    fixed: Fixed = None,
    init: Any = None,
    test_statistic: str = "qtilde",
) -> CLs:
    """CLs of a signal strength, asymptotically: observed and five expected values.

    mu: one value, or outside `jit` an array of them, for a result with arrays.
    test_statistic: "qtilde", or "q", which allows a negative best-fit signal.
    """
    require_statistic(test_statistic)
    require_possible_strength(mu, test_statistic)
    fixed = as_fixed(model, fixed)
    if np.ndim(mu) and is_traced(mu):
        raise ModelError("mu is an array; inside jit, grad and vmap use jax.vmap over it.")
    if np.ndim(mu):
        parts = [cls(model, m, data, fixed, init, test_statistic) for m in np.asarray(mu)]
        return CLs(*(np.stack([getattr(p, f.name) for p in parts]) for f in fields(CLs)))
    engine = engine_for(model, mu, data, fixed, init)
    return HypothesisTest(engine, data_of(model, data), fixed, init, test_statistic).at(mu)


class HypothesisTest:
    """One data set tested at any signal strength; what does not depend on it is computed once."""

    def __init__(
        self, engine: Engine, data: Data, fixed: Fixed, init: Any, test_statistic: str
    ) -> None:
        self.engine, self.data, self.fixed, self.init = engine, data, fixed, init
        self.test_statistic = test_statistic
        free, null = hypotheses(engine, data, [None, 0.0], fixed, init)
        self.free, self.null = _tested(engine, self.bounded(free), null)
        self.asimov = engine.asimov(engine.followed(self.null, null))
        self._solved: list[tuple[float, Any, Any]] = []  # (μ, parameters of both fits)

    def bounded(self, problem: Problem) -> Problem:
        """A free fit within the bounds that the test statistic requires."""
        return _bounded(self.engine, problem, self.test_statistic)

    def statistic(self, mu: Any, free: Minimum, at_mu: Minimum) -> Any:
        """The statistic from a free fit and one at `mu`."""
        return _number(_one_sided(self.engine, mu, free, at_mu))

    def fits_at(self, mu: Any) -> tuple[Minimum, Minimum]:
        """Conditional fits of the data and of the background-only Asimov data."""
        engine = self.engine
        base = _at(engine, problem_of(engine, self.data, self.fixed, self.init), mu)
        near_data, near_asimov = self._nearest(mu)
        on_data, on_asimov = engine.fits(
            [
                base.starting_at(near_data, xp=engine.xp),
                base._replace(data=self.asimov).starting_at(near_asimov, xp=engine.xp),
            ]
        )
        if not isinstance(engine, Traced):
            self._solved.append((float(mu), on_data.theta, on_asimov.theta))
        return on_data, on_asimov

    def _nearest(self, mu: Any) -> tuple[Any, Any]:
        """Where the fits at the nearest signal strength ended, or those made at first."""
        if not self._solved:
            return self.free.theta, self.null.theta
        _, on_data, on_asimov = min(self._solved, key=lambda solved: abs(solved[0] - mu))
        return on_data, on_asimov

    def q_asimov(self, on_asimov: Minimum) -> Any:
        """The statistic of the Asimov data.

        Their minimum is at the parameters they were made with: no fit is needed, and the likelihood
        there is just the constant of the constraints.
        """
        return self.engine.xp.maximum(2 * (on_asimov.nll - self.engine.floor), 0.0)

    def at(self, mu: Any) -> CLs:
        engine = self.engine
        on_data, on_asimov = self.fits_at(mu)
        # Without a background-only likelihood there is no expected result and no CLb.
        known = engine.xp.where(engine.xp.isfinite(self.null.nll), 0.0, np.nan)
        q = _one_sided(engine, mu, self.free, on_data) + known
        q_asimov = self.q_asimov(on_asimov) + known
        observed, clsb, clb = asymptotic_cls(engine, q, q_asimov, self.test_statistic)
        converged = (
            (self.free.status == 0)
            & (self.null.status == 0)
            & (on_data.status == 0)
            & (on_asimov.status == 0)
        )
        return CLs(
            observed=_number(observed),
            expected=engine.xp.stack([expected_cls(engine, q_asimov, n) for n in BANDS]),
            mu=_number(mu),
            clsb=_number(clsb),
            clb=_number(clb),
            q=_number(q),
            q_asimov=_number(q_asimov),
            muhat=_number(_poi_value(engine, self.free)),
            converged=converged if is_traced(converged) else bool(converged),
            branches=_most(*(f.branches for f in (self.free, self.null, on_data, on_asimov))),
        )


def asymptotic_cls(
    engine: Engine, q: Any, q_asimov: Any, test_statistic: str
) -> tuple[Any, Any, Any]:
    """CLs, CLs+b and CLb of an observed statistic; Eqs. 57-59 (q) and 64-66 (q̃) of the paper."""
    xp = engine.xp
    root, root_asimov = square_root(q), square_root(q_asimov)
    distance = root - root_asimov
    if test_statistic == "qtilde":
        safe = xp.where(root_asimov > 0, root_asimov, 1.0)
        distance = xp.where(q > q_asimov, (q - q_asimov) / (2 * safe), distance)
    clsb, clb = engine.tail(distance + root_asimov), engine.tail(distance)
    return clsb / clb, clsb, clb


def expected_cls(engine: Engine, q_asimov: Any, sigmas: float) -> Any:
    """CLs expected from background-only data that fluctuate by `sigmas` standard deviations."""
    # An upward fluctuation of the background by N makes CLs larger.
    return engine.tail(square_root(q_asimov) - sigmas) / engine.tail(-sigmas)


# --- small pieces ---------------------------------------------------------------------------------


def hypotheses(
    engine: Engine, data: Data, mus: list[Any], fixed: Fixed, init: Any
) -> list[Problem]:
    """One problem per signal strength; None leaves it free."""
    base = problem_of(engine, data, fixed, init)
    model = engine.model
    if None in mus and base.fixed[poi_position(model)] > 0:
        raise ModelError(
            f"{model.about.source}: the parameter of interest {model.poi!r} is fixed, so it cannot "
            f"be tested. Free it: fixed={{{model.poi!r}: False}}."
        )
    return [base if mu is None else _at(engine, base, mu) for mu in mus]


def _at(engine: Engine, problem: Problem, mu: Any) -> Problem:
    """The problem at a signal strength."""
    model = engine.model
    index = poi_position(model)
    start = _with(engine, engine.xp.asarray(problem.start), index, require_number(mu, "mu"))
    fixed = np.array(problem.fixed)
    fixed[index] = 1.0
    return problem._replace(start=start, fixed=fixed, guess=start)


def _bounded(engine: Engine, problem: Problem, statistic: str) -> Problem:
    """Bounds of the signal strength that the test statistic requires."""
    model = engine.model
    index = poi_position(model)
    lower, upper = engine.xp.asarray(problem.lower), engine.xp.asarray(problem.upper)
    bound = lower[index]
    if statistic == "qtilde":
        bound = engine.xp.maximum(bound, 0.0)
    elif statistic == "q":
        bound = engine.xp.where(bound < 0, bound, -upper[index])
    # A limit may exceed the upper bound, and so may the best fit.
    return problem._replace(
        lower=_with(engine, lower, index, bound), upper=_with(engine, upper, index, np.inf)
    )


def _tested(
    engine: Engine, free: Problem, conditional: Problem, warm_start: WarmStart | None = None
) -> list[Minimum]:
    """The free fit and the conditional one."""
    best, at_mu = engine.chain([free, conditional], warm_start)
    if isinstance(engine, Traced) or not at_mu.nll < best.nll - DISAGREEMENT:
        return [best, at_mu]
    # The free fit could have reached the conditional one's point, so it was in another minimum.
    again = engine.chain([free.starting_at(at_mu.theta)])[0]
    return [again._replace(branches=_most(2, again.branches)), at_mu]


def _with(engine: Engine, values: Any, index: int, value: Any) -> Any:
    if isinstance(engine, Traced):
        return values.at[index].set(value)
    changed = np.array(values)
    changed[index] = value
    return changed


def _poi_value(engine: Engine, found: Minimum) -> Any:
    model = engine.model
    return found.theta[poi_position(model)]


def _difference(engine: Engine, conditional: Minimum, free: Minimum) -> Any:
    """2 ΔNLL, clipped at zero because rounding can make it negative."""
    with np.errstate(invalid="ignore"):  # infinities of failed fits give NaN
        return engine.xp.maximum(2 * (conditional.nll - free.nll), 0.0)


def _one_sided(engine: Engine, mu: Any, free: Minimum, at_mu: Minimum) -> Any:
    muhat = _poi_value(engine, free)
    return engine.xp.where(muhat > mu, 0.0, _difference(engine, at_mu, free))


#: A conditional fit lower than the free one by more than this has found another minimum.
DISAGREEMENT = 1e-9

#: A test statistic below this is the rounding error of two equal likelihoods. Its root is taken as
#: zero: the derivative of the root would be that error divided by almost zero.
ROUNDING = 1e-12


def square_root(q: Any) -> Any:
    """√q of a test statistic; zero, with zero derivative, where q is only rounding."""
    xp: Any = jnp if is_traced(q) else np
    none = q <= ROUNDING
    root = xp.where(none, 0.0, xp.sqrt(xp.where(none, 1.0, q)))
    return root if is_traced(q) else float(root)


def _most(*counts: Any) -> Any:
    """The largest of several numbers of minima, elementwise under `vmap`."""
    largest = (jnp if is_traced(counts) else np).stack(counts).max(axis=0)
    return largest if is_traced(counts) or largest.ndim else int(largest)


def _number(value: Any) -> Any:
    return value if is_traced(value) else float(value)


def require_possible_strength(mu: Any, test_statistic: str) -> None:
    """Fails for a negative signal with q̃, where there is nothing to exclude below zero."""
    if test_statistic == "qtilde" and not is_traced(mu) and np.any(np.asarray(mu) < 0):
        raise ModelError(
            f"mu = {np.min(mu):g} is negative, and with q̃ there is nothing to exclude below zero. "
            'Give mu ≥ 0, or test_statistic="q".'
        )


def require_statistic(name: str, among: tuple[str, ...] = ("q", "qtilde")) -> None:
    if name not in among:
        raise ModelError(f"test_statistic {name!r} is not one of {', '.join(map(repr, among))}.")
