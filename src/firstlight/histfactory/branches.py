"""Finds the lowest of several minima: the search is repeated from elsewhere if there may be more.

The likelihood of a HistFactory model may have more than one local minimum. There are two known
causes; one test for both costs less than half a step of the search:

- Both variations of a template change a yield in the same direction (or in opposite directions by
  different amounts). Either direction then corrects a yield that is too low, and between the two
  the likelihood has negative curvature: along α it loses Σ (n/ν - 1) ν'' of its curvature.
- A parameter that ends many standard deviations from its constraint may be on the far side of a
  barrier.

If the test is positive, the search is repeated on the other side of the parameter in question. If
that ends elsewhere, it is also repeated from the problem's own start and with several parameters on
their other sides at once. The lowest end wins. This is a heuristic, not a proof: the result is the
lowest minimum found, and `Minimum.branches` is the number of minima found.
"""

from __future__ import annotations

from typing import NamedTuple

from firstlight.histfactory.array_types import Array, Numpy, Truth
from firstlight.histfactory.closed_form import Evaluation, variations
from firstlight.histfactory.lazy_jax import jnp
from firstlight.histfactory.likelihood import TINY_YIELD, Data, Prepared
from firstlight.histfactory.newton import Minimum, Problem, Status, search
from firstlight.histfactory.numpy_or_jax import nothing_like, while_loop

#: Maximum number of searches per minimum.
MAX_STARTS = 16
#: Where the curvature along a parameter would be negative, its other side is searched. Of 560 ends
#: of searches in random models that were not the lowest, all but one (far from its data) had 1.29.
RISKY = 1.0
#: Second derivative of code 4p at α = 0, for templates that add 1 in total at α = ±1.
_BEND = 30 / 16
#: A parameter pulled by this many standard deviations may be on the wrong side of a barrier.
_FAR = 4.0
#: Parameters with this share of `RISKY` change sides together with those that reach it, in groups
#: of two or all thirds of them (as bits).
_SUSPECT, _GROUPS = 0.02, (3, 5, 6, 7)
#: Ends closer than this, in likelihood and in fingerprint, count as the same minimum.
_SAME_NLL, _SAME_FINGERPRINT = 1e-6, 1e-4


class _Best(NamedTuple):
    """The lowest end so far."""

    theta: Array
    nll: Array
    converged: Array


class _Ends(NamedTuple):
    """The converged ends of searches, each as two numbers; unused entries are infinite."""

    nll: Array
    fingerprint: Array
    minima: Array  # how many of them
    searches: Array
    steps: Array


class Plan(NamedTuple):
    """Where to search next, and the state of the search for minima so far."""

    start: Array  # of the next search
    near: Array
    best: _Best
    risks: Array  # at the best end
    pending: Array  # risks of parameters whose other side has not been searched from there
    group: Array  # number of the next group of parameters to change sides together
    own_start_used: Array
    returning: Array  # True: the next search only returns to the best end
    ends: _Ends
    more: Array


def lowest(model: Prepared, problem: Problem, xp: Numpy = jnp, follow: Truth = False) -> Minimum:
    """The lowest minimum found of a `Problem`. Never raises; see `status`.

    follow: True to stay in the minimum that the guess leads to, as in a training loop.
    """

    def step(state: tuple[Minimum, Plan]) -> tuple[Minimum, Plan]:
        return visit(model, problem, state[1], follow, xp)

    nowhere = nothing_like(xp, lambda *a: search(*a)[0], model, problem, problem.start)
    begin = (nowhere, first_plan(model, problem, xp))
    found, plan = while_loop(lambda state: state[1].more, step, begin, xp)
    return after_all(found, plan, xp)


def visit(
    model: Prepared, problem: Problem, plan: Plan, follow: Truth, xp: Numpy
) -> tuple[Minimum, Plan]:
    """The next search of a plan, and the plan after it."""
    found, risks = _search(model, problem, plan.start, plan.near, ~plan.more, xp)
    plan = next_plan(problem, plan, found, risks, xp)
    return found, plan._replace(more=plan.more & ~(follow & plan.best.converged))


