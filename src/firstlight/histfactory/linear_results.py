"""Results whose first derivatives are known as numbers, given to JAX.

Under `jax.grad` without `jit` around it, the values that a function is called with are known. A
rule then computes its result and its derivatives in NumPy, and JAX is only told about them:
nothing is traced, and nothing is compiled. In a program that JAX compiles, under `vmap`, and for
second derivatives, values are not known, and `precision` builds a program as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from firstlight.histfactory.array_types import Array
from firstlight.histfactory.lazy_jax import jax, jnp

if TYPE_CHECKING:
    from firstlight.histfactory.model import Model
    from firstlight.histfactory.programs import Patience


@dataclass(frozen=True)
class Linear:
    """A result, and how it changes with the arguments, through a few numbers s."""

    result: Any
    mixing: Any  # like the result: ∂/∂s of every leaf [..., s], or 0.0 where there is none
    gradients: Mapping[str, Sequence[Array]]  # ∂s/∂ of every leaf of an argument [s, ...]


#: Of a call: positional ones, and keywords.
Arguments: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
#: Takes the arguments of its function, as numbers; None where only a program can answer.
Rule = Callable[..., Linear | None]
_RULES: dict[Callable[..., object], tuple[Rule, Patience]] = {}


def rule_of(function: Callable[..., object], patience: Patience) -> Callable[[Rule], Rule]:
    """Registers the rule of a public function of a model, and until when it is followed."""

    def register(rule: Rule) -> Rule:
        _RULES[inspect.unwrap(function)] = rule, patience
        return rule

    return register


def known_result(
    function: Callable[..., object],
    arguments: Arguments,
    arrays: Sequence[Array],
    unflatten: Callable[[Sequence[Array]], Arguments],
    wide: bool,
) -> tuple[Any] | None:
    """The result if there is a rule for it and all values are known, in a tuple; None otherwise.

    arguments: (args, kwargs), among them a model; arrays: their leaves that are arrays; unflatten:
    makes the former from the latter.
    """
    rule, patience = _rules().get(function, (None, None))
    if rule is None or patience is None or patience.is_over(_model(*arguments).about):
        return None
    numbers = [_number(array) for array in arrays]
    if any(number is None for number in numbers):
        return None
    args, kwargs = unflatten(numbers)
    linear = rule(*args, **kwargs)
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


@cache
def _rules() -> dict[Callable[..., object], tuple[Rule, Patience]]:
    # They use functions that are decorated with what calls this.
    from firstlight.histfactory import exclusion_gradients, first_gradients, fit_gradients  # noqa: F401

    return _RULES


def _number(array: Array) -> NDArray[Any] | None:
    """An array in NumPy, also behind one differentiation; None if it is not known."""
    value = getattr(array, "primal", None) if isinstance(array, jax.core.Tracer) else array
    return None if value is None or isinstance(value, jax.core.Tracer) else np.asarray(value)


def _by_leaf(
    function: Callable[..., object], arguments: Arguments, gradients: Mapping[str, Sequence[Array]]
) -> list[Array] | None:
    """The derivatives with respect to every traced array; None if one is not among them."""
    args, kwargs = arguments
    names = list(inspect.signature(function).parameters)
    named = [*zip(names, args, strict=False), *sorted(kwargs.items())]
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
    """A function of the traced arrays alone, that returns the result with its derivatives."""
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
    """As a program returns it: integers have 32 bits."""
    leaf = np.asarray(leaf)
    return jnp.asarray(leaf, np.int32 if leaf.dtype.kind == "i" else leaf.dtype)
