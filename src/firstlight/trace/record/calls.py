"""Reads from the stack which call made JAX trace, lower or compile: function, arguments, place.

JAX's events carry only a name. Everything else comes from the frames above the listener: JAX's own
frames hold the function and the arguments, and the first frame outside JAX is the call. A test pins
the names of these frames; if one is missing, its fields are null.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from types import FrameType
from typing import Any

from firstlight.trace.record.log_format import package_of
from firstlight.trace.record.program_errors import OURS, STANDARD_LIBRARY, WATCH, pass_on
from firstlight.trace.record.value_text import dimensions, text_of

#: Facts for the log, by name; a stack from the inside out.
Facts = dict[str, Any]
Frames = list[FrameType]
Line = list[str | int]  # file, line, function
#: Functions of pjit.py whose frames hold a call, with the variables that hold it.
_CALLS = {
    "cache_miss": ("fun", "jit_info", "args", "kwargs"),
    "jit_trace": ("jit_func", "jit_func", "args", "kwargs"),
    "jit_lower": ("jit_func", "jit_func", "args", "kwargs"),
}
JIT = "pjit.py"
#: Frames (file, function) that hold what JAX made of a call.
_TRACING = ("pjit.py", "_trace_for_jit")
_TRACED_BY_HAND = ("stages.py", "lower")
LOWERING = ("pxla.py", "_cached_lowering_to_hlo")
COMPILING = ("pxla.py", "_cached_compilation")
_REPORTING = ("record_scalar", "record_event_duration_secs", "__enter__", "__exit__")
_RUN_BY_JAX = ("pjit.py", "_pjit_call_impl")  # runs jitted functions within transformations
_TRACER = "partial_eval.py"  # is on the stack whenever a function is traced
#: Transformations by the type of the values that they pass to the function.
_TRANSFORMATIONS = {
    "BatchTracer": "vmap",
    "JVPTracer": "jvp",
    "LinearizeTracer": "grad",
    "GradTracer": "grad",
    "JaxprTracer": "grad",
    "RematTracer": "checkpoint",
}
#: Settings of JAX that are part of what is compiled.
_SETTINGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl"),
    *("jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_threefry_partitionable"),
    *("jax_softmax_custom_jvp", "jax_debug_nans", "jax_debug_infs", "jax_disable_jit"),
    "jax_default_device",
)
_MAX_FRAMES = 20  # of a stack
#: JAX's folders and files with operations; the others hold arrays and transformations.
_OPERATIONS = {"numpy", "lax", "scipy", "nn", "indexing.py"}


@cache
def jax_folders() -> tuple[str, ...]:
    """The folders of JAX's own code. Called only after JAX was imported."""
    modules = (sys.modules.get(n) for n in ("jax", "jaxlib"))
    return tuple(os.path.dirname(m.__file__) + os.sep for m in modules if m and m.__file__)


# --- frames ---------------------------------------------------------------------------------------


def stack(frame: FrameType | None) -> Frames:
    """This frame and all its callers, the innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def timing(frames: Frames) -> FrameType:
    """The frame of JAX that times a stage: the first outside the functions that report events."""
    for frame in frames:
        if frame.f_code.co_name not in _REPORTING and not frame.f_code.co_filename.startswith(OURS):
            return frame
    return frames[-1]


def is_of(frame: FrameType, file: str) -> bool:
    """Whether a frame's code is in a file of this name."""
    return frame.f_code.co_filename.endswith(os.sep + file)


def frame_of(frames: Frames, where: tuple[str, str]) -> FrameType | None:
    """The innermost frame of this file and function."""
    file, function = where
    for frame in frames:
        if frame.f_code.co_name == function and is_of(frame, file):
            return frame
    return None


def variable(frames: Frames, where: tuple[str, str], name: str) -> Any:
    """The value of a variable of that frame; None if either is missing."""
    frame = frame_of(frames, where)
    return None if frame is None else frame.f_locals.get(name)


