"""The contents of a program, read from JAX's frames at the end of lowering and compiling."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

from firstlight.trace.record.calls import COMPILING, LOWERING, Facts, Frames, call_of, variable
from firstlight.trace.record.definitions import closure_of, innermost
from firstlight.trace.record.log_format import package_of
from firstlight.trace.record.program_errors import pass_on
from firstlight.trace.record.resharding import moved_arguments
from firstlight.trace.record.value_text import attributes_of, dimensions

#: Larger programs are examined line by line: a finding needs so many equations (thresholds).
_MANY_EQUATIONS = 100
_MAX_LINES = 20
_MANY_ON_A_LINE = 100
_KINDS_OF_A_RULE = 8
_MAX_LOOKED_AT = 30  # equations whose packages are looked up
_JAX = {"jax", "jaxlib"}  # have a part in every equation
_WORTH_NAMING_BYTES = 100_000  # smaller constants do no harm
_MAX_NAMED = 8
_MAX_VALUES_LOOKED_AT = 2000
_MAX_DEPTH = 4
_OF_ARRAYS = ("numpy", "jax", "jaxlib")
_Reached = tuple[str, Any, str]  # name, value, origin
_Equations = list[Any]


def lowered(frames: Frames) -> Facts:
    """Number of equations, their lines if there are many, and the captured constants."""
    closed = variable(frames, LOWERING, "closed_jaxpr")
    if closed is None:
        problem = "programs: this JAX does not show the equations and constants of a program"
        return {"equations": None, "constant_bytes": None, "problem": problem}
    constants: dict[int, Any] = {}
    programs: list[Any] = []
    equations = list(_equations(closed, set(), constants, programs))
    literals = (v.val for e in equations for v in e.invars if getattr(v, "val", None) is not None)
    call = call_of(frames)
    about = {
        "constants": _named_constants(constants, programs, call[1]["fun"] if call else None),
        "packages": _packages(equations),
        "lines": _by_line(equations) if len(equations) >= _MANY_EQUATIONS else [],
        "resharded": moved_arguments(frames),
    }
    return {
        "equations": len(equations),
        "constant_bytes": sum(map(_bytes, (*constants.values(), *literals))),
        **{key: value for key, value in about.items() if value},
    }


def compiled(frames: Frames) -> Facts:
    """Bytes of the executable, and whether it calls back into Python."""
    executable = variable(frames, COMPILING, "xla_executable")
    if executable is None and sys.exc_info()[0] is not None:
        return {}  # the compile failed or was interrupted
    if executable is None:
        problem = "programs: this JAX does not show the size and callbacks of a program"
        return {"executable_bytes": None, "callbacks": None, "problem": problem}
    callbacks = variable(frames, COMPILING, "host_callbacks")
    try:
        size = int(executable.size_of_generated_code_in_bytes()) or None
    except Exception as error:  # not every backend has a size
        pass_on(error)
        size = None
    return {"executable_bytes": size, "callbacks": None if callbacks is None else bool(callbacks)}


def _equations(program: Any, seen: set[int], constants: dict[int, Any], programs: list[Any]) -> Any:
    """All equations, those of inner programs once each. Fills `constants` with the arrays that any
    of them captures, and `programs` with the programs that capture some."""
    jaxpr = getattr(program, "jaxpr", program)  # of a ClosedJaxpr, or a bare Jaxpr
    constants.update((id(c), c) for c in getattr(program, "consts", ()))
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    if getattr(program, "consts", ()):
        programs.append(program)
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _equations(inner, seen, constants, programs)


def _packages(equations: _Equations) -> list[str]:
    """Installed packages whose code made equations, from a sample of these."""
    some = equations[:: max(1, len(equations) // _MAX_LOOKED_AT)]
    tracebacks = {equation.source_info.traceback for equation in some} - {None}
    files = {code.co_filename for traceback in tracebacks for code in traceback.raw_frames()[0]}
    return sorted({package for file in files if (package := package_of(file))} - _JAX)


def _by_line(equations: _Equations) -> list[object]:
    """[file, line, equations, repeats] of the lines with the most equations.
    repeats: how often its most frequent equation occurs, so about how often the line ran."""
    from jax._src import source_info_util

    lines: dict[tuple[str, int], list[object]] = {}
    for traceback, made in _by_place(equations).items():
        frame = source_info_util.user_frame(traceback)
        if frame is not None:
            lines.setdefault((frame.file_name, frame.start_line), []).extend(made)
    most = sorted(lines.items(), key=lambda item: -len(item[1]))[:_MAX_LINES]
    return [[file, line, len(of), _repeats(of, file)] for (file, line), of in most]


def _by_place(equations: _Equations) -> dict[object, _Equations]:
    """Equations by traceback: all iterations of a loop have the same one."""
    made_at: dict[object, _Equations] = defaultdict(list)
    for equation in equations:
        made_at[equation.source_info.traceback].append(equation)
    return made_at


def _repeats(equations: _Equations, file: str) -> int:
    counts: list[int] = []
    plain: _Equations = []
    for made in _by_place(equations).values():
        kinds = Counter(equation.primitive.name for equation in made)
        if len(kinds) < _KINDS_OF_A_RULE:
            counts += kinds.values()
            plain += made
        else:
            counts.append(_turns_of_a_rule(made))
    most = max(counts)
    if most > 1 or len(plain) < _MANY_ON_A_LINE:
        return _turns(counts, most)
    # A recursion reaches its line at another depth each time: compare only the frames inside it.
    step = max(1, len(plain) // _MANY_ON_A_LINE)
    inner = [(e.primitive.name, _within(e.source_info.traceback, file)) for e in plain[::step]]
    return max(Counter(inner).values()) * step


def _turns_of_a_rule(made: _Equations) -> int:
    """How often a line ran whose equations all have one traceback: that of a rule (custom_jvp).
    By primitive and ranks, each kind of equation occurs at least once per iteration, except for a
    few of the first and the last one."""
    ranks = ([getattr(v.aval, "ndim", None) for v in (*e.invars, *e.outvars)] for e in made)
    kinds = ((e.primitive.name, *of) for e, of in zip(made, ranks, strict=True))
    counts = sorted(Counter(kinds).values())
    return counts[len(counts) // 4]


def _turns(counts: list[int], most: int) -> int:
    """The most common of the high counts: a gradient has some equations twice per iteration."""
    often = sorted(n for n in counts if 2 * n >= most)
    return max(often, key=often.count)  # the smallest if several are as common


def _within(traceback: Any, file: str) -> tuple[object, ...]:
    """The frames from an equation out to the user's line that made it."""
    frames = tuple(zip(*traceback.raw_frames(), strict=False))
    files = [code.co_filename for code, _ in frames]
    return frames[: files.index(file) + 1] if file in files else frames


