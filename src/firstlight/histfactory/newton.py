"""The search for a minimum: bounded Newton steps with the exact Hessian, in one loop.

A step solves `(H + λ|diag H|) p = -g` for the free parameters: those that are neither fixed nor
held by a bound against which the gradient pushes. Far from the minimum H is the positive part of
the Hessian; near it H is the exact Hessian, which far away may not be positive definite. A step
that does not lower the negative log-likelihood is shortened until it does; λ is zero unless even
the positive part is singular. At a saddle point, where there is no slope to follow, the search
leaves along the most negative curvature. The γ block is diagonal and is eliminated first, so the
factorised matrix has the size of α and φ only.

EDM, the estimated distance to the minimum, is `½ gᵀH⁻¹g` on the free parameters. Newton's method
squares it in every step, so the loop continues until rounding stops it: derivatives of the result
are only as exact as the point they are taken at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from firstlight.histfactory.array_types import Array, Numpy
from firstlight.histfactory.closed_form import (
    Blocks,
    Curvature,
    Evaluation,
    assemble,
    evaluate,
    no_evaluation,
    own_curvature,
)
from firstlight.histfactory.lazy_jax import jnp, pytree
from firstlight.histfactory.likelihood import Data, Prepared
from firstlight.histfactory.linear_systems import newton_step
from firstlight.histfactory.numpy_or_jax import while_loop

#: A fit that stops with a larger EDM has not converged.
EDM_TOLERANCE = 1e-8
#: The loop continues down to this EDM if rounding permits.
EDM_GOAL = 1e-18
#: Below this EDM the next Hessian is the exact one.
EDM_NEAR = 0.5
ITERATION_LIMIT = 500
_DAMPING_START, _DAMPING_LIMIT = 1e-10, 1e6
_SHORTER, _SHORTEST = 0.25, 1e-12
#: Step length away from a saddle point, in units of a parameter's own width.
_KICK = 0.2


class Status(IntEnum):
    """How a fit ended."""

    CONVERGED = 0
    ITERATION_LIMIT = 1
    STALLED = 2
    IMPOSSIBLE_START = 3

    @property
    def message(self) -> str:
        """An explanation, with advice."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.CONVERGED: f"converged: EDM ≤ {EDM_TOLERANCE:g}",
    Status.ITERATION_LIMIT: (
        f"not converged in {ITERATION_LIMIT} steps. Start closer to the minimum (init=...), fix "
        "parameters that the data do not constrain, or use code4 and code4p: codes 0, 1 and 2 have "
        "kinks, around which a search can oscillate."
    ),
    Status.STALLED: (
        "no step improves the likelihood any more, but EDM is above its tolerance: the Hessian is "
        "not positive definite there, or the likelihood has a kink (codes 0, 1 and 2). Fix "
        "parameters that the data do not constrain, or use code4 and code4p."
    ),
    Status.IMPOSSIBLE_START: (
        "the likelihood is zero or undefined at the starting point: a bin with events expects "
        "none. Give another init=..."
    ),
}


class Problem(NamedTuple):
    """A minimisation: data, a starting point, fixed parameters and bounds."""

    data: Data
    start: Array  # the problem's own start
    fixed: Array  # 1 where a parameter stays where it starts
    lower: Array
    upper: Array
    guess: Array  # where to begin: `start`, or a better known point
    near: Array = 0.0  # 1 if the guess is close, such as the minimum of a similar problem

    def starting_at(self, theta: Array, near: float = 1.0, xp: Numpy = np) -> Problem:
        """The same problem with another guess for all but its fixed parameters."""
        return self._replace(guess=xp.where(self.fixed > 0, self.start, theta), near=near)


@pytree
@dataclass(frozen=True)
class WarmStart:
    """The ends of fits, as starting points for a similar problem: fewer steps, same minimum."""

    free: Array  # parameters of the free fit
    conditional: Array
    known: Array  # 0 if a fit did not converge: the next fits then start cold

    def map(self, change: Callable[[Array], Array]) -> WarmStart:
        """The same with transformed parameters, for example in another order."""
        return WarmStart(change(self.free), change(self.conditional), self.known)