def line_of(frame: FrameType) -> Line:
    return [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname]


def _outside(frames: Frames, library: tuple[str, ...] = ()) -> Iterator[FrameType]:
    """The frames outside JAX (or the library), Firstlight and the import machinery."""
    skipped = (*(library or jax_folders()), OURS, WATCH, "<frozen")
    return (frame for frame in frames if not frame.f_code.co_filename.startswith(skipped))


def callers(
    frames: Frames, library: tuple[str, ...] = ()
) -> tuple[FrameType | None, FrameType | None]:
    """The innermost frame outside JAX (or the library), and the innermost of the user's code."""
    near = None
    for frame in _outside(frames, library):
        near = near or frame
        if not _is_installed(frame.f_code.co_filename):
            return near, frame
    return near, None


def sites(frames: Frames, library: tuple[str, ...] = ()) -> tuple[Line | None, Line | None]:
    """The lines of the frames that `callers` returns."""
    near, user = (frame and line_of(frame) for frame in callers(frames, library))
    return near, user


def call_stack(frames: Frames) -> list[Line]:
    """[file, line, function] of the frames outside JAX, the call first; both ends of a long one."""
    found = list(_outside(frames))
    if len(found) > _MAX_FRAMES:
        found = found[: _MAX_FRAMES // 2] + found[-(_MAX_FRAMES // 2) :]
    return list(map(line_of, found))


@lru_cache(1000)
def _is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library or an installed package."""
    known = package_of(file) is not None or file.startswith(STANDARD_LIBRARY)
    return known or os.path.realpath(file).startswith(STANDARD_LIBRARY)


# --- what JAX's frames hold -----------------------------------------------------------------------


def call_of(frames: Frames) -> tuple[FrameType, Facts] | None:
    """The innermost frame of JAX that holds a call: (frame, {fun, info, args, kwargs})."""
    for number, frame in enumerate(frames):
        names = _CALLS.get(frame.f_code.co_name)
        if names is None or not is_of(frame, JIT):
            continue
        if not all(name in frame.f_locals for name in names):
            continue
        # f.lower() traces first: both stages belong to the frame of jit_lower.
        is_trace = frame.f_code.co_name == "jit_trace"
        around = frames[number + 1 : number + 4] if is_trace else []
        holder = frame_of(around, (JIT, "jit_lower")) or frame
        fun, info, args, kwargs = (holder.f_locals[name] for name in names)
        if fun is info:
            fun, info = getattr(fun, "_fun", fun), getattr(fun, "_jit_info", None)
        return holder, {"fun": fun, "info": info, "args": args, "kwargs": kwargs}
    return None


def made_before(stage: str, frames: Frames) -> Any:
    """The input of a stage that was started by hand: what JAX made in the stage before."""
    if stage == "lower":
        return getattr(variable(frames, _TRACED_BY_HAND, "self"), "jaxpr", None)
    return variable(frames, COMPILING, "computation") if stage == "compile" else None


def made_by(stage: str, frames: Frames) -> Any:
    """The result of a stage, at its end."""
    if stage == "trace":
        return variable(frames, _TRACING, "jaxpr")
    if stage == "lower":
        return getattr(variable(frames, LOWERING, "lowering_result"), "module", None)
    return None


def within_transformation(frames: Frames) -> Facts | None:
    """Place and arrays of a jitted function that JAX itself runs; None if it is not such a call."""
    frame = frame_of(frames, LOWERING)
    if frame_of(frames, _RUN_BY_JAX) is None or frame is None:
        return None
    program = frame.f_locals.get("closed_jaxpr")
    about = getattr(getattr(program, "jaxpr", program), "debug_info", None)
    file, line = (getattr(about, f"func_{name}", None) for name in ("filename", "lineno"))
    if file is None or line is None:
        return None
    arrays = [
        [f"[{i}]", str(aval.dtype), dimensions(aval.shape), bool(aval.weak_type), None]
        for i, aval in enumerate(frame.f_locals.get("in_avals", ()))
        if hasattr(aval, "dtype")
    ]
    return {"place": [file, line], "arrays": arrays}


def compiler_options(frames: Frames) -> Facts:
    """XLA options that were given for this program only."""
    options = variable(frames, COMPILING, "compiler_options_kvs")
    return {"compiler_options": text_of(options)} if options else {}


def context(leaves: Iterable[object] = ()) -> Facts:
    """JAX's settings and the transformations around the call, on which the program depends too."""
    config = sys.modules["jax"].config
    found = {name: getattr(config, name, None) for name in _SETTINGS}
    tracers = {type(leaf).__name__ for leaf in leaves}
    within = sorted({_TRANSFORMATIONS[name] for name in tracers if name in _TRANSFORMATIONS})
    try:
        from jax._src.config import trace_context

        others = hash(trace_context())  # changes with every setting that a program depends on
    except Exception as error:
        pass_on(error)
        others = None
    return {**found, "transformation": ", ".join(within) or None, "others": others}


# --- what reads a result --------------------------------------------------------------------------


def reader(frames: Frames) -> str | None:
    """The package that reads a result for its own purposes; None if the program reads it, or a
    package that does not use JAX (NumPy, plotting, printing) and shows what it was given."""
    near, _ = callers(frames)
    package = near and package_of(near.f_code.co_filename)
    return package if package and _works_with_jax(package) else None


@lru_cache(100)
def _works_with_jax(package: str) -> bool:
    """Whether a module of a package has imported JAX under one of its usual names."""
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package]
    held = (getattr(module, "__dict__", {}) for module in modules)
    return any("jax" in names or "jnp" in names for names in held)