# --- captured arrays ------------------------------------------------------------------------------


def _named_constants(constants: dict[int, Any], programs: list[Any], fun: Any) -> list[Any]:
    """[name, origin, dtype, shape, bytes, place] of the largest constants, the largest first.
    constants: by id. programs: those that capture them. origin: closure, global, None."""
    large = [c for c in constants.values() if _bytes(c) >= _WORTH_NAMING_BYTES]
    large = sorted(large, key=_bytes, reverse=True)[:_MAX_NAMED]
    if not large:
        return []
    looked_at = islice(_reachable(fun, set(), _MAX_DEPTH), _MAX_VALUES_LOOKED_AT)
    arrays = [one for one in looked_at if _is_array(one[1])]
    places = _first_uses(programs, {id(c) for c in large})
    about = ((c, [str(c.dtype), dimensions(c.shape), _bytes(c), places.get(id(c))]) for c in large)
    return [[*_name_of(constant, arrays), *rest] for constant, rest in about]


def _bytes(value: object) -> int:
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _first_uses(programs: list[Any], wanted: set[int]) -> dict[int, list[Any]]:
    """[file, line] of the first equation that uses each of the constants."""
    from jax._src import source_info_util

    found: dict[int, list[Any]] = {}
    for program in programs:
        held = zip(program.jaxpr.constvars, program.consts, strict=False)
        variables = {var: id(c) for var, c in held if id(c) in wanted}
        for equation in program.jaxpr.eqns if variables else ():
            invars = (v for v in equation.invars if not hasattr(v, "val"))  # literals have no hash
            used = {variables[v] for v in invars if v in variables} - found.keys()
            frame = source_info_util.user_frame(equation.source_info.traceback) if used else None
            if frame is not None:
                found.update((c, [frame.file_name, frame.start_line]) for c in used)
    return found


def _name_of(constant: Any, arrays: list[_Reached]) -> tuple[str | None, str | None]:
    """The name and the origin of a constant among the arrays that the function can reach."""
    same = [one for one in arrays if _memory(one[1]) == _memory(constant)]
    # JAX copies arrays that it converts, doubles for instance: then only the shape can match.
    alike = {id(one[1]): one for one in arrays if one[1].shape == constant.shape}
    found = same or (list(alike.values()) if len(alike) == 1 else [])
    return (found[0][0], found[0][2]) if found else (None, None)


def _is_array(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in _OF_ARRAYS and hasattr(type(value), "shape")


def _memory(array: object) -> int:
    """The identity of an array; for NumPy the address of its data, so that views of it match."""
    if isinstance(array, sys.modules["numpy"].ndarray):
        return int(array.__array_interface__["data"][0])
    return id(array)


def _reachable(fun: object, seen: set[int], depth: int) -> Iterator[_Reached]:
    """The values that a function can reach outside itself, and those inside them."""
    inner = innermost(fun)
    if isinstance(fun, MethodType):
        yield from _reachable_in("self", fun.__self__, "closure", seen, depth)
    if not isinstance(inner, FunctionType) or id(inner) in seen or not depth:
        return
    seen.add(id(inner))
    for name, value in closure_of(inner).items():
        yield from _reachable_in(name, value, "closure", seen, depth)
    for name in _global_names(inner.__code__):
        if name in inner.__globals__:
            yield from _reachable_in(name, inner.__globals__[name], "global", seen, depth)


def _reachable_in(
    name: str, value: Any, origin: str, seen: set[int], depth: int
) -> Iterator[_Reached]:
    """A named value, then its items or attributes, or what a function reaches."""
    yield name, value, origin
    if not depth or id(value) in seen:
        return
    if type(value) in (dict, list, tuple):
        seen.add(id(value))
        items = value.items() if type(value) is dict else enumerate(value)
        for key, part in list(items):
            if type(key) in (str, int):
                yield from _reachable_in(f"{name}[{key!r}]", part, origin, seen, depth - 1)
    elif callable(value) and isinstance(innermost(value), FunctionType):
        yield from _reachable(value, seen, depth - 1)
    elif type(value).__module__.partition(".")[0] not in ("builtins", *_OF_ARRAYS):
        seen.add(id(value))
        for key, part in list(attributes_of(value).items()):
            yield from _reachable_in(f"{name}.{key}", part, origin, seen, depth - 1)
        call = vars(type(value)).get("__call__")
        if isinstance(call, FunctionType):
            yield from _reachable(call, seen, depth - 1)


def _global_names(code: CodeType) -> list[str]:
    """Names that the code, and the code inside it, may look up in globals."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return [*code.co_names, *(name for one in inner for name in _global_names(one))]
