"""The search for the minimum: bounded Newton steps with the exact Hessian, in one loop.

A step solves `(H + λ|diag H|) p = -g` for the free parameters: those that are neither fixed nor
held by a bound against which the gradient pushes. Far from the minimum H is the positive part of
the Hessian; near it H is the exact Hessian, which far away may not be positive definite. A step
that does not lower the negative log-likelihood is shortened until it does; λ is zero unless even
the positive part is singular. At a saddle point, where there is no slope to follow, the search
leaves along the most negative curvature. The γ block is diagonal and is eliminated first, so the
factorised matrix has the size of α and φ only.

EDM, the estimated distance to the minimum, is `½ gᵀH⁻¹g` on the free parameters. Newton's method
squares it in every step, so the loop continues until rounding stops it: derivatives of the result
are as exact as the point they are taken at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.likelihood import (
    Blocks,
    Data,
    Evaluation,
    Prepared,
    assemble,
    evaluate,
    own_curvature,
)

#: A fit whose EDM is above this has not converged, whatever made it stop.
EDM_TOLERANCE = 1e-8
#: The loop continues down to this EDM if it can.
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
        """What it means and what to do."""
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
    """What to minimise: data, a starting point, and what constrains the parameters."""

    data: Data
    start: Any  # the problem's own start
    fixed: Any  # 1 where a parameter stays where it starts
    lower: Any
    upper: Any
    guess: Any  # where to begin: `start`, or a better known point
    near: Any = 0.0  # 1 if the guess is close, such as the minimum of a similar problem

    def starting_at(self, theta: Any, near: float = 1.0, xp: Any = np) -> Problem:
        """The same problem, started elsewhere except for its fixed parameters."""
        return self._replace(guess=xp.where(self.fixed > 0, self.start, theta), near=near)


@pytree
@dataclass(frozen=True)
class WarmStart:
    """Where fits ended, as a start for fits of a similar problem: fewer steps, same minimum."""

    free: Any  # parameters of the free fit
    conditional: Any
    known: Any  # 0 if a fit did not converge: the next fits then start cold

    def map(self, change: Callable[[Any], Any]) -> WarmStart:
        """The same with transformed parameters, such as in another order."""
        return WarmStart(change(self.free), change(self.conditional), self.known)


class Minimum(NamedTuple):
    """Where the search ended."""

    theta: Any
    nll: Any  # above the saturated model
    free: Any  # 1 where a parameter was neither fixed nor held by a bound
    edm: Any
    iterations: Any
    status: Any
    branches: Any  # how many minima were found, including this one
    curvature: Any = None  # the Hessian there, as `Curvature`, in a program that JAX transforms


class _State(NamedTuple):
    theta: Any  # the best point so far
    nll: Any  # there
    trial: Any  # where to evaluate next
    at: Evaluation  # the last evaluation, without its Hessian: a copy of that would cost 5 %
    own: Any  # the diagonal of that Hessian
    back: Any  # the trial is `theta` again, because the last trial failed
    length: Any  # of the step, at most 1
    damping: Any
    exactness: Any  # 1: the exact Hessian, 0: its positive part
    edm: Any
    iterations: Any
    done: Any


def map_leaves(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Like `jax.tree.map`, for named tuples of arrays, before JAX is imported."""
    if first is None:
        return None
    if not isinstance(first, tuple):
        return function(first, *others)
    parts = zip(first, *others, strict=True)
    values = [map_leaves(function, *part) for part in parts]
    return type(first)(*values) if hasattr(first, "_fields") else tuple(values)


def row_of(stacked: Any, i: int) -> Any:
    """One of several problems, or of several minima."""
    return map_leaves(lambda a: a[i], stacked)


def while_loop(proceed: Any, step: Any, state: Any, xp: Any) -> Any:
    """A loop in Python for NumPy, part of the program for JAX."""
    if xp is not np:
        return jax.lax.while_loop(proceed, step, state)
    while proceed(state):
        state = step(state)
    return state


