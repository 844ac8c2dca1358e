"""Exclusion: CLs of a signal strength, asymptotically (arXiv:1007.1727).

A test needs four fits: to the data, with the signal strength free, zero and at the tested value;
and at the tested value to the Asimov data of the fit without signal. Outside JAX transformations
each fit is a call that starts at the nearest solution. Inside a program, one loop makes all fits,
and one evaluation of the likelihood's derivatives serves all minima: both dominate the compile
time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from firstlight.histfactory.argument_checks import ModelError, as_numbers
from firstlight.histfactory.array_types import (
    Array,
    Count,
    DataSet,
    Number,
    Numpy,
    Parameters,
    Truth,
)
from firstlight.histfactory.engine import Eager, Engine, Traced, eager_engine, engine_for
from firstlight.histfactory.fitting import BinYield, Fixed, as_fixed, yields_where
from firstlight.histfactory.hypotheses import (
    bounded,
    free_and_conditional,
    hypotheses,
    is_above,
    most_branches,
    not_above,
    one_sided,
    poi_value,
    require_statistic,
    square_root,
)
from firstlight.histfactory.internal_order import data_of
from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.likelihood import TINY_YIELD, Data, Prepared, yields
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.newton import Minimum, Problem, is_settled
from firstlight.histfactory.numpy_or_jax import plain
from firstlight.histfactory.precision import in_float64, is_traced
from firstlight.histfactory.profiling import minima_in_turn, where, with_derivatives

T = TypeVar("T")
#: The four fits of a test, in this order.
FREE, NULL, ON_DATA, ON_ASIMOV = range(4)

#: Bands of an expected result, in standard deviations of background-only data.
BANDS = (-2, -1, 0, 1, 2)
#: The probability of a larger deviation of the background, for each band.
BAND_TAILS = tuple(0.5 * math.erfc(-n / math.sqrt(2)) for n in BANDS)
#: From how many known minima the next one is predicted.
_NEAR = 3


class CLsStatus(IntEnum):
    """How a test of a signal strength, or a search for a limit, ended; the largest of several."""

    CONVERGED = 0
    LEVEL_NOT_REACHED = 1
    UNLIKELY_NULL = 2
    NOT_CONVERGED = 3
    IMPOSSIBLE_NULL = 4

    @property
    def message(self) -> str:
        """An explanation, with advice."""
        return _MESSAGES[self]


_MESSAGES = {
    CLsStatus.CONVERGED: "all fits converged",
    CLsStatus.LEVEL_NOT_REACHED: (
        "no limit was found: CLs does not fall to the level, or is NaN before it does. Look at cls "
        "of several signal strengths."
    ),
    CLsStatus.UNLIKELY_NULL: (
        "the data are so unlikely with and without signal (38 standard deviations below what is "
        "expected) that both probabilities are zero as doubles, and CLs, their ratio, is NaN. The "
        "model does not describe these data."
    ),
    CLsStatus.NOT_CONVERGED: (
        "a fit did not converge. Fit with the signal strength free, and fixed at the tested value "
        "and at 0: the status of each says why."
    ),
    CLsStatus.IMPOSSIBLE_NULL: (
        "without signal the data are impossible, because a bin with events expects no background "
        "(or auxiliary data are impossible): CLs, which compares with the background, is undefined "
        "(NaN). Give such bins a background, merge them with others, or leave them out; "
        "bins_without_background(model) names them."
    ),
}


class Ended:
    """A result with a status code."""

    status_code: Count

    @property
    def status(self) -> CLsStatus:
        """How one test ended, with its `.message`; for several, or in jit, use `status_code`."""
        if is_traced(self.status_code) or np.ndim(self.status_code):
            raise ModelError(
                "status is available for a single result outside jit, grad and vmap. Use "
                "status_code, which is 0 where all fits converged."
            )
        return CLsStatus(int(self.status_code))

    @property
    def converged(self) -> Truth:
        """Whether all fits converged, and a limit was found."""
        return self.status_code == int(CLsStatus.CONVERGED)


@pytree
@dataclass(frozen=True)
class CLs(Ended):
    """CLs of one signal strength: observed, and expected without signal at -2, -1, 0, 1, 2 σ."""

    observed: Number
    expected: Array
    mu: Number
    clsb: Number
    clb: Number
    q: Number
    q_asimov: Number
    muhat: Number
    status_code: Count
    branches: Count  # the largest number of minima found by one of its fits


@in_float64
@first_gradient_by("firstlight.histfactory.exclusion_gradients:cls")
def cls(
    model: Model,
    mu: Number,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    test_statistic: str = "qtilde",
    *,
    require_positive: bool = False,
) -> CLs:
    """CLs of a signal strength, asymptotically: observed and five expected values.

    mu: one value, or outside `jit` an array of them, for a result with arrays.
    test_statistic: "qtilde", or "q", which allows a negative best-fit signal.
    require_positive: as for `fit`; best-fit signals are then not negative.

    NaN where the data are impossible without signal: `.status` says so.
    """
    require_statistic(test_statistic)
    require_possible_strength(mu, test_statistic)
    fixed = as_fixed(model, fixed)
    if np.ndim(mu) and is_traced(mu):
        raise ModelError("mu is an array; inside jit, grad and vmap use jax.vmap over it.")
    if np.ndim(mu):
        given = (np.asarray(mu), data, fixed, init, test_statistic)
        grid = plan_cls(model, *given, require_positive=require_positive)
        return grid.at(0, len(grid.mu))
    engine = engine_for(model, mu, data, fixed, init, require_positive=require_positive)
    setup = Setup(engine, data_of(model, data), fixed, init, test_statistic)
    return _in_program(setup, mu) if isinstance(engine, Traced) else HypothesisTest(setup).at(mu)


@dataclass(frozen=True, eq=False)
class CLsGrid:
    """Signal strengths to test; results do not depend on how they are divided among processes."""

    model: Model
    mu: Floats
    data: DataSet
    fixed: dict[str, bool | Number]
    init: Parameters
    test_statistic: str
    compiled: bool  # whether fits run compiled or in NumPy
    require_positive: bool = False

    def at(self, begin: int, end: int) -> CLs:
        """CLs of the strengths `begin` to `end`, in arrays."""
        engine = eager_engine(self.model, self.compiled, require_positive=self.require_positive)
        data = data_of(self.model, self.data)
        setup = Setup(engine, data, self.fixed, self.init, self.test_statistic)
        strengths = self.mu[begin:end]
        # One test each, so that results do not depend on how the strengths are divided.
        minima = [HypothesisTest(setup).minima_at(mu) for mu in strengths]
        free = min((found.free for found in minima), key=lambda fit: float(fit.nll))
        minima = [m._replace(free=free) if is_above(m.free, free) else m for m in minima]
        tests = zip(strengths, minima, strict=True)
        parts = [cls_of(engine, mu, found, self.test_statistic) for mu, found in tests]
        return CLs(*(np.stack([getattr(p, f.name) for p in parts]) for f in fields(CLs)))


@in_float64
def plan_cls(
    model: Model,
    mu: Sequence[float] | Floats,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    test_statistic: str = "qtilde",
    *,
    require_positive: bool = False,
) -> CLsGrid:
    """The tests that `cls` makes for an array of signal strengths, without making any."""
    require_statistic(test_statistic)
    require_possible_strength(mu, test_statistic)
    strengths = as_numbers(mu, "the signal strengths")
    if strengths.ndim != 1 or not len(strengths):
        raise ModelError("the signal strengths must be a list of numbers.")
    compiled = Eager(model).deciding(4 * len(strengths)).compiled is True
    held = as_fixed(model, fixed)
    given = (strengths, data, held, init, test_statistic, compiled)
    return CLsGrid(model, *given, require_positive)


class Setup(NamedTuple):
    """The arguments that all tests of one data set share."""

    engine: Engine
    data: Data
    fixed: Fixed
    init: Array
    test_statistic: str

    def first_problems(self) -> list[Problem]:
        """The free fit, within the bounds of the test statistic, and the fit without signal."""
        engine = self.engine
        free, null = hypotheses(engine, self.data, [None, 0.0], self.fixed, self.init)
        return [bounded(engine, free, self.test_statistic), null]

    def problems_at(self, mu: Number, asimov: Data, near: tuple[Array, Array]) -> list[Problem]:
        """The fits at a signal strength to the data and to Asimov data, each starting `near`."""
        engine = self.engine
        (base,) = hypotheses(engine, self.data, [mu], self.fixed, self.init)
        on_data, on_asimov = near
        return [
            base.starting_at(on_data, xp=engine.xp),
            base._replace(data=asimov).starting_at(on_asimov, xp=engine.xp),
        ]


class Minima(NamedTuple):
    """The minima of the four fits of a test."""

    free: Minimum
    null: Minimum
    on_data: Minimum
    on_asimov: Minimum


class HypothesisTest:
    """Tests of one data set; the fits that do not depend on the signal strength are made once.

    For calls outside JAX transformations.
    """

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.engine, Eager)
        self.setup, self.engine = setup, setup.engine
        problems = setup.first_problems()
        self._free_problem = problems[0]
        self.free, self.null = free_and_conditional(self.engine, problems[0], problems[1])
        self.asimov = self.engine.asimov(self.null.theta)
        self._on_data, self._on_asimov = _Path(), _Path()
        self._on_data.add(float(poi_value(self.engine, self.free)), self.free)
        self._on_data.add(0.0, self.null)
        self._on_asimov.add(0.0, self.null)

    def fits_at(self, mu: Number) -> list[Minimum]:
        """Conditional fits of the data and of the background-only Asimov data."""
        near = self._on_data.at(mu), self._on_asimov.at(mu)
        fits = self.engine.fits(self.setup.problems_at(mu, self.asimov, near))
        self._on_data.add(mu, fits[0])
        self._on_asimov.add(mu, fits[1])
        self.free = not_above(self.engine, self.free, fits[0], self._free_problem)
        return fits

    def fit_data(self, mu: float) -> Minimum:
        """The conditional fit of the data alone."""
        return self._fit_one(0, self._on_data, mu)

    def fit_asimov(self, mu: float) -> Minimum:
        """The conditional fit of the Asimov data alone."""
        return self._fit_one(1, self._on_asimov, mu)

    def _fit_one(self, which: int, path: _Path, mu: float) -> Minimum:
        near = path.at(mu)
        problem = self.setup.problems_at(mu, self.asimov, (near, near))[which]
        (found,) = self.engine.fits([problem])
        path.add(mu, found)
        if path is self._on_data:
            self.free = not_above(self.engine, self.free, found, self._free_problem)
        return found

    def at(self, mu: Number) -> CLs:
        """CLs of a signal strength."""
        return cls_of(self.engine, mu, self.minima_at(mu), self.setup.test_statistic)

    def minima_at(self, mu: Number) -> Minima:
        """The minima of all four fits."""
        at_mu = self.fits_at(mu)  # first: it may lower the free fit
        return Minima(self.free, self.null, *at_mu)


class _Path:
    """The conditional minima of one data set as a function of the signal strength."""

    def __init__(self) -> None:
        self._solved: list[tuple[float, Minimum]] = []

    def add(self, mu: Number, found: Minimum) -> None:
        if all(mu != other for other, _ in self._solved):
            self._solved.append((float(mu), found))

    def at(self, mu: Number) -> Array:
        """The parameters to expect at a signal strength: interpolated, unless it is far away."""
        near = sorted(self._solved, key=lambda solved: abs(solved[0] - mu))[:_NEAR]
        strengths, ends = [m for m, _ in near], [found.theta for _, found in near]
        low, high = min(strengths), max(strengths)
        usable = all(is_settled(found.status) for _, found in near)
        if not usable or max(low - mu, mu - high) > high - low:
            return ends[0]
        return interpolated(strengths, ends, mu)


def interpolated(positions: Sequence[float], values: Sequence[Any], at: float) -> Any:
    """The polynomial through some values at distinct positions, by Lagrange's formula."""
    total = 0.0
    for i, (here, value) in enumerate(zip(positions, values, strict=True)):
        others = [other for j, other in enumerate(positions) if j != i]
        total = total + math.prod((at - other) / (here - other) for other in others) * value
    return total


