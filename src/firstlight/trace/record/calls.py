"""Reads from the stack which call made JAX trace, lower or compile: function, arguments, place.

JAX's events carry a name only. All else is found in the frames above the listener: JAX's own ones
hold the function and the arguments, the first that is not JAX's is the call. Their names are pinned
by a test; where one is missing, what it would have told is null.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache

from firstlight.trace.record.installed import OURS, STANDARD_LIBRARY, package_of
from firstlight.trace.record.program_errors import pass_on
from firstlight.trace.record.value_text import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any

#: Functions of pjit.py whose frames know a call, with the variables that hold it.
_CALLS = {
    "cache_miss": ("fun", "jit_info", "args", "kwargs"),
    "jit_trace": ("jit_func", "jit_func", "args", "kwargs"),
    "jit_lower": ("jit_func", "jit_func", "args", "kwargs"),
}
JIT = "pjit.py"
#: Frames that hold what JAX made of a call, and the one of functions that it runs by itself.
_TRACING = ("pjit.py", "_trace_for_jit")
_TRACED_BY_HAND = ("stages.py", "lower")
_LOWERING = ("pxla.py", "_cached_lowering_to_hlo")
_COMPILING = ("pxla.py", "_cached_compilation")
_TELLING = ("record_scalar", "record_event_duration_secs", "__enter__", "__exit__")
_RUN_BY_JAX = ("pjit.py", "_pjit_call_impl")
#: Has part in every call of a function for the sake of its program.
_TRACER = "partial_eval.py"
#: Transformations by the type of the values that they hand to the functions within.
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
#: Of a stack: the call, and what led to it.
_MOST_FRAMES = 20
#: Where JAX has the operations that it offers; elsewhere are arrays and what transforms functions.
_OPERATIONS = {"numpy", "lax", "scipy", "nn", "indexing.py"}


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


def timing(frames: list[FrameType]) -> FrameType:
    """The frame of JAX that times a stage: around it are those that tell its begin and its end."""
    for frame in frames:
        if frame.f_code.co_name not in _TELLING and not frame.f_code.co_filename.startswith(OURS):
            return frame
    return frames[-1]


def frame_of(frames: list[FrameType], where: tuple[str, str]) -> FrameType | None:
    """The innermost frame of this file and function."""
    file, function = where
    for frame in frames:
        if frame.f_code.co_name == function and is_of(frame, file):
            return frame
    return None


def variable(frames: list[FrameType], where: tuple[str, str], name: str) -> Any:
    """What a variable of that frame holds; None where there is none."""
    frame = frame_of(frames, where)
    return None if frame is None else frame.f_locals.get(name)


def is_of(frame: FrameType, file: str) -> bool:
    """Whether a frame is of a file of this name."""
    return frame.f_code.co_filename.endswith(os.sep + file)


def call_of(frames: list[FrameType]) -> tuple[FrameType, dict[str, Any]] | None:
    """The innermost frame of JAX that knows a call, with what it knows."""
    for number, frame in enumerate(frames):
        names = _CALLS.get(frame.f_code.co_name)
        if names is None or not is_of(frame, JIT):
            continue
        held = frame.f_locals
        if not all(name in held for name in names):
            continue
        if frame.f_code.co_name == "jit_trace":
            # f.lower() traces first: it is one call, known by the frame that sees all of it.
            around = frame_of(frames[number + 1 : number + 4], (JIT, "jit_lower"))
        else:
            around = None
        knows, held = (frame, held) if around is None else (around, around.f_locals)
        fun, info, args, kwargs = (held[name] for name in names)
        if fun is info:
            fun, info = getattr(fun, "_fun", fun), getattr(fun, "_jit_info", None)
        return knows, {"fun": fun, "info": info, "args": args, "kwargs": kwargs}
    return None


def made_before(stage: str, frames: list[FrameType]) -> Any:
    """What is lowered or compiled by hand: the object that JAX made of it in the stage before."""
    if stage == "lower":
        return getattr(variable(frames, _TRACED_BY_HAND, "self"), "jaxpr", None)
    return variable(frames, _COMPILING, "computation") if stage == "compile" else None


def made_by(stage: str, frames: list[FrameType]) -> Any:
    """What came of a stage, at its end."""
    if stage == "trace":
        return variable(frames, _TRACING, "jaxpr")
    if stage == "lower":
        return getattr(variable(frames, _LOWERING, "lowering_result"), "module", None)
    return None


def within_transformation(frames: list[FrameType]) -> dict[str, Any] | None:
    """A jitted function that JAX runs by itself: where it is defined, and for which arrays."""
    if frame_of(frames, _RUN_BY_JAX) is None:
        return None
    frame = frame_of(frames, _LOWERING)
    lowering = {} if frame is None else frame.f_locals
    program = lowering.get("closed_jaxpr")
    about = getattr(getattr(program, "jaxpr", program), "debug_info", None)
    file, line = (getattr(about, f"func_{name}", None) for name in ("filename", "lineno"))
    if file is None or line is None:
        return None
    arrays = [
        [f"[{i}]", str(aval.dtype), list(map(_size, aval.shape)), bool(aval.weak_type), None]
        for i, aval in enumerate(lowering.get("in_avals", ()))
        if hasattr(aval, "dtype")
    ]
    return {"place": [file, line], "arrays": arrays}


def compiler_options(frames: list[FrameType]) -> dict[str, Any]:
    """What XLA was told for this program alone."""
    options = variable(frames, _COMPILING, "compiler_options_kvs")
    return {"compiler_options": text_of(options)} if options else {}


def _size(n: Any) -> Any:
    return n if isinstance(n, int) else str(n)


def sites(frames: list[FrameType], jax: tuple[str, ...]) -> tuple[Any, Any]:
    """(file, line, function) of the call: the nearest outside of JAX, the nearest of the user."""
    near, user = (
        frame and [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname]
        for frame in _calling(frames, jax)
    )
    return near, user


def call_stack(frames: list[FrameType], jax: tuple[str, ...]) -> list[Any]:
    """[file, line, function] of all frames outside of JAX, the call first; of many, both ends."""
    ours = (*jax, OURS, "<frozen")
    outside = [f for f in frames if not f.f_code.co_filename.startswith(ours)]
    if len(outside) > _MOST_FRAMES:
        outside = outside[: _MOST_FRAMES // 2] + outside[-(_MOST_FRAMES // 2) :]
    return [[f.f_code.co_filename, f.f_lineno, f.f_code.co_qualname] for f in outside]


def instruction(frames: list[FrameType], jax: tuple[str, ...]) -> int | None:
    """Which of the calls of a line it is: one line may call two functions."""
    near, user = _calling(frames, jax)
    frame = user or near
    return frame and frame.f_lasti


def _calling(
    frames: list[FrameType], jax: tuple[str, ...]
) -> tuple[FrameType | None, FrameType | None]:
    near = None
    ours = (*jax, OURS, "<frozen")
    for frame in frames:
        file = frame.f_code.co_filename
        if file.startswith(ours):
            continue
        near = near or frame
        if not _is_installed(file):
            return near, frame
    return near, None


def reader(frames: list[FrameType], jax: tuple[str, ...]) -> str | None:
    """The package that reads a result for itself; None: the program does, or lets it be shown.

    What has no JAX in it (NumPy, a package that plots or prints) reads what it was given to show.
    """
    near, _ = _calling(frames, jax)
    package = near and package_of(near.f_code.co_filename)
    return package if package and works_with_jax(package) else None


@lru_cache(100)
def works_with_jax(package: str) -> bool:
    """Whether a module of a package has imported JAX, by one of the names that it mostly has."""
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package]
    held = (getattr(module, "__dict__", {}) for module in modules)
    return any("jax" in names or "jnp" in names for names in held)


def is_traced(frames: list[FrameType], jax: tuple[str, ...]) -> bool:
    """Whether this is within a function that JAX traces, also outside of any jit: a scan's body."""
    return any(
        frame.f_code.co_filename.startswith(jax) and is_of(frame, _TRACER) for frame in frames
    )


