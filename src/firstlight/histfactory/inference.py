"""Tests and limits from the profile likelihood: asymptotic formulae of arXiv:1007.1727.

Every function takes `data` (default: the observed data) and `fixed`, as `fit` does. All of them
are differentiable with respect to every array of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.array_types import Array, Count, DataSet, Number, Parameters, Truth
from firstlight.histfactory.engine import Engine, engine_for
from firstlight.histfactory.fitting import FitResult, Fixed, as_fixed, result_of
from firstlight.histfactory.hypotheses import (
    bounded,
    difference,
    free_and_conditional,
    hypotheses,
    most_branches,
    poi_value,
    require_statistic,
    square_root,
)
from firstlight.histfactory.internal_order import data_of, data_vector, to_internal
from firstlight.histfactory.lazy_jax import pytree
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Problem, WarmStart, is_settled
from firstlight.histfactory.numpy_or_jax import plain
from firstlight.histfactory.precision import in_float64


@pytree
@dataclass(frozen=True)
class Discovery:
    """How strongly the data disagree with no signal."""

    q0: Number
    z0: Number  # significance, √q0
    p0: Number
    muhat: Number  # constant under differentiation, like the fits: use `fit` for derivatives
    free: FitResult
    conditional: FitResult  # without signal

    @property
    def converged(self) -> Truth:
        """Whether the statistic is known: both fits converged, or to a flat direction."""
        return plain(is_settled(self.free.status_code) & is_settled(self.conditional.status_code))

    @property
    def branches(self) -> Count:
        """The larger of the numbers of minima that the fits found."""
        return most_branches(self.free.branches, self.conditional.branches)

    @property
    def warm_start(self) -> WarmStart:
        """Starting points for fits of a similar model or similar data."""
        return warm_start_of(self.free, self.conditional)


@pytree
@dataclass(frozen=True)
class Ratio:
    """A profile likelihood ratio: the test statistic and its two fits."""

    q: Number
    muhat: Number
    free: FitResult | None  # None if the minimum is known without a fit
    conditional: FitResult


@in_float64
@first_gradient_by("firstlight.histfactory.first_gradients:discovery")
def discovery(
    model: Model,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    warm_start: WarmStart | None = None,
    *,
    require_positive: bool = False,
) -> Discovery:
    """Test statistic q0 of the background-only hypothesis, its significance and its p-value.

    Zero, with zero derivative, if the best fit has no excess (μ̂ ≤ 0). The best fit may exceed the
    workspace's upper bound on the signal strength: a bound would hide significance.

    warm_start: the `warm_start` of a similar problem's result. Both fits start there and stay in
        the minima that it leads to.
    require_positive: as for `fit`.
    """
    given = (data, fixed, init, warm_start)
    engine = engine_for(model, *given, require_positive=require_positive)
    ratio = likelihood_ratio(model, None, "q0", *given, require_positive=require_positive)
    return discovery_of(engine, ratio)


def discovery_of(engine: Engine, found: Ratio) -> Discovery:
    """The significance of a test of the background-only hypothesis."""
    z0 = square_root(found.q)
    return Discovery(
        q0=found.q,
        z0=z0,
        p0=plain(engine.tail(z0)),
        muhat=found.muhat,
        free=cast(FitResult, found.free),
        conditional=found.conditional,
    )


@in_float64
@first_gradient_by("firstlight.histfactory.first_gradients:likelihood_ratio")
def likelihood_ratio(
    model: Model,
    mu: Number,
    statistic: str,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    warm_start: WarmStart | None = None,
    *,
    require_positive: bool = False,
) -> Ratio:
    """The test statistic q0 (`mu` None), q or qtilde (Eqs. 12, 14, 16), and its two fits."""
    given = (mu, data, fixed, init, warm_start)
    engine = engine_for(model, *given, require_positive=require_positive)
    return ratio_and_fits(engine, mu, statistic, data, fixed, init, warm_start).ratio


class RatioAndFits(NamedTuple):
    """A ratio and the fits that were made for it, in the order free, conditional."""

    ratio: Ratio
    problems: list[Problem]
    found: list[Minimum]


def ratio_and_fits(
    engine: Engine,
    mu: Number | None,
    statistic: str,
    data: DataSet,
    fixed: Fixed,
    init: Parameters,
    warm_start: WarmStart | None,
) -> RatioAndFits:
    """The arguments are those of `likelihood_ratio`."""
    require_statistic(statistic, ("q0", "q", "qtilde"))
    model, fixed = engine.model, as_fixed(engine.model, fixed)
    tested = 0.0 if mu is None else mu
    free, at_mu = hypotheses(engine, data_of(model, data), [None, tested], fixed, init)
    free = bounded(engine, free, statistic)
    found = free_and_conditional(engine, free, at_mu, _internal(model, warm_start))
    muhat = poi_value(engine, found[0])
    # Written so that NaN stays NaN.
    without = muhat <= 0 if statistic == "q0" else muhat > tested
    ratio = Ratio(
        q=plain(engine.xp.where(without, 0.0, difference(engine, found[1], found[0]))),
        muhat=plain(muhat),
        free=_constant(engine, found[0], free),
        conditional=_constant(engine, found[1], at_mu),
    )
    return RatioAndFits(ratio, [free, at_mu], found)


def _constant(engine: Engine, found: Minimum, problem: Problem) -> FitResult:
    """A fit whose parameters are constant under differentiation."""
    return result_of(engine, found._replace(theta=engine.constant(found.theta)), problem)


@in_float64
def expected_ratio(
    model: Model,
    mu: Number,
    mu_true: float,
    fixed: Fixed = None,
    warm_start: WarmStart | None = None,
) -> Ratio:
    """The test statistic of Asimov data generated at the model's initial parameters.

    mu: the tested value; mu_true: the value that the data are generated with, all other parameters
    at their init. The free minimum is at these parameters, so only the conditional fit is made, and
    `free` is None.
    """
    engine = engine_for(model, mu, fixed, warm_start)
    theta = expected_parameters(model, mu_true, fixed)
    return expected_ratio_and_fit(engine, mu, mu_true, theta, fixed, warm_start).ratio


def expected_parameters(model: Model, mu_true: float, fixed: Fixed) -> Array:
    """The parameters, in internal order, that generate the data of `expected_ratio`."""
    values = as_fixed(model, fixed).items()
    held = {name: value for name, value in values if not isinstance(value, bool)}
    return to_internal(model, model.vector({**held, str(model.poi): mu_true}))


def expected_ratio_and_fit(
    engine: Engine,
    mu: Number,
    mu_true: float,
    theta: Array,
    fixed: Fixed,
    warm_start: WarmStart | None,
) -> RatioAndFits:
    """The arguments are those of `expected_ratio`; theta: its `expected_parameters`."""
    fixed = as_fixed(engine.model, fixed)
    (problem,) = hypotheses(engine, engine.asimov(theta), [mu], fixed, None)
    (found,) = engine.chain([problem], _internal(engine.model, warm_start))
    ratio = Ratio(
        q=plain(engine.xp.maximum(2 * (found.nll - engine.floor), 0.0)),
        muhat=mu_true,
        free=None,
        conditional=_constant(engine, found, problem),
    )
    return RatioAndFits(ratio, [problem], [found])


def warm_start_of(free: FitResult | None, conditional: FitResult) -> WarmStart:
    """The ends of two fits; without a free fit, the end of the conditional one twice."""
    free = conditional if free is None else free
    converged = is_settled(free.status_code) & is_settled(conditional.status_code)
    return WarmStart(free.values, conditional.values, converged)


def _internal(model: Model, warm_start: WarmStart | None) -> WarmStart | None:
    return warm_start and warm_start.map(partial(to_internal, model))


def qmu(
    model: Model, mu: Number, data: DataSet = None, fixed: Fixed = None, init: Parameters = None
) -> Number:
    """Test statistic for upper limits, Eq. 14: the best fit may have a negative signal."""
    return likelihood_ratio(model, mu, "q", data, fixed, init).q


def qmu_tilde(
    model: Model, mu: Number, data: DataSet = None, fixed: Fixed = None, init: Parameters = None
) -> Number:
    """Test statistic for upper limits, Eq. 16: a negative best fit counts as zero signal."""
    return likelihood_ratio(model, mu, "qtilde", data, fixed, init).q


@in_float64
@first_gradient_by("firstlight.histfactory.fit_gradients:asimov")
def asimov(
    model: Model,
    mu: Number | None = None,
    data: DataSet = None,
    fixed: Fixed = None,
    parameters: Parameters = None,
) -> Array:
    """The Asimov data set (data without fluctuations): main and auxiliary, in pyhf's order.

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
