"""The named tensors of a model: inputs as declared, outputs as the function returns them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from firstlight.histfactory.lazy_jax import jax
from firstlight.serve.declaration import DATATYPES, DeclarationError, Input, Model

Sizes = tuple[int, ...]  # one per variable axis, in the order of the model's `axes`


@dataclass(frozen=True)
class Tensor:
    """One input or output; `shape` is that of one row, and a string in it is a variable axis."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    default: np.ndarray[Any, Any] | None = None
    fill: float = 0

    @cached_property
    def datatype(self) -> str:
        return DATATYPES[self.dtype.name]

    @property
    def wire_shape(self) -> list[int]:
        """The shape in the protocol's metadata, with -1 for variable sizes."""
        return [-1, *(-1 if isinstance(size, str) else size for size in self.shape)]

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs, in the order in which executables take and return them."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    axes: Mapping[str, tuple[int, ...]]
    function: Callable[..., object]  # (*leading, *inputs) -> tuple of outputs, jitted
    rows_may_meet: bool = True  # False: by construction, no row affects another

    @property
    def lanes(self) -> list[Sizes]:
        """All combinations of the sizes of variable axes."""
        return list(itertools.product(*self.axes.values()))

    def structs(self, rows: int, sizes: Sizes) -> list[Any]:
        """Shapes and dtypes of one executable's inputs."""
        named = dict(zip(self.axes, sizes, strict=True))
        return [
            jax.ShapeDtypeStruct((rows, *tensor.sized(named)), tensor.dtype)
            for tensor in self.inputs
        ]


def signature_of(model: Model, parameters: tuple[object, ...]) -> Signature:
    """Trace the function once, and once more per variable axis; `parameters` may be abstract."""
    inputs, axes, structure = declared_inputs(model)

    names: list[str] = []

    def flat(*arguments: object) -> tuple[Any, ...]:
        leading, given = arguments[: len(parameters)], arguments[len(parameters) :]
        result = model.function(*leading, **jax.tree_util.tree_unflatten(structure, given))
        leaves = jax.tree_util.tree_flatten_with_path(result)[0]
        names[:] = [_name(path) for path, _ in leaves]
        return tuple(leaf for _, leaf in leaves)

    flat.__name__ = model.name.replace("-", "_")  # JAX reports and caches it by this name
    # A function of one row is jitted by itself, so that it is traced once for all sizes.
    one_row = None if model.batched else jax.jit(flat, inline=True)
    of_rows = flat if one_row is None else _mapped(one_row, len(parameters), model)
    options = dict(model.compiler_options) if model.compiler_options else None
    program = jax.jit(of_rows, compiler_options=options)
    # A compiled size, so that it is traced once; a single row would not reveal the row axis.
    rows = next((rows for rows in model.buckets if rows > 1), 2)
    traced = Signature(inputs, (), axes, program)
    outputs = _outputs(traced, names, parameters, rows)
    may_meet = one_row is None or _has_rules_for_batches(one_row, traced, parameters)
    return replace(traced, outputs=outputs, rows_may_meet=may_meet)


def _mapped(one_row: Callable[..., Any], leading: int, model: Model) -> Callable[..., Any]:
    """A function of one row as one of all rows; the first `leading` arguments are shared."""

    def of_rows(*arguments: Any) -> Any:
        shared, rows = arguments[:leading], arguments[leading:]
        if model.in_turn:
            return jax.lax.map(lambda row: one_row(*shared, *row), rows)
        return jax.vmap(lambda *row: one_row(*shared, *row))(*rows)

    of_rows.__name__ = one_row.__name__
    return of_rows


def _has_rules_for_batches(
    one_row: Callable[..., Any], signature: Signature, parameters: tuple[object, ...]
) -> bool:
    """Whether something in a function of one row says itself what it does with many rows."""
    row = [
        jax.ShapeDtypeStruct(struct.shape[1:], struct.dtype)
        for struct in signature.structs(1, signature.lanes[0])
    ]
    jaxpr = jax.make_jaxpr(one_row)(*parameters, *row).jaxpr
    return any(map(_is_rule_for_batches, _equations(jaxpr, set())))


def _is_rule_for_batches(equation: Any) -> bool:
    name = equation.primitive.name
    if name.endswith("_callback"):
        return not str(equation.params.get("vmap_method")).startswith("sequential")
    return bool(name == "custom_vmap_call")