@np.errstate(all="ignore")  # failed fits give NaN, and a status
def cls_of(engine: Engine, mu: Number, minima: Minima, test_statistic: str) -> CLs:
    """CLs from the four fits."""
    xp = engine.xp
    q, q_asimov = statistics_of(engine, mu, minima)
    observed, clsb, clb = asymptotic_cls(engine, q, q_asimov, test_statistic)
    return CLs(
        observed=plain(observed),
        expected=expected_cls(engine, q_asimov),
        mu=plain(mu),
        clsb=plain(clsb),
        clb=plain(clb),
        q=plain(q),
        q_asimov=plain(q_asimov),
        muhat=plain(poi_value(engine, minima.free)),
        status_code=plain(xp.maximum(status_of(xp, minima.null, *minima), _unlikely(xp, clb))),
        branches=most_branches(*(fit.branches for fit in minima)),
    )


def status_of(xp: Numpy, null: Minimum, *fits: Minimum) -> Array:
    """The code of `CLsStatus` for a test with these fits."""
    failed = ~is_settled(xp.concatenate([xp.ravel(fit.status) for fit in fits])).all()
    code = xp.where(failed, int(CLsStatus.NOT_CONVERGED), int(CLsStatus.CONVERGED))
    impossible = int(CLsStatus.IMPOSSIBLE_NULL)
    return xp.where(xp.isfinite(null.nll), code, impossible).astype(xp.int32)