def after_all(found: Minimum, plan: Plan, xp: Numpy) -> Minimum:
    """The result of the last search of a plan, with the counts of all."""
    branches = xp.maximum(plan.ends.minima, 1)
    return found._replace(iterations=plan.ends.steps, branches=branches)


def _search(
    model: Prepared, problem: Problem, start: Array, near: Array, idle: Array, xp: Numpy
) -> tuple[Minimum, Array]:
    """The end of a search, and the `branch_risks` there."""
    found, at = search(model, problem, start, near, idle, xp)
    return found, branch_risks(model, problem.data, found.theta, at, problem.fixed, xp)


def _is_settled(found: Minimum, risks: Array, xp: Numpy) -> Array:
    """Whether one search is enough."""
    calm = xp.max(risks, initial=0.0) <= RISKY
    return calm & (found.status == int(Status.CONVERGED))


def next_plan(problem: Problem, plan: Plan, found: Minimum, fresh: Array, xp: Numpy) -> Plan:
    """The plan after a search."""
    converged = found.status == int(Status.CONVERGED)
    better = _improves(found.nll, converged, plan.best, problem.data, xp)
    here = _Best(found.theta, found.nll, converged)
    best = _Best(*(xp.where(better, a, b) for a, b in zip(here, plan.best, strict=True)))
    risks = xp.where(better, fresh, plan.risks)
    pending = xp.where(better, fresh, plan.pending)
    group = xp.where(better, 0, plan.group)
    ends = _with_end(plan.ends, found, converged, xp)

    allowed = ends.searches < MAX_STARTS
    worst = xp.max(pending, initial=0.0)
    # A second minimum was found, or none yet: search everywhere.
    open_question = (ends.minima > 1) | ~best.converged
    use_one = allowed & (worst > RISKY)
    unused = ~plan.own_start_used & xp.any(problem.guess != problem.start)
    use_own = allowed & ~use_one & open_question & unused
    several = xp.sum(risks > _SUSPECT * RISKY) > 1
    use_group = allowed & ~use_one & ~use_own & open_question & several & (group < len(_GROUPS))
    at_best = better | _are_close(
        found.nll, _fingerprint(found.theta, xp), best.nll, _fingerprint(best.theta, xp), xp
    )
    back = ~use_one & ~use_own & ~use_group & ~at_best & ~plan.returning
    one = use_one & (pending == worst)
    together = use_group & _in_group(risks, group, xp)
    return Plan(
        start=xp.where(use_own, problem.start, _across(best.theta, one, together, xp)),
        near=xp.where(back, 1.0, 0.0),
        best=best,
        risks=risks,
        pending=xp.where(one, 0.0, pending),
        group=group + use_group,
        own_start_used=plan.own_start_used | use_own,
        returning=back,
        ends=ends,
        more=(use_own | use_one | use_group | back) & ~plan.returning,
    )


def first_search(model: Prepared, problem: Problem) -> tuple[Minimum, Array]:
    """One search, and whether it settles the problem, so `lowest` would search no further."""
    near = jnp.asarray(problem.near, jnp.float64)
    found, risks = _search(model, problem, problem.guess, near, False, jnp)
    return found, _is_settled(found, risks, jnp)


def first_plan(model: Prepared, problem: Problem, xp: Numpy = jnp) -> Plan:
    """The plan before the first search."""
    no_risks = xp.zeros(model.blocks[0])
    none = xp.full(MAX_STARTS + 1, xp.inf)
    zero, no = xp.zeros((), xp.int32), xp.zeros((), bool)
    return Plan(
        start=problem.guess,
        near=xp.asarray(problem.near, xp.float64),
        best=_Best(problem.guess, xp.asarray(xp.inf), no),
        risks=no_risks,
        pending=no_risks,
        group=zero,
        own_start_used=no,
        returning=no,
        ends=_Ends(none, none, zero, zero, zero),
        more=~no,
    )


