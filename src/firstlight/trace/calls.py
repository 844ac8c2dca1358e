"""Reads from the stack which call made JAX trace, lower or compile: function, arguments, place.

JAX's events carry a name only. All else is found in the frames above the listener: JAX's own ones
hold the function and the arguments, the first that is not JAX's is the call. Their names are pinned
by a test; where one is missing, what it would have told is null.
"""

from __future__ import annotations

import os
import sys
import sysconfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

#: (file, function) of the frames that know a call, with the variables that hold it.
_CALLS = {
    ("pjit.py", "cache_miss"): ("fun", "jit_info", "args", "kwargs"),
    ("pjit.py", "jit_trace"): ("jit_func", "jit_func", "args", "kwargs"),
    ("pjit.py", "jit_lower"): ("jit_func", "jit_func", "args", "kwargs"),
}
#: Transformations by the type of the values that they hand to the functions within.
_TRANSFORMATIONS = {
    "BatchTracer": "vmap",
    "JVPTracer": "jvp",
    "LinearizeTracer": "grad",
    "GradTracer": "grad",
    "JaxprTracer": "grad",
    "RematTracer": "checkpoint",
}
_OPTIONS = (
    "static_argnums",
    "static_argnames",
    "donate_argnums",
    "donate_argnames",
    "device",
    "backend",
    "keep_unused",
    "inline",
    "compiler_options_kvs",
)
#: Settings of JAX that are part of what is compiled.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
    "jax_softmax_custom_jvp",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_jit",
    "jax_default_device",
)
_MOST_LEAVES = 300
_MOST_TEXT = 200
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_STANDARD_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def jax_folders() -> tuple[str, ...]:
    """Where JAX's own code is."""
    modules = (sys.modules.get(n) for n in ("jax", "jaxlib"))
    return tuple(os.path.dirname(m.__file__) + os.sep for m in modules if m and m.__file__)


def stack(frame: FrameType | None) -> list[FrameType]:
    """The frames from here outwards."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def call_of(frames: list[FrameType]) -> tuple[FrameType, dict[str, Any]] | None:
    """The innermost frame of JAX that knows a call, with what it knows."""
    for number, frame in enumerate(frames):
        names = _CALLS.get(_named(frame))
        if names is None or not all(name in frame.f_locals for name in names):
            continue
        if frame.f_code.co_name == "jit_trace":
            # f.lower() traces first: it is one call, known by the frame that sees all of it.
            around = frames[number + 1 : number + 4]
            lowering = [f for f in around if _named(f) == ("pjit.py", "jit_lower")]
        else:
            lowering = []
        knows = (lowering or [frame])[0]
        fun, info, args, kwargs = (knows.f_locals[name] for name in names)
        if fun is info:
            fun, info = getattr(fun, "_fun", fun), getattr(fun, "_jit_info", None)
        return knows, {"fun": fun, "info": info, "args": args, "kwargs": kwargs}
    return None


def is_lowered_by_hand(frames: list[FrameType]) -> bool:
    """Whether `Traced.lower()` is among them."""
    return any(_named(frame) == ("stages.py", "lower") for frame in frames)


def _named(frame: FrameType) -> tuple[str, str]:
    return os.path.basename(frame.f_code.co_filename), frame.f_code.co_name


def sites(frames: list[FrameType], jax: tuple[str, ...]) -> tuple[Any, Any]:
    """(file, line, function) of the call: the nearest outside of JAX, the nearest of the user."""
    near = user = None
    for frame in frames:
        file = frame.f_code.co_filename
        if file.startswith((*jax, _OURS)) or file.startswith("<frozen"):
            continue
        place = [file, frame.f_lineno, frame.f_code.co_qualname]
        near = near or place
        if not _is_installed(file):
            user = place
            break
    return near, user


def entry_site(frames: list[FrameType], jax: tuple[str, ...]) -> Any:
    """Where the user's code was called by a package that works with JAX, the call of that package.

    A layer of a network is run by the network's package: what can be put under jit is the call of
    the network. What only starts a program (a test runner, a command line) has no JAX in it.
    """
    entry, in_users, through_package = None, False, False
    for frame in frames:
        file = frame.f_code.co_filename
        if file.startswith((*jax, _OURS)) or file.startswith("<frozen"):
            continue
        if _is_installed(file):
            through_package = through_package or (in_users and "jax" in frame.f_globals)
            continue
        if through_package:
            entry = [file, frame.f_lineno, frame.f_code.co_qualname]
        in_users, through_package = True, False
    return entry


def _is_installed(file: str) -> bool:
    """Whether a file is of the standard library or of a package, not of the user."""
    known = any(folder in file for folder in _INSTALLED) or file.startswith(_STANDARD_LIBRARY)
    return known or os.path.realpath(file).startswith(_STANDARD_LIBRARY)


def definition(fun: Any) -> dict[str, Any]:
    """Where a function is defined."""
    kind = type(fun).__name__
    for _ in range(20):  # what wraps it: partial, functools.wraps, a method
        inner = getattr(fun, "func", None) or getattr(fun, "__wrapped__", None)
        inner = inner or getattr(fun, "__func__", None)
        if inner is None or inner is fun:
            break
        fun = inner
    # An object that can be called has its code in its class.
    code = getattr(fun, "__code__", None)
    code = code or getattr(type(fun).__dict__.get("__call__"), "__code__", None)
    return {
        "name": getattr(fun, "__qualname__", None) or type(fun).__qualname__,
        "module": getattr(fun, "__module__", None),
        "kind": kind,
        "place": None if code is None else [code.co_filename, code.co_firstlineno],
    }


def signature(call: dict[str, Any]) -> dict[str, Any]:
    """What the compiled program depends on: arrays by place, static values, structure."""
    from jax.tree_util import keystr, tree_flatten_with_path

    args, kwargs = tuple(call["args"]), dict(call["kwargs"])
    info = call["info"]
    # JAX has counted negative ones from the end of the parameters already, where it knows them.
    numbers = {n if n >= 0 else n + len(args) for n in getattr(info, "static_argnums", ()) or ()}
    names = set(getattr(info, "static_argnames", ()) or ())
    parameters = _parameter_names(call["fun"])
    static: dict[str, Any] = operation_parameters(call["fun"])
    dynamic: dict[str, Any] = {}
    for i, value in enumerate(args):
        name = parameters[i] if i < len(parameters) else f"[{i}]"
        (static if i in numbers or name in names else dynamic)[name] = value
    for name, value in kwargs.items():
        (static if name in names else dynamic)[name] = value
    leaves, tree = tree_flatten_with_path(dynamic)
    rest = tuple(tuple(map(str, described(v)[:3])) for _, v in leaves[_MOST_LEAVES:])
    return {
        "arrays": [[_path(keystr(p)), *described(v)] for p, v in leaves[:_MOST_LEAVES]],
        "leaves": len(leaves),
        "rest": hash(rest) if rest else None,  # of those that are not listed
        "positional": len(args),
        "options": _options(info),
        "tree": str(tree)[:_MOST_TEXT],
        "static": {name: _short(value) for name, value in static.items()},
    }


def described(value: Any) -> list[Any]:
    """[type, shape, weak, sharding] of an argument."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:  # a Python number: JAX gives it a weak type
        return [type(value).__name__, [], True, None]
    weak = getattr(value, "weak_type", None)
    if weak is None:
        weak = getattr(getattr(value, "aval", None), "weak_type", False)
    sharding = getattr(value, "sharding", None)
    placed = None if sharding is None else _short(sharding)
    if placed and getattr(value, "_committed", False):
        placed = f"committed: {placed}"
    return [str(dtype), [_size(n) for n in getattr(value, "shape", ())], bool(weak), placed]


