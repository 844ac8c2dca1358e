"""Replaces functions of other packages during a recording, and restores them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstlight.trace.record.program_errors import leave_out_caller


class Replacements:
    """The functions replaced so far, in order; true while there are any."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str, object, object]] = []  # owner, name, original, ours

    def __bool__(self) -> bool:
        return bool(self._done)

    def put(self, owner: object, name: str, ours: object) -> None:
        before = vars(owner).get(name)
        try:
            setattr(owner, name, ours)
        except AttributeError:  # an object of the program, with slots
            return
        self._done.append((owner, name, before, ours))

    def undo(self) -> None:
        """Restore the originals, except those that somebody else has replaced since."""
        done, self._done = self._done, []
        for owner, name, before, ours in done:
            if vars(owner).get(name) is not ours:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def listened_to(original: Callable[..., object], after: Callable[..., None]) -> Any:
    """A function that calls the original, then `after` with the same arguments."""

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
    """Our function, with the name and docstring of the original."""
    # Not functools.wraps: some originals are not Python functions, and lack some of the names.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        if isinstance(getattr(original, name, None), str):
            setattr(ours, name, getattr(original, name))
    ours.__wrapped__ = original
    return ours


def itself(original: Any) -> Any:
    """The original: a replacement is pickled as a call of this."""
    return original
