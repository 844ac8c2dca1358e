"""Finds the lowest of several minima: the search is repeated from elsewhere if there may be more.

The likelihood of a HistFactory model may have more than one local minimum. The known causes:

- Both variations of a template change a yield in the same direction (or in opposite directions by
  different amounts). Either direction then corrects a yield that is too low, and between the two
  the likelihood has negative curvature: along α it loses Σ (n/ν - 1) ν'' of its curvature.
- A parameter that ends many standard deviations from its constraint may be on the far side of a
  barrier.
- A factor trades places with another one or with the systematics of the sample that it scales;
  often one of them then ends at a bound, or a sample below zero.

The first two show in a number for each α, the last in `Evidence.doubt`; to look for both costs less
than half a step of the search. Where there is none, one search is enough. Otherwise the search is
repeated on the other side of each suspected parameter and, if that ends elsewhere or there is
doubt, from the problem's own start, with several parameters on their other sides at once, and from
starts that are spread over the parameters' ranges. These go on until two of them have ended in the
lowest minimum; if the last permitted one leaves that open, the status is `NOT_PROVEN_LOWEST`. The
lowest end wins. This is a heuristic, not a proof: the result is the lowest minimum found, and
`Minimum.branches` is the number of minima found.
"""

from __future__ import annotations

from typing import NamedTuple

from firstlight.histfactory.array_types import Array, Numpy, Truth
from firstlight.histfactory.closed_form import Evaluation, variations
from firstlight.histfactory.lazy_jax import jnp
from firstlight.histfactory.likelihood import TINY_YIELD, Data, Prepared
from firstlight.histfactory.newton import Minimum, Problem, Status, is_minimum, search
from firstlight.histfactory.numpy_or_jax import nothing_like, while_loop

#: Maximum number of searches per minimum, and of their steps after which none begins any more:
#: from anywhere, and near the minimum of a similar problem.
MAX_STARTS, MAX_STEPS, MAX_STEPS_NEAR = 64, 4000, 600
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
#: Signs of other minima that count in pairs: a risk, a number of steps (most fits take six), and
#: expectations further from the data than chance brings them, a factor at a bound.
_UNEASY, _LONG = 0.3, 9
#: A sample this far below zero, as a share of the bin, is a sign that suffices.
_NEGATIVE = 0.05
#: Up to so many α weaker signs are enough: searches cost little, and reach everywhere.
_SMALL = 16
#: Searches from spread starts: at least this many, and until so many have ended in the lowest one.
_MIN_SPREAD, _FEW, _CONFIRMED = (12, 24, 36), 4, 3


class Evidence(NamedTuple):
    """What the end of a search says about other minima."""

    risks: Array  # for every α: above `RISKY`, its other side is searched
    doubt: Array  # whether to search from spread starts, too


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
    evidence: Evidence  # at the best end
    pending: Array  # risks of parameters whose other side has not been searched from there
    group: Array  # number of the next group of parameters to change sides together
    own_start_used: Array
    spread: Array  # number of searches from spread starts
    confirmed: Array  # how many of them ended at the best end
    spreading: Array  # True: the next search is from a spread start
    returning: Array  # True: the next search only returns to the best end
    ends: _Ends
    budget: Array  # of steps
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
    found, evidence = _search(model, problem, plan.start, plan.near, ~plan.more, xp)
    plan = next_plan(model, problem, plan, found, evidence, xp)
    return found, plan._replace(more=plan.more & ~(follow & plan.best.converged))


def after_all(found: Minimum, plan: Plan, xp: Numpy) -> Minimum:
    """The end of the last search of a plan, with what all searches together say about it."""
    ends = plan.ends
    # Nothing was settled if searches from elsewhere never ended in the lowest minimum again.
    needed = xp.where(ends.minima > 1, _CONFIRMED - 1, 1)
    is_open = ~_may_go_on(ends, plan.budget) & (plan.confirmed < needed)
    is_open &= (ends.searches > 1) & (found.status == int(Status.CONVERGED))
    status = xp.where(is_open, int(Status.NOT_PROVEN_LOWEST), found.status).astype(xp.int32)
    branches = xp.maximum(ends.minima, 1)
    return found._replace(iterations=ends.steps, branches=branches, status=status)


def _may_go_on(ends: _Ends, budget: Array) -> Array:
    return (ends.searches < MAX_STARTS) & (ends.steps < budget)


def _search(
    model: Prepared, problem: Problem, start: Array, near: Array, idle: Array, xp: Numpy
) -> tuple[Minimum, Evidence]:
    """The end of a search, and what it says about other minima."""
    found, at = search(model, problem, start, near, idle, xp)
    return found, evidence_of(model, problem, found, at, xp)


