"""Float64 inside, independent of the precision of the surrounding program.

JAX computes in float32 by default, and a likelihood of a hundred counts has no digits to spare.
Every public function runs inside `in_float64`, which applies to this thread and this call only:
global settings stay as they are. Before JAX is imported there is nothing to set.

Under a JAX transformation each public call is one compiled unit, which the next call with the same
shapes reuses. Otherwise `jax.grad` without `jax.jit` would run thousands of operations one by one.
The first such calls need no program at all: see `linear_results`.

Reverse differentiation runs a function's transpose after the function has returned: in a 32-bit
program, outside the scope. There the unit has its own transpose, which opens the scope again. As a
consequence, forward mode (`jax.jvp`, `jax.jacfwd`) through a public function needs a 64-bit program
(`jax.config.update("jax_enable_x64", True)`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np

from firstlight.forks import require_threads
from firstlight.histfactory.array_types import Array
from firstlight.histfactory.lazy_jax import is_imported, jax
from firstlight.histfactory.linear_results import Arguments, known_result

if TYPE_CHECKING:
    from jax.tree_util import PyTreeDef

#: Whether the body of a unit is being traced. The public functions that it calls are part of it:
#: every nested unit would be traced, differentiated and lowered once more.
_IN_UNIT: ContextVar[bool] = ContextVar("_IN_UNIT", default=False)

P = ParamSpec("P")
R = TypeVar("R")
#: The leaves of a call that are not arrays, each in a tuple; None in the place of an array.
_Rest: TypeAlias = tuple[tuple[object] | None, ...]


def float64_scope() -> AbstractContextManager[None]:
    """A context in which JAX computes with 64-bit types; a `ForkError` where it cannot compute."""
    require_threads()
    return _wide()


def _wide() -> AbstractContextManager[None]:
    scope: AbstractContextManager[None] = jax.enable_x64(True)
    return scope


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it and its derivatives run in 64 bits."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if _IN_UNIT.get() or not is_imported():
            return function(*args, **kwargs)
        wide = bool(jax.config.jax_enable_x64)
        with contextlib.nullcontext() if wide else _wide():
            if not is_traced(args, kwargs):
                return function(*args, **kwargs)
            require_threads()
            plain = [_canonical(a) for a in args], {k: _canonical(v) for k, v in kwargs.items()}
            leaves, structure = jax.tree.flatten(plain)
            rest = tuple(None if _is_array(leaf) else (_hashable(leaf),) for leaf in leaves)
            arrays = [leaf for leaf in leaves if _is_array(leaf)]
            unflatten = functools.partial(_unflattened, structure, rest)
            known = known_result(function, plain, arrays, unflatten, wide)
            if known is not None:
                return cast(R, known[0])
            followed = tuple(isinstance(array, jax.core.Tracer) for array in arrays)
            return cast(R, _unit(function, structure, rest, wide, followed)(*arrays))

    return wrapped


def is_traced(*trees: object) -> bool:
    """Whether any of these holds a value that a JAX transformation traces."""
    if not is_imported():
        return False
    # Runs several times in every call, so the common cases do not walk a tree.
    for tree in trees:
        if isinstance(tree, _PLAIN):
            continue
        if isinstance(tree, (tuple, list)):
            traced = is_traced(*tree)
        elif isinstance(tree, dict):
            traced = is_traced(*tree.values())
        elif isinstance(tree, jax.Array):
            traced = isinstance(tree, jax.core.Tracer)
        elif (known := getattr(tree, "_is_traced", None)) is not None:  # cached by a model
            traced = known
        elif isinstance(tree, (Iterator, Set)):  # hold names, and must not be consumed
            traced = False
        else:
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
        if traced:
            return True
    return False


_PLAIN = (np.ndarray, np.generic, float, int, str, type(None))


def _is_array(leaf: object) -> bool:
    return not isinstance(leaf, (bool, str)) and (
        isinstance(leaf, (int, float, np.number, np.ndarray, jax.Array))
    )


def _canonical(argument: object) -> object:
    """Lists of numbers as arrays and mappings as dicts, as a PyTree requires."""
    if isinstance(argument, Mapping):
        return dict(argument)
    numbers = (int, float, np.number, np.ndarray, jax.Array)
    if not isinstance(argument, (list, tuple)) or not argument:
        return argument
    # Arrays in a list are not stacked: they may have different lengths.
    numeric = all(
        isinstance(a, numbers) and not isinstance(a, bool) and np.ndim(a) == 0 for a in argument
    )
    return jax.numpy.asarray(argument) if numeric else argument


def _hashable(leaf: object) -> object:
    return frozenset(leaf) if isinstance(leaf, set) else leaf


def _unflattened(structure: PyTreeDef, rest: _Rest, arrays: Iterable[Array]) -> Arguments:
    """(args, kwargs) from the arrays among them; `rest` holds the others."""
    given = iter(arrays)
    leaves = [next(given) if other is None else other[0] for other in rest]
    arguments: Arguments = jax.tree.unflatten(structure, leaves)
    return arguments


@functools.lru_cache(maxsize=256)
def _unit(
    function: Callable[..., R],
    structure: PyTreeDef,
    rest: _Rest,
    wide: bool,
    followed: tuple[bool, ...],
) -> Callable[..., R]:
    """`function` as a compiled function of its array arguments; `rest` holds the others.

    followed: which of the arrays are traced; the others need no derivative.
    """

    def of_arrays(*arrays: Array) -> R:
        args, kwargs = _unflattened(structure, rest, arrays)
        token = _IN_UNIT.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _IN_UNIT.reset(token)

    compiled: Callable[..., R] = jax.jit(of_arrays)
    if wide:
        return compiled

    def forward(*arrays: Array) -> tuple[R, Callable[[R], Iterable[Array]]]:
        def of_followed(*some: Array) -> R:
            given = iter(some)
            return compiled(
                *(next(given) if f else a for f, a in zip(followed, arrays, strict=True))
            )

        with float64_scope():
            found: tuple[R, Callable[[R], Iterable[Array]]] = jax.vjp(
                of_followed, *itertools.compress(arrays, followed)
            )
            return found

    def backward(
        transpose: Callable[[R], Iterable[Array]], cotangents: R
    ) -> tuple[Array | None, ...]:
        with float64_scope():
            given = iter(transpose(cotangents))
        return tuple(next(given) if f else None for f in followed)

    unit = jax.custom_vjp(compiled)
    unit.defvjp(forward, backward)
    differentiable: Callable[..., R] = unit
    return differentiable
