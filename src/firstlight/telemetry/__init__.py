"""What running programs report about themselves.

`start()` watches this process; `firstlight exec --metrics HOST:PORT python program.py` does so for
a program that is not changed. Nothing is imported before it is used.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstlight.telemetry.gradient_check import check_gradient, watch_gradient
    from firstlight.telemetry.output_check import watch_outputs
    from firstlight.telemetry.starting import start, step, stop

__all__ = ["check_gradient", "start", "step", "stop", "watch_gradient", "watch_outputs"]

_HOME = {
    "gradient_check": ("check_gradient", "watch_gradient"),
    "output_check": ("watch_outputs",),
    "starting": ("start", "step", "stop"),
}


def __getattr__(name: str) -> "Any":
    from firstlight.lazy_names import lazy_names

    return lazy_names(__name__, _HOME)(name)
