"""The catalogue of all metrics that Firstlight exports: name, kind, labels and buckets.

Units are base units (seconds, bytes); counters end in `_total`; ratios are from 0 to 1; clients
cannot choose the values of labels. Dashboards and alert rules may only use metrics listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, without infinity

    @property
    def unit(self) -> str:
        """The unit in UCUM notation, as OpenTelemetry requires; "" for counts."""
        quantity = self.name.removesuffix("_total")
        return next((unit for end, unit in _UNITS.items() if quantity.endswith(end)), "")


#: Units by the end of a name, longest first.
_UNITS = {"_bytes_per_second": "By/s", "_seconds": "s", "_bytes": "By", "_ratio": "1"}


#: Latency objectives in seconds; each is a bucket bound, so that shares below them are exact.
OBJECTIVES = (0.005, 0.01, 0.025, 0.1, 0.25, 1.0)
_SECONDS = tuple(
    sorted({1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, *OBJECTIVES, 0.05, 0.5, 2.5, 5.0, 10.0, 30.0})
)
_ROWS = tuple(float(2**n) for n in range(11))


def _counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"firstlight_{name}", Kind.COUNTER, about, labels)


def _gauge(name: str, about: str, *labels: str) -> Metric:
    return Metric(f"firstlight_{name}", Kind.GAUGE, about, labels)


def _histogram(name: str, about: str, *labels: str, bounds: tuple[float, ...] = _SECONDS) -> Metric:
    return Metric(f"firstlight_{name}", Kind.HISTOGRAM, about, labels, bounds)


REQUESTS = _counter("requests_total", "Requests answered.", "model", "version", "code")
REQUEST_DURATION = _histogram(
    "request_duration_seconds",
    "From the last byte of a request to its answer; cold: the first batch of a version, or one "
    "during which something compiled.",
    "model",
    "phase",
)
QUEUE_DURATION = _histogram("queue_duration_seconds", "Time of requests in the queue.", "model")
EXECUTE_DURATION = _histogram("execute_duration_seconds", "Time of one batch.", "model")
COMPILE_DURATION = _histogram(
    "compile_duration_seconds", "Time of tracing, lowering, and compiling or loading.", "stage"
)
COMPILE_CACHE_REQUESTS = _counter(
    "compile_cache_requests_total", "Lookups in the compilation cache.", "result"
)
REQUEST_PATH_COMPILES = _counter(
    "request_path_compiles_total",
    "Compiles outside the preparation of models, from JAX's own events. Must stay 0.",
)
ROWS = _counter("rows_total", "Rows computed for requests.", "model", "version")
PADDING_ROWS = _counter("padding_rows_total", "Rows of padding in batches.", "model")
BATCH_ROWS = _histogram("batch_rows", "Rows of requests in one batch.", "model", bounds=_ROWS)
REJECTED = _counter(
    "rejected_requests_total", "Requests without a result, by reason.", "model", "reason"
)
CANCELLED = _counter(
    "cancelled_requests_total", "Requests whose client left before their batch.", "model"
)
NAN_ROWS = _counter("nan_rows_total", "Rows of results with a NaN.", "model", "version")
CANARIES_TAKEN_BACK = _counter(
    "canaries_taken_back_total", "Canaries ended because they failed, or on request.", "model"
)
OUT_OF_MEMORY = _counter(
    "device_out_of_memory_total", "Batches repeated in smaller buckets.", "model"
)
BATCH_OVERDUE = _gauge(
    "batch_overdue_seconds",
    "How long a batch has run that takes more than ten times its usual time; else 0.",
    "model",
)
QUEUE_LENGTH = _gauge("queue_length", "Rows in the queue.", "model")
READY = _gauge("ready", "1 while the server is ready, 0 before and while draining.")
STARTUP_DURATION = _gauge("startup_duration_seconds", "From the start of the process to ready.")
MODEL_INFO = _gauge("model_info", "1 for each loaded version.", "model", "version", "role")
DEPLOY_IN_PROGRESS = _gauge(
    "deploy_in_progress",
    "1 while a version of a model is prepared, and shortly after. Silences alerts.",
    "model",
)
RUNTIME_INFO = _gauge(
    "runtime_info",
    "Always 1; the labels are the process's versions and devices, equal for all replicas.",
    "jax",
    "jaxlib",
    "platform",
    "device",
)
DEVICE_FALLBACK = _gauge("device_fallback", "1 if JAX runs on another platform than expected.")
DEVICE_MEMORY_USED = _gauge("device_memory_used_bytes", "Device memory in use.", "device")
DEVICE_MEMORY_LIMIT = _gauge("device_memory_limit_bytes", "Usable device memory.", "device")
DEVICE_MEMORY_PEAK = _gauge("device_memory_peak_bytes", "Peak device memory in use.", "device")

CACHE_SERVER_REQUESTS = _counter(
    "cache_server_requests_total", "Requests answered by the cache server.", "method", "code"
)
CACHE_SERVER_LOOKUPS = _counter(
    "cache_server_lookups_total", "Lookups of compiled programs in the cache server.", "result"
)
CACHE_SERVER_SENT = _counter("cache_server_sent_bytes_total", "Compiled programs sent.")
CACHE_SERVER_RECEIVED = _counter(
    "cache_server_received_bytes_total", "Compiled programs received and stored."
)
CACHE_SERVER_STORED = _gauge("cache_server_stored_bytes", "Compiled programs on its disk.")
CACHE_SERVER_LIMIT = _gauge("cache_server_limit_bytes", "Limit of the bytes stored.")
CACHE_SERVER_LEASES = _gauge("cache_server_leases", "Programs that clients are compiling.")
# Of any JAX process (`firstlight exec --metrics`, `firstlight.telemetry.start`). The label
# `function` has at most `max_functions` values; all other functions are labelled "other".
STEP_DURATION = _histogram(
    "step_duration_seconds",
    "From the start of a step until its results are ready; cold: something compiled meanwhile.",
    "function",
    "phase",
    bounds=tuple(sorted({2.5e-4, 1e-3, 2.5e-3, *OBJECTIVES, 0.05, 5.0, 30.0})),  # of many functions
)
STEPS = _counter(
    "steps_total",
    "Steps and calls of jitted functions, by result: ok, error.",
    "function",
    "result",
)
COMPILES = _counter(
    "compiles_total", "Executables, by source: compiler, cache.", "function", "source"
)
COMPILE_SECONDS = _counter(
    "compile_seconds_total", "Time of tracing, lowering, and compiling or loading.", "function"
)
RECOMPILES = _counter(
    "recompiles_total", "Executables of a function after its first one.", "function"
)
FIRST_RESULT = _gauge("first_result_seconds", "From the start of the process to its first result.")
COLD_START_SHARE = _gauge(
    "cold_start_share_ratio",
    "Time to the end of the first warm step as a share of the age of the process; 1 before.",
)
LIVE_ARRAYS = _gauge("live_arrays", "Live JAX arrays.")
LIVE_ARRAY_BYTES = _gauge("live_array_bytes", "Bytes of live JAX arrays.")
MEMORY_PREALLOCATED = _gauge(
    "device_memory_preallocated_bytes", "Device memory reserved, in use or not.", "device"
)
GC_COLLECTIONS = _counter("gc_collections_total", "Runs of Python's collector.", "generation")
GC_SECONDS = _counter("gc_seconds_total", "Time in Python's collector.", "generation")
GPU_UTILIZATION = _gauge("gpu_utilization_ratio", "Share of time with a kernel running.", "device")
GRADIENT_CHECKS = _counter(
    "gradient_checks_total",
    "Gradients compared with differences: ok, wrong, uncertain, not_comparable, over_budget.",
    "result",
)
GRADIENTS_NOT_CHECKED = _counter(
    "gradients_not_checked_total",
    "Gradients that are not checked: effects, not_addressable, out_of_reach, error.",
    "reason",
)
GRADIENT_ERROR = _gauge(
    "gradient_max_relative_error_ratio", "Largest relative error found by any gradient check."
)
CHECKED_RESULTS = _counter(
    "checked_results_total", "Sampled results, by content: finite, nan.", "function", "result"
)
COMPARED_OUTPUTS = _counter(
    "compared_outputs_total", "Outputs for equal inputs: same, different.", "function", "result"
)
MEMORY_GROWTH = _gauge(
    "memory_growth_bytes_per_second", "Steady growth of memory: host, device, arrays.", "memory"
)
LEAK_SUSPECTED = _gauge(
    "memory_leak_suspected",
    "1 while memory grows; the function is the one whose results stay alive.",
    "memory",
    "function",
)
# Under the names common to all exporters.
PROCESS_MEMORY = Metric("process_resident_memory_bytes", Kind.GAUGE, "Resident memory.")
PROCESS_MEMORY_PEAK = Metric(
    "process_resident_memory_peak_bytes", Kind.GAUGE, "Peak resident memory."
)
PROCESS_CPU = Metric("process_cpu_seconds_total", Kind.COUNTER, "Processor time.")
PROCESS_START = Metric("process_start_time_seconds", Kind.GAUGE, "Start, in seconds since 1970.")
PROCESS_OPEN_FILES = Metric("process_open_fds", Kind.GAUGE, "Open file descriptors.")
PROCESS_MAX_FILES = Metric("process_max_fds", Kind.GAUGE, "Limit of open file descriptors.")

CATALOGUE = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
