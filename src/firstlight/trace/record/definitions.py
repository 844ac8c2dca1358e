"""What a function is: where it is defined, what wraps it, which objects it belongs to.

JAX compares functions by identity. For a reader two functions are the same if all of their code is:
the innermost function, what is wrapped around it (a gradient of f is not f), and the functions that
it was given (a factory makes another step for another loss). This evaluates no attribute of the
program's objects.
"""

from __future__ import annotations

import os
import zlib
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from firstlight.trace.record.calls import Facts, jax_folders
from firstlight.trace.record.value_text import has, own

_SIMPLE = (int, str, bool, type(None))
#: Bounds for chains of wrappers, which may be endless, and for the parts of a function.
_MAX_AROUND = 20
_MAX_PARTS = 300
_PMAP = "pmap.py"  # its closures also hold how many arrays it was called with
_EQUINOX = (os.path.join("equinox", "_jit.py"), "fun_wrapped")


def definition(fun: object) -> Facts:
    """Name, module, kind and place of a function."""
    inner = innermost(fun)
    code = code_of(inner)
    if isinstance(inner, (FunctionType, BuiltinFunctionType, type)):
        name, module = inner.__qualname__, inner.__module__
    else:
        name = own(inner, "__qualname__") or own(inner, "__name__")
        name = name if type(name) is str else type(inner).__qualname__
        module = own(inner, "__module__") or type(inner).__module__
    place = None if code is None else [code.co_filename, code.co_firstlineno]
    return {"name": name, "module": module, "kind": type(fun).__name__, "place": place}


def innermost(fun: object) -> Any:
    """The function inside partials, methods and wrappers made with functools.wraps."""
    for _ in range(_MAX_AROUND):
        if isinstance(fun, partial):
            inner = fun.func
        else:
            inner = fun.__func__ if isinstance(fun, MethodType) else own(fun, "__wrapped__")
        if inner is None or inner is fun:
            break
        fun = inner
    return fun


def code_of(fun: object) -> CodeType | None:
    """The code of a function, or of the `__call__` of an object's class."""
    if isinstance(fun, FunctionType):
        return fun.__code__
    for base in type(fun).__mro__:
        call = vars(base).get("__call__")
        if call is not None:
            call = innermost(call)
            return call.__code__ if isinstance(call, FunctionType) else None
    return None


# --- the function of the user behind one of a package ---------------------------------------------


def function_of_user(call: Facts) -> Any:
    """The user's function inside the one that pmap or filter_jit makes of it."""
    fun = call["fun"]
    code = code_of(innermost(fun))
    if code is None or is_operation(fun):
        return fun
    if is_of_equinox(fun):
        return _given_to_equinox(call) or fun
    return (_held(innermost(fun), 3) or fun) if is_of_jax(code) else fun


