"""The programs behind plain calls: NumPy answers first, and XLA takes over once that pays.

Importing JAX and compiling a fit takes longer than dozens of fits in NumPy, so a process with few
fits never compiles. A process with many compiles once NumPy has worked for as long as compiling
takes; no sequence of calls then takes more than about twice the time of the better choice. The
switch is decided by counting operations, not by the clock: NumPy and XLA agree only to rounding,
and a script must give the same digits in every run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from functools import cache, cached_property, partial
from operator import methodcaller
from typing import Any

import numpy as np

from firstlight import forks
from firstlight.histfactory.array_types import Array, Numpy
from firstlight.histfactory.devices import copied, divided, filled
from firstlight.histfactory.lazy_jax import is_installed, jax, jnp
from firstlight.histfactory.likelihood import Prepared
from firstlight.histfactory.model import Description
from firstlight.histfactory.numpy_or_jax import map_leaves
from firstlight.histfactory.precision import float64_scope

#: Seconds of work in NumPy on models of one kind after which a program is compiled: about what
#: importing JAX and compiling a fit takes.
PATIENCE = 1.0
#: Seconds of one evaluation in NumPy with gradient and Hessian: per evaluation, and per cell and
#: parameter (measured on a 3 GHz processor; a faster one also compiles faster).
_EVALUATION, _CELL = 7e-4, 6e-8


#: Kinds of models whose programs are compiled at once.
_AT_ONCE: set[Hashable] = set()


class Patience:
    """How long NumPy works on one kind of call before its program is compiled."""

    def __init__(self, evaluations: float, compiling: float = 1.0) -> None:
        """evaluations: cost of a call, in evaluations of the likelihood with its Hessian.

        compiling: compile time of its program, relative to that of a fit.
        """
        self._evaluations, self._compiling = evaluations, compiling
        self._spent: dict[Hashable, float] = {}  # seconds in NumPy, by kind of model
        self._over: set[Hashable] = set()

    def is_over(self, model: Prepared | Description, calls: int = 1) -> bool:
        """Whether to run compiled, given that at least `calls` more calls follow."""
        kind = model.kind
        if kind in self._over or kind in _AT_ONCE:
            return True
        enough = self._spent.get(kind, 0.0) + calls * self._seconds(model)
        # A forked process that cannot compile goes on with NumPy.
        pays = enough > self._compiling * PATIENCE and is_installed()
        return pays and not forks.has_lost_threads()

    def _seconds(self, model: Prepared | Description) -> float:
        return self._evaluations * (_EVALUATION + _CELL * model.cells)

    @contextlib.contextmanager
    def spent(self, prepared: Prepared, calls: int = 1) -> Iterator[None]:
        """A context in which NumPy works on this many calls; their cost is counted."""
        spent = self._spent.get(prepared.kind, 0.0)
        self._spent[prepared.kind] = spent + calls * self._seconds(prepared)
        with one_thread(prepared, of_jax=False), np.errstate(all="ignore"):
            yield

    def end(self, model: Prepared | Description) -> None:
        """Note that the program is compiled."""
        self._over.add(model.kind)


def one_thread(prepared: Prepared, of_jax: bool = True) -> AbstractContextManager[None]:
    """A context in which BLAS computes with a model on one thread; `of_jax`: JAX's, too."""
    if prepared.is_small:
        return contextlib.nullcontext()
    from firstlight.histfactory.blas_threads import one_blas_thread  # small models need none of it

    return one_blas_thread(of_jax=of_jax)