class Minimum(NamedTuple):
    """The end of a search."""

    theta: Array
    nll: Array  # above the saturated model
    free: Array  # 1 where a parameter was neither fixed nor held by a bound
    edm: Array
    iterations: Array
    status: Array
    branches: Array  # number of minima found, including this one
    curvature: Curvature | None = None  # the Hessian there, in a program that JAX transforms


class SearchState(NamedTuple):
    """A search between two evaluations."""

    theta: Array  # the best point so far
    nll: Array  # there
    trial: Array  # where to evaluate next
    at: Evaluation  # the last evaluation without its Hessian, whose copy would cost 5 %
    own: Array  # the diagonal of its Hessian
    back: Array  # the trial is `theta` again, because the last trial failed
    length: Array  # of the step, at most 1
    damping: Array
    exactness: Array  # 1: the exact Hessian, 0: its positive part
    edm: Array
    iterations: Array
    done: Array


def search(
    model: Prepared,
    problem: Problem,
    start: Array,
    near: Array = 0.0,
    idle: Array = False,
    xp: Numpy = jnp,
) -> tuple[Minimum, Evaluation]:
    """The local minimum downhill of `start`, with value and gradient there (no Hessian).

    Never raises; see `status`.

    near: 1 if the start is close to the minimum; idle: True to do nothing, as part of a batch.
    """
    end = while_loop(
        is_searching,
        lambda state: search_step(model, problem, near, state, xp),
        begin_search(model, problem, start, idle, xp),
        xp,
    )
    return finish_search(problem, end, xp), end.at


def begin_search(
    model: Prepared, problem: Problem, start: Array, idle: Array = False, xp: Numpy = jnp
) -> SearchState:
    """A search before its first evaluation."""
    start = _bounded(problem, start, xp)
    return SearchState(
        theta=start,
        nll=xp.asarray(xp.inf),
        trial=start,
        at=no_evaluation(model, xp),
        own=xp.zeros_like(start),
        back=xp.zeros((), bool),
        length=xp.ones(()),
        damping=xp.zeros(()),
        exactness=xp.zeros(()),
        edm=xp.asarray(xp.inf),
        iterations=xp.zeros((), xp.int32),
        done=xp.asarray(idle, bool),
    )


def is_searching(state: SearchState) -> Array:
    # Do not stop while going back: the last evaluation must belong to the last point.
    return ~state.done & ((state.iterations < ITERATION_LIMIT) | state.back)


def finish_search(problem: Problem, end: SearchState, xp: Numpy = jnp) -> Minimum:
    """The result of a search."""
    return Minimum(
        theta=end.theta,
        nll=end.nll,
        free=_free_parameters(problem, end.theta, end.at.gradient, end.own, xp),
        edm=end.edm,
        iterations=end.iterations,
        status=_outcome(end, xp),
        branches=xp.ones((), xp.int32),
    )


def _bounded(problem: Problem, theta: Array, xp: Numpy) -> Array:
    return xp.where(problem.fixed > 0, theta, xp.clip(theta, problem.lower, problem.upper))


def search_step(
    model: Prepared, problem: Problem, near: Array, state: SearchState, xp: Numpy = jnp
) -> SearchState:
    """Evaluate the trial. The next trial is a step further, or back if this one was no better.

    Failed steps are rare, so the last good evaluation is not kept in the state: the search goes
    back and evaluates again.
    """
    # Rounding error of a sum with as many terms as there are events.
    noise = 4e-15 * (1 + xp.sum(problem.data.main))
    at = evaluate(model, problem.data, state.trial, xp=xp)
    assert at.curvature is not None
    own = own_curvature(at.curvature, xp)
    finite = xp.isfinite(at.nll) & xp.all(xp.isfinite(at.gradient))
    accepted = finite & (at.nll <= state.nll + noise)
    forward = accepted & ~state.back
    length, damping, exactness = _next_attempt(state, accepted, forward, xp)
    exactness = xp.where(state.iterations == 0, near, exactness)
    free = _free_parameters(problem, state.trial, at.gradient, own, xp)
    hessian = assemble(at.curvature, exactness, xp)
    move, edm = newton_step(hessian, at.gradient, free, damping, xp)
    kick = _away_from_saddle(hessian, at.gradient, free, xp)
    move = xp.where(xp.isnan(edm), kick, length * move)

    at_rest = forward & (state.edm < EDM_TOLERANCE) & (edm > 0.1 * state.edm)
    exact = (damping == 0) & (exactness == 1) & (edm >= 0)
    arrived = accepted & exact & ((edm < EDM_GOAL) | at_rest)
    # Before the first accepted step there is nowhere to go back to.
    hopeless = (damping > _DAMPING_LIMIT) | (length < _SHORTEST)
    lost = xp.where(state.back, hopeless, ~accepted & xp.isinf(state.nll))
    trial = xp.where(accepted, _bounded(problem, state.trial + move, xp), state.theta)
    # The last step is below the rounding of the likelihood, but matters for derivatives.
    theta = xp.where(arrived, trial, xp.where(accepted, state.trial, state.theta))
    return SearchState(
        theta=theta,
        nll=xp.where(accepted, at.nll, state.nll),
        trial=trial,
        at=at._replace(curvature=None),
        own=own,
        back=~accepted,
        length=length,
        damping=damping,
        exactness=exactness,
        edm=xp.where(accepted, edm, state.edm),
        iterations=state.iterations + 1,
        done=arrived | lost,
    )