def nothing_like(xp: Any, function: Any, *arguments: Any) -> Any:
    """Zeros in the shapes that `function` returns, which a loop in a program begins with."""
    if xp is np:
        return None
    shapes = jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def search(
    model: Prepared,
    data: Data,
    start: Any,
    fixed: Any,
    lower: Any,
    upper: Any,
    near: Any = 0.0,
    idle: Any = False,
    xp: Any = jnp,
) -> tuple[Minimum, Evaluation]:
    """The local minimum downhill of `start`, with value and gradient there (no Hessian).

    Never raises; see `status`.

    near: 1 if the start is close to it; idle: True to do nothing, alongside others in a batch.

    Failed steps are rare, so the last good evaluation is not kept alongside the current one: the
    search goes back and evaluates again.
    """
    # Rounding error of a sum with as many terms as there are events.
    noise = 4e-15 * (1 + xp.sum(data.main))

    def bounded(theta: Any) -> Any:
        return xp.where(fixed > 0, theta, xp.clip(theta, lower, upper))

    def step(state: _State) -> _State:
        at = evaluate(model, data, state.trial, xp=xp)
        assert at.curvature is not None
        own = own_curvature(at.curvature, xp)
        finite = xp.isfinite(at.nll) & xp.all(xp.isfinite(at.gradient))
        accepted = finite & (at.nll <= state.nll + noise)
        forward = accepted & ~state.back
        length, damping, exactness = _next_attempt(state, accepted, forward, xp)
        exactness = xp.where(state.iterations == 0, near, exactness)
        free = _free_parameters(state.trial, at.gradient, own, fixed, lower, upper, xp)
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
        trial = xp.where(accepted, bounded(state.trial + move), state.theta)
        # The last step is below the rounding of the likelihood, but matters for derivatives.
        theta = xp.where(arrived, trial, xp.where(accepted, state.trial, state.theta))
        return _State(
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

    start = bounded(start)
    end = while_loop(
        # Not while going back: the last evaluation must be that of the last point.
        lambda s: ~s.done & ((s.iterations < ITERATION_LIMIT) | s.back),
        step,
        _State(
            theta=start,
            nll=xp.asarray(xp.inf),
            trial=start,
            at=nothing_like(xp, partial(evaluate, curvature=False), model, data, start),
            own=xp.zeros_like(start),
            back=xp.zeros((), bool),
            length=xp.ones(()),
            damping=xp.zeros(()),
            exactness=xp.zeros(()),
            edm=xp.asarray(xp.inf),
            iterations=xp.zeros((), xp.int32),
            done=xp.asarray(idle, bool),
        ),
        xp,
    )
    found = Minimum(
        theta=end.theta,
        nll=end.nll,
        free=_free_parameters(end.theta, end.at.gradient, end.own, fixed, lower, upper, xp),
        edm=end.edm,
        iterations=end.iterations,
        status=_outcome(end, xp),
        branches=xp.ones((), xp.int32),
    )
    return found, end.at


def _next_attempt(state: _State, accepted: Any, forward: Any, xp: Any) -> tuple[Any, Any, Any]:
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


def _outcome(end: _State, xp: Any) -> Any:
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
    theta: Any, gradient: Any, own: Any, fixed: Any, lower: Any, upper: Any, xp: Any
) -> Any:
    """1 for a parameter that may move; 0 if it is fixed, held by a bound, or without effect."""
    held = (fixed > 0) | ((theta <= lower) & (gradient > 0))
    held |= (theta >= upper) & (gradient < 0)
    held |= (gradient == 0) & (own == 0)
    return xp.where(held, 0.0, 1.0)


def _away_from_saddle(hessian: Blocks, gradient: Any, free: Any, xp: Any) -> Any:
    """A step along the parameter with the most negative curvature; NaN if there is none."""
    n = hessian.dense.shape[0]
    own = xp.where(free[:n] > 0, xp.diagonal(hessian.dense), 0.0)
    # Not argmin: in a 32-bit program JAX cannot lower it for 64-bit numbers.
    lowest = xp.min(own)
    down = xp.where(gradient[:n] > 0, -_KICK, _KICK)
    kick = xp.where(own == lowest, down, 0.0)
    kick = xp.where(lowest < 0, kick, xp.nan)
    return xp.concatenate([kick, xp.zeros_like(gradient[n:])])


class _Reduced(NamedTuple):
    """The damped Hessian of the free parameters without γ, scaled to a unit diagonal."""

    matrix: Any
    scale: Any
    coupling: Any
    inverse_diagonal: Any  # of γ; zero where γ is not free


def _reduce(hessian: Blocks, free: Any, damping: Any, xp: Any) -> _Reduced:
    n_dense = hessian.dense.shape[0]
    free_dense, free_gamma = free[:n_dense], free[n_dense:] > 0
    gamma = hessian.diagonal + damping * xp.where(hessian.diagonal > 0, hessian.diagonal, 1.0)
    positive = gamma > 0
    # A free γ without curvature cannot be eliminated; NaN reports this, as Cholesky does.
    inverse = xp.where(free_gamma, xp.where(positive, 1 / gamma, xp.nan), 0.0)
    reduced = hessian.dense - (hessian.coupling.T * inverse) @ hessian.coupling
    size = xp.abs(xp.diagonal(reduced))
    scale = free_dense / xp.sqrt(xp.where(size > 0, size, 1.0))
    matrix = scale[:, None] * reduced * scale
    matrix += xp.diag(xp.where(free_dense > 0, damping, 1.0))
    return _Reduced(matrix, scale, hessian.coupling * scale, inverse)


