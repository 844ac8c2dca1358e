"""Shows where the time to the first result of an unmodified JAX program went.

`record` runs inside the traced process: it imports only the standard library, nothing raises into
the program, and every event is written to a log at once. `read` makes a `Trace` from logs,
`findings` says what cost time and what to do, `show` presents it to people and programs. `startup`
stays at the address that installed `firstlight-trace.pth` files name.

    with firstlight.trace.recording() as t:
        ...
    t.compile_count, t.functions, t.findings

In a notebook: `%load_ext firstlight.trace`, then `%%firstlight` at the top of a cell. A program can
mark its first result itself: `firstlight.trace.mark_first_result()`.
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
    # Every traced program imports this module, and Python asks here for submodules too: anything
    # imported before the check below would delay the program.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from firstlight.trace import session

    return getattr(session, name)


def __dir__() -> "list[str]":
    return __all__