def _next_attempt(
    state: SearchState, accepted: Array, forward: Array, xp: Numpy
) -> tuple[Array, Array, Array]:
    """Length, damping and exactness of the next step, depending on the last one.

    forward: the last step was accepted and was not a step back.
    """
    # A NaN step means a singular matrix: damp. Any other failed step was too long.
    singular = xp.isnan(state.edm)
    raised = xp.maximum(100 * state.damping, _DAMPING_START)
    damping = xp.where(accepted, state.damping, xp.where(singular, raised, state.damping))
    damping = xp.where(forward & (state.damping <= _DAMPING_START), 0.0, damping)
    damping = xp.where(forward, 0.01 * damping, damping)
    shorter = xp.where(singular, state.length, _SHORTER * state.length)
    kept_length = xp.where(accepted, state.length, shorter)
    length = xp.where(forward, xp.minimum(1.0, 2 * state.length), kept_length)
    # The exact Hessian near the minimum, and where its positive part overshot; once exact,
    # always exact, unless it is not positive definite.
    wanted = (state.edm < EDM_NEAR) | (state.length < 1) | (state.exactness == 1)
    exact = xp.where(forward, wanted, state.exactness == 1) & ~singular
    return length, damping, xp.where(exact, 1.0, 0.0)


def _outcome(end: SearchState, xp: Numpy) -> Array:
    """The status of a stopped search."""
    exact = (end.damping == 0) & (end.exactness == 1)
    converged = exact & (end.edm >= 0) & (end.edm <= EDM_TOLERANCE)
    failure = xp.where(
        end.done,
        xp.where(xp.isinf(end.nll), int(Status.IMPOSSIBLE_START), int(Status.STALLED)),
        int(Status.ITERATION_LIMIT),
    )
    return xp.where(converged, int(Status.CONVERGED), failure).astype(xp.int32)


def _free_parameters(
    problem: Problem, theta: Array, gradient: Array, own: Array, xp: Numpy
) -> Array:
    """1 for a parameter that may move; 0 if it is fixed, held by a bound, or without effect."""
    held = (problem.fixed > 0) | ((theta <= problem.lower) & (gradient > 0))
    held |= (theta >= problem.upper) & (gradient < 0)
    held |= (gradient == 0) & (own == 0)
    return xp.where(held, 0.0, 1.0)


def _away_from_saddle(hessian: Blocks, gradient: Array, free: Array, xp: Numpy) -> Array:
    """A step along the parameter with the most negative curvature; NaN if there is none."""
    n = hessian.dense.shape[0]
    own = xp.where(free[:n] > 0, xp.diagonal(hessian.dense), 0.0)
    # Not argmin: in a 32-bit program JAX cannot lower it for 64-bit numbers.
    lowest = xp.min(own)
    down = xp.where(gradient[:n] > 0, -_KICK, _KICK)
    kick = xp.where(own == lowest, down, 0.0)
    kick = xp.where(lowest < 0, kick, xp.nan)
    return xp.concatenate([kick, xp.zeros_like(gradient[n:])])