def newton_step(
    hessian: Blocks, gradient: Any, free: Any, damping: Any, xp: Any = jnp
) -> tuple[Any, Any]:
    """The damped Newton step and the EDM; NaN if the matrix is not positive definite."""
    n = hessian.dense.shape[0]
    matrix, scale, coupling, inverse = _reduce(hessian, free, damping, xp)
    gradient = gradient * free
    dense, gamma = gradient[:n], gradient[n:]
    right = -(scale * dense - (gamma * inverse) @ coupling)
    x, squares = (_eliminate if n <= _TINY else _by_cholesky)(matrix, right, xp)
    move = xp.concatenate([scale * x, -inverse * (gamma + coupling @ x)])
    return move, 0.5 * (squares + xp.sum(gamma * gamma * inverse))


#: A pivot below this, in a matrix with unit diagonal, means that two parameters are degenerate:
#: their uncertainties are thirty thousand times what they would be alone.
_SINGULAR = 1e-9
#: Up to this size plain arithmetic is cheaper than a library call, especially on a GPU.
_TINY = 6


def _eliminate(matrix: Any, right: Any, xp: Any) -> tuple[Any, Any]:
    """x with `matrix` x = `right`, and rightᵀ matrix⁻¹ right, by elimination without pivoting."""
    n = len(right)
    work = xp.concatenate([matrix, right[:, None]], axis=1)
    squares = xp.zeros(())
    for k in range(n):
        pivot = xp.where(work[k, k] > _SINGULAR, work[k, k], xp.nan)
        squares += work[k, n] ** 2 / pivot
        work -= xp.where(xp.arange(n) > k, work[:, k] / pivot, 0.0)[:, None] * work[k]
    x: list[Any] = [None] * n
    for k in reversed(range(n)):
        known = sum((work[k, j] * x[j] for j in range(k + 1, n)), start=xp.zeros(()))
        x[k] = (work[k, n] - known) / work[k, k]
    return xp.stack(x), squares


def _by_cholesky(matrix: Any, right: Any, xp: Any) -> tuple[Any, Any]:
    """The same by Cholesky; the right-hand side as extra row saves the forward substitution."""
    n = len(right)
    augmented = xp.concatenate([matrix, right[None]])
    last = xp.concatenate([xp.zeros(n), xp.full(1, 1e300)])
    factor = cholesky(xp.concatenate([augmented, last[:, None]], axis=1), xp)
    pivots = xp.diagonal(factor)[:n] ** 2
    half = xp.where(xp.all(pivots > _SINGULAR), factor[n, :n], xp.nan)
    return _backward(factor[:n, :n], half, xp), xp.sum(half * half)


def cholesky(matrix: Any, xp: Any) -> Any:
    """The lower factor; NaN if the matrix is not positive definite."""
    if xp is not np:
        return jnp.linalg.cholesky(matrix, symmetrize_input=False)
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def _backward(factor: Any, half: Any, xp: Any) -> Any:
    """x with `factor`ᵀ x = `half`."""
    if xp is np:
        return np.linalg.solve(factor.T, half)
    return jax.lax.linalg.triangular_solve(
        factor, half[:, None], left_side=True, lower=True, transpose_a=True
    )[:, 0]


class Factors(NamedTuple):
    """A factorised Hessian of the free parameters."""

    cholesky: Any
    reduced: _Reduced
    free: Any


def factorise(hessian: Blocks, free: Any) -> Factors:
    """Factorise for `solve`; the factor is NaN if the matrix is not positive definite."""
    reduced = _reduce(hessian, free, 0.0, jnp)
    return Factors(cholesky(reduced.matrix, jnp), reduced, free)


def solve(factors: Factors, right: Any) -> Any:
    """x with H x = right on the free parameters and 0 on the others; linear in `right`."""
    _, scale, coupling, inverse = factors.reduced
    n = scale.shape[0]
    right = right * factors.free
    dense, gamma = right[:n], right[n:]
    x = scale * dense - (gamma * inverse) @ coupling
    x = jax.scipy.linalg.cho_solve((factors.cholesky, True), x)
    return jnp.concatenate([scale * x, inverse * (gamma - coupling @ x)])


def multiply(hessian: Blocks, vector: Any) -> Any:
    """H x over all parameters."""
    n = hessian.dense.shape[0]
    dense, gamma = vector[:n], vector[n:]
    return jnp.concatenate(
        [
            hessian.dense @ dense + gamma @ hessian.coupling,
            hessian.coupling @ dense + hessian.diagonal * gamma,
        ]
    )