def is_traced(frames: Frames) -> bool:
    """Whether this runs in a function that JAX is tracing, in or outside a jit (a scan's body)."""
    jax = jax_folders()
    return any(f.f_code.co_filename.startswith(jax) and is_of(f, _TRACER) for f in frames)


def named_line(pattern: str) -> tuple[str, int] | None:
    """`train.py:27` as file and line; None if it is not of this form."""
    file, colon, line = pattern.rpartition(":")
    named = colon and file.endswith(".py") and line.isdecimal()
    return (file, int(line)) if named else None


def is_at_line(frames: Frames, where: tuple[str, int]) -> bool:
    """Whether one of the frames is at this line."""
    file, line = where
    return any(
        frame.f_lineno == line and (os.sep + frame.f_code.co_filename).endswith(os.sep + file)
        for frame in frames
    )


def is_read_by_operation(frames: Frames) -> bool:
    """Whether an operation of JAX reads the array for its own work: iteration, a mask."""
    for frame in frames:
        file = frame.f_code.co_filename
        if file.startswith((OURS, WATCH)):
            continue
        folder = next((folder for folder in jax_folders() if file.startswith(folder)), None)
        if folder is None:
            return False
        if not _OPERATIONS.isdisjoint(file.removeprefix(folder).split(os.sep)):
            return True
    return False


def entry_site(frames: Frames) -> Line | None:
    """The user's call of a package that uses JAX and called the user's code back.
    A network's package runs its layers: jit can go around the call of the network.
    Packages that only start a program (a test runner, a command line) do not use JAX."""
    entry, in_users = None, False
    called: str | None = None  # the outermost package before the next frame of the user
    with_jax: set[str | None] = set()  # packages before that frame that use JAX
    for frame in _outside(frames):
        if _is_installed(frame.f_code.co_filename):
            if in_users:
                called = str(frame.f_globals.get("__name__")).partition(".")[0]
                with_jax |= {called} if "jax" in frame.f_globals else set()
            continue
        if called in with_jax:
            entry = line_of(frame)
        in_users, called, with_jax = True, None, set()
    return entry
