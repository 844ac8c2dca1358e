"""Functions of others that are replaced while something is recorded, and put back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstlight.trace.record.program_errors import leave_out_caller


class Replacements:
    """What was replaced, in order; true while anything is."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str, object, object]] = []  # owner, name, what it had, ours

    def __bool__(self) -> bool:
        return bool(self._done)

    def put(self, owner: object, name: str, ours: object) -> None:
        before = vars(owner).get(name)
        try:
            setattr(owner, name, ours)
        except AttributeError:  # an object of the program's own, which has no room for it
            return
        self._done.append((owner, name, before, ours))

    def undo(self) -> None:
        """Put back what was there, unless somebody else has replaced it since."""
        done, self._done = self._done, []
        for owner, name, before, ours in done:
            if vars(owner).get(name) is not ours:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def listened_to(original: Callable[..., object], after: Callable[..., None]) -> Any:
    """The function; `after` is called with its arguments whenever it has returned."""

    def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = original(*arguments, **named)
        except BaseException as error:
            leave_out_caller(error)
            raise
        after(*arguments, **named)
        return result

    return named_like(call, original)


def named_like(ours: Any, original: Any) -> Any:
    """Our function with the names of the original one."""
    # Not functools.wraps: some of these are no functions of Python, and have half of the names.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        if isinstance(getattr(original, name, None), str):
            setattr(ours, name, getattr(original, name))
    ours.__wrapped__ = original
    return ours


def itself(original: Any) -> Any:
    """What is pickled in place of something of ours: a call of this, with the original."""
    return original
