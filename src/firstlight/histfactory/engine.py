"""The two engines that run fits: `Eager` calls programs, `Traced` is part of the caller's program.

Inference is written once, against `Engine`. Outside JAX transformations the eager engine runs
`programs`: at first NumPy, then one executable for all fits of a given size, which other models,
data and fixed parameters reuse. Its results are NumPy arrays. Under `jit`, `grad` or `vmap` the
traced engine puts the same search into the caller's program, with derivatives.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.array_types import Array, Number, Numpy, Truth
from firstlight.histfactory.branches import first_search, lowest
from firstlight.histfactory.devices import Devices, devices_for
from firstlight.histfactory.internal_order import prepared
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.likelihood import Data, Prepared, expected_counts, saturated_nll
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Problem, WarmStart, is_minimum
from firstlight.histfactory.numpy_or_jax import map_leaves, row_of
from firstlight.histfactory.precision import is_traced
from firstlight.histfactory.profiling import attach, minimise_chain
from firstlight.histfactory.programs import Program, compile_at_once, one_thread

Progress = Callable[[int, int], None]  # (done, of)

#: Seconds of a compiled fit on a CPU: per fit, and per cell and parameter; and of fits that are
#: worth starting threads for.
_FIT, _FIT_CELL, _THREADS = 5e-5, 4e-8, 2e-3


class _Backend:
    """The parts common to both engines."""

    xp: Numpy

    def __init__(self, model: Model) -> None:
        self.model = model
        self.prepared = prepared(model)

    @property
    def floor(self) -> Number:
        """The negative log-likelihood where data and constraints fit exactly."""
        return self.prepared.constraint_constant

    def constants(self, data: Data) -> Array:
        """The part of the negative log-likelihood that depends on the data alone."""
        return saturated_nll(self.prepared.tau, data, self.xp)

    def followed(self, found: Minimum, problem: Problem) -> Array:
        """The parameters of a minimum, with the derivatives of the minimum's position."""
        return found.theta

    def constant(self, theta: Array) -> Array:
        """Parameters without derivatives."""
        return theta

    def asimov(self, theta: Array) -> Data:
        """The data whose likelihood has its maximum at `theta`."""
        tau = self.prepared.tau
        return Data(self._expected(theta), self.xp.where(tau > 0, tau * theta, theta))

    def _expected(self, theta: Array) -> Array:
        return expected_counts(self.prepared, theta)