def operation_parameters(fun: Any) -> dict[str, Any]:
    """What an operation outside of any jit was asked for (a shape, an axis); {} for a function."""
    if not getattr(fun, "_apply_primitive", False):
        return {}
    names, cells = fun.__code__.co_freevars, fun.__closure__ or ()
    held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=False)}
    # Whole programs are among the parameters of some: their text is long, and costs time.
    simple = (int, float, str, tuple, type(None))
    parameters = held.get("params") or {}
    return {name: value for name, value in parameters.items() if isinstance(value, simple)}


def context(args: Any = (), kwargs: Any = None) -> dict[str, Any]:
    """What else is part of what is compiled: settings of JAX, transformations around the call."""
    from jax.tree_util import tree_leaves

    config = sys.modules["jax"].config
    found = {name: getattr(config, name, None) for name in _SETTINGS}
    tracers = {type(leaf).__name__ for leaf in tree_leaves((args, kwargs))}
    within = sorted({_TRANSFORMATIONS[name] for name in tracers if name in _TRANSFORMATIONS})
    return {**found, "transformation": ", ".join(within) or None, "others": _other_settings()}


def _other_settings() -> int | None:
    """A number that is another one when any setting of JAX is that is part of a program."""
    try:
        from jax._src.config import trace_context

        return hash(trace_context())
    except Exception:
        return None


def _options(info: Any) -> str:
    """What jit was told about the function, as far as it is part of the program."""
    told = {name: getattr(info, name, None) for name in _OPTIONS}
    return ", ".join(f"{name}={_short(value)}" for name, value in told.items() if value)


def _parameter_names(fun: Any) -> tuple[str, ...]:
    code = getattr(getattr(fun, "__wrapped__", fun), "__code__", None)
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names[1:] if hasattr(fun, "__self__") else names


def _path(text: str) -> str:
    """A path as it is written in Python: the first key is the name of an argument."""
    if text.startswith("['"):
        name, _, rest = text[2:].partition("']")
        return name + rest
    return text


def _size(n: Any) -> Any:
    return n if isinstance(n, int) else str(n)


def _short(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        # The text of an array is its values: to get them would wait for them.
        return f"{value.dtype}{list(value.shape)}"
    try:
        return repr(value)[:_MOST_TEXT]
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"
