"""Differentiable minima: exact derivatives at the solution, none through the search.

At the minimum the gradient with respect to the free parameters vanishes, so (implicit function
theorem)

    dθ̂ = -H⁻¹ (∂²NLL/∂θ∂x) dx

for any x that the likelihood depends on, and (envelope theorem) the value at the minimum changes
only as the likelihood changes with x at fixed θ̂. A fixed parameter moves with its own value; one
held by a bound does not move. Derivatives of any order are correct, because the rules are
themselves differentiated by these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from firstlight.histfactory.array_slopes import array_slopes
from firstlight.histfactory.array_types import Array, Truth
from firstlight.histfactory.branches import Plan, after_all, first_plan, visit
from firstlight.histfactory.closed_form import assemble, evaluate
from firstlight.histfactory.lazy_jax import custom_jvp, jax, jnp
from firstlight.histfactory.likelihood import Data, Prepared
from firstlight.histfactory.linear_systems import factorise, multiply, solve
from firstlight.histfactory.newton import Minimum, Problem, WarmStart
from firstlight.histfactory.numpy_or_jax import while_loop
from firstlight.histfactory.precision import in_float64

T = TypeVar("T")


def minimise_chain(
    model: Prepared,
    problems: Problem,
    warm_start: WarmStart | None = None,
) -> Minimum:
    """Minima of similar problems, each search starting where the previous one ended.

    warm_start: where to start instead, if known, and which minimum to stay in; a single problem
        uses the second of its fits.
    """
    still_model, still = jax.lax.stop_gradient((model, problems))
    guesses, known = still.start, 0.0
    if warm_start is not None:
        ends = jnp.stack([warm_start.free, warm_start.conditional])[-len(guesses) :]
        guesses, known = jax.lax.stop_gradient((ends, jnp.asarray(warm_start.known, jnp.float64)))

    first = jnp.arange(len(still.near)) == 0
    still = still._replace(near=jnp.maximum(still.near, jnp.where(first, known, 1.0)))

    def problem_at(turn: Array, found: Minimum) -> Problem:
        problem, guess = jax.tree.map(lambda a: a[turn], (still, guesses))
        before = jnp.where(turn > 0, found.theta[turn - 1], problem.start)
        guess = jnp.where(known > 0, guess, before)
        return Problem(*problem).starting_at(guess, problem.near, jnp)

    found = minima_in_turn(still_model, len(guesses), problem_at, follow=known > 0)
    return with_derivatives(model, problems, found)


class _Turns(NamedTuple):
    """Fits that are made one after another, between two searches."""

    state: Any  # of the caller, who chooses the problems
    plan: Plan
    begins: Array  # the plan belongs to the previous problem


def searches(
    model: Prepared,
    state: T,
    problem_of: Callable[[T], Problem],
    after: Callable[[T, Minimum], T],
    proceeds: Callable[[T], Array],
    follow: Truth = False,
) -> T:
    """Fits that depend on each other, as one loop over their searches.

    The search takes most of the time that compiling a program takes, and so it is in each program
    once. problem_of: the next problem. after: the state after its fit. follow: as for `lowest`.
    """

    def step(turns: _Turns) -> _Turns:
        problem = problem_of(turns.state)
        plan = where(turns.begins, first_plan(model, problem), turns.plan)
        found, plan = visit(model, problem, plan, follow, jnp)
        ends = after(turns.state, after_all(found, plan, jnp))
        return _Turns(where(plan.more, turns.state, ends), plan, ~plan.more)

    begin = _Turns(state, first_plan(model, problem_of(state)), jnp.ones((), bool))
    end: _Turns = while_loop(lambda turns: proceeds(turns.state), step, begin, jnp)
    return cast(T, end.state)


def where(condition: Array, one: T, other: T) -> T:
    """One of two trees."""

    def choose(a: Array, b: Array) -> Array:
        return a if a is b else jnp.where(condition, a, b)

    chosen: T = jax.tree.map(choose, one, other)
    return chosen


def minima_in_turn(
    model: Prepared,
    n: int,
    problem_at: Callable[[Array, Minimum], Problem],
    follow: Truth = False,
) -> Minimum:
    """Minima of `n` problems, stacked; problem_at: one of them, given the minima before it."""

    def after(state: tuple[Array, Minimum], end: Minimum) -> tuple[Array, Minimum]:
        turn, found = state
        here = jnp.arange(n) == turn
        return turn + 1, entered(here, found, end)

    begin = jnp.zeros((), int), unknown(model, n)
    return searches(
        model, begin, lambda state: problem_at(*state), after, lambda state: state[0] < n, follow
    )[1]


def entered(here: Array, all_: T, one: T) -> T:
    """Stacked values, with `one` in the rows where `here` is true."""

    def enter(rows: Array, row: Array) -> Array:
        return jnp.where(here.reshape(-1, *(1,) * jnp.ndim(row)), row, rows)

    whole: T = jax.tree.map(enter, all_, one)
    return whole


def unknown(model: Prepared, n: int) -> Minimum:
    """Places for `n` minima."""
    none, count = jnp.zeros(n), jnp.zeros(n, jnp.int32)
    parameters = jnp.zeros((n, len(model.weight)))
    return Minimum(parameters, none, parameters, none, count, count, count)


def with_derivatives(model: Prepared, problems: Problem, found: Minimum) -> Minimum:
    """Add the derivatives of the value; `attach` adds those of the parameters where needed."""
    found = jax.lax.stop_gradient(found)
    theta = jnp.where(problems.fixed > 0, problems.start, found.theta)
    value = jax.vmap(profiled_nll, (0, 0, None, 0))(theta, found.free, model, problems.data)
    return found._replace(theta=theta, nll=jnp.where(jnp.isfinite(found.nll), value, found.nll))


def gradients(model: Prepared, problems: Problem, theta: Array) -> Array:
    """The gradients of the likelihood at minima: those of fixed parameters are not zero."""

    def of_one(theta: Array, data: Data) -> Array:
        return evaluate(still, data, theta, curvature=False).gradient

    still, data, theta = jax.lax.stop_gradient((model, problems.data, theta))
    return jax.vmap(of_one)(theta, data)


@custom_jvp
def attach(theta: Array, free: Array, model: Prepared, data: Data) -> Array:
    """`theta`, which is a minimum in its free parameters, with the derivatives of a minimum."""
    return theta


@attach.defjvp
@in_float64
def _attach_jvp(primals: Array, tangents: Array) -> Array:
    theta, free, model, data = primals
    d_theta, _, d_model, d_data = tangents
    theta = attach(theta, free, model, data)
    curvature = evaluate(model, data, theta).curvature
    assert curvature is not None
    hessian = assemble(curvature)
    d_held = d_theta * (1 - free)
    _, d_gradient = jax.jvp(
        lambda model, data: evaluate(model, data, theta, curvature=False).gradient,
        (model, data),
        (d_model, d_data),
    )
    d_gradient += multiply(hessian, d_held)
    factors = factorise(hessian, free)
    # Where the Hessian is not positive definite there is no minimum; the fit's status says so.
    usable = jnp.all(jnp.isfinite(factors.cholesky))
    factors = jax.tree.map(lambda a: jnp.where(usable, a, jnp.zeros_like(a)), factors)
    identity = jnp.eye(factors.cholesky.shape[0])
    factors = factors._replace(cholesky=jnp.where(usable, factors.cholesky, identity))
    return theta, d_held - solve(factors, d_gradient)


@custom_jvp
def profiled_nll(theta: Array, free: Array, model: Prepared, data: Data) -> Array:
    """The likelihood at a minimum: its derivatives ignore how the free parameters move."""
    return evaluate(model, data, theta, curvature=False).nll


@profiled_nll.defjvp
@in_float64
def _profiled_nll_jvp(primals: Array, tangents: Array) -> Array:
    theta, free, model, data = primals
    d_theta, _, d_model, d_data = tangents
    # For second derivatives: the first derivative changes with the minimum.
    theta = attach(theta, free, model, data)
    at, by_model, by_data = array_slopes(model, data, theta)
    change = jnp.sum(at.gradient * (1 - free) * d_theta)
    slopes, steps = jax.tree.leaves((by_model, by_data)), jax.tree.leaves((d_model, d_data))
    for slope, step in zip(slopes, steps, strict=True):
        change += jnp.sum(slope * step)
    return at.nll, change