class Program:
    """A function `f(prepared, *arrays, xp=...)` that runs in NumPy or compiled, for any model."""

    def __init__(self, function: Callable[..., Any], evaluations: float) -> None:
        """evaluations: cost of a call, in evaluations of the likelihood with its Hessian."""
        self.function = function
        self._patience = Patience(evaluations)
        self._installed: dict[Hashable, Callable[..., Any]] = {}  # by kind of model
        self._packed: dict[Hashable, PackedProgram] = {}  # by kind of model and shapes

    def is_due(self, model: Prepared, calls: int = 1) -> bool:
        """Whether to run compiled, given that at least `calls` more calls follow."""
        return self._patience.is_over(model, calls)

    def install(self, kind: Hashable, executable: Callable[..., Any]) -> None:
        """Run `executable(prepared, *arrays)` for models of this kind instead of compiling.

        It takes and returns NumPy arrays, and JAX need not be imported.
        """
        self._installed[kind] = executable

    def is_installed(self, prepared: Prepared) -> bool:
        return prepared.kind in self._installed

    def __call__(self, prepared: Prepared, *arrays: object, calls: int = 1) -> Any:
        """The result in NumPy arrays; calls: the cost of this call, in single calls."""
        if self.is_due(prepared, calls):
            return self.compiled(prepared, *arrays)
        return self.on_host(prepared, *arrays, calls=calls)

    def on_host(self, prepared: Prepared, *arrays: object, calls: int = 1) -> Any:
        with self._patience.spent(prepared, calls):
            return self.function(prepared, *arrays, xp=np)

    def compiled(self, prepared: Prepared, *arrays: object) -> Any:
        self._patience.end(prepared)
        if self.is_installed(prepared):
            return self._installed[prepared.kind](prepared, *arrays)
        leaves = leaves_of(arrays)
        key = (prepared.kind, *[getattr(leaf, "shape", ()) for leaf in leaves])
        program = self._packed.get(key)
        if program is None:
            program = self._packed[key] = PackedProgram(self.function, arrays)
        return program(prepared.on_device, leaves)

    def on_devices(self, prepared: Prepared, *arrays: Any, devices: tuple[jax.Device, ...]) -> Any:
        """Like `compiled`, with the rows of the last array divided among devices."""
        self._patience.end(prepared)
        *common, last = arrays
        size = -(-len(last) // len(devices)) * len(devices)
        with float64_scope():
            rows = jax.device_put(filled(np.asarray(last), size), divided(devices))
            shared = jax.device_put(common, copied(devices))
            found = self._jitted(prepared.on(copied(devices)), *shared, rows)
            return map_leaves(lambda a: a[: len(last)], jax.device_get(found))

    @cached_property
    def _jitted(self) -> Callable[..., Any]:
        def in_program(*arguments: object) -> object:
            return self.function(*arguments, xp=jnp)

        program: Callable[..., Any] = jax.jit(in_program, compiler_options=compiler_options())
        return program


class PackedProgram:
    """A compiled function whose arrays travel in one vector each way.

    JAX takes microseconds to copy an array, however small, and a small fit takes not many more.
    """

    def __init__(self, function: Callable[..., Any], arrays: tuple[object, ...]) -> None:
        """arrays: an example of the arguments after `prepared`."""
        self._function = function
        self._given = Packing(arrays)
        self._result: Packing | None = None

    def __call__(self, prepared: Prepared, leaves: list[Any]) -> Any:
        """The result in NumPy arrays; leaves: those of the arguments, in their order."""
        vector = in_one_vector(leaves)
        with float64_scope():
            packed = np.asarray(self._jitted(prepared, vector))
        assert self._result is not None
        return self._result.unpacked(packed)

    def in_program(self, prepared: Prepared, vector: Array) -> Array:
        """The program itself: from one vector to one vector."""
        found = self._function(prepared, *self._given.unpacked(vector), xp=jnp)
        self._result = Packing(found)
        leaves = [jnp.ravel(leaf).astype(jnp.float64) for leaf in leaves_of(found)]
        return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)

    @cached_property
    def _jitted(self) -> Callable[[Prepared, Array], Array]:
        program: Callable[..., Any] = jax.jit(self.in_program, compiler_options=compiler_options())
        return program


def in_one_vector(leaves: list[Any]) -> Array:
    """All numbers of some arrays, in their order."""
    return np.concatenate(leaves, axis=None, dtype=np.float64)


class Packing:
    """How nested tuples of arrays lie in one vector of 64-bit floats; these hold counts exactly."""

    def __init__(self, example: Any) -> None:
        leaves = leaves_of(example)
        count = itertools.count()
        self._tree = map_leaves(lambda leaf: next(count), example)  # numbers instead of arrays
        ends = list(itertools.accumulate(math.prod(np.shape(leaf)) for leaf in leaves))
        begins = [0, *ends[:-1]]
        self._parts = [
            (slice(begin, end) if np.ndim(leaf) else begin, np.shape(leaf), _conversion_to(leaf))
            for leaf, begin, end in zip(leaves, begins, ends, strict=True)
        ]

    def unpacked(self, vector: Array) -> Any:
        """The arrays, as views if they are floats; those without axes as scalars."""
        arrays = []
        for where, shape, convert in self._parts:
            part = vector[where]
            if len(shape) > 1:
                part = part.reshape(shape)
            arrays.append(part if convert is None else convert(part))
        return map_leaves(arrays.__getitem__, self._tree)


def _conversion_to(leaf: Any) -> Callable[[Any], Any] | None:
    """Makes numbers of the type of an array from floats; None if they are floats."""
    kind = getattr(leaf, "dtype", None)
    if kind is None or np.issubdtype(kind, np.floating):
        return None
    # Calling the type converts a scalar in a quarter of the time that `astype` takes.
    return methodcaller("astype", kind) if np.ndim(leaf) else kind.type


def leaves_of(tree: Any) -> list[Any]:
    """The arrays in nested tuples, in order."""
    if tree is None:
        return []
    if not isinstance(tree, tuple):
        return [tree]
    return [leaf for part in tree for leaf in leaves_of(part)]


def compile_at_once(model: Prepared | Description) -> None:
    """Stop using NumPy for models of this kind."""
    forks.require_threads()
    _AT_ONCE.add(model.kind)


@cache
def compiler_options() -> dict[str, bool] | None:
    """Selects XLA's older loop emitter on a CPU: as fast here, in half the compile time."""
    if jax.default_backend() != "cpu":
        return None
    options = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except Exception:  # this version of XLA does not have the option
        return None
    return options


def over_leading_axes(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """`function` mapped over the leading axes of its last argument."""

    def mapped(*arguments: Any, xp: Numpy) -> Any:
        *rest, last = arguments
        if not axes:
            return function(*rest, last, xp=xp)
        if xp is not np:
            one: Callable[..., Any] = partial(function, *rest, xp=xp)
            for _ in range(axes):
                one = jax.vmap(one)
            return one(last)
        shape = last.shape[:axes]
        rows = [function(*rest, row, xp=np) for row in last.reshape(-1, *last.shape[axes:])]
        return _stacked(rows, shape)

    return mapped


def _stacked(rows: list[Any], shape: tuple[int, ...]) -> Any:
    if isinstance(rows[0], tuple):
        return tuple(_stacked(list(column), shape) for column in zip(*rows, strict=True))
    stacked = np.stack(rows)
    return stacked.reshape(*shape, *stacked.shape[1:])