class Eager(_Backend):
    """Calls executables; returns NumPy arrays."""

    xp = np

    def __init__(self, model: Model, compiled: bool | None = None, devices: Devices = None) -> None:
        """compiled: run all fits compiled, or none; None: decide for each call.

        NumPy and XLA agree only to rounding. When calls are spread over processes, one decision for
        all of them gives the same digits as a single process.
        devices: devices to divide many fits among; see `devices_for`.
        """
        if model._is_traced:
            raise ModelError(
                "this runs only outside jit, grad and vmap. Functions that compose with them: nll, "
                "fit, discovery, qmu, qmu_tilde, cls, upper_limit, asimov."
            )
        super().__init__(model)
        if devices is not None:
            devices_for(1, devices)  # raises if they are invalid, even if only NumPy runs
        self.compiled, self.devices = compiled, devices

    def deciding(self, fits: int) -> Eager:
        """The engine for this many certain fits, all of which run the same program."""
        return Eager(self.model, self._runs_compiled(fits), self.devices)

    def _runs_compiled(self, fits: int = 1) -> bool:
        return _FIRST.is_due(self.prepared, fits) if self.compiled is None else self.compiled

    @property
    def _on_cpu(self) -> bool:
        """Whether compiled programs run on a CPU."""
        return _FIRST.is_installed(self.prepared) or jax.default_backend() == "cpu"

    def constants(self, data: Data) -> Array:
        if self.model.about.has_observations and data is self.model._observed_data:
            return self.model._observed_constants
        return super().constants(data)

    def fits(self, problems: Sequence[Problem], progress: Progress | None = None) -> list[Minimum]:
        """Minima of independent problems."""
        if not problems:
            return []
        engine = self.deciding(len(problems))
        if len(problems) == 1 or engine._are_quick(len(problems)):
            return [engine._fit(problem) for problem in problems]
        together: Problem = map_leaves(lambda *a: np.stack([np.asarray(x) for x in a]), *problems)
        return _unstacked(self.fit_all(together, progress), len(problems))

    def fit_all(self, problems: Problem, progress: Progress | None = None) -> Minimum:
        """Minima of problems stacked on a leading axis, without their Hessians."""
        n = len(problems.start)
        report = progress or (lambda done, of: None)
        engine = self.deciding(n)
        if engine.compiled:
            return engine._fit_compiled(problems, report)
        found: list[Minimum] = []
        while len(found) < n:
            found.append(engine._fit(row_of(problems, len(found))))
            report(len(found), n)
        together: Minimum = map_leaves(lambda *a: np.stack(a), *found)
        return together

    def _are_quick(self, fits: int) -> bool:
        """Whether this many fits take less time than starting threads for them."""
        return fits * (_FIT + _FIT_CELL * self.prepared.cells) < _THREADS

    def _fit_compiled(self, problems: Problem, progress: Progress) -> Minimum:
        if not _FIRST.is_installed(self.prepared):  # or JAX need not be imported
            devices = devices_for(len(problems.start), self.devices)
            if len(devices) > 1 or devices[0].platform != "cpu":
                from firstlight.histfactory.device_fits import fits_on_devices

                return fits_on_devices(self.prepared, problems, devices, progress)
        found = _fits_on_cores(self, problems, progress)
        together: Minimum = map_leaves(lambda *a: np.stack(a), *found)
        return together

    def chain(
        self, problems: Sequence[Problem], warm_start: WarmStart | None = None
    ) -> list[Minimum]:
        """Minima of a free and a conditional fit, or of the conditional fit alone.

        Each fit starts at its `warm_start`, or where the previous one ended.
        """
        found: list[Minimum] = []
        ends: list[Array] = []
        if warm_start is not None and bool(warm_start.known):
            ends = [warm_start.free, warm_start.conditional][-len(problems) :]
        for i, problem in enumerate(problems):
            near = ends[i] if ends else found[-1].theta if found else None
            start = problem if near is None else problem.starting_at(np.asarray(near))
            found.append(self._fit(start, follow=bool(ends)))
        return found

    def _fit(self, problem: Problem, follow: bool = False) -> Minimum:
        """follow: stay in the minimum that the guess leads to."""
        # To JAX a Python float has another type than a NumPy float, and would recompile.
        problem = problem._replace(near=np.float64(problem.near))
        found: Minimum
        if not self._runs_compiled():
            found, _ = _FIRST.on_host(self.prepared, problem, np.bool_(follow))
            return found
        with one_thread(self.prepared) if self._on_cpu else contextlib.nullcontext():
            found, settled = _FIRST.compiled(self.prepared, problem)
            if not (settled or (follow and is_minimum(found))):
                found = _LOWEST.compiled(self.prepared, problem)
        return found

    def precompile(self, problem: Problem) -> None:
        """Compile everything that fits of such problems may need."""
        compile_at_once(self.prepared)
        self._fit(problem)
        _LOWEST.compiled(self.prepared, problem._replace(near=np.float64(problem.near)))
        self.asimov(problem.start)

    def _expected(self, theta: Array) -> Array:
        if self.compiled is not None:  # too little work to compile a program in every process
            return expected_counts(self.prepared, theta, np)
        return np.asarray(_EXPECTED(self.prepared, theta))

    def tail(self, z: Array) -> Array:
        """Probability of a standard normal above z."""
        erfc = np.vectorize(math.erfc, otypes=[np.float64])
        return 0.5 * erfc(np.asarray(z) / math.sqrt(2))


class OnHost(Eager):
    """Eager in NumPy only: the caller decides when to use a compiled program instead."""

    def fits(self, problems: Sequence[Problem], progress: Progress | None = None) -> list[Minimum]:
        return [self._fit(problem) for problem in problems]

    def _fit(self, problem: Problem, follow: bool = False) -> Minimum:
        return lowest(self.prepared, problem, np, np.bool_(follow))

    def _expected(self, theta: Array) -> Array:
        return expected_counts(self.prepared, theta, np)


