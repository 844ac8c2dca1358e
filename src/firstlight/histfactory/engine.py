"""What runs the fits: `Eager` calls compiled programs, `Traced` is part of the caller's program.

Inference is written once, against `Engine`. Outside JAX transformations the eager engine calls one
executable for all fits of a given size, so that another model, other data or other fixed parameters
compile nothing; results are NumPy arrays. Under `jit`, `grad` or `vmap` the traced engine puts the
same search into the caller's program, with derivatives.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from firstlight.histfactory.blas_threads import one_blas_thread
from firstlight.histfactory.branches import first_search, lowest
from firstlight.histfactory.internal_order import prepared
from firstlight.histfactory.likelihood import Data, expected_counts, saturated_nll
from firstlight.histfactory.model import Model, ModelError
from firstlight.histfactory.newton import Minimum, Problem, WarmStart
from firstlight.histfactory.precision import float64_scope, is_traced
from firstlight.histfactory.profiling import attach, minimise_chain, with_derivatives

Progress = Callable[[int, int], None]  # (done, of)
#: Fits in one batch on an accelerator: enough to fill it, few enough for its memory.
BATCH = 1024


class Engine:
    """What inference needs from a backend."""

    xp: Any

    def __init__(self, model: Model) -> None:
        self.model = model
        self.prepared = prepared(model)

    @property
    def floor(self) -> Any:
        """The negative log-likelihood where data and constraints fit exactly."""
        return self.prepared.constraint_constant

    def fits(self, problems: Sequence[Problem], progress: Progress | None = None) -> list[Minimum]:
        """Minima of independent problems."""
        raise NotImplementedError

    def chain(
        self, problems: Sequence[Problem], warm_start: WarmStart | None = None
    ) -> list[Minimum]:
        """Minima of a free and a conditional fit, or of the latter alone.

        Each starts at its `warm_start`, or where the previous one ended.
        """
        raise NotImplementedError

    def followed(self, found: Minimum, problem: Problem) -> Any:
        """The parameters of a minimum, with the derivatives of the minimum's position."""
        return found.theta

    def followed_all(self, found: list[Minimum], problems: Sequence[Problem]) -> list[Minimum]:
        """Minima that were found without derivatives, with them."""
        raise NotImplementedError

    def asimov(self, theta: Any) -> Data:
        """The data whose likelihood has its maximum at `theta`."""
        raise NotImplementedError

    def constants(self, data: Data) -> Any:
        """The part of the negative log-likelihood that depends on the data alone."""
        raise NotImplementedError

    def tail(self, z: Any) -> Any:
        """Probability of a standard normal above z."""
        raise NotImplementedError


class Eager(Engine):
    """Calls executables; returns NumPy arrays."""

    xp = np

    def __init__(self, model: Model) -> None:
        if model._is_traced:
            raise ModelError(
                "this runs only outside jit, grad and vmap. Functions that compose with them: nll, "
                "fit, discovery, qmu, qmu_tilde, cls, upper_limit, asimov."
            )
        super().__init__(model)

    def fits(self, problems: Sequence[Problem], progress: Progress | None = None) -> list[Minimum]:
        if not problems:
            return []
        stacked = jax.tree.map(lambda *a: np.stack([np.asarray(x) for x in a]), *problems)
        return _unstacked(self.fit_all(Problem(*stacked), progress), len(problems))

    def fit_all(self, problems: Problem, progress: Progress | None = None) -> Minimum:
        """Minima of problems stacked on a leading axis, without their Hessians."""
        on_cores = jax.default_backend() == "cpu"
        return (_fits_on_cores if on_cores else _fits_in_batches)(self, problems, progress)

    def chain(
        self, problems: Sequence[Problem], warm_start: WarmStart | None = None
    ) -> list[Minimum]:
        found: list[Minimum] = []
        ends: list[Any] = []
        if warm_start is not None and bool(warm_start.known):
            ends = [warm_start.free, warm_start.conditional][-len(problems) :]
        for i, problem in enumerate(problems):
            if ends:
                found.append(self._fit(problem.starting_at(np.asarray(ends[i]))))
            elif found:
                found.append(self._fit(problem.starting_at(found[-1].theta)))
            else:
                found.append(self._fit(problem))
        return found

    def _fit(self, problem: Problem) -> Minimum:
        on_cpu = jax.default_backend() == "cpu"
        with float64_scope(), one_blas_thread() if on_cpu else contextlib.nullcontext():
            # To JAX a Python float has another type than a NumPy float, and would recompile.
            problem = problem._replace(near=np.float64(problem.near))
            found, settled = jax.device_get(_first()(self.prepared, problem))
            if not settled:
                found = jax.device_get(_lowest()(self.prepared, problem))
        return cast(Minimum, found)

    def asimov(self, theta: Any) -> Data:
        main = np.asarray(_expected()(self.prepared, theta))
        return Data(main, np.where(self.tau > 0, self.tau * theta, theta))

    def constants(self, data: Data) -> Any:
        data = Data(np.asarray(data.main), np.asarray(data.aux))
        return saturated_nll(self.tau, data, np)

    @property
    def floor(self) -> Any:
        return float(np.asarray(self.prepared.constraint_constant))

    @cached_property
    def tau(self) -> Any:
        """Rates of the Poisson constraints, on the host."""
        return np.asarray(self.prepared.tau)

    def tail(self, z: Any) -> Any:
        erfc = np.vectorize(math.erfc, otypes=[np.float64])
        return 0.5 * erfc(np.asarray(z) / math.sqrt(2))


