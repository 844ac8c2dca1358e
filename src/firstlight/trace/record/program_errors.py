"""Tells errors of the program from ours, when they come up while our code is running.

A signal handler may raise wherever its thread is (a time limit does), also inside our listeners:
that error must reach the program. Errors of our own code must not.
"""

from __future__ import annotations

import os
import sys

from firstlight.trace.record.log_format import package_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

#: All of `firstlight.trace`: it also runs the cells of a notebook.
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Is between the program and JAX under `firstlight exec --metrics`.
WATCH = os.path.join(os.path.dirname(os.path.dirname(OURS)), "telemetry", "watch") + os.sep
_LIBRARY = os.path.dirname(os.__file__)
STANDARD_LIBRARY = (_LIBRARY + os.sep, os.path.realpath(_LIBRARY) + os.sep)  # also through links
_CO_VARARGS = 4  # inspect.CO_VARARGS; importing inspect takes long
#: Packages whose code our code runs, directly or indirectly.
_CALLED = ("jax", "jaxlib", "numpy", "ml_dtypes", "torch", "sympy")


def pass_on(error: BaseException) -> None:
    """Raise the error again if it is the program's."""
    if is_of_program(error):
        raise error


def is_of_program(error: BaseException) -> bool:
    """Whether a signal handler raised the error."""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not _is_called_by_us(frame.f_code.co_filename) and _is_handler(frame):
            return True
        traceback = traceback.tb_next
    return False


def _is_handler(frame: FrameType) -> bool:
    """Whether a frame was called with a number and a frame, as signal handlers are."""
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & _CO_VARARGS)
    given = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    values = [v for one in given for v in (one if type(one) is tuple else (one,))]
    return any(
        isinstance(number, int) and type(interrupted) is type(frame)
        for number, interrupted in zip(values, values[1:], strict=False)  # noqa: RUF007 (an import)
    )


def _is_called_by_us(file: str) -> bool:
    if file.startswith((OURS, "<frozen")):
        return True
    modules = (sys.modules.get(name) for name in _CALLED)
    called = [os.path.dirname(m.__file__) + os.sep for m in modules if m and m.__file__]
    if file.startswith(tuple(called)):
        return True
    return file.startswith(STANDARD_LIBRARY) and package_of(file) is None


def leave_us_out(error: BaseException) -> None:
    """Remove our frames from the start of the traceback. A bare `raise` adds none again."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(OURS):
        traceback = traceback.tb_next
    error.__traceback__ = traceback


def leave_out_caller(error: BaseException) -> None:
    """Remove the frame that caught the error from its traceback."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
