"""Errors that are the program's, though our code was running when they came.

A handler of a signal may raise wherever its thread is (a time limit does), so also within a
listener of ours: that has to reach the program, and what goes wrong in our own code must not.
"""

from __future__ import annotations

import os
import sys

from firstlight.trace.record.log_format import package_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

#: All of `firstlight.trace`: a cell of a notebook is run by it as well.
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Stands between the program and JAX where `firstlight exec --metrics` watches as well.
WATCH = os.path.join(os.path.dirname(os.path.dirname(OURS)), "telemetry", "watch") + os.sep
_LIBRARY = os.path.dirname(os.__file__)
#: By the name that it has, and by the one that links lead to.
STANDARD_LIBRARY = (_LIBRARY + os.sep, os.path.realpath(_LIBRARY) + os.sep)
#: Of a function that takes any number of arguments (`inspect` has it, and is long to import).
_CO_VARARGS = 4
#: Packages whose code we call, or that is called by it.
_CALLED = ("jax", "jaxlib", "numpy", "ml_dtypes", "torch", "sympy")


def pass_on(error: BaseException) -> None:
    """Raise it again if it is the program's."""
    if is_of_program(error):
        raise error


def is_of_program(error: BaseException) -> bool:
    """Whether a handler of a signal raised it."""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not _is_called_by_us(frame.f_code.co_filename) and _is_handler(frame):
            return True
        traceback = traceback.tb_next
    return False


def _is_handler(frame: FrameType) -> bool:
    """Whether it was called with a number and a frame, as handlers of signals are."""
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
    """Take our frames off the begin of its traceback. A bare `raise` does not put its own back."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(OURS):
        traceback = traceback.tb_next
    error.__traceback__ = traceback


def leave_out_caller(error: BaseException) -> None:
    """Take the frame that caught an error out of its traceback."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