class Traced(Engine):
    """Builds part of a program that JAX transforms."""

    xp = jnp

    def chain(
        self, problems: Sequence[Problem], warm_start: WarmStart | None = None
    ) -> list[Minimum]:
        found = minimise_chain(self.prepared, _stacked(problems), warm_start)
        return _unstacked(found, len(problems))

    def followed(self, found: Minimum, problem: Problem) -> Any:
        return attach(found.theta, found.free, self.prepared, problem.data)

    def followed_all(self, found: list[Minimum], problems: Sequence[Problem]) -> list[Minimum]:
        together = Minimum(*jax.tree.map(lambda *a: jnp.stack(a), *found))
        return _unstacked(
            with_derivatives(self.prepared, _stacked(problems), together), len(problems)
        )

    def asimov(self, theta: Any) -> Data:
        tau = self.prepared.tau
        main = expected_counts(self.prepared, theta)
        return Data(main, jnp.where(tau > 0, tau * theta, theta))

    def constants(self, data: Data) -> Any:
        return saturated_nll(self.prepared.tau, data)

    def tail(self, z: Any) -> Any:
        return 0.5 * jax.lax.erfc(z / math.sqrt(2))


def engine_for(model: Model, *arguments: Any) -> Engine:
    """Traced if anything is, eager otherwise."""
    return Traced(model) if is_traced(model, arguments) else Eager(model)


def _stacked(problems: Sequence[Problem]) -> Problem:
    def stack(*leaves: Any) -> Any:
        return jnp.stack([jnp.asarray(leaf, jnp.float64) for leaf in leaves])

    return Problem(*jax.tree.map(stack, *problems))


def _unstacked(found: Minimum, n: int) -> list[Minimum]:
    return [jax.tree.map(lambda a, i=i: a[i], found) for i in range(n)]


@cache
def _first() -> Any:
    """Compiles in three quarters of the time of `_lowest`, which few problems need."""
    return jax.jit(first_search, compiler_options=compiler_options())


@cache
def _lowest() -> Any:
    return jax.jit(lowest, compiler_options=compiler_options())


@cache
def compiler_options() -> dict[str, Any] | None:
    """On a CPU, XLA's older loop emitter: as fast here, and it compiles in half the time."""
    if jax.default_backend() != "cpu":
        return None
    options = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except Exception:  # another XLA, without this option
        return None
    return options


@cache
def _lowest_batch() -> Any:
    return jax.jit(jax.vmap(lowest, (None, 0)))


@cache
def _first_batch() -> Any:
    return jax.jit(jax.vmap(first_search, (None, 0)))


@cache
def _expected() -> Any:
    return jax.jit(expected_counts)


def _cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def _fits_on_cores(engine: Eager, problems: Problem, progress: Progress | None) -> Minimum:
    """Sequential fits on every core: faster than a batch, which waits for its slowest fit."""
    n = len(problems.start)
    workers = min(n, _cores())
    done: list[Minimum] = []

    def one(i: int) -> Minimum:
        return engine._fit(Problem(*jax.tree.map(lambda a: a[i], problems)))

    def note(found: Minimum) -> None:
        done.append(found)
        if progress:
            progress(len(done), n)

    note(one(0))  # compiles, once
    with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
        for found in pool.map(one, range(1, n)):
            note(found)
    return Minimum(*jax.tree.map(lambda *a: np.stack(a), *done))


def _fits_in_batches(engine: Eager, problems: Problem, progress: Progress | None) -> Minimum:
    """All searches in one batch; unsettled ones again in a batch of their own.

    A batch waits for its slowest, so the few problems that may have several minima run separately.
    """
    n = len(problems.start)
    done: list[Minimum] = []
    for begin in range(0, n, BATCH):
        rows = np.arange(begin, min(begin + BATCH, n))
        found, settled = _in_batch(_first_batch(), engine, problems, rows)
        (unsettled,) = np.nonzero(~settled)
        if len(unsettled):
            again = _in_batch(_lowest_batch(), engine, problems, rows[unsettled])
            found = Minimum(*jax.tree.map(partial(_put_rows, unsettled), found, again))
        done.append(found)
        if progress:
            progress(begin + len(rows), n)
    return Minimum(*jax.tree.map(lambda *a: np.concatenate(a), *done))


def _in_batch(program: Any, engine: Eager, problems: Problem, rows: Any) -> Any:
    """The results of a batched program for some of the problems, on the host."""
    size = len(rows)
    # Few batch sizes, so few executables; the last problem is repeated to fill a batch.
    filled = rows[np.minimum(np.arange(1 << (size - 1).bit_length()), size - 1)]
    found = program(engine.prepared, jax.tree.map(lambda a: a[filled], problems))
    return jax.tree.map(lambda a: np.asarray(a)[:size], found)


def _put_rows(rows: Any, into: Any, values: Any) -> Any:
    changed = np.array(into)
    changed[rows] = values
    return changed
