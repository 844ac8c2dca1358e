"""Hypotheses, fits and statistics common to all tests of a signal strength."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firstlight.histfactory.argument_checks import ModelError, require_number
from firstlight.histfactory.array_types import Array, Count, Number, Numpy, Parameters
from firstlight.histfactory.engine import Engine, Traced
from firstlight.histfactory.fitting import Fixed, problem_of
from firstlight.histfactory.internal_order import poi_position
from firstlight.histfactory.lazy_jax import jnp
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.newton import Minimum, Problem, WarmStart
from firstlight.histfactory.numpy_or_jax import plain, put
from firstlight.histfactory.precision import is_traced

#: A conditional fit lower than the free fit by more than this is in another minimum.
DISAGREEMENT = 1e-9

#: A test statistic below this is the rounding error of two equal likelihoods. Its root is zero by
#: definition: the derivative of the root would be that error divided by almost zero.
ROUNDING = 1e-12


def hypotheses(
    engine: Engine, data: Data, mus: Sequence[Number | None], fixed: Fixed, init: Parameters
) -> list[Problem]:
    """One problem per signal strength; None leaves it free."""
    base = problem_of(engine, data, fixed, init)
    model = engine.model
    if None in mus and base.fixed[poi_position(model)] > 0:
        raise ModelError(
            f"{model.about.source}: the parameter of interest {model.poi!r} is fixed, so it cannot "
            f"be tested. Free it: fixed={{{model.poi!r}: False}}."
        )
    return [base if mu is None else _at_strength(engine, base, mu) for mu in mus]


def _at_strength(engine: Engine, problem: Problem, mu: Number) -> Problem:
    """The problem with the signal strength fixed at `mu`."""
    index = poi_position(engine.model)
    start = put(problem.start, index, require_number(mu, "mu"))
    return problem._replace(start=start, fixed=put(problem.fixed, index, 1.0), guess=start)


def bounded(engine: Engine, problem: Problem, statistic: str) -> Problem:
    """The problem with the bounds on the signal strength that the test statistic requires."""
    index = poi_position(engine.model)
    lower, upper = problem.lower, problem.upper
    bound = lower[index]
    if statistic == "qtilde":
        bound = engine.xp.maximum(bound, 0.0)
    elif statistic == "q":
        bound = engine.xp.where(bound < 0, bound, -upper[index])
    # A limit may exceed the workspace's upper bound, and so may the best fit.
    return problem._replace(lower=put(lower, index, bound), upper=put(upper, index, np.inf))


def free_and_conditional(
    engine: Engine, free: Problem, conditional: Problem, warm_start: WarmStart | None = None
) -> list[Minimum]:
    """The free and the conditional fit. Outside a program, the free fit is never the higher one."""
    best, at_mu = engine.chain([free, conditional], warm_start)
    return [not_above(engine, best, at_mu, free), at_mu]


def is_above(fit: Minimum, other: Minimum) -> bool:
    """Whether a fit ended higher than another one, and so in another minimum."""
    return bool(other.nll < fit.nll - DISAGREEMENT)


def not_above(engine: Engine, free: Minimum, held: Minimum, problem: Problem) -> Minimum:
    """The free fit, made again where a fit with a parameter held is lower.

    That minimum is open to the free fit, which was therefore in another one. In a program the free
    fit stays as it is.
    """
    if isinstance(engine, Traced) or not is_above(free, held):
        return free
    if not np.all((held.theta >= problem.lower) & (held.theta <= problem.upper)):
        return free
    (again,) = engine.chain([problem.starting_at(held.theta)])
    return again._replace(branches=most_branches(2, again.branches))


def poi_value(engine: Engine, found: Minimum) -> Array:
    return found.theta[poi_position(engine.model)]


def difference(engine: Engine, conditional: Minimum, free: Minimum) -> Array:
    """2 ΔNLL, clipped at zero because rounding can make it negative."""
    with np.errstate(invalid="ignore"):  # infinities of failed fits give NaN
        return engine.xp.maximum(2 * (conditional.nll - free.nll), 0.0)


def one_sided(engine: Engine, mu: Number, free: Minimum, at_mu: Minimum) -> Array:
    muhat = poi_value(engine, free)
    return engine.xp.where(muhat > mu, 0.0, difference(engine, at_mu, free))


def square_root(q: Number) -> Number:
    """√q of a test statistic; zero, with zero derivative, where q is only rounding."""
    xp: Numpy = jnp if is_traced(q) else np
    none = q <= ROUNDING
    return plain(xp.where(none, 0.0, xp.sqrt(xp.where(none, 1.0, q))))


def most_branches(*counts: Count) -> Count:
    """The largest of several numbers of minima, elementwise under `vmap`."""
    return plain((jnp if is_traced(counts) else np).stack(counts).max(axis=0))


def require_statistic(name: str, among: tuple[str, ...] = ("q", "qtilde")) -> None:
    if name not in among:
        raise ModelError(f"test_statistic {name!r} is not one of {', '.join(map(repr, among))}.")