class Traced(_Backend):
    """Builds part of a program that JAX transforms."""

    xp = jnp

    def chain(
        self, problems: Sequence[Problem], warm_start: WarmStart | None = None
    ) -> list[Minimum]:
        """Like `Eager.chain`."""
        found = minimise_chain(self.prepared, _stacked(problems), warm_start)
        return _unstacked(found, len(problems))

    def followed(self, found: Minimum, problem: Problem) -> Array:
        return attach(found.theta, found.free, self.prepared, problem.data)

    def constant(self, theta: Array) -> Array:
        return jax.lax.stop_gradient(theta)

    def tail(self, z: Array) -> Array:
        """Probability of a standard normal above z."""
        return 0.5 * jax.lax.erfc(z / math.sqrt(2))


Engine: TypeAlias = Eager | Traced


def engine_for(model: Model, *arguments: object, require_positive: bool = False) -> Engine:
    """Traced if anything is, eager otherwise."""
    if not is_traced(model, arguments):
        return eager_engine(model, require_positive=require_positive)
    if require_positive:
        raise ModelError(
            "require_positive=True works only outside jit, grad and vmap. Inside them leave it "
            "out, and bound the parameters so that no sample falls below zero."
        )
    return Traced(model)


def eager_engine(
    model: Model,
    compiled: bool | None = None,
    devices: Devices = None,
    *,
    require_positive: bool = False,
) -> Eager:
    """The engine of calls outside JAX transformations; see `Eager`."""
    if not require_positive:
        return Eager(model, compiled, devices)
    # By name: other fits do not need it, and it is written with this module.
    positivity = importlib.import_module("firstlight.histfactory.positivity")
    engine: Eager = positivity.Positive(model, compiled, devices)
    return engine


def _stacked(problems: Sequence[Problem]) -> Problem:
    def stack(*leaves: Array) -> Array:
        return jnp.stack([jnp.asarray(leaf, jnp.float64) for leaf in leaves])

    return Problem(*jax.tree.map(stack, *problems))


def _unstacked(found: Minimum, n: int) -> list[Minimum]:
    return [row_of(found, i) for i in range(n)]


def _search(
    prepared: Prepared, problem: Problem, follow: Truth = False, *, xp: Numpy
) -> tuple[Minimum, Array]:
    """A minimum, and whether it needs no further search.

    A program runs a single search: it compiles in three quarters of the time of `lowest`, and few
    problems need more.
    """
    if xp is np:
        return lowest(prepared, problem, np, follow), np.True_
    return first_search(prepared, problem)


_FIRST, _LOWEST = Program(_search, evaluations=8), Program(lowest, evaluations=8)
#: All programs that fits compile, so that executables can be installed in their place.
FIT_PROGRAMS = {"first": _FIRST, "lowest": _LOWEST}
_EXPECTED = Program(expected_counts, evaluations=0.2)


def cores() -> int:
    """Number of cores that this process may use for fits."""
    if (given := os.environ.get("FIRSTLIGHT_FIT_THREADS", "")).isdecimal() and int(given):
        return int(given)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def _fits_on_cores(engine: Eager, problems: Problem, progress: Progress) -> list[Minimum]:
    """Fits one after another on every core: faster than a batch, which waits for its slowest."""
    from concurrent.futures import ThreadPoolExecutor  # not needed by a few fits

    n = len(problems.start)
    done: list[Minimum] = []

    def one(i: int) -> Minimum:
        return engine._fit(row_of(problems, i))

    def note(found: Minimum) -> None:
        done.append(found)
        progress(len(done), n)

    note(one(0))  # compiles, once
    if engine._are_quick(n - 1):
        for i in range(1, n):
            note(one(i))
        return done
    with one_thread(engine.prepared), ThreadPoolExecutor(min(n, cores())) as pool:
        for found in pool.map(one, range(1, n)):
            note(found)
    return done
