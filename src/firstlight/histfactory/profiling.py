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

from firstlight.histfactory.array_slopes import array_slopes
from firstlight.histfactory.array_types import Array
from firstlight.histfactory.branches import lowest
from firstlight.histfactory.closed_form import assemble, evaluate
from firstlight.histfactory.lazy_jax import custom_jvp, jax, jnp
from firstlight.histfactory.likelihood import Data, Prepared
from firstlight.histfactory.linear_systems import factorise, multiply, solve
from firstlight.histfactory.newton import Minimum, Problem, WarmStart
from firstlight.histfactory.precision import in_float64


def minimise_chain(
    model: Prepared, problems: Problem, warm_start: WarmStart | None = None
) -> Minimum:
    """Minima of similar problems, each search starting where the previous one ended.

    warm_start: where to start instead, if known, and which minimum to stay in; a single problem
        uses the second of its fits.
    """
    still_model, still = jax.lax.stop_gradient((model, problems))
    first = jax.tree.map(lambda a: a[0], still)
    guesses, known = still.start, 0.0
    if warm_start is not None:
        ends = jnp.stack([warm_start.free, warm_start.conditional])[-len(guesses) :]
        guesses, known = jax.lax.stop_gradient((ends, jnp.asarray(warm_start.known, jnp.float64)))

    def one(before: Array, given: Array) -> Array:
        problem, guess = given
        guess = jnp.where(known > 0, guess, before)
        near = problem.starting_at(guess, problem.near, jnp)
        found = lowest(still_model, near, follow=known > 0)
        return found.theta, found

    close = jnp.maximum(jnp.arange(len(still.near)) > 0, known)
    still = still._replace(near=jnp.maximum(still.near, close))
    _, found = jax.lax.scan(one, first.start, (still, guesses))
    return with_derivatives(model, problems, found)


def minimise_pair(model: Prepared, problems: Problem, chained: Array) -> Minimum:
    """Minima of two problems, without derivatives; `chained`: the second starts at the first's."""

    def one(before: Array, given: tuple[Problem, Array]) -> tuple[Array, Minimum]:
        problem, follows = given
        guess = jnp.where(follows, before, problem.guess)
        near = jnp.maximum(problem.near, jnp.where(follows, 1.0, 0.0))
        found = lowest(model, problem.starting_at(guess, near, jnp))
        return found.theta, found

    follows = jnp.stack([jnp.zeros((), bool), jnp.asarray(chained, bool)])
    found: Minimum
    _, found = jax.lax.scan(one, problems.start[0], (problems, follows))
    return found


def with_derivatives(model: Prepared, problems: Problem, found: Minimum) -> Minimum:
    """Add the derivatives of the value; `attach` adds those of the parameters where needed."""
    found = jax.lax.stop_gradient(found)
    theta = jnp.where(problems.fixed > 0, problems.start, found.theta)
    value = jax.vmap(profiled_nll, (0, 0, None, 0))(theta, found.free, model, problems.data)
    return found._replace(theta=theta, nll=jnp.where(jnp.isfinite(found.nll), value, found.nll))


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
