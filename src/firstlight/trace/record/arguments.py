"""The arguments of a call: arrays by path, static values, structure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

from firstlight.trace.record import definitions
from firstlight.trace.record.calls import JIT, Facts, Frames, is_of
from firstlight.trace.record.log_format import WHOLE
from firstlight.trace.record.structures import filtered, in_structure, leaf_paths, taken_apart
from firstlight.trace.record.value_text import dimensions, has, own, text_of, tree_text

_OPTIONS = (
    *("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "device"),
    *("backend", "keep_unused", "inline", "compiler_options_kvs"),
)
_MAX_LEAVES = 300
_MAX_STATIC = 200
_LIBRARIES = ("builtins", "jax", "jaxlib", "numpy", "ml_dtypes")
_Given = tuple[str, Any, list[Any]]  # name, structure and leaves of an argument


class Arguments:
    """The arguments of a call, as JAX flattened them."""

    def __init__(self, call: Facts, frames: Frames) -> None:
        self._call = call
        static, dynamic = _divided(call)
        by_position = [name for name in dynamic if name not in call["kwargs"]]
        given = _flat(frames, by_position, set(dynamic)) or _flattened(dynamic)
        self._given = sorted(given, key=lambda one: one[0])  # by position or by name: the same
        self.leaves = [leaf for _, _, leaves in self._given for leaf in leaves]
        self._trees = [(name, tree) for name, tree, _ in self._given]
        parameters = _parameter_names(definitions.function_of_user(call))
        self._filtered = filtered(call["fun"], static, parameters)
        if self._filtered is not None:
            self._trees = self._filtered.trees
        values = list(self._static_values(static))
        self.static_values = values[:_MAX_STATIC]
        if len(values) > _MAX_STATIC:
            rest = text_of(values[_MAX_STATIC:])
            self.static_values.append((f"{len(values) - _MAX_STATIC} more{WHOLE}", rest))

    def _static_values(self, static: Facts) -> Iterator[tuple[str, Any]]:
        """Static arguments and the static parts of structures, by path."""
        if self._filtered is not None:
            inside = self._filtered.static
        else:
            inside = [one for name, tree in self._trees for one in in_structure(tree, name)]
        for path, value in (*static.items(), *inside):
            if path.endswith(WHOLE):
                yield path, value
            else:
                yield from taken_apart(value, path)

    def signature(self) -> Facts:
        """The fields of the `call` event that the compiled program depends on."""
        paths = (path for name, tree, _ in self._given for path in leaf_paths(tree, name))
        users = paths if self._filtered is None else map(self._filtered.path, paths)
        shown = zip(users, self.leaves[:_MAX_LEAVES], strict=False)
        rest = tuple(map(_kind, self.leaves[_MAX_LEAVES:]))
        options = {name: getattr(self._call["info"], name, None) for name in _OPTIONS}
        return {
            "arrays": [[path, *_described(value)] for path, value in shown],
            "leaves": len(self.leaves),
            "rest": hash(rest) if rest else None,  # of the leaves that are not listed
            "positional": len(self._call["args"]),
            # The options of jit that are part of the program.
            "options": ", ".join(f"{name}={text_of(v)}" for name, v in options.items() if v),
            "tree": tree_text(self._trees),
            "static": {path: text_of(value) for path, value in self.static_values},
        }


def _divided(call: Facts) -> tuple[Facts, Facts]:
    """Static and other arguments by name."""
    fun, info, args = call["fun"], call["info"], tuple(call["args"])
    static, dynamic = _operation_parameters(fun), dict[str, Any]()
    for i, value in enumerate(definitions.bound_by_pmap(fun)):
        static[f"static argument {i} of pmap"] = value
    # Where JAX knows the parameters, it has already resolved negative numbers.
    numbers = getattr(info, "static_argnums", ()) or ()
    numbers = {n if n >= 0 else n + len(args) for n in numbers}
    names = set(getattr(info, "static_argnames", ()) or ())
    parameters = _parameter_names(fun)
    for i, value in enumerate(args):
        name = parameters[i] if i < len(parameters) else f"[{i}]"
        (static if i in numbers or name in names else dynamic)[name] = value
    for name, value in dict(call["kwargs"]).items():
        (static if name in names else dynamic)[name] = value
    return static, dynamic


def _flat(frames: Frames, by_position: list[str], names: set[str]) -> list[_Given] | None:
    """The arguments as flattened in JAX's frames; None if they are not there.
    Flattening them again would call the functions that the program registered for its classes."""
    frame = next((f for f in frames if f.f_code.co_name in _READERS and is_of(f, JIT)), None)
    if frame is None:
        return None
    try:
        by_name, trees, leaves = _READERS[frame.f_code.co_name](frame.f_locals)
    except (LookupError, AttributeError, TypeError, ValueError):
        return None
    found = [*by_position, *by_name]
    # If JAX's static arguments are not ours, the names cannot be matched to the structures.
    if not len(found) == len(set(found)) == len(trees) or set(found) != names:
        return None
    following = iter(leaves)
    pairs = zip(found, trees, strict=True)
    return [(name, tree, list(islice(following, tree.num_leaves))) for name, tree in pairs]


def _parsed(found: Facts) -> tuple[list[str], list[Any], list[Any]]:
    signature = found["arg_signature"]
    names, trees = signature.dynamic_arg_names, signature.dynamic_arg_treedefs
    return list(names), list(trees), list(found["dynargs"])


def _run(found: Facts) -> tuple[list[str], list[Any], list[Any]]:
    tree, leaves = found["p"].in_tree, list(found["args_flat"])
    by_position, by_name = tree.children()
    trees = [*by_position.children(), *by_name.children()]
    constants = len(leaves) - tree.num_leaves  # come first
    return list(by_name.node_data()[1]), trees, leaves[constants:]


#: Functions of pjit.py whose frames hold the flattened arguments.
_READERS = {"_infer_params": _parsed, "_run_python_pjit": _run}


def _flattened(dynamic: Facts) -> list[_Given]:
    from jax.tree_util import tree_flatten

    flat = {name: tree_flatten(value) for name, value in dynamic.items()}
    return [(name, tree, leaves) for name, (leaves, tree) in flat.items()]


def _described(value: Any) -> list[Any]:
    """[dtype, shape, weak, sharding] of an argument."""
    dtype, shape, weak = _kind(value)
    sharding = getattr(value, "sharding", None) if shape is not None else None
    placed = None if sharding is None else text_of(sharding)
    if placed and getattr(value, "_committed", False):
        placed = f"committed: {placed}"
    return [dtype, list(shape or ()), weak, placed]


def _kind(value: Any) -> tuple[str, tuple[int | str, ...] | None, bool]:
    """(dtype, shape, weak); shape None: a Python number, to which JAX gives a weak type."""
    of_library = type(value).__module__.partition(".")[0] in _LIBRARIES
    dtype = getattr(value, "dtype", None) if of_library or has(value, "dtype") else None
    if dtype is None:
        return type(value).__name__, None, True
    weak = getattr(value, "weak_type", None)
    if weak is None:
        weak = getattr(getattr(value, "aval", None), "weak_type", False)
    return _dtype_text(dtype), tuple(dimensions(getattr(value, "shape", ()))), bool(weak)


@lru_cache(100)
def _dtype_text(dtype: object) -> str:
    return str(dtype)


def _operation_parameters(fun: Any) -> Facts:
    """The parameters (shape, axis) of an operation outside any jit; {} for a function."""
    if not definitions.is_operation(fun):
        return {}
    # Some have whole programs among their parameters: their text is long and slow to make.
    simple = (int, float, str, tuple, type(None))
    parameters = definitions.closure_of(fun).get("params") or {}
    return {name: value for name, value in parameters.items() if isinstance(value, simple)}


def _parameter_names(fun: Any) -> tuple[str, ...]:
    """() for a partial: what it binds may be any of the parameters."""
    while (wrapped := own(fun, "__wrapped__")) is not None and wrapped is not fun:
        fun = wrapped
    code = definitions.code_of(definitions.innermost(fun) if isinstance(fun, MethodType) else fun)
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    # The first parameter of a method, or of a callable object, is self.
    return names if isinstance(fun, FunctionType) else names[1:]
