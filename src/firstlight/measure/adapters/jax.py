"""JAX: phases and counts from the events of `jax.monitoring`, during the user's own call.

Timing the call itself, rather than a staged `trace().lower().compile()`, also covers eager mode,
several jitted functions, and recompiles in a loop.
"""

import time
from _thread import get_ident

from firstlight.measure.adapters import Adapter, collect_messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from firstlight.measure.adapters import Facts, Function, HostArray

_PHASE_OF_EVENT = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_COUNT_OF_PHASE = {"trace": "traces", "lower": "lowerings", "compile": "compiles"}
_CACHE_EVENTS = {
    "/jax/compilation_cache/compile_requests_use_cache": "requests",
    "/jax/compilation_cache/cache_hits": "hits",
}
#: Reading VmHWM takes tens of microseconds, too long to do it for every operation in eager mode.
_PEAK_INTERVAL_NS = 2_000_000


class Jax(Adapter):
    """JAX as the program wrote it: nothing is transformed."""

    sync_policy = "jax.block_until_ready on every array of the result"
    watches: "tuple[str, ...]" = ("jax",)

    def __init__(self) -> None:
        self._jax: "Any" = None
        self._thread = get_ident()
        # Running phases, innermost last, each with the start of its exclusive time.
        self._open: list[tuple[str, int]] = []
        self._spent_ns = {"trace": 0, "lower": 0, "compile": 0}
        self._counts = {"traces": 0, "lowerings": 0, "compiles": 0}
        self._cache = dict.fromkeys(_CACHE_EVENTS.values(), 0)
        self._peaks: dict[str, bytes] = {}
        self._peak_read_at_ns = 0
        self._read_peak: "Callable[[], bytes] | None" = None
        self._overhead_ns = 0
        self._refusals: list[str] = []
        # In untimed processes: calls of jitted functions, for the compiler's memory estimate.
        self._compiled: "list[tuple[Any, tuple[object, ...]]]" = []
        self._recording = False
        self._functions: "list[Facts] | None" = None

    def load(self) -> None:
        import jax
        import jax.numpy

        self._jax = jax

    def listen(self) -> None:
        from jax import monitoring

        monitoring.register_scalar_listener(self._begin)
        monitoring.register_event_duration_secs_listener(self._end)
        monitoring.register_event_listener(self._event)

    def _begin(self, event: str, value: float, **_: object) -> None:
        phase = _PHASE_OF_EVENT.get(event)
        if phase is None or get_ident() != self._thread:
            return
        now = time.monotonic_ns()
        if self._open:  # an inner phase pauses the outer one: no time is counted twice
            outer, since = self._open[-1]
            self._spent_ns[outer] += now - since
        self._open.append((phase, now))

    def _end(self, event: str, seconds: float, **about: object) -> None:
        phase = _PHASE_OF_EVENT.get(event)
        if phase is None:
            return
        self._counts[_COUNT_OF_PHASE[phase]] += 1
        if self._functions is not None:
            name = str(about.get("fun_name"))
            self._functions.append({"function": name, "phase": phase, "seconds": float(seconds)})
        # A compilation in another thread is counted, but is not part of the time of this call.
        if get_ident() != self._thread or not self._open:
            return
        now = time.monotonic_ns()
        opened, since = self._open.pop()
        self._spent_ns[opened] += now - since
        if self._read_peak and now - self._peak_read_at_ns > _PEAK_INTERVAL_NS:
            # The first peak of each phase: later ones include what compiling has left in memory.
            self._peaks.setdefault(phase, self._read_peak())
            self._peak_read_at_ns = time.monotonic_ns()
            self._overhead_ns += self._peak_read_at_ns - now
            now = self._peak_read_at_ns
        if self._open:
            self._open[-1] = (self._open[-1][0], now)

    def _event(self, event: str, **_: object) -> None:
        if name := _CACHE_EVENTS.get(event):
            self._cache[name] += 1

    def initialise(self) -> bool:
        self._jax.devices()
        return True

    def sync(self, value: object) -> object:
        return self._jax.block_until_ready(value)

    def mark(self, peak_host_bytes: "Callable[[], bytes]") -> None:
        self._spent_ns = {"trace": 0, "lower": 0, "compile": 0}
        self._read_peak = peak_host_bytes

    def phases_ns(self) -> "dict[str, int | None]":
        self._read_peak = None  # only the first call is watched
        if not self._counts["compiles"] and not self._counts["traces"]:
            # No event at all: either nothing was compiled or this JAX has renamed its events.
            return {"trace": None, "lower": None, "compile": None}
        return dict(self._spent_ns)

    def overhead_ns(self) -> int:
        return self._overhead_ns

    def phase_peaks(self) -> "dict[str, bytes]":
        return dict(self._peaks)

    def counts(self) -> "dict[str, int | None]":
        return dict(self._counts)

    def cache_counts(self) -> "Facts":
        config = self._jax.config
        on = config.jax_enable_compilation_cache and config.jax_compilation_cache_dir
        return {**self._cache, "enabled": bool(on), "refusals": self._refusals}

    def explain_cache(self) -> None:
        loggers = ("jax._src.compiler", "jax._src.compilation_cache")
        collect_messages(loggers, ("Not writing", "Error writing"), self._refusals)
        self._recording = True

    def _recorded(self, jitted: "Function") -> "Function":
        """The jitted function; in untimed processes it records its calls."""
        if not self._recording:
            return jitted

        def call(*arguments: object) -> object:
            if len(self._compiled) < 16:
                self._compiled.append((jitted, arguments))
            return jitted(*arguments)

        return call

    def leaves(self, value: object) -> list[object]:
        return list(self._jax.tree_util.tree_leaves(value))

    def to_numpy(self, value: object) -> "HostArray":
        array = super().to_numpy(value)
        # bfloat16 and smaller types are not numbers to NumPy; float32 represents them exactly.
        return array.astype("float32") if array.dtype.kind == "V" else array

    def describe(self, leaf: object) -> "Facts | None":
        if not isinstance(leaf, self._jax.Array):
            return super().describe(leaf)
        # Before JAX 0.9 a CPU was called TFRT_CPU_0; use one name for the same device.
        devices = sorted(f"cpu:{d.id}" if d.platform == "cpu" else str(d) for d in leaf.devices())
        return {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "layout": "row-major" if len(devices) == 1 else str(leaf.sharding.spec),
            "device": ", ".join(devices),
            "bytes": int(leaf.nbytes),
        }

    def peak_device_bytes(self) -> "int | None":
        peaks = [(d.memory_stats() or {}).get("peak_bytes_in_use") for d in self._jax.devices()]
        known = [p for p in peaks if p is not None]
        return sum(known) if known else None

    def _called(
        self, step: object, arguments: "tuple[object, ...]"
    ) -> "list[tuple[Any, tuple[object, ...]]]":
        """Jitted functions and the arguments of their recorded calls."""
        if not self._compiled and hasattr(step, "lower"):
            return [(step, arguments)]
        return list(self._compiled)

    def compiler_bytes(
        self, step: object, arguments: "tuple[object, ...]"
    ) -> "dict[str, int] | None":
        total: dict[str, int] = {}
        seen: set[str] = set()
        for jitted, values in self._called(step, arguments):
            lowered = jitted.lower(*values)
            text = lowered.as_text()
            if text in seen:  # the same program, as in a training loop
                continue
            seen.add(text)
            analysis = lowered.compile().memory_analysis()
            if analysis is None:
                continue
            for kind in ("argument", "output", "temp", "generated_code"):
                size = getattr(analysis, kind + "_size_in_bytes", 0)
                total[kind] = max(total.get(kind, 0), int(size))
        return total or None

    def equations(self, step: object, arguments: "tuple[object, ...]") -> "int | None":
        known: dict[int, int] = {}  # so that a program used twice is counted only once
        try:
            traced = [f.trace(*values).jaxpr for f, values in self._called(step, arguments)]
            different = {id(jaxpr): jaxpr for jaxpr in traced}
            total = sum(count_equations(jaxpr, known) for jaxpr in different.values())
        except Exception:  # a function that cannot be traced again has no count
            return None
        return total or None

    def name_functions(self) -> None:
        self._functions = []

    def functions(self) -> "list[Facts]":
        return list(self._functions or ())

    def threads(self) -> "Facts":
        return {"devices": len(self._jax.devices())}

    def precision(self) -> "Facts":
        config = self._jax.config
        return {
            "x64": bool(config.jax_enable_x64),
            "default_matmul_precision": config.jax_default_matmul_precision,
            "platform": self._jax.default_backend(),
        }


def count_equations(jaxpr: "Any", known: "dict[int, int]") -> int:
    """Equations of a jaxpr, including those of loop bodies, branches and inner jits."""
    if id(jaxpr) not in known:
        known[id(jaxpr)] = sum(
            1 + sum(count_equations(inner, known) for inner in _inner(equation))
            for equation in jaxpr.eqns
        )
    return known[id(jaxpr)]


def _inner(equation: "Any") -> "list[Any]":
    values: list[Any] = []
    for value in equation.params.values():
        values.extend(value if isinstance(value, (tuple, list)) else (value,))
    return [value for value in values if hasattr(value, "eqns")]


class JaxJit(Jax):
    """JAX with `jax.jit` applied where the program says."""

    def compile(self, function: "Function") -> "Function":
        return self._recorded(self._jax.jit(function))

    def phases_ns(self) -> "dict[str, int | None]":
        if not self._counts["compiles"]:
            raise RuntimeError(
                f"jax {self._jax.__version__} reported no compilation: its events have other "
                "names, so its phases cannot be measured"
            )
        return super().phases_ns()
