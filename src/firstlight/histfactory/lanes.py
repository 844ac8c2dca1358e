"""Fits many problems in one program, on lanes that each take the next problem when one is done.

A batch in lockstep waits for its slowest search. Of toys with 184 parameters most need seven steps
and one in a thousand needs thirty, so two thirds of the work would go to searches that have ended.
Here a fixed number of lanes search side by side, and a lane whose search has ended takes the next
problem from the queue.

Problems that may have another minimum (see `branches`) are searched again from elsewhere. As soon
as half of the lanes are free, this is decided for all searches that have ended; those to be
repeated form the next queue, while the other lanes go on. When few problems are left, they move to
fewer lanes.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, TypeVar

from firstlight.histfactory.array_types import Array
from firstlight.histfactory.branches import (
    Evidence,
    Plan,
    after_all,
    evidence_of,
    first_plan,
    next_plan,
)
from firstlight.histfactory.closed_form import evaluate
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.likelihood import Prepared
from firstlight.histfactory.newton import (
    Minimum,
    Problem,
    SearchState,
    begin_search,
    finish_search,
    is_searching,
    search_step,
)

#: The last problems move to one lane in `_NARROW`, if there are at least `_MANY` lanes.
_NARROW, _MANY = 16, 512


_T = TypeVar("_T")


class Work(NamedTuple):
    """Work done by the fits; the share of busy lanes is `steps / lane_steps`."""

    steps: Array  # of all searches
    lane_steps: Array  # of all lanes, whether they had a problem or not


class _State(NamedTuple):
    which: Array  # the problem on each lane; on an idle lane, the number of problems
    search: SearchState
    waiting: Array  # problems to be searched that are not on a lane
    plans: Plan  # of all problems
    found: Minimum  # of the last search of each
    work: Work


class _Lanes(NamedTuple):
    """The part of the state that changes with every step."""

    which: Array
    search: SearchState
    taken: Array  # number of problems taken from the queue
    found: Minimum
    work: Work


def lowest_of_each(
    model: Prepared, problems: Problem, wanted: Array, *, lanes: int
) -> tuple[Minimum, Work]:
    """The results of `branches.lowest` for many problems, in one program.

    problems: each leaf with a leading axis, of length one if all problems share it.
    wanted: False for rows that only fill up the batch; their results are meaningless.
    """
    n = len(wanted)
    lanes = min(lanes, n)
    few = lanes // _NARROW if lanes >= _MANY else 0
    nobody = jnp.full(lanes, n)
    state = _State(
        which=nobody,
        search=_begun(model, problems, problems.guess, nobody),
        waiting=wanted,
        plans=jax.vmap(partial(first_plan, model))(_rows(problems, jnp.arange(n))),
        found=_unknown(model, problems, n),
        work=Work(jnp.zeros((), jnp.int64), jnp.zeros((), jnp.int64)),
    )
    turn = partial(_turn, model, problems)
    state = jax.lax.while_loop(lambda s: _left(s, n) > few, turn, state)
    if few:
        order = jnp.argsort(state.which == n, stable=True)[:few]  # busy lanes first
        state = state._replace(which=state.which[order], search=_rows(state.search, order))
        state = jax.lax.while_loop(lambda s: _left(s, n) > 0, turn, state)
    return after_all(state.found, state.plans, jnp), state.work


def _left(state: _State, n: int) -> Array:
    """Number of problems not yet settled, including those on lanes."""
    return jnp.sum(state.waiting) + jnp.sum(state.which < n)


def _turn(model: Prepared, problems: Problem, state: _State) -> _State:
    """Search until the queue is empty and half of the lanes are free, then plan the next queue."""
    n = len(state.waiting)
    queue = jnp.nonzero(state.waiting, size=n, fill_value=n)[0]
    begin = _refilled(model, problems, state.plans.start, queue, _lanes_of(state), state.which == n)
    enough = jnp.sum(begin.which < n) // 2
    step = partial(_step, model, problems, state.plans, queue)
    end = jax.lax.while_loop(lambda s: jnp.sum(s.which < n) > enough, step, begin)
    waiting = state.waiting & (jnp.cumsum(state.waiting) > end.taken)
    ended = _on_lanes(state.which, n) | (state.waiting & ~waiting)
    ended &= ~_on_lanes(end.which, n)
    plans = _next_plans(model, problems, state.plans, end.found, ended, len(state.which))
    return _State(end.which, end.search, waiting | (ended & plans.more), plans, *end[3:])


def _lanes_of(state: _State) -> _Lanes:
    none = jnp.zeros((), jnp.int64)
    return _Lanes(state.which, state.search, none, state.found, state.work)


def _on_lanes(which: Array, n: int) -> Array:
    return jnp.zeros(n, bool).at[which].set(True, mode="drop")


def _begun(model: Prepared, problems: Problem, starts: Array, which: Array) -> SearchState:
    begin = jax.vmap(partial(begin_search, model))
    begun: SearchState = begin(_rows(problems, which), _rows(starts, which))
    return begun


def _refilled(
    model: Prepared, problems: Problem, starts: Array, queue: jax.Array, at: _Lanes, free: Array
) -> _Lanes:
    """Assign the next problems of the queue to the free lanes."""
    n = len(queue)
    following = at.taken + jnp.cumsum(free) - 1
    which = jnp.where(free, queue.at[following].get(mode="fill", fill_value=n), at.which)
    begun = _begun(model, problems, starts, which)
    search = jax.tree.map(partial(_where, free), begun, at.search)
    return at._replace(which=which, search=search, taken=at.taken + jnp.sum(free))


def _step(model: Prepared, problems: Problem, plans: Plan, queue: jax.Array, at: _Lanes) -> _Lanes:
    """One step of the search on every lane."""
    n, busy = len(queue), at.which < len(queue)
    problem = _rows(problems, at.which)
    near = _rows(plans.near, at.which)
    search = jax.vmap(partial(search_step, model))(problem, near, at.search)
    ended = busy & ~is_searching(search)
    place = jnp.where(ended, at.which, n)
    ends = jax.vmap(finish_search)(problem, search)
    found = jax.tree.map(lambda a, b: a.at[place].set(b, mode="drop"), at.found, ends)
    work = Work(at.work.steps + jnp.sum(busy), at.work.lane_steps + len(busy))
    at = at._replace(search=search, found=found, work=work)
    return _refilled(model, problems, plans.start, queue, at, ended | ~busy)


def _next_plans(
    model: Prepared, problems: Problem, plans: Plan, found: Minimum, ended: Array, lanes: int
) -> Plan:
    """The plans, updated for the problems whose search has ended."""
    n = len(ended)
    queue = jnp.nonzero(ended, size=n, fill_value=n)[0]
    evidence = _evidence(model, problems, found, queue, jnp.sum(ended), lanes)

    def next_of_one(problem: Problem, plan: Plan, end: Minimum, fresh: Evidence) -> Plan:
        return next_plan(model, problem, plan, end, fresh, jnp)

    fresh = jax.vmap(next_of_one)(_rows(problems, jnp.arange(n)), plans, found, evidence)
    changed: Plan = jax.tree.map(partial(_where, ended), fresh, plans)
    return changed


def _evidence(
    model: Prepared, problems: Problem, found: Minimum, queue: Array, waiting: Array, lanes: int
) -> Evidence:
    """What the ends of all searches in the queue say about other minima."""
    n = len(queue)
    padded = jnp.concatenate([queue, jnp.full(lanes, n)])

    def of_one(problem: Problem, end: Minimum) -> Evidence:
        at = evaluate(model, problem.data, end.theta, curvature=False)
        return evidence_of(model, problem, end, at, jnp)

    def some(i: Array, known: Evidence) -> Evidence:
        which = jax.lax.dynamic_slice(padded, (i * lanes,), (lanes,))
        fresh = jax.vmap(of_one)(_rows(problems, which), _rows(found, which))
        entered: Evidence = jax.tree.map(lambda a, b: a.at[which].set(b, mode="drop"), known, fresh)
        return entered

    none = Evidence(jnp.zeros((n, model.blocks[0])), jnp.zeros(n, bool))
    found_all: Evidence = jax.lax.fori_loop(0, -(-waiting // lanes), some, none)
    return found_all


def _rows(tree: _T, which: Array) -> _T:
    """Rows of all leaves, with leaves of length one repeated; out of range gives any row."""
    rows: _T = jax.tree.map(lambda a: a[jnp.minimum(which, len(a) - 1)], tree)
    return rows


def _where(mask: Array, new: Array, old: Array) -> Array:
    return jnp.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _unknown(model: Prepared, problems: Problem, n: int) -> Minimum:
    """Results before the first search."""

    def ended(problem: Problem) -> Minimum:
        return finish_search(problem, begin_search(model, problem, problem.guess))

    one = jax.eval_shape(ended, jax.tree.map(lambda a: a[0], problems))
    found: Minimum = jax.tree.map(lambda leaf: jnp.zeros((n, *leaf.shape), leaf.dtype), one)
    return found
