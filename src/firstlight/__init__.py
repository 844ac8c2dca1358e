"""Firstlight measures the time to first result of compiled Python.

`bench` lives here, and nothing is imported before it is asked for: a benchmark file that says
`from firstlight import bench` must not change what it measures.

PYTEST_DONT_REWRITE: a traced pytest finds this package imported already, and would warn of it.
"""

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "bench", "run"]


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name not in ("Run", "run", "serve", "telemetry", "warmstart"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name in ("serve", "telemetry", "warmstart"):
        return import_module(f"firstlight.{name}")
    return getattr(import_module("firstlight.runs"), name)


def bench(function=None, /, **options):  # type: ignore[no-untyped-def]
    """Mark a function that builds a step, for `firstlight run FILE`.

    The function creates the data and returns a callable `step`, or `(step, arguments)`. Options:
    `workload` (name, default the function's), `backend` (a label, default found out), `sizes`
    ({size: keyword arguments}), `reference` (same keyword arguments, returns float64 results),
    `tolerance` (relative), `environment` (variables of the worker).
    """

    def mark(builder):  # type: ignore[no-untyped-def]
        builder.__firstlight__ = options
        return builder

    return mark if function is None else mark(function)  # type: ignore[no-untyped-call]
