"""`firstlight.trace.mark_first_result()`: a program says itself when its first result is there."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: Called with the frame that makes a mark: nothing while nothing is recorded.
LISTENERS: "list[Callable[[FrameType], None]]" = []


def mark_first_result() -> None:
    """Say that the first result is there now, whatever was read or put out before.
    The first mark of a process counts. Where nothing is recorded, nothing is done."""
    for listener in LISTENERS:
        listener(sys._getframe(1))
