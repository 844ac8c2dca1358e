"""Where the time to the first result of a JAX program went, without a change to the program.

Inside of the traced process (`startup`, `recorder`, `imports`, `jax_hooks` and what these import)
only the standard library is imported, nothing raises into the program, and every event is a line in
a log as soon as it is over. All thinking is done by whoever reads the log.

    with firstlight.trace.recording() as t:
        ...
    t.compiles, t.functions, t.findings

In a notebook: `%load_ext firstlight.trace`, then `%%firstlight` on top of a cell. A program can say
itself when its first result is there: `firstlight.trace.mark_first_result()`.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from firstlight.trace.notebook import load_ipython_extension, unload_ipython_extension
    from firstlight.trace.session import Recording, recording

__all__ = [
    "Recording",
    "load_ipython_extension",
    "mark_first_result",
    "recording",
    "unload_ipython_extension",
]

#: Who is told of a mark, with the frame that makes it: nobody while nothing is recorded.
MARKED: "list[Callable[[FrameType], None]]" = []


def mark_first_result() -> None:
    """Say that the first result is there now, whatever was read or put out before.

    Of several marks of a process the first counts. Where nothing is recorded, nothing is done.
    """
    for tell in MARKED:
        tell(sys._getframe(1))


def __getattr__(name: str) -> object:
    # A traced program starts with this module: neither here, nor when Python asks for a module of
    # this package as if it were a name, may anything be imported that it would have to wait for.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from firstlight.lazy_names import lazy_names

    home = {
        "session": ("Recording", "recording"),
        "notebook": ("load_ipython_extension", "unload_ipython_extension"),
    }
    return lazy_names(__name__, home)(name)
