"""Where the time to the first result of a JAX program went, without a change to the program.

`record` runs inside of the traced process: it imports the standard library only, nothing raises
into the program, and every event is a line of a log as soon as it is over. `read` makes a `Trace`
of logs, `findings` says what cost time and what to do, `show` is what people and programs see of
it. `startup` stays at the address that installed `firstlight-trace.pth` files name.

    with firstlight.trace.recording() as t:
        ...
    t.compile_count, t.functions, t.findings

In a notebook: `%load_ext firstlight.trace`, then `%%firstlight` on top of a cell. A program can say
itself when its first result is there: `firstlight.trace.mark_first_result()`.
"""

from firstlight.trace.record.marks import mark_first_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from firstlight.trace.session import (
        Recording,
        load_ipython_extension,
        recording,
        unload_ipython_extension,
    )

__all__ = [
    "Recording",
    "load_ipython_extension",
    "mark_first_result",
    "recording",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> object:
    # A traced program starts with this module: neither here, nor when Python asks for a module of
    # this package as if it were a name, may anything be imported that it would have to wait for.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from firstlight.trace import session

    return getattr(session, name)
