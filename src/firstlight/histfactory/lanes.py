"""Fits of many problems in one program: lanes that take the next problem when they are done.

A batch in lockstep waits for its slowest search: of toys with 184 parameters most need seven steps
and one in a thousand needs thirty, so two thirds of the work would be done for searches that have
ended. Here a fixed number of lanes search side by side, and a lane whose search has ended takes the
next problem from the queue. The last few searches continue on fewer lanes.

Searches from elsewhere, for problems that may have another minimum (see `branches`), are further
rounds over a shorter queue, in the same program.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from firstlight.histfactory.array_types import Array
from firstlight.histfactory.branches import Plan, branch_risks, first_plan, next_plan
from firstlight.histfactory.closed_form import evaluate
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.likelihood import Prepared
from firstlight.histfactory.newton import (
    Minimum,
    Problem,
    SearchState,
    is_searching,
    search_begun,
    search_ended,
    search_step,
)

#: The last searches of a round continue on this share of the lanes.
_NARROW = 8


class Work(NamedTuple):
    """What the fits took: the share of busy lanes is `steps / lane_steps`."""

    steps: Array  # of all searches
    lane_steps: Array  # of all lanes, whether they had a problem or not


class _Lanes(NamedTuple):
    which: Array  # the problem on each lane; their number where none is left
    search: SearchState
    taken: Array  # how many of the queue
    found: Minimum  # of all problems
    work: Work


class _Rounds(NamedTuple):
    found: Minimum
    plans: Plan
    work: Work


def lowest_of_each(
    model: Prepared, problems: Problem, wanted: Array, *, lanes: int
) -> tuple[Minimum, Work]:
    """What `branches.lowest` finds for each problem, in one program.

    problems: each leaf with a leading axis, of length one where it is common to all.
    wanted: False for rows that only fill up the batch; their results are meaningless.
    """
    n = len(wanted)
    lanes = min(lanes, n)
    every = jnp.arange(n)

    def search_round(state: _Rounds) -> _Rounds:
        queue = jnp.nonzero(state.plans.more, size=n, fill_value=n)[0]
        waiting = jnp.sum(state.plans.more)
        found, work = _searches(model, problems, state, queue, lanes)
        risks = _risks(model, problems, found, queue, waiting, lanes)
        plans = jax.vmap(next_plan_of)(_rows(problems, every), state.plans, found, risks)
        plans = jax.tree.map(partial(_where, state.plans.more), plans, state.plans)
        return _Rounds(found, plans, work)

    def next_plan_of(problem: Problem, plan: Plan, found: Minimum, risks: Array) -> Plan:
        return next_plan(problem, plan, found, risks, jnp)

    plans = jax.vmap(partial(first_plan, model))(_rows(problems, every))
    plans = plans._replace(more=wanted)
    nothing = Work(jnp.zeros((), jnp.int64), jnp.zeros((), jnp.int64))
    begin = _Rounds(_unknown(model, problems, n), plans, nothing)
    end = jax.lax.while_loop(lambda state: jnp.any(state.plans.more), search_round, begin)
    ends = end.plans.ends
    found = end.found._replace(iterations=ends.steps, branches=jnp.maximum(ends.minima, 1))
    return found, end.work


def _searches(
    model: Prepared, problems: Problem, state: _Rounds, queue: Any, lanes: int
) -> tuple[Minimum, Work]:
    """The minima of all problems, those in the queue searched for from their plan's start."""
    n = len(queue)

    def begun(which: Array) -> Any:
        problem, start = _rows(problems, which), _rows(state.plans.start, which)
        return jax.vmap(partial(search_begun, model))(problem, start)

    def step(at: _Lanes) -> _Lanes:
        problem, near = _rows(problems, at.which), _rows(state.plans.near, at.which)
        search = jax.vmap(partial(search_step, model))(problem, near, at.search)
        busy = at.which < n
        ended = busy & ~is_searching(search)
        place = jnp.where(ended, at.which, n)
        ends = jax.vmap(search_ended)(problem, search)
        found = jax.tree.map(lambda a, b: a.at[place].set(b, mode="drop"), at.found, ends)
        following = at.taken + jnp.cumsum(ended) - 1
        which = jnp.where(ended, queue.at[following].get(mode="fill", fill_value=n), at.which)
        search = jax.tree.map(partial(_where, ended), begun(which), search)
        work = Work(at.work.steps + jnp.sum(busy), at.work.lane_steps + len(busy))
        return _Lanes(which, search, at.taken + jnp.sum(ended), found, work)

    at = _Lanes(queue[:lanes], begun(queue[:lanes]), jnp.asarray(lanes), state.found, state.work)
    few = lanes // _NARROW
    at = jax.lax.while_loop(lambda s: jnp.sum(s.which < n) > few, step, at)
    if few:
        order = jnp.argsort(at.which == n, stable=True)[:few]  # busy lanes first
        at = at._replace(which=at.which[order], search=_rows(at.search, order))
        at = jax.lax.while_loop(lambda s: jnp.any(s.which < n), step, at)
    return at.found, at.work


def _risks(
    model: Prepared, problems: Problem, found: Minimum, queue: Array, waiting: Array, lanes: int
) -> Array:
    """The `branch_risks` at the ends of all searches in the queue."""
    n = len(queue)
    padded = jnp.concatenate([queue, jnp.full(lanes, n)])

    def of_one(problem: Problem, theta: Array) -> Array:
        at = evaluate(model, problem.data, theta, curvature=False)
        return branch_risks(model, problem.data, theta, at, problem.fixed, jnp)

    def some(i: Array, risks: Any) -> Any:
        which = jax.lax.dynamic_slice(padded, (i * lanes,), (lanes,))
        fresh = jax.vmap(of_one)(_rows(problems, which), _rows(found.theta, which))
        return risks.at[which].set(fresh, mode="drop")

    return jax.lax.fori_loop(0, -(-waiting // lanes), some, jnp.zeros((n, model.blocks[0])))


def _rows(tree: Any, which: Array) -> Any:
    """The rows of all leaves, those of length one repeated; any row where `which` is none."""
    return jax.tree.map(lambda a: a[jnp.minimum(which, len(a) - 1)], tree)


def _where(mask: Array, new: Array, old: Array) -> Array:
    return jnp.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _unknown(model: Prepared, problems: Problem, n: int) -> Minimum:
    """Results before the first search."""

    def ended(problem: Problem) -> Minimum:
        return search_ended(problem, search_begun(model, problem, problem.guess))

    one = jax.eval_shape(ended, jax.tree.map(lambda a: a[0], problems))
    found: Minimum = jax.tree.map(lambda leaf: jnp.zeros((n, *leaf.shape), leaf.dtype), one)
    return found
