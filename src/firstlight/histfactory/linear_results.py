"""Results that JAX receives together with their first derivatives, both computed by NumPy.

Under `jax.grad` without `jit`, the arguments of a function have known values. The function's rule
computes its result and derivatives in NumPy and hands both to JAX: nothing is traced or compiled.
In a compiled program, under `vmap` and for second derivatives the values are unknown, and
`precision` builds a program instead.

A function names its rule in `first_gradient_by`. The rules of this package are named by strings,
because they are imported only when a gradient is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from firstlight.histfactory.array_types import Array
from firstlight.histfactory.lazy_jax import jax, jnp

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstlight.histfactory.model import Model
    from firstlight.histfactory.programs import Patience


class Linear(NamedTuple):
    """A result and its derivatives, factored through a few intermediate numbers s."""

    result: Any
    mixing: Any  # shaped like the result: ∂leaf/∂s [..., s], or 0.0 for a constant leaf
    gradients: Mapping[str, Sequence[Array]]  # by argument: ∂s/∂leaf [s, ...] per leaf


#: Positional and keyword arguments of a call.
Arguments: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
F = TypeVar("F", bound=Callable[..., object])


class Rule(NamedTuple):
    """Computes a function's result and derivatives until `patience` with NumPy is over."""

    compute: Callable[..., Linear | None]  # called like the function; None: only a program can
    patience: Patience


def rule(patience: Patience) -> Callable[[Callable[..., Linear | None]], Rule]:
    """Decorate a function as a rule."""
    return lambda compute: Rule(compute, patience)


_RULES: dict[Callable[..., object], Rule | str] = {}


def first_gradient_by(rule: Rule | str) -> Callable[[F], F]:
    """Declare the rule of a function of a model, or its address: `"package.module:name"`."""

    def declare(function: F) -> F:
        _RULES[function] = rule
        return function

    return declare


@cache
def _rule_of(function: Callable[..., object]) -> Rule | None:
    from pkgutil import resolve_name  # plain calls need no rules

    declared = _RULES.get(function)
    return resolve_name(declared) if isinstance(declared, str) else declared


def known_result(
    function: Callable[..., object],
    arguments: Arguments,
    arrays: Sequence[Array],
    unflatten: Callable[[Sequence[Array]], Arguments],
    wide: bool,
) -> tuple[Any] | None:
    """The result in a tuple if the function has a rule and all values are known, otherwise None.

    arrays: the leaves of `arguments` that are arrays; unflatten: makes `arguments` from them.
    """
    rule = _rule_of(function)
    if rule is None or rule.patience.is_over(_model(*arguments).about):
        return None
    numbers = [_number(array) for array in arrays]
    if any(number is None for number in numbers):
        return None
    args, kwargs = unflatten(numbers)
    if not _takes(rule.compute, kwargs):
        return None
    linear = rule.compute(*args, **kwargs)
    if linear is None:
        return None
    gradients = _by_leaf(function, arguments, linear.gradients)
    if gradients is None:
        return None
    traced = [array for array in arrays if isinstance(array, jax.core.Tracer)]
    return (_attached(linear, gradients, wide)(*traced),)


def _model(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Model:
    model: Model = args[0] if args else kwargs["model"]
    return model


def _number(array: Array) -> NDArray[Any] | None:
    """An array's value in NumPy, seen through one level of differentiation; None if unknown."""
    value = getattr(array, "primal", None) if isinstance(array, jax.core.Tracer) else array
    return None if value is None or isinstance(value, jax.core.Tracer) else np.asarray(value)


@cache
def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    import inspect  # plain calls need no gradients

    return tuple(inspect.signature(function).parameters)


def _takes(rule: Callable[..., object], kwargs: Mapping[str, Any]) -> bool:
    """Whether a rule has all keywords of a call; only a program can serve the others."""
    return kwargs.keys() <= set(_parameters(rule))


def _by_leaf(
    function: Callable[..., object], arguments: Arguments, gradients: Mapping[str, Sequence[Array]]
) -> list[Array] | None:
    """The derivatives with respect to every traced array; None if any of them is missing."""
    args, kwargs = arguments
    named = [*zip(_parameters(function), args, strict=False), *sorted(kwargs.items())]
    found: list[Array] = []
    for name, argument in named:
        leaves = jax.tree.leaves(argument)
        traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
        if any(traced) and name not in gradients:
            return None
        if any(traced):
            found += [g for g, t in zip(gradients[name], traced, strict=True) if t]
    return found


def _attached(linear: Linear, gradients: list[Array], wide: bool) -> Any:
    """A function of the traced arrays that returns the result, differentiable once by JAX."""
    leaves, structure = jax.tree.flatten(linear.result)
    mixing = [np.asarray(m, np.float64) for m in jax.tree.leaves(linear.mixing)]
    result = jax.tree.unflatten(structure, [_array(leaf) for leaf in leaves])

    def pushed(primals: object, tangents: Sequence[Array]) -> tuple[object, object]:
        changes = [jnp.tensordot(g, t, t.ndim) for g, t in zip(gradients, tangents, strict=True)]
        change = sum(changes[1:], start=changes[0])
        steps = [_moved(leaf, m, change) for leaf, m in zip(leaves, mixing, strict=True)]
        return result, jax.tree.unflatten(structure, steps)

    def pulled(dtypes: Sequence[Array], cotangents: object) -> tuple[Array, ...]:
        outer = jax.tree.leaves(cotangents)
        xp = jnp if any(isinstance(c, jax.core.Tracer) for c in outer) else np
        with jax.enable_x64(True):
            pairs = [(c, m) for c, m in zip(outer, mixing, strict=True) if m.ndim]
            weights = sum(xp.tensordot(xp.asarray(c), m, np.ndim(c)) for c, m in pairs)
            moved = (xp.tensordot(weights, g, 1) for g in gradients)
            return tuple(jnp.asarray(g, d.dtype) for g, d in zip(moved, dtypes, strict=True))

    if wide:
        known: Any = jax.custom_jvp(lambda *_: result)
        known.defjvp(pushed)
    else:
        known = jax.custom_vjp(lambda *_: result)
        known.defvjp(lambda *arrays: (result, [np.zeros((), a.dtype) for a in arrays]), pulled)
    return known


def _moved(leaf: Array, mixing: Array, change: Array) -> Array:
    """The tangent of a leaf of the result."""
    leaf = np.asarray(leaf)
    if not np.issubdtype(leaf.dtype, np.floating):
        return np.zeros(leaf.shape, jax.dtypes.float0)
    return mixing @ change if mixing.ndim else jnp.zeros(leaf.shape)


def _array(leaf: Array) -> jax.Array:
    """A leaf of the result, typed as a compiled program returns it: integers have 32 bits."""
    leaf = np.asarray(leaf)
    return jnp.asarray(leaf, np.int32 if leaf.dtype.kind == "i" else leaf.dtype)
