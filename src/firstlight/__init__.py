"""Firstlight measures, explains and removes the time to first result of compiled Python.

    import firstlight

    run = firstlight.run("quick")       # workloads, or your own: functions marked with @bench
    firstlight.warmstart.enable()       # compile once: later processes load the programs

Packages: `warmstart` (a compilation cache), `trace` (why a program starts slowly), `telemetry`
(metrics of running programs), `serve` (a model server), `histfactory` (likelihood fits), `losses`
and `torch` (training on significance), `cluster` (the same on many machines). The command
`firstlight` has more. Each is imported on first use: `from firstlight import bench` in a benchmark
file must not affect what it measures.

PYTEST_DONT_REWRITE: a traced pytest has imported this package already, and would warn about it.
"""

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "bench", "run"]

_PACKAGES = (
    "cluster",
    "histfactory",
    "interpret",
    "losses",
    "serve",
    "telemetry",
    "torch",
    "trace",
    "warmstart",
)


def __getattr__(name):  # type: ignore[no-untyped-def]
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"firstlight.{name}")
    if name not in ("Run", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("firstlight.runs"), name)


def __dir__():  # type: ignore[no-untyped-def]
    return [*__all__, *_PACKAGES]


def bench(function=None, /, **options):  # type: ignore[no-untyped-def]
    """Mark a function as a benchmark for `firstlight run FILE`.

    The function creates the data and returns a callable `step`, or `(step, arguments)`. Options:
    `workload` (a name, default that of the function), `backend` (default: by what the file
    imports), `sizes` ({size: keyword arguments}), `reference` (takes the same arguments, returns
    float64 results), `tolerance` (relative), `environment` (variables of the worker).
    """

    def mark(builder):  # type: ignore[no-untyped-def]
        builder.__firstlight__ = options
        return builder

    return mark if function is None else mark(function)  # type: ignore[no-untyped-call]
