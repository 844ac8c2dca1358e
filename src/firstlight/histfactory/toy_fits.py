"""Pseudo-experiments: data drawn from the model and fitted like observed data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from firstlight.histfactory.array_types import Array, DataSet, Parameters, Truth
from firstlight.histfactory.engine import Eager, Progress
from firstlight.histfactory.exclusion import BANDS, HypothesisTest, Setup, require_possible_strength
from firstlight.histfactory.fitting import Fixed, as_fixed, problem_of
from firstlight.histfactory.hypotheses import (
    bounded,
    hypotheses,
    one_sided,
    require_statistic,
)
from firstlight.histfactory.internal_order import data_of, data_vector, to_internal, to_public
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.model import Floats, Model, ModelError, require_finite, require_number
from firstlight.histfactory.newton import Problem, Status
from firstlight.histfactory.numpy_or_jax import plain
from firstlight.histfactory.precision import in_float64, is_traced


@dataclass(frozen=True, eq=False)
class Toys:
    """Fits of pseudo-data, including those that did not converge: see `status_code`."""

    names: tuple[str, ...]
    values: Floats  # [toy, parameter]
    nll: Floats
    status_code: Floats  # see `Status`
    edm: Floats
    branches: Floats  # number of minima found for each toy; the lowest is used
    data: Floats  # [toy, main and auxiliary data in pyhf's order]

    @property
    def converged(self) -> Truth:
        """True for each toy whose fit converged."""
        return self.status_code == int(Status.CONVERGED)

    @property
    def not_converged(self) -> int:
        return int(np.sum(~self.converged))


@dataclass(frozen=True, eq=False)
class ToyCLs:
    """CLs from pseudo-experiments, with the numbers behind it."""

    observed: float
    expected: Floats  # at -2, -1, 0, 1, 2 σ of background-only toys
    mu: float
    clsb: float
    clb: float
    q: float
    q_signal: Floats  # of every signal + background toy; NaN where a fit did not converge
    q_background: Floats
    not_converged: int
    branches: int  # the largest number of minima found by one of the fits


@in_float64
def toys(
    model: Model,
    n: int | None = None,
    key: Any = 0,
    *,
    parameters: Parameters = None,
    mu: float | None = None,
    data: DataSet = None,
    fixed: Fixed = None,
    progress: Progress | None = None,
) -> Toys:
    """Draw `n` data sets and fit each.

    key: an integer or a JAX key; equal keys give equal toys on every machine.
    parameters: where toys are drawn and each fit starts, a mapping or a vector; default: the best
        fit to the observed data, with the POI at `mu` if that is given.
    data: fit these instead, one data set per row, main or main and auxiliary data in pyhf's order.
    """
    engine, fixed = Eager(model), as_fixed(model, fixed)
    if data is not None:
        drawn = _given(model, data)
        theta = to_internal(model, model.vector(parameters))
    else:
        count = _require_count(n)
        theta = _truth(engine, parameters, mu, fixed)
        drawn = _draw(engine, theta, count, _generator(key))
    base = problem_of(engine, drawn, fixed)
    found = engine.fit_all(_repeated(base.starting_at(theta, near=0.0), drawn), progress)
    return Toys(
        names=model.parameter_names,
        values=to_public(model, found.theta),
        nll=found.nll + engine.constants(drawn),
        status_code=found.status,
        edm=found.edm,
        branches=found.branches,
        data=data_vector(model, drawn),
    )


@in_float64
def toy_cls(
    model: Model,
    mu: float,
    n: int,
    key: Any = 0,
    *,
    data: DataSet = None,
    fixed: Fixed = None,
    test_statistic: str = "qtilde",
    progress: Progress | None = None,
) -> ToyCLs:
    """CLs from `n` toys with and `n` without signal, each drawn at the best-fit parameters.

    Toys whose fits did not converge are counted in `.not_converged` and left out of the fractions.
    """
    _require_count(n)
    require_statistic(test_statistic)
    engine, observed, fixed = Eager(model), data_of(model, data), as_fixed(model, fixed)
    mu = require_number(mu, "mu")
    require_possible_strength(mu, test_statistic)
    test = HypothesisTest(Setup(engine, observed, fixed, None, test_statistic))
    on_data, _ = test.fits_at(mu)
    q = plain(one_sided(engine, mu, test.free, on_data))
    rng = _generator(key)
    truths = (on_data.theta, test.null.theta)
    drawn = [_draw(engine, theta, n, rng) for theta in truths]
    (signal, some), (background, others) = (
        _statistics(test, mu, *pair, progress) for pair in zip(drawn, truths, strict=True)
    )
    clsb, clb = _fraction(signal, q), _fraction(background, q)
    return ToyCLs(
        observed=clsb / clb if clb > 0 else float("nan"),
        expected=_expected(signal, background),
        mu=float(mu),
        clsb=clsb,
        clb=clb,
        q=q,
        q_signal=signal,
        q_background=background,
        not_converged=int(np.isnan(signal).sum() + np.isnan(background).sum()),
        branches=max(some, others, *(int(f.branches) for f in (test.free, test.null, on_data))),
    )


def _statistics(
    test: HypothesisTest, mu: float, drawn: Data, truth: Array, progress: Progress | None
) -> tuple[Floats, int]:
    """The test statistic of every toy (NaN if a fit failed), and the maximum number of minima."""
    engine = test.engine
    assert isinstance(engine, Eager)
    setup = test.setup
    free, at_mu = hypotheses(engine, setup.data, [None, mu], setup.fixed, None)
    free = bounded(engine, free, setup.test_statistic)
    free = free.starting_at(np.clip(truth, free.lower, free.upper), near=0.0)
    at_mu = at_mu.starting_at(truth, near=0.0)
    n = len(drawn.main)
    best = engine.fit_all(_repeated(free, drawn), _part(progress, 0, n))
    held = engine.fit_all(_repeated(at_mu, drawn), _part(progress, n, n))
    muhat = to_public(test.engine.model, best.theta)[:, test.engine.model.poi_index]
    q = np.where(muhat <= mu, np.maximum(2 * (held.nll - best.nll), 0.0), 0.0)
    q = np.where((best.status == 0) & (held.status == 0), q, np.nan)
    return q, int(max(best.branches.max(), held.branches.max()))


def _part(progress: Progress | None, before: int, n: int) -> Progress | None:
    return (lambda done, of: progress(before + done, 2 * n)) if progress else None


def _repeated(problem: Problem, drawn: Data) -> Problem:
    """One problem per data set, as arrays with a leading axis (not copied)."""
    n = len(drawn.main)

    def repeat(value: Any) -> Any:
        array = np.asarray(value, np.float64)
        return np.broadcast_to(array, (n, *array.shape))

    return Problem(drawn, *(repeat(value) for value in problem[1:]))


def _fraction(statistics: Floats, q: float) -> float:
    good = statistics[~np.isnan(statistics)]
    return float(np.mean(good >= q)) if len(good) else float("nan")


def _expected(signal: Floats, background: Floats) -> Floats:
    """Quantiles of CLs over background-only toys, each taken as the observed one."""
    signal = np.sort(signal[~np.isnan(signal)])
    background = np.sort(background[~np.isnan(background)])
    if not len(signal) or not len(background):
        return np.full(len(BANDS), np.nan)
    clsb = 1 - np.searchsorted(signal, background, side="left") / len(signal)
    clb = 1 - np.searchsorted(background, background, side="left") / len(background)
    quantiles = [NormalDist().cdf(n) for n in BANDS]
    return np.asarray(np.quantile(clsb / clb, quantiles))


def _truth(engine: Eager, parameters: Any, mu: float | None, fixed: Fixed) -> Any:
    """Where to draw, in internal order."""
    model = engine.model
    if parameters is not None:
        vector = np.array(require_finite(model.vector(parameters), "parameters"), np.float64)
        if mu is not None:
            vector[model.poi_index] = mu
        return to_internal(model, vector)
    if mu is None:  # works also for a model without a POI or with a fixed one
        problem = problem_of(engine, data_of(model, None), fixed)
    else:
        (problem,) = hypotheses(engine, data_of(model, None), [mu], fixed, None)
    return engine.chain([problem])[0].theta


def _draw(engine: Eager, theta: Array, n: int, rng: np.random.Generator) -> Data:
    """`n` data sets from the model at `theta`, on a leading axis."""
    centre, prepared = engine.asimov(theta), engine.prepared
    if np.any(centre.main < 0):
        raise ModelError(
            f"{engine.model.about.source}: a bin expects {centre.main.min():g} events at the "
            "parameters of the toys. Counts cannot be drawn from a negative expectation."
        )
    weight, tau = np.asarray(prepared.weight), np.asarray(prepared.tau)
    sigma = np.where(weight > 0, 1 / np.sqrt(np.where(weight > 0, weight, 1.0)), 0.0)
    main = rng.poisson(centre.main, (n, len(centre.main))).astype(np.float64)
    normal = theta + sigma * rng.standard_normal((n, len(theta)))
    poisson = rng.poisson(np.where(tau > 0, np.maximum(centre.aux, 0.0), 0.0), (n, len(tau)))
    aux = np.where(tau > 0, poisson, np.where(weight > 0, normal, centre.aux))
    return Data(main, aux)


def _generator(key: Any) -> np.random.Generator:
    """A NumPy generator from an integer or a JAX key, so that toys do not depend on the device."""
    if is_traced(key):
        raise ModelError(
            "toys are drawn outside jit. Draw the data first, then vmap fit over them."
        )
    if isinstance(key, (int, np.integer)) and key >= 0:
        return np.random.default_rng(int(key))
    if not hasattr(key, "dtype"):
        raise ModelError(f"key is {key!r}; it must be a non-negative integer or a JAX key.")
    import jax

    bits = (
        jax.random.key_data(key) if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    )
    return np.random.default_rng([int(x) for x in np.asarray(bits).ravel()])


def _require_count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ModelError(f"the number of toys is {n!r}; it must be a positive integer.")
    return int(n)


def _given(model: Model, data: Any) -> Data:
    if np.ndim(data) != 2 or not len(data):
        raise ModelError(f"data of toys have shape {np.shape(data)}; give one row per data set.")
    return data_of(model, np.asarray(data, np.float64), batch=True)