def _unlikely(xp: Numpy, clb: Array) -> Array:
    """The code of a CLs whose denominator underflows."""
    return xp.where(clb > 0, 0, int(CLsStatus.UNLIKELY_NULL)).astype(xp.int32)


@in_float64
def bins_without_background(
    model: Model, data: DataSet = None, fixed: Fixed = None, init: Parameters = None
) -> list[BinYield]:
    """The bins that have events, and no background at the start of the fit without signal.

    They make CLs undefined. The arguments are those of `cls`.
    """
    engine = Eager(model, False)
    (null,) = hypotheses(engine, data_of(model, data), [0.0], as_fixed(model, fixed), init)
    cells = yields(engine.prepared, null.start, np)
    impossible = (null.data.main > 0) & (cells.sum(axis=0) <= TINY_YIELD)
    return yields_where(model.about, impossible, null.data, cells)


def statistics_of(engine: Engine, mu: Number, minima: Minima) -> tuple[Array, Array]:
    """The test statistics of the data and of the Asimov data."""
    # Without a background-only likelihood there is no expected result and no CLb.
    known = engine.xp.where(engine.xp.isfinite(minima.null.nll), 0.0, np.nan)
    q = one_sided(engine, mu, minima.free, minima.on_data)
    return q + known, q_of_asimov(engine, minima.on_asimov) + known