def named_line(pattern: str) -> tuple[str, int] | None:
    """`train.py:27` as file and line; None: it is something else."""
    file, colon, line = pattern.rpartition(":")
    named = colon and file.endswith(".py") and line.isdecimal()
    return (file, int(line)) if named else None


def is_at_line(frames: list[FrameType], where: tuple[str, int]) -> bool:
    """Whether this line is being run."""
    file, line = where
    return any(
        frame.f_lineno == line and (os.sep + frame.f_code.co_filename).endswith(os.sep + file)
        for frame in frames
    )


def is_read_by_operation(frames: list[FrameType], jax: tuple[str, ...]) -> bool:
    """Whether an operation of JAX reads an array to know what to do: iterating one, a mask."""
    for frame in frames:
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            continue
        folder = next((folder for folder in jax if file.startswith(folder)), None)
        if folder is None:
            return False
        if not _OPERATIONS.isdisjoint(file.removeprefix(folder).split(os.sep)):
            return True
    return False


def entry_site(frames: list[FrameType], jax: tuple[str, ...]) -> Any:
    """Where the user's code was called by a package that works with JAX, the call of that package.

    A layer of a network is run by the network's package: what can be put under jit is the call of
    the network. What only starts a program (a test runner, a command line) has no JAX in it, and
    is not called for what a package below it does.
    """
    entry, in_users = None, False
    called: str | None = None  # the last package on the way to the next frame of the user
    with_jax: set[str | None] = set()  # those on that way that work with JAX
    ours = (*jax, OURS, "<frozen")
    for frame in frames:
        file = frame.f_code.co_filename
        if file.startswith(ours):
            continue
        if _is_installed(file):
            if in_users:
                called = str(frame.f_globals.get("__name__")).partition(".")[0]
                with_jax |= {called} if "jax" in frame.f_globals else set()
            continue
        if called in with_jax:
            entry = [file, frame.f_lineno, frame.f_code.co_qualname]
        in_users, called, with_jax = True, None, set()
    return entry


@lru_cache(1000)
def _is_installed(file: str) -> bool:
    """Whether a file is of the standard library or of a package, not of the user."""
    known = package_of(file) is not None or file.startswith(STANDARD_LIBRARY)
    return known or os.path.realpath(file).startswith(STANDARD_LIBRARY)


def context(leaves: Iterable[Any] = ()) -> dict[str, Any]:
    """What else is part of what is compiled: settings of JAX, transformations around the call."""
    config = sys.modules["jax"].config
    found = {name: getattr(config, name, None) for name in _SETTINGS}
    tracers = {type(leaf).__name__ for leaf in leaves}
    within = sorted({_TRANSFORMATIONS[name] for name in tracers if name in _TRANSFORMATIONS})
    return {**found, "transformation": ", ".join(within) or None, "others": _other_settings()}


def _other_settings() -> int | None:
    """A number that is another one when any setting of JAX is that is part of a program."""
    try:
        from jax._src.config import trace_context

        return hash(trace_context())
    except Exception as error:
        pass_on(error)
        return None
