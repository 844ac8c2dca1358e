"""Pseudo-experiments: data drawn from the model and fitted like observed data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from firstlight.histfactory.argument_checks import ModelError, require_finite, require_number
from firstlight.histfactory.array_types import (
    Array,
    ArrayLike,
    DataSet,
    Number,
    Parameters,
    RandomKey,
    Truth,
)
from firstlight.histfactory.devices import Devices
from firstlight.histfactory.engine import Eager, Progress
from firstlight.histfactory.exclusion import (
    BANDS,
    CLsStatus,
    Ended,
    HypothesisTest,
    Setup,
    require_possible_strength,
    status_of,
)
from firstlight.histfactory.fitting import Fixed, as_fixed, problem_of
from firstlight.histfactory.hypotheses import bounded, hypotheses, one_sided, require_statistic
from firstlight.histfactory.internal_order import data_of, data_vector, to_internal, to_public
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.newton import Problem, Status, is_minimum
from firstlight.histfactory.numpy_or_jax import plain
from firstlight.histfactory.precision import in_float64
from firstlight.histfactory.toy_draws import ToySource, entropy_of, toys_at


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

    def values_of(self, name: str) -> Floats:
        """Fitted values of one parameter."""
        return self.values[:, self.names.index(name)]

    def columns(self) -> Iterator[tuple[slice, Floats]]:
        """All fitted values, in one part; toys that are kept in files come in several."""
        yield slice(0, len(self.names)), self.values


@dataclass(frozen=True, eq=False)
class ToyCLs(Ended):
    """CLs from pseudo-experiments, and the test statistics behind it."""

    observed: float
    expected: Floats  # at -2, -1, 0, 1, 2 σ of background-only toys
    mu: float
    clsb: float
    clb: float
    q: float
    q_signal: Floats  # of every signal + background toy; NaN where a fit did not converge
    q_background: Floats
    not_converged: int  # toys
    status_code: int  # of the fits to the observed data
    branches: int  # the largest number of minima found by one of the fits


@dataclass(frozen=True, eq=False)
class ToyFits:
    """The common part of the toys of a call; results do not depend on how they are divided."""

    model: Model
    source: ToySource
    fixed: dict[str, bool | Number]
    n: int
    compiled: bool  # whether fits run compiled or in NumPy

    def fit(
        self, begin: int, end: int, progress: Progress | None = None, devices: Devices = None
    ) -> Toys:
        """Draw and fit the toys from `begin` to before `end`."""
        engine = Eager(self.model, self.compiled, devices)
        return _fitted(
            engine, self.source.draw(begin, end), self.source.theta, self.fixed, progress
        )


@in_float64
def toys(
    model: Model,
    n: int | None = None,
    key: RandomKey = 0,
    *,
    parameters: Parameters = None,
    mu: float | None = None,
    data: DataSet = None,
    fixed: Fixed = None,
    progress: Progress | None = None,
    devices: Devices = None,
) -> Toys:
    """Draw `n` data sets and fit each.

    key: an integer or a JAX key. Equal keys give equal toys on every machine; a larger `n` begins
        with the same toys.
    parameters: where toys are drawn and each fit starts, a mapping or a vector; default: the best
        fit to the observed data, with the POI at `mu` if given.
    data: fit these instead, one data set per row, main or main and auxiliary data in pyhf's order.
    devices: JAX devices, or their number, over which the fits are divided; default: all of this
        process, if there are enough toys.
    """
    if data is None:
        job = plan_toys(model, n, key, parameters=parameters, mu=mu, fixed=fixed)
        return job.fit(0, job.n, progress, devices)
    theta = to_internal(model, model.vector(parameters))
    engine = Eager(model, devices=devices)
    return _fitted(engine, _given(model, data), theta, as_fixed(model, fixed), progress)


@in_float64
def plan_toys(
    model: Model,
    n: int | None,
    key: RandomKey = 0,
    *,
    parameters: Parameters = None,
    mu: float | None = None,
    fixed: Fixed = None,
) -> ToyFits:
    """The toys that `toys` draws and fits with these arguments, not yet drawn."""
    # Always by NumPy, even if compiled programs exist: equal keys give equal digits.
    engine, held, count = Eager(model, False), as_fixed(model, fixed), _require_count(n)
    theta = _truth(engine, parameters, mu, held)
    source = toys_at(engine, theta, entropy_of(key))
    return ToyFits(model, source, held, count, Eager(model).deciding(count).compiled is True)


def _fitted(
    engine: Eager, drawn: Data, theta: Array, fixed: Fixed, progress: Progress | None
) -> Toys:
    base = problem_of(engine, drawn, fixed)
    found = engine.fit_all(_repeated(base.starting_at(theta, near=0.0), drawn), progress)
    return Toys(
        names=engine.model.parameter_names,
        values=to_public(engine.model, found.theta),
        nll=found.nll + engine.constants(drawn),
        status_code=found.status,
        edm=found.edm,
        branches=found.branches,
        data=data_vector(engine.model, drawn),
    )


@dataclass(frozen=True, eq=False)
class ToyTest:
    """The common part of the toys of a CLs, like `ToyFits`."""

    model: Model
    sources: tuple[ToySource, ToySource]  # with signal, and without
    fixed: dict[str, bool | Number]
    mu: float
    n: int  # of each
    test_statistic: str
    compiled: bool
    q: float  # of the observed data
    status_code: int  # of the fits to them; see `CLsStatus`
    branches: int  # the largest number of minima found by one of the fits to them

    def statistics(
        self,
        which: int,
        begin: int,
        end: int,
        progress: Progress | None = None,
        devices: Devices = None,
    ) -> tuple[Floats, Floats]:
        """The statistic of each toy of a source (NaN if a fit failed), and its number of minima."""
        if self.status_code == CLsStatus.IMPOSSIBLE_NULL:  # there is no model to draw from
            return np.full(end - begin, np.nan), np.ones(end - begin, np.int32)
        engine, source = Eager(self.model, self.compiled, devices), self.sources[which]
        drawn = source.draw(begin, end)
        free, at_mu = hypotheses(engine, drawn, [None, self.mu], self.fixed, None)
        free = bounded(engine, free, self.test_statistic)
        free = free.starting_at(np.clip(source.theta, free.lower, free.upper), near=0.0)
        at_mu = at_mu.starting_at(source.theta, near=0.0)
        count = end - begin
        best = engine.fit_all(_repeated(free, drawn), _part(progress, 0, count))
        held = engine.fit_all(_repeated(at_mu, drawn), _part(progress, count, count))
        muhat = to_public(self.model, best.theta)[:, self.model.poi_index]
        q = np.where(muhat <= self.mu, np.maximum(2 * (held.nll - best.nll), 0.0), 0.0)
        # Leaving out toys for a negative expectation would leave out those with few events.
        q = np.where(is_minimum(best) & is_minimum(held), q, np.nan)
        return q, np.maximum(best.branches, held.branches)

    def result(self, signal: Floats, background: Floats, branches: int) -> ToyCLs:
        """CLs from the statistics of all toys, and the largest number of minima among them."""
        clsb, clb = _fraction(signal, self.q), _fraction(background, self.q)
        return ToyCLs(
            observed=clsb / clb if clb > 0 else float("nan"),
            expected=_expected(signal, background),
            mu=self.mu,
            clsb=clsb,
            clb=clb,
            q=self.q,
            q_signal=signal,
            q_background=background,
            status_code=self.status_code,
            not_converged=int(np.isnan(signal).sum() + np.isnan(background).sum()),
            branches=max(branches, self.branches),
        )


@in_float64
def toy_cls(
    model: Model,
    mu: float,
    n: int,
    key: RandomKey = 0,
    *,
    data: DataSet = None,
    fixed: Fixed = None,
    test_statistic: str = "qtilde",
    progress: Progress | None = None,
    devices: Devices = None,
) -> ToyCLs:
    """CLs from `n` toys with and `n` without signal, each drawn at the best-fit parameters.

    Toys whose fits did not converge are counted in `.not_converged` and left out of the fractions.
    `.status` is that of the fits to the data; where these are impossible without signal, the result
    is NaN.
    devices: as for `toys`.
    """
    test = plan_toy_cls(model, mu, n, key, data=data, fixed=fixed, test_statistic=test_statistic)
    (signal, some), (background, others) = (
        test.statistics(which, 0, test.n, progress, devices) for which in range(2)
    )
    return test.result(signal, background, int(max(some.max(), others.max())))


@in_float64
def plan_toy_cls(
    model: Model,
    mu: float,
    n: int,
    key: RandomKey = 0,
    *,
    data: DataSet = None,
    fixed: Fixed = None,
    test_statistic: str = "qtilde",
) -> ToyTest:
    """The toys that `toy_cls` draws and fits with these arguments, not yet drawn."""
    count = _require_count(n)
    require_statistic(test_statistic)
    # By NumPy: see `plan_toys`.
    engine, observed, held = Eager(model, False), data_of(model, data), as_fixed(model, fixed)
    mu = require_number(mu, "mu")
    require_possible_strength(mu, test_statistic)
    test = HypothesisTest(Setup(engine, observed, held, None, test_statistic))
    on_data, _ = test.fits_at(mu)
    entropy = entropy_of(key)
    return ToyTest(
        model=model,
        sources=(
            toys_at(engine, on_data.theta, entropy, 0),
            toys_at(engine, test.null.theta, entropy, 1),
        ),
        fixed=held,
        mu=float(mu),
        n=count,
        test_statistic=test_statistic,
        compiled=Eager(model).deciding(4 * count).compiled is True,
        q=plain(one_sided(engine, mu, test.free, on_data)),
        status_code=int(status_of(np, test.null, test.free, test.null, on_data)),
        branches=max(int(f.branches) for f in (test.free, test.null, on_data)),
    )


def _part(progress: Progress | None, before: int, n: int) -> Progress | None:
    return (lambda done, of: progress(before + done, 2 * n)) if progress else None


def _repeated(problem: Problem, drawn: Data) -> Problem:
    """One problem per data set, as arrays with a leading axis (not copied)."""
    n = len(drawn.main)

    def repeat(value: Array) -> Floats:
        array = np.asarray(value, np.float64)
        return np.broadcast_to(array, (n, *array.shape))

    return Problem(drawn, *(repeat(value) for value in problem[1:]))


def _fraction(statistics: Floats, q: float) -> float:
    good = statistics[~np.isnan(statistics)]
    return float(np.mean(good >= q)) if len(good) else float("nan")


def _expected(signal: Floats, background: Floats) -> Floats:
    """Quantiles of CLs over background-only toys, each used as the observed data in turn."""
    signal = np.sort(signal[~np.isnan(signal)])
    background = np.sort(background[~np.isnan(background)])
    if not len(signal) or not len(background):
        return np.full(len(BANDS), np.nan)
    clsb = 1 - np.searchsorted(signal, background, side="left") / len(signal)
    clb = 1 - np.searchsorted(background, background, side="left") / len(background)
    quantiles = [NormalDist().cdf(n) for n in BANDS]
    return np.asarray(np.quantile(clsb / clb, quantiles))


def _truth(engine: Eager, parameters: Parameters, mu: float | None, fixed: Fixed) -> Array:
    """The parameters to draw toys at, in internal order."""
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


def _require_count(n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ModelError(f"the number of toys is {n!r}; it must be a positive integer.")
    return int(n)


def _given(model: Model, data: ArrayLike) -> Data:
    if np.ndim(data) != 2 or not len(data):
        raise ModelError(f"data of toys have shape {np.shape(data)}; give one row per data set.")
    return data_of(model, np.asarray(data, np.float64), batch=True)