def q_of_asimov(engine: Engine, on_asimov: Minimum) -> Array:
    """The statistic of the Asimov data.

    Their free fit is not needed: its minimum is at the parameters that generated the data, where
    the likelihood is the constant of the constraints.
    """
    return engine.xp.maximum(2 * (on_asimov.nll - engine.floor), 0.0)


def asymptotic_cls(
    engine: Engine, q: Array, q_asimov: Array, test_statistic: str
) -> tuple[Array, Array, Array]:
    """CLs, CLs+b and CLb of an observed statistic; Eqs. 57-59 (q) and 64-66 (q̃) of the paper."""
    xp = engine.xp
    distance, root_asimov = deviation(engine, q, q_asimov, test_statistic)
    clsb, clb = engine.tail(xp.stack([distance + root_asimov, distance]))
    return clsb / clb, clsb, clb


def deviation(
    engine: Engine, q: Array, q_asimov: Array, test_statistic: str
) -> tuple[Array, Array]:
    """How far the data are from those expected without signal, in standard deviations; √qA."""
    xp = engine.xp
    root, root_asimov = square_root(q), square_root(q_asimov)
    distance = root - root_asimov
    if test_statistic == "qtilde":
        safe = xp.where(root_asimov > 0, root_asimov, 1.0)
        distance = xp.where(q > q_asimov, (q - q_asimov) / (2 * safe), distance)
    return distance, root_asimov


def expected_cls(engine: Engine, q_asimov: Array) -> Array:
    """CLs expected from background-only data, for all `BANDS`."""
    # An upward fluctuation of the background by N makes CLs larger.
    return engine.tail(square_root(q_asimov) - np.array(BANDS)) / np.array(BAND_TAILS)


