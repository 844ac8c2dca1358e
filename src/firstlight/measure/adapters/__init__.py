"""What the worker must know about a framework. Adapters import frameworks inside methods only.

The worker loads an adapter before the framework, inside the measured process, so a module in this
package may import `sys`, `os`, `time` and builtin modules and nothing else at its top level.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy import generic
    from numpy.typing import NDArray

    Facts = dict[str, Any]  # plain values, for the report
    Function = Callable[..., Any]  # of the program, with arrays of its framework
    HostArray = NDArray[generic]


class Adapter:
    """The interface, for a backend that compiles nothing and whose calls return finished results.

    The worker calls, in this order: `load`, `listen`, `initialise`, the program's builder with
    `compile`, `sync` on the inputs, `mark`, the step, `sync` on the result, then the readers.
    """

    sync_policy = "none needed: a call returns when its result is in host memory"
    #: Frameworks whose results `sync` waits for and whose compilations are counted.
    watches: "tuple[str, ...]" = ()

    def load(self) -> None:
        """Import the framework: this is the phase `import`."""

    def listen(self) -> None:
        """Start counting compilations; called once, after `load`."""

    def initialise(self) -> bool:
        """Start the device backend; return False if there is no such phase."""
        return False

    def compile(self, function: "Function") -> "Function":
        """Apply the transform under test; called by the program where a user would apply it."""
        return function

    def sync(self, value: object) -> object:
        """Return when every array in `value` has been computed."""
        return value

    def mark(self, peak_host_bytes: "Callable[[], bytes]") -> None:
        """The first call begins; `peak_host_bytes` reads VmHWM and may be called at phase ends."""

    def phases_ns(self) -> "dict[str, int | None]":
        """Nanoseconds of the first call in `trace`, `lower`, `compile`; None if not measured."""
        return {"trace": None, "lower": None, "compile": None}

    def overhead_ns(self) -> int:
        """Nanoseconds of the first call spent in the instrument."""
        return 0

    def phase_peaks(self) -> "dict[str, bytes]":
        """{phase: VmHWM text} for the phases inside the first call."""
        return {}

    def counts(self) -> "dict[str, int | None]":
        """Exact counts since `listen`: traces, lowerings, compiles."""
        return {"traces": None, "lowerings": None, "compiles": None}

    def tier_counts(self) -> "dict[str, int]":
        """Of a tiered program: signatures, those begun in NumPy, those switched, NumPy calls."""
        return {}

    def cache_counts(self) -> "Facts":
        """Requests and hits of the persistent cache, and whether the framework reports it as on."""
        return {"requests": None, "hits": None, "enabled": None, "refusals": []}

    def explain_cache(self) -> None:
        """Collect the reasons why results are not stored; called in untimed processes only."""

    def leave_behind(self) -> None:
        """Store what timed processes will load; called at the end of a priming process."""

    def settle(self) -> None:
        """Wait for background work that the first call started; called before the warm calls."""

    def leaves(self, value: object) -> list[object]:
        """The arrays and numbers in nested tuples, lists and dicts, in order."""
        if value is None:
            return []
        if isinstance(value, dict):
            value = [value[key] for key in sorted(value)]
        if isinstance(value, (tuple, list)):
            return [leaf for item in value for leaf in self.leaves(item)]
        return [value]

    def to_numpy(self, value: object) -> "HostArray":
        """One result array in host memory as a NumPy array."""
        import numpy

        return numpy.asarray(value)

    def describe(self, leaf: object) -> "Facts | None":
        """Shape, dtype, layout, device and size of one input; None if it is not an array."""
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or not hasattr(leaf, "nbytes"):
            return None
        flags = getattr(leaf, "flags", None)
        return {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "layout": "C" if flags is None or flags["C_CONTIGUOUS"] else "strided",
            "device": "host",
            "bytes": int(leaf.nbytes),
        }

    def peak_device_bytes(self) -> "int | None":
        """Peak bytes on the device, or None if the backend does not report it."""
        return None

    def compiler_bytes(
        self, step: object, arguments: "tuple[object, ...]"
    ) -> "dict[str, int] | None":
        """The compiler's own memory estimate for what `compile` was applied to, or None."""
        return None

    def equations(self, step: object, arguments: "tuple[object, ...]") -> "int | None":
        """Number of equations given to the compiler, or None if they cannot be counted."""
        return None

    def name_functions(self) -> None:
        """Record which function each compilation is for; called in untimed processes only."""

    def functions(self) -> "list[Facts]":
        """{function, phase, seconds} of each compilation phase since `name_functions`."""
        return []

    def threads(self) -> "Facts":
        """Thread counts as the framework reports them."""
        return {}

    def precision(self) -> "Facts":
        """Settings that change the arithmetic."""
        return {}


def collect_messages(
    loggers: "tuple[str, ...]", beginnings: "tuple[str, ...]", into: "list[str]"
) -> None:
    """Append messages of `loggers` that start with one of `beginnings`; nothing is printed."""
    import logging

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message.startswith(beginnings):
                into.append(message)

    for name in loggers:
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(Collect())


class NumPy(Adapter):
    """NumPy, imported in the phase `import`."""

    def load(self) -> None:
        import numpy