def _is_settled(found: Minimum, evidence: Evidence, xp: Numpy) -> Array:
    """Whether one search is enough."""
    calm = (xp.max(evidence.risks, initial=0.0) <= RISKY) & ~evidence.doubt
    return calm & is_minimum(found)


def next_plan(
    model: Prepared, problem: Problem, plan: Plan, found: Minimum, fresh: Evidence, xp: Numpy
) -> Plan:
    """The plan after a search."""
    converged = is_minimum(found)
    better = _improves(found.nll, converged, plan.best, problem.data, xp)
    here = _Best(found.theta, found.nll, converged)
    best = _Best(*(xp.where(better, a, b) for a, b in zip(here, plan.best, strict=True)))
    known = plan.evidence
    evidence = Evidence(*(xp.where(better, a, b) for a, b in zip(fresh, known, strict=True)))
    pending = xp.where(better, fresh.risks, plan.pending)
    group = xp.where(better, 0, plan.group)
    ends = _with_end(plan.ends, found, converged, xp)
    at_best = better | (converged == best.converged) & _are_close(
        found.nll, _fingerprint(found.theta, xp), best.nll, _fingerprint(best.theta, xp), xp
    )
    # Only the height: along a flat direction every end is another point.
    again = converged & (xp.abs(found.nll - best.nll) < _SAME_NLL)
    confirmed = xp.where(better, 0, plan.confirmed) + (plan.spreading & again)

    allowed = _may_go_on(ends, plan.budget)
    risks = evidence.risks
    worst = xp.max(pending, initial=0.0)
    # A second minimum was found, or none yet: search everywhere.
    open_question = (ends.minima > 1) | ~best.converged | evidence.doubt
    use_one = allowed & (worst > RISKY)
    unused = ~plan.own_start_used & xp.any(problem.guess != problem.start)
    use_own = allowed & ~use_one & open_question & unused
    several = xp.sum(risks > _SUSPECT * RISKY) > 1
    use_group = allowed & ~use_one & ~use_own & open_question & several & (group < len(_GROUPS))
    # Near the minimum of a similar problem, which was searched for everywhere, few will do.
    enough = xp.where(xp.asarray(problem.near) > 0, _FEW, _spread_count(model, problem, xp))
    unsettled = (plan.spread < enough) | (confirmed < xp.minimum(_CONFIRMED, enough // 4))
    doubtful = evidence.doubt | ~best.converged
    use_spread = allowed & ~use_one & ~use_own & ~use_group & doubtful & unsettled
    onward = use_one | use_own | use_group | use_spread
    back = ~onward & ~at_best & ~plan.returning
    one = use_one & (pending == worst)
    together = use_group & _in_group(risks, group, xp)
    start = xp.where(use_own, problem.start, _across(best.theta, one, together, xp))
    return Plan(
        start=xp.where(use_spread, _spread_start(model, problem, plan.spread, xp), start),
        near=xp.where(back, 1.0, 0.0),
        best=best,
        evidence=evidence,
        pending=xp.where(one, 0.0, pending),
        group=group + use_group,
        own_start_used=plan.own_start_used | use_own,
        spread=plan.spread + use_spread,
        confirmed=confirmed,
        spreading=use_spread,
        returning=back,
        ends=ends,
        budget=plan.budget,
        more=(onward | back) & ~plan.returning,
    )


def first_search(model: Prepared, problem: Problem) -> tuple[Minimum, Array]:
    """One search, and whether it settles the problem, so `lowest` would search no further."""
    near = jnp.asarray(problem.near, jnp.float64)
    found, evidence = _search(model, problem, problem.guess, near, False, jnp)
    return found, _is_settled(found, evidence, jnp)


def first_plan(model: Prepared, problem: Problem, xp: Numpy = jnp) -> Plan:
    """The plan before the first search."""
    no_risks = xp.zeros(model.blocks[0])
    none = xp.full(MAX_STARTS + 1, xp.inf)
    zero, no = xp.zeros((), xp.int32), xp.zeros((), bool)
    return Plan(
        start=problem.guess,
        near=xp.asarray(problem.near, xp.float64),
        best=_Best(problem.guess, xp.asarray(xp.inf), no),
        evidence=Evidence(no_risks, no),
        pending=no_risks,
        group=zero,
        own_start_used=no,
        spread=zero,
        confirmed=zero,
        spreading=no,
        returning=no,
        ends=_Ends(none, none, zero, zero, zero),
        budget=xp.where(xp.asarray(problem.near) > 0, MAX_STEPS_NEAR, MAX_STEPS),
        more=~no,
    )


def _spread_count(model: Prepared, problem: Problem, xp: Numpy) -> Array:
    """How many searches from spread starts a doubt needs: more where more factors may trade."""
    few, some, many = _MIN_SPREAD
    if model.blocks[0] > _SMALL:
        return xp.asarray(_FEW)
    factors = xp.sum(_free_factors(model, problem).astype(xp.int32))
    return xp.where(factors > 2, many, xp.where(factors > 1, some, few))


def _free_factors(model: Prepared, problem: Problem) -> Array:
    """Which φ are free and unconstrained."""
    begin, end = model.blocks
    return (problem.fixed[begin:end] == 0) & (model.weight[begin:end] == 0)


def _spread_start(model: Prepared, problem: Problem, number: Array, xp: Numpy) -> Array:
    """A point far away: first each free factor in turn at its lower bound, the rest at the start;
    then likewise with the other factors at 4, as if they had taken its place.

    Then points anywhere: two of three with α and constrained φ within ±2σ and other φ from a tenth
    to ten times one, the third with every α at 0 or ±3.5σ, where a sample may be below zero, and
    small φ. They are pseudo-random, and the same for equal problems.
    """
    begin, begin_gamma = model.blocks
    own, lower = problem.start[:begin_gamma], problem.lower[:begin_gamma]
    factors = _free_factors(model, problem)
    count = xp.sum(factors.astype(xp.int32))
    place = xp.cumsum(factors.astype(xp.int32)) - 1
    turn = factors & ((place == number) | (place + count == number))
    others = xp.where(factors & (number >= count), 4.0, own[begin:])
    of_factors = xp.clip(others, lower[begin:], problem.upper[begin:begin_gamma])
    of_factors = xp.where(turn, lower[begin:], of_factors)
    ordered = xp.concatenate([own[:begin], of_factors])

    wave = xp.sin(12.9898 * (number + 1.0) + 78.233 * (xp.arange(begin_gamma) + 1.0)) * 43758.5453
    u = wave - xp.floor(wave)
    weight = model.weight[:begin_gamma]
    width = xp.where(weight > 0, 1 / xp.sqrt(xp.where(weight > 0, weight, 1.0)), 0.0)
    side = xp.where(u < 1 / 3, -3.5, xp.where(u > 2 / 3, 3.5, 0.0))
    is_far = number % 3 == 2
    near = problem.data.aux[:begin_gamma] + xp.where(is_far, side, 4 * u - 2) * width
    factor = xp.where(is_far, 0.1 * 10.0**u, xp.where(u < 0.15, lower, 0.1 * 100.0**u))
    anywhere = xp.where(weight > 0, near, factor)
    anywhere = xp.clip(anywhere, lower, problem.upper[:begin_gamma])

    start = xp.where(xp.any(turn), ordered, anywhere)
    start = xp.where(problem.fixed[:begin_gamma] > 0, own, start)
    return xp.concatenate([start, problem.start[begin_gamma:]])


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
    # Parameters that are held or have no effect do not tell minima apart.
    fingerprint = _fingerprint(xp.where(found.free > 0, found.theta, 0.0), xp)
    known = xp.any(_are_close(found.nll, fingerprint, ends.nll, ends.fingerprint, xp))
    flat = found.status == int(Status.NOT_DETERMINED)
    known |= flat & xp.any(xp.abs(ends.nll - found.nll) < _SAME_NLL)
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


def evidence_of(
    model: Prepared, problem: Problem, found: Minimum, at: Evaluation, xp: Numpy
) -> Evidence:
    """What the end of a search says about other minima; `at`: the evaluation there."""
    theta, data = found.theta, problem.data
    risks = branch_risks(model, data, theta, at, problem.fixed, xp)
    begin, end = model.blocks
    expected = xp.sum(at.cells, axis=0)
    bins = xp.sum(expected > TINY_YIELD)
    misfit = at.nll - model.constraint_constant
    worst = xp.max(risks, initial=0.0)
    is_free = _free_factors(model, problem)
    at_bound = (theta <= problem.lower) | (theta >= problem.upper)
    # Beyond its variations, not because a factor is negative.
    below = (at.cells < -_NEGATIVE * xp.maximum(expected, 0.0)) & (at.multiplier > 0)
    strong = (misfit > bins + 2 * xp.sqrt(bins)) | xp.any(below) | ~is_minimum(found)
    if begin > _SMALL:  # where weak signs are common, and starts anywhere lead nowhere
        return Evidence(risks, strong)
    # 2·misfit has the mean and half of the variance of χ² with as many degrees as there are bins.
    signs = [
        worst > _UNEASY,
        found.iterations > _LONG,
        misfit > 0.5 * bins + 2.5 * xp.sqrt(0.5 * bins),
        xp.any(is_free & at_bound[begin:end]),
    ]
    strong |= (found.iterations > _LONG + 3) | (worst > RISKY)
    return Evidence(risks, strong | (sum(sign.astype(xp.int32) for sign in signs) > 1))


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
