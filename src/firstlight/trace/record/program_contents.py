"""What a program is made of, read from JAX's frames at the end of lowering and of compiling."""

from __future__ import annotations

import sys

from firstlight.trace.record.calls import COMPILING, LOWERING, call_of, variable
from firstlight.trace.record.constants import bytes_of, described
from firstlight.trace.record.installed import package_of
from firstlight.trace.record.program_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any

#: Programs of more equations are looked at line by line: as many as a finding needs (thresholds).
_MANY_EQUATIONS = 100
_MAX_LINES = 20
_MANY_ON_A_LINE = 100
_KINDS_OF_A_RULE = 8
#: Equations that are asked which packages they are from.
_MAX_LOOKED_AT = 30
_JAX = {"jax", "jaxlib"}  # whose code made all of them


def lowered(frames: list[FrameType]) -> dict[str, Any]:
    """Equations, their lines where they are many, and bytes of captured constants."""
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
        "constants": described(constants, programs, call[1]["fun"] if call else None),
        "packages": _packages(equations),
        "lines": _by_line(equations) if len(equations) >= _MANY_EQUATIONS else [],
    }
    return {
        "equations": len(equations),
        "constant_bytes": sum(map(bytes_of, (*constants.values(), *literals))),
        **{key: value for key, value in about.items() if value},
    }


def compiled(frames: list[FrameType]) -> dict[str, Any]:
    """Bytes of the executable, and whether it calls back into Python."""
    executable = variable(frames, COMPILING, "xla_executable")
    if executable is None and sys.exc_info()[0] is not None:
        return {}  # there is none: the compiler refused, or was interrupted
    if executable is None:
        problem = "programs: this JAX does not show the size and callbacks of a program"
        return {"executable_bytes": None, "callbacks": None, "problem": problem}
    callbacks = variable(frames, COMPILING, "host_callbacks")
    try:
        size = int(executable.size_of_generated_code_in_bytes()) or None
    except Exception as error:  # not all backends know
        pass_on(error)
        size = None
    return {
        "executable_bytes": size,
        "callbacks": None if callbacks is None else bool(callbacks),
    }


def _equations(program: Any, seen: set[int], constants: dict[int, Any], programs: list[Any]) -> Any:
    """All equations, those of inner programs included; one that is called often is there once.

    constants, programs: where to put the arrays that any of them holds, each once, and those that
    hold some.
    """
    jaxpr = getattr(program, "jaxpr", program)  # one with its constants, or a bare one
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


def _packages(equations: list[Any]) -> list[str]:
    """Installed packages whose code made some of the equations, by some of these."""
    some = equations[:: max(1, len(equations) // _MAX_LOOKED_AT)]
    tracebacks = {equation.source_info.traceback for equation in some} - {None}
    files = {code.co_filename for traceback in tracebacks for code in traceback.raw_frames()[0]}
    return sorted({package for file in files if (package := package_of(file))} - _JAX)


def _by_line(equations: list[Any]) -> list[Any]:
    """[file, line, equations, repeats] of the lines that most equations come from.

    repeats: how often the most frequent equation of the line is there, made at the same place of
    JAX: a line that ran many times has many, one that calls a long function has not.
    """
    from jax._src import source_info_util

    lines: dict[tuple[str, int], list[Any]] = {}
    for traceback, made in _by_place(equations).items():
        frame = source_info_util.user_frame(traceback)
        if frame is not None:
            lines.setdefault((frame.file_name, frame.start_line), []).extend(made)
    most = sorted(lines.items(), key=lambda item: -len(item[1]))[:_MAX_LINES]
    return [[file, line, len(of), _repeats(of, file)] for (file, line), of in most]


def _by_place(equations: list[Any]) -> dict[Any, list[Any]]:
    """Equations by where they are made: of a loop, all turns are made at the same place."""
    made_at: dict[Any, list[Any]] = {}
    for equation in equations:
        made_at.setdefault(equation.source_info.traceback, []).append(equation)
    return made_at


def _repeats(equations: list[Any], file: str) -> int:
    counts, plain = [], []
    for made in _by_place(equations).values():
        kinds = _tally(equation.primitive.name for equation in made)
        if len(kinds) < _KINDS_OF_A_RULE:
            counts += kinds
            plain += made
        else:
            counts.append(_turns_of_a_rule(made))
    most = max(counts)
    if most > 1 or len(plain) < _MANY_ON_A_LINE:
        return _turns(counts, most)
    # A recursion is on the same line at another depth each time: only what is within it compares.
    step = max(1, len(plain) // _MANY_ON_A_LINE)
    inner = [(e.primitive.name, _within(e.source_info.traceback, file)) for e in plain[::step]]
    return max(_tally(inner)) * step


def _turns_of_a_rule(made: list[Any]) -> int:
    """How often a line ran of which all equations are made at one place.

    A place makes one kind of equation, and the gradient a few. Where JAX was given a rule
    (custom_jvp), those of the rule are all made where it was called, and may be as many as a long
    function has. Told apart by what they work on, all come at least as often as it ran, but for a
    few of its first and last turn.
    """
    ranks = ([getattr(v.aval, "ndim", None) for v in (*e.invars, *e.outvars)] for e in made)
    kinds = ((e.primitive.name, *of) for e, of in zip(made, ranks, strict=True))
    counts = sorted(_tally(kinds))
    return counts[len(counts) // 4]


def _tally(things: Iterable[object]) -> list[int]:
    counts: dict[object, int] = {}
    for thing in things:
        counts[thing] = counts.get(thing, 0) + 1
    return list(counts.values())


def _turns(counts: list[int], most: int) -> int:
    """How often most of those came that came often: a gradient has some of them twice a turn."""
    often = sorted(n for n in counts if 2 * n >= most)
    return max(often, key=often.count)  # of several the smallest, which comes first


def _within(traceback: Any, file: str) -> tuple[Any, ...]:
    """The frames from an equation to the line of the user that made it."""
    frames = []
    for code, instruction in zip(*traceback.raw_frames(), strict=False):
        frames.append((code, instruction))
        if code.co_filename == file:
            break
    return tuple(frames)