def _equations(jaxpr: Any, seen: set[int]) -> Iterator[Any]:
    """All equations of a program, those of its inner programs included, each once."""
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for equation in jaxpr.eqns:
        yield equation
        for leaf in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from _equations(inner, seen)


def declared_inputs(model: Model) -> tuple[tuple[Tensor, ...], dict[str, Sizes], Any]:
    """Inputs, sizes of the variable axes, and the tree whose leaves the inputs are."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(
        dict(model.inputs), is_leaf=lambda leaf: isinstance(leaf, Input)
    )
    inputs = tuple(_input(_name(path), leaf) for path, leaf in leaves)
    axes = {name: tuple(sizes) for name, sizes in model.axes.items()}
    _require_axes(inputs, axes)
    return inputs, axes, structure


def _input(name: str, leaf: object) -> Tensor:
    if not isinstance(leaf, Input):
        raise DeclarationError(f"input {name!r} is {leaf!r}, not a serve.Input.")
    dtype = jax.numpy.dtype(leaf.dtype)
    default = None
    if leaf.default is not None:
        default = np.asarray(leaf.default, dtype)
        if leaf.variable_axes or default.shape != tuple(leaf.shape):
            raise DeclarationError(
                f"the default of input {name!r} has shape {default.shape}, one row has {leaf.shape}"
            )
    return Tensor(name, dtype, tuple(leaf.shape), default, leaf.fill)


def _require_axes(inputs: tuple[Tensor, ...], axes: Mapping[str, object]) -> None:
    used = {size for tensor in inputs for size in tensor.shape if isinstance(size, str)}
    if used != set(axes):
        raise DeclarationError(
            f"inputs have the variable axes {sorted(used)}, axes= gives sizes for {sorted(axes)}."
        )


def _outputs(
    signature: Signature, names: list[str], parameters: tuple[Any, ...], rows: int
) -> tuple[Tensor, ...]:
    """Outputs from abstract evaluation; an axis that follows a variable axis carries its name.

    names: The outputs' names, filled by tracing.
    """
    smallest = signature.lanes[0]

    def leaves(sizes: Sizes) -> tuple[Any, ...]:
        structs = signature.structs(rows, sizes)
        found: tuple[Any, ...] = jax.eval_shape(signature.function, *parameters, *structs)
        return found

    first = leaves(smallest)
    if not first:
        raise DeclarationError("the function returns no array.")
    for name, leaf in zip(names, first, strict=True):
        if leaf.shape[:1] != (rows,):
            raise DeclarationError(
                f"output {name!r} has shape {leaf.shape} for {rows} rows of input. Its leading "
                "axis must be the rows."
            )
        if leaf.dtype.name not in DATATYPES:
            raise DeclarationError(
                f"output {name!r} is {leaf.dtype.name}, which the protocol has no type for. "
                "Return its parts, such as x.real and x.imag."
            )
    shapes: list[list[int | str]] = [list(leaf.shape) for leaf in first]
    for position, (axis, sizes) in enumerate(signature.axes.items()):
        other = sizes[1] if len(sizes) > 1 else 2 * sizes[0]
        changed = (*smallest[:position], other, *smallest[position + 1 :])
        for shape, before, after in zip(shapes, first, leaves(changed), strict=True):
            for i, pair in enumerate(zip(before.shape, after.shape, strict=True)):
                if pair == (sizes[0], other):
                    shape[i] = axis
    return tuple(
        Tensor(name, leaf.dtype, tuple(shape[1:]))
        for name, leaf, shape in zip(names, first, shapes, strict=True)
    )


def described(signature: Signature) -> dict[str, list[str]]:
    """Inputs and outputs in words, such as "x float32 [16]"; equal for equal formats."""
    return {
        what: [
            f"{t.name} {t.dtype.name} [{', '.join(map(str, t.shape))}]"
            + (" (optional)" if t.default is not None else "")
            for t in tensors
        ]
        for what, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }


def _name(path: tuple[object, ...]) -> str:
    """The path of a leaf in its tree, written `a.b.0`."""
    parts = [str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", p)))) for p in path]
    bare = not parts or parts[0].isdecimal()
    return ".".join(["output", *parts] if bare else parts)
