"""`firstlight.trace.mark_first_result()`: the program itself marks its first result."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: Called with the frame that makes a mark; empty while nothing is recorded.
LISTENERS: "list[Callable[[FrameType], None]]" = []


def mark_first_result() -> None:
    """Declare that the first result is there now, whatever was read or output before.
    The first mark of a process counts. Without a recording this does nothing."""
    for listener in LISTENERS:
        listener(sys._getframe(1))