def _improves(nll: Array, converged: Array, best: _Best, data: Data, xp: Numpy) -> Array:
    """Whether an end is lower by more than rounding, or as low and the first that converged."""
    rounding = 1e-12 + 1e-14 * xp.sum(data.main)
    as_low = nll <= best.nll + rounding
    return (nll < best.nll - rounding) | (as_low & converged & ~best.converged)


def _fingerprint(theta: Array, xp: Numpy) -> Array:
    """One number that is different for different parameter vectors."""
    return xp.sum(theta * xp.cos(xp.arange(len(theta), dtype=xp.float64)))


def _are_close(nll: Array, fingerprint: Array, other_nll: Array, other: Array, xp: Numpy) -> Array:
    close = xp.abs(nll - other_nll) < _SAME_NLL
    return close & (xp.abs(fingerprint - other) < _SAME_FINGERPRINT * (1 + xp.abs(fingerprint)))


def _with_end(ends: _Ends, found: Minimum, converged: Array, xp: Numpy) -> _Ends:
    """The list with a new end added, if it converged and is not yet listed."""
    fingerprint = _fingerprint(found.theta, xp)
    known = xp.any(_are_close(found.nll, fingerprint, ends.nll, ends.fingerprint, xp))
    new = converged & ~known
    entry = new & (xp.arange(len(ends.nll), dtype=xp.int32) == ends.searches)
    return _Ends(
        nll=xp.where(entry, found.nll, ends.nll),
        fingerprint=xp.where(entry, fingerprint, ends.fingerprint),
        minima=ends.minima + new,
        searches=ends.searches + 1,
        steps=ends.steps + found.iterations,
    )


def _in_group(risks: Array, number: Array, xp: Numpy) -> Array:
    """The parameters of a group: two thirds, or all, of the suspects."""
    suspects = risks > _SUSPECT * RISKY
    third = xp.cumsum(suspects.astype(xp.int32)) % 3
    members = xp.asarray(_GROUPS, xp.int32)[xp.minimum(number, len(_GROUPS) - 1)]
    return suspects & ((members >> third) % 2 == 1)


def _across(theta: Array, one: Array, together: Array, xp: Numpy) -> Array:
    """`theta` with `one` parameter on its other side, beyond |α| = 1, or several mirrored."""
    alpha = theta[: len(one)]
    beyond = xp.where(alpha > 0, -1.0, 1.0) * xp.maximum(xp.abs(alpha), 1.0)
    moved = xp.where(one, beyond, xp.where(together, -alpha, alpha))
    return xp.concatenate([moved, theta[len(one) :]])


def branch_risks(
    model: Prepared, data: Data, theta: Array, at: Evaluation, fixed: Array, xp: Numpy
) -> Array:
    """The evidence for another minimum across each α, which is searched for above `RISKY`.

    The larger of two ratios: the negative curvature that the yields contribute to the likelihood
    along α at zero, over the curvature from the constraint and half of the data's information; and
    the pull over `_FAR`.
    """
    n = model.blocks[0]
    expected, up, down = variations(model, at, theta, xp)
    alpha = theta[:n, None]
    # With this α at zero, where the likelihood's curvature is most negative.
    expected = expected - xp.maximum(alpha, 0.0) * up - xp.maximum(-alpha, 0.0) * down
    inverse = 1 / xp.maximum(expected, TINY_YIELD)
    ratio = data.main * inverse
    ones = xp.ones(up.shape[1])  # a sum as a matrix product takes a third of the time
    bent = _BEND * (((ratio - 1) * (up + down)) @ ones)
    information = 0.25 * ((ratio * inverse * (up - down) ** 2) @ ones)
    # Near |α| = 0.8 code 4p curves the other way, by a third.
    bent = xp.maximum(bent, -bent / 3)
    risks = bent / (model.weight[:n] + 0.5 * information)
    pull = xp.abs(theta[:n] - data.aux[:n]) * xp.sqrt(model.weight[:n])
    risks = xp.maximum(risks, pull / _FAR)
    return xp.where((fixed[:n] > 0) | ~xp.isfinite(risks), 0.0, risks)