def is_of_jax(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(jax_folders())


def is_of_equinox(fun: object) -> bool:
    """Whether it is the function that equinox.filter_jit jits in place of the user's."""
    code = code_of(innermost(fun))
    file, name = _EQUINOX
    return code is not None and code.co_name == name and code.co_filename.endswith(file)


def binds_function_of_user(fun: object) -> bool:
    """Whether it is a partial like `partial(jax.lax.scan, body)`: JAX's code with the user's."""
    if not isinstance(fun, partial):
        return False
    codes = (code_of(innermost(v)) for v in (*fun.args, *fun.keywords.values()) if callable(v))
    return any(code is not None and not is_of_jax(code) for code in codes)


def is_operation(fun: object) -> bool:
    """Whether it is an operation of JAX outside any jit."""
    return bool(own(fun, "_apply_primitive"))


def _given_to_equinox(call: Facts) -> object:
    """The user's function, from equinox's third argument, which holds everything but arrays."""
    try:
        leaves, tree = call["args"][2][0]
        if tree.node_data() is None:
            return leaves[0]
        return vars(tree.node_data()[0]).get("__call__")  # a module that is called
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _held(fun: object, depth: int) -> object:
    """A function outside JAX in the closure of one of JAX's."""
    if not isinstance(fun, FunctionType) or not depth:
        return None
    for held in closure_of(fun).values():
        value = held.f if type(held).__name__ == "WrappedFun" else held
        if not callable(value) or isinstance(value, type):
            continue
        inner = innermost(value)
        if code_of(inner) is not None and not is_of_jax(code_of(inner)):
            return value
        if (deeper := _held(inner, depth - 1)) is not None:
            return deeper
    return None


def bound_by_pmap(fun: object) -> list[Any]:
    """The static arguments of pmap, which it binds in the function that it makes."""
    inner = innermost(fun)
    code = inner.__code__ if isinstance(inner, FunctionType) else None
    if code is None or os.path.basename(code.co_filename) != _PMAP:
        return []
    transforms = getattr(closure_of(inner).get("fun"), "transforms", ())
    given = (one for _, arguments in transforms for one in arguments if type(one) is tuple)
    return [bound.val for several in given for bound in several if has(bound, "val")]


def closure_of(fun: FunctionType) -> Facts:
    """The variables in a function's closure, by name."""
    held = {}
    for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=False):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    return held


# --- the code of a function -----------------------------------------------------------------------


class Parts:
    """All code of a function (its own, wrapped, passed), and the objects that it belongs to."""

    def __init__(self, fun: object) -> None:
        self._seen: set[int] = set()
        self._words: list[str] = []
        self.objects: list[object] = []
        self._add(fun)

    @property
    def number(self) -> int:
        """A checksum of the code, without paths: equal code has the same in every process."""
        return zlib.crc32("\n".join(self._words).encode("utf-8", "surrogatepass"))

    def _add(self, value: Any) -> None:
        if id(value) in self._seen or len(self._words) > _MAX_PARTS:
            return
        self._seen.add(id(value))
        if isinstance(value, partial):
            self._words.append("partial")
            self._add(value.func)
            self._add_all([*value.args, *value.keywords.values()])
        elif isinstance(value, MethodType):
            self._add(value.__func__)
            self._add_object(value.__self__)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif type(value).__name__ == "WrappedFun":
            self._add(value.f)
        elif own(value, "__wrapped__") is not None:
            self._words.append(type(value).__name__)
            self._add(own(value, "__wrapped__"))
        elif isinstance(value, (type, BuiltinFunctionType)):
            self._words.append(value.__qualname__)
        else:
            self._add_object(value)

    def _add_function(self, fun: FunctionType) -> None:
        code = fun.__code__
        # The positions of its instructions tell two lambdas of one line apart.
        where = zlib.crc32(code.co_linetable)
        self._words.append(f"{code.co_qualname} {code.co_firstlineno} {where}")
        wrapped, held = own(fun, "__wrapped__"), closure_of(fun).values()
        if not is_of_jax(code):
            self._add_all(held)
        else:
            # The options of a transformation count: which argument, which axis.
            if os.path.basename(code.co_filename) != _PMAP:
                self._words += [repr(value) for value in held if _is_simple(value)]
            self._add_all(value for value in held if isinstance(value, FunctionType))
        if wrapped is not None:
            self._add(wrapped)

    def _add_all(self, values: Any) -> None:
        for value in values:
            if isinstance(value, tuple):  # init and update of an optimiser
                self._add_all(tuple.__iter__(value))
            elif type(value).__module__ != "builtins" or callable(value):
                self._add(value)

    def _add_object(self, value: object) -> None:
        """Add an object that the function belongs to; plain values and arrays do not count."""
        if isinstance(value, ModuleType) or (has(value, "dtype") and has(value, "shape")):
            return
        if type(value).__module__ != "builtins":
            self._words.append(type(value).__qualname__)
            self.objects.append(value)


def _is_simple(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_simple, value))
    return type(value) in _SIMPLE