class TestInProgram:
    """The fits of tests in a program: first without derivatives, by one search for all of them."""

    __test__ = False  # nothing for pytest to collect

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.engine, Traced)
        self.setup, self.engine = setup, setup.engine

    @cached_property
    def still(self) -> TestInProgram:
        """The same without derivatives."""
        still = jax.lax.stop_gradient
        engine = copy.copy(self.engine)
        engine.model, engine.prepared = still((engine.model, engine.prepared))
        data, fixed, init = still((self.setup.data, self.setup.fixed, self.setup.init))
        return TestInProgram(Setup(engine, data, fixed, init, self.setup.test_statistic))

    @property
    def still_model(self) -> Prepared:
        prepared: Prepared = self.still.engine.prepared
        return prepared

    def problem(self, turn: Array, mu: Number, null: Array, near: Array) -> Problem:
        """One of the four fits, without derivatives.

        null: the parameters at the minimum without signal. near: where the search starts.
        """
        still = self.still
        free, _ = still.setup.first_problems()
        (tested,) = hypotheses(
            still.engine,
            still.setup.data,
            [jnp.where(turn >= ON_DATA, mu, 0.0)],
            still.setup.fixed,
            still.setup.init,
        )
        data = where(turn == ON_ASIMOV, still.engine.asimov(null), still.setup.data)
        tested = tested._replace(data=data).starting_at(near, xp=jnp)
        return Problem(*where(turn == FREE, free, tested))

    def minima(self, mus: Array, first: Minimum, pairs: Minimum) -> tuple[Minima, Problem, Array]:
        """The minima with derivatives.

        mus: the tested strengths. first: the fits that do not depend on them. pairs: the others
        [strength, 2].
        Returns the minima, the last two of them stacked for all strengths, and the problems and the
        parameters of the fits: the free one, all to data, all to Asimov data.
        """
        engine, n = self.engine, len(mus)
        free, null = self.setup.first_problems()
        found_free, found_null = _at(first, FREE), _at(first, NULL)
        held = jnp.where(jnp.asarray(null.fixed) > 0, null.start, found_null.theta)
        found_null = found_null._replace(theta=held)
        asimov = engine.asimov(engine.followed(found_null, null))

        def problems_at(mu: Number) -> list[Problem]:
            return self.setup.problems_at(mu, asimov, (held, held))

        on_data, on_asimov = jax.vmap(problems_at)(mus)
        problems = _joined(_row(free), on_data, on_asimov)
        found = _joined(_row(found_free), *(_rows(pairs, i) for i in range(2)))
        found = with_derivatives(engine.prepared, problems, found)
        ends = (jax.tree.map(lambda a, i=i: a[1 + i * n : 1 + i * n + n], found) for i in range(2))
        return Minima(_at(found, 0), found_null, *ends), problems, found.theta


def _row(tree: T) -> T:
    row: T = jax.tree.map(lambda a: jnp.asarray(a)[None], tree)
    return row


def _rows(pairs: Minimum, i: int) -> Minimum:
    rows: Minimum = jax.tree.map(lambda a: a[:, i], pairs)
    return rows


def _joined(*trees: T) -> T:
    whole: T = jax.tree.map(lambda *a: jnp.concatenate(a), *trees)
    return whole


def _at(found: Minimum, i: int) -> Minimum:
    one: Minimum = jax.tree.map(lambda a: a[i], found)
    return one


def _in_program(setup: Setup, mu: Number) -> CLs:
    """CLs in a program."""
    test, still_mu = TestInProgram(setup), jax.lax.stop_gradient(mu)

    def problem_at(turn: Array, found: Minimum) -> Problem:
        # Near the free fit, but to Asimov data near the fit without signal.
        near = found.theta[jnp.maximum(turn - ON_DATA, FREE)]
        return test.problem(turn, still_mu, found.theta[NULL], near)

    found = minima_in_turn(test.still_model, 4, problem_at)
    first, pair = (jax.tree.map(lambda a, i=i: a[i : i + 2], found) for i in (FREE, ON_DATA))
    minima, *_ = test.minima(jnp.asarray(mu, float)[None], first, _row(pair))
    alone = (_at(fit, 0) for fit in minima[ON_DATA:])
    return cls_of(setup.engine, mu, Minima(*minima[:ON_DATA], *alone), setup.test_statistic)


def require_possible_strength(mu: Number, test_statistic: str) -> None:
    """Fails for a negative signal strength with q̃, which cannot exclude below zero."""
    if test_statistic == "qtilde" and not is_traced(mu) and np.any(np.asarray(mu) < 0):
        raise ModelError(
            f"mu = {np.min(mu):g} is negative, and with q̃ there is nothing to exclude below zero. "
            'Give mu ≥ 0, or test_statistic="q".'
        )
