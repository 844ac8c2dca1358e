"""The search for a minimum: bounded Newton steps with the exact Hessian, in one loop.

A step solves `(H + λ|diag H|) p = -g` for the free parameters: those that are neither fixed nor
held by a bound against which the gradient pushes. Far from the minimum H is the positive part of
the Hessian; near it H is the exact Hessian, which far away may not be positive definite. A step
that does not lower the negative log-likelihood is shortened until it does. At a saddle point, where
there is no slope to follow, the search leaves along the most negative curvature. The γ block is
diagonal and is eliminated first, so the factorised matrix has the size of α and φ only.

λ is zero unless the matrix is singular. Where the likelihood does not depend on a combination of
parameters it always is: steps then stay damped by 1e-8, which changes nothing in the other
directions, and at rest the undamped Hessian decides between a minimum and a flat direction.

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
_DAMPING_START, _DAMPING_LIMIT = 1e-8, 1e6
#: Below this EDM an exact Hessian that is singular is damped, not replaced by its positive part.
_EDM_AT_REST = 1e-2
#: A Hessian that needs no more damping than this has no negative curvature, only a flat direction.
_FLAT_DAMPING = 1e-6
_SHORTER, _SHORTEST = 0.25, 1e-12
#: Step length away from a saddle point, in units of a parameter's own width.
_KICK = 0.2


class Status(IntEnum):
    """How a fit ended."""

    CONVERGED = 0
    ITERATION_LIMIT = 1
    STALLED = 2
    IMPOSSIBLE_START = 3
    NOT_DETERMINED = 4
    NOT_PROVEN_LOWEST = 5
    NEGATIVE_EXPECTATION = 6

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
    Status.NOT_DETERMINED: (
        "the likelihood is at its minimum, but does not depend on a combination of parameters (see "
        "undetermined): their values are those nearest to the start. Fix one of them, or take one "
        "out of the model."
    ),
    Status.NOT_PROVEN_LOWEST: (
        "a minimum, but the searches from other starts did not settle that none is lower. Start "
        "from elsewhere (init=...), bound parameters more tightly, or look at a scan."
    ),
    Status.IMPOSSIBLE_START: (
        "the likelihood is zero or undefined at the starting point: a bin with events expects "
        "none, or no parameters keep all samples positive (require_positive=True). Give another "
        "init=..., or check the parameters that are fixed."
    ),
    Status.NEGATIVE_EXPECTATION: (
        "the fit expects fewer than no events in bins that have none (see .negative_bins): the "
        "likelihood has no lower bound there, so only bounds or constraints of parameters stop "
        "the fit. Bound these parameters so that no yield becomes negative, or merge the bins."
    ),
}


def is_settled(status: Array) -> Array:
    """Whether the height of the minimum is known, if not every parameter there."""
    return (status == int(Status.CONVERGED)) | (status == int(Status.NOT_DETERMINED))


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
    covariance: Array | None = None  # where it is not the inverse Hessian: at walls of `positivity`


class SearchState(NamedTuple):
    """A search between two evaluations."""

    theta: Array  # the best point so far
    nll: Array  # there
    trial: Array  # where to evaluate next
    at: Evaluation  # the last evaluation without its Hessian, whose copy would cost 5 %
    own: Array  # the diagonal of its Hessian
    back: Array  # the trial is `theta` again, because the last trial or its matrix failed
    singular: Array  # the matrix at `theta` was
    flat: Array  # 1 while steps stay damped, 2 when the undamped Hessian decides
    length: Array  # of the step, at most 1
    damping: Array
    exactness: Array  # 1: the exact Hessian, 0: its positive part
    edm: Array  # at the last point whose matrix was not singular
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
        singular=xp.zeros((), bool),
        flat=xp.zeros((), xp.int32),
        length=xp.ones(()),
        damping=xp.zeros(()),
        exactness=xp.zeros(()),
        edm=xp.asarray(xp.inf),
        iterations=xp.zeros((), xp.int32),
        done=xp.asarray(idle, bool),
    )


def is_searching(state: SearchState) -> Array:
    # Do not stop while going back: the last evaluation must belong to the last point. But a point
    # whose likelihood is not a number with these data may never be reached again.
    in_time = (state.iterations < ITERATION_LIMIT) | state.back
    return ~state.done & in_time & (state.iterations < 2 * ITERATION_LIMIT)


def finish_search(problem: Problem, end: SearchState, xp: Numpy = jnp) -> Minimum:
    """The result of a search."""
    negative = xp.any(is_negative(end.at.cells, problem.data.main, xp)) & xp.isfinite(end.nll)
    status = xp.where(negative, int(Status.NEGATIVE_EXPECTATION), _outcome(end, xp))
    return Minimum(
        theta=end.theta,
        nll=end.nll,
        free=_free_parameters(problem, end.theta, end.at.gradient, end.own, xp),
        edm=end.edm,
        iterations=end.iterations,
        status=status.astype(xp.int32),
        branches=xp.ones((), xp.int32),
    )


def is_negative(cells: Array, main: Array, xp: Numpy = jnp) -> Array:
    """True for bins without events whose expectation is negative by more than rounding [bin].

    There the likelihood is linear in the expectation: it falls without limit. (A bin with events
    makes it impossible instead.)
    """
    rounding = EDM_TOLERANCE + 1e-13 * xp.max(xp.abs(cells))
    return (main == 0) & (xp.sum(cells, axis=0) < -rounding)


def is_minimum(found: Minimum) -> Array:
    """Whether a search ended at a minimum: perhaps not the only or the lowest one.

    One with an expectation below zero counts, if it reached its EDM tolerance.
    """
    negative = (found.status == int(Status.NEGATIVE_EXPECTATION)) & (found.edm <= EDM_TOLERANCE)
    unproven = found.status == int(Status.NOT_PROVEN_LOWEST)
    return is_settled(found.status) | unproven | negative


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
    noise = 4e-15 * (1 + xp.abs(xp.sum(problem.data.main)))
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
    singular = accepted & xp.isnan(edm)
    kick, is_saddle = _away_from_saddle(hessian, at.gradient, free, xp)
    move = xp.where(singular, kick, length * move)

    at_rest = forward & (state.edm < EDM_TOLERANCE) & (edm > 0.1 * state.edm)
    resting = accepted & (exactness == 1) & (edm >= 0) & ((edm < EDM_GOAL) | at_rest)
    arrived = resting & (damping == 0)
    undecided = resting & (damping > 0) & (damping <= _FLAT_DAMPING)
    is_flat = singular & (state.flat == 2)
    # Before the first accepted step there is nowhere to go back to.
    hopeless = (damping > _DAMPING_LIMIT) | (length < _SHORTEST)
    lost = xp.where(state.back, hopeless, ~accepted & xp.isinf(state.nll))
    stays = undecided | (singular & ~is_saddle)
    here = xp.where(accepted, state.trial, state.theta)
    goes = accepted & ~stays
    trial = xp.where(goes, _bounded(problem, state.trial + move, xp), here)
    return SearchState(
        # The last step is below the rounding of the likelihood, but matters for derivatives.
        theta=xp.where(arrived, trial, here),
        nll=xp.where(accepted, at.nll, state.nll),
        trial=trial,
        at=at._replace(curvature=None),
        own=own,
        back=~goes,
        singular=xp.where(accepted, singular, state.singular),
        flat=xp.where(undecided, 2, xp.where(singular, xp.maximum(state.flat, 1), state.flat)),
        length=length,
        damping=damping,
        exactness=exactness,
        edm=xp.where(accepted & ~singular, edm, state.edm),
        iterations=state.iterations + 1,
        done=arrived | is_flat | lost,
    )


def _next_attempt(
    state: SearchState, accepted: Array, forward: Array, xp: Numpy
) -> tuple[Array, Array, Array]:
    """Length, damping and exactness of the next step, depending on the last one.

    forward: the last step was accepted and was not a step back.
    """
    # A singular matrix: damp. Any other failed step was too long.
    singular = state.singular
    raised = xp.maximum(100 * state.damping, _DAMPING_START)
    lowered = xp.where(state.flat == 1, xp.maximum(0.01 * state.damping, _DAMPING_START), 0.0)
    damping = xp.where(accepted & singular, raised, state.damping)
    damping = xp.where(forward, lowered, damping)
    damping = xp.where(state.flat == 2, 0.0, damping)
    shorter = xp.where(singular, state.length, _SHORTER * state.length)
    kept_length = xp.where(accepted, state.length, shorter)
    length = xp.where(forward, xp.minimum(1.0, 2 * state.length), kept_length)
    # The exact Hessian near the minimum, and where its positive part overshot; once exact,
    # always exact, unless it is not positive definite far from a minimum.
    wanted = (state.edm < EDM_NEAR) | (state.length < 1) | (state.exactness == 1)
    kept = (state.exactness == 1) & (~singular | (state.edm < _EDM_AT_REST))
    return length, damping, xp.where(xp.where(forward, wanted, kept), 1.0, 0.0)


def _outcome(end: SearchState, xp: Numpy) -> Array:
    """The status of a stopped search."""
    small = (end.exactness == 1) & (end.edm >= 0) & (end.edm <= EDM_TOLERANCE)
    converged = small & (end.damping == 0) & ~end.singular
    failure = xp.where(
        end.done,
        xp.where(xp.isinf(end.nll), int(Status.IMPOSSIBLE_START), int(Status.STALLED)),
        int(Status.ITERATION_LIMIT),
    )
    flat = small & end.singular & (end.flat == 2)
    failure = xp.where(flat, int(Status.NOT_DETERMINED), failure)
    return xp.where(converged, int(Status.CONVERGED), failure).astype(xp.int32)


def _free_parameters(
    problem: Problem, theta: Array, gradient: Array, own: Array, xp: Numpy
) -> Array:
    """1 for a parameter that may move; 0 if it is fixed, held by a bound, or without effect."""
    held = (problem.fixed > 0) | ((theta <= problem.lower) & (gradient > 0))
    held |= (theta >= problem.upper) & (gradient < 0)
    held |= (gradient == 0) & (own == 0)
    return xp.where(held, 0.0, 1.0)


def _away_from_saddle(
    hessian: Blocks, gradient: Array, free: Array, xp: Numpy
) -> tuple[Array, Array]:
    """A step along the parameter with the most negative curvature, and whether there is one."""
    n = hessian.dense.shape[0]
    own = xp.where(free[:n] > 0, xp.diagonal(hessian.dense), 0.0)
    # Not argmin: in a 32-bit program JAX cannot lower it for 64-bit numbers.
    lowest = xp.min(own)
    down = xp.where(gradient[:n] > 0, -_KICK, _KICK)
    kick = xp.where(own == lowest, down, 0.0)
    return xp.concatenate([kick, xp.zeros_like(gradient[n:])]), lowest < 0
