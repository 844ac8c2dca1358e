"""Metrics of running programs.

`start()` watches this process; `firstlight exec --metrics HOST:PORT python program.py` watches an
unchanged program. Submodules are imported on first use.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstlight.telemetry.requested_checks import check_gradient, watch_gradient, watch_outputs
    from firstlight.telemetry.starting import start, step, stop

__all__ = ["check_gradient", "start", "step", "stop", "watch_gradient", "watch_outputs"]

_HOME = {
    "requested_checks": ("check_gradient", "watch_gradient", "watch_outputs"),
    "starting": ("start", "step", "stop"),
}


def __getattr__(name: str) -> "Any":
    from firstlight.lazy_names import lazy_names

    return lazy_names(__name__, _HOME)[0](name)


def __dir__() -> "list[str]":
    return __all__
