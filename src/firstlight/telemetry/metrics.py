"""Every metric that Firstlight exports: name, kind, labels, buckets. The one catalogue.

Base units (seconds, bytes), `_total` on counters, ratios from 0 to 1, and no label whose values a
client could choose. Dashboards and alert rules may name only what is listed here.
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


#: Latency objectives in seconds; each is a bound of the buckets, so that a ratio is exact.
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
QUEUE_DURATION = _histogram("queue_duration_seconds", "Time that requests waited.", "model")
EXECUTE_DURATION = _histogram("execute_duration_seconds", "Time of one batch.", "model")
COMPILE_DURATION = _histogram(
    "compile_duration_seconds", "Tracing, lowering and compiling or loading.", "stage"
)
COMPILE_CACHE_REQUESTS = _counter(
    "compile_cache_requests_total", "Executables asked of the compilation cache.", "result"
)
REQUEST_PATH_COMPILES = _counter(
    "request_path_compiles_total",
    "Compiles outside the preparation of a model, counted by JAX's own events. Must stay 0.",
)
ROWS = _counter("rows_total", "Rows computed for requests.", "model", "version")
PADDING_ROWS = _counter("padding_rows_total", "Rows that only filled a bucket.", "model")
BATCH_ROWS = _histogram("batch_rows", "Rows of requests in one batch.", "model", bounds=_ROWS)
REJECTED = _counter(
    "rejected_requests_total", "Requests not computed, by reason.", "model", "reason"
)
CANCELLED = _counter(
    "cancelled_requests_total", "Requests whose client left before their batch.", "model"
)
NAN_ROWS = _counter("nan_rows_total", "Rows of results with a NaN.", "model", "version")
OUT_OF_MEMORY = _counter(
    "device_out_of_memory_total", "Batches repeated in smaller buckets.", "model"
)
QUEUE_LENGTH = _gauge("queue_length", "Rows that wait.", "model")
READY = _gauge("ready", "1 while requests are answered, 0 before and while draining.")
STARTUP_DURATION = _gauge("startup_duration_seconds", "From the start of the process to ready.")
MODEL_INFO = _gauge("model_info", "1 for each version that is loaded.", "model", "version", "role")
DEVICE_MEMORY_USED = _gauge("device_memory_used_bytes", "Memory in use, by device.", "device")
DEVICE_MEMORY_LIMIT = _gauge("device_memory_limit_bytes", "Memory that may be used.", "device")
DEVICE_MEMORY_PEAK = _gauge("device_memory_peak_bytes", "The most that was in use.", "device")

CACHE_SERVER_REQUESTS = _counter(
    "cache_server_requests_total", "Requests that the cache server answered.", "method", "code"
)
CACHE_SERVER_LOOKUPS = _counter(
    "cache_server_lookups_total", "Compiled programs asked of the cache server.", "result"
)
CACHE_SERVER_SENT = _counter("cache_server_sent_bytes_total", "Compiled programs sent.")
CACHE_SERVER_RECEIVED = _counter(
    "cache_server_received_bytes_total", "Compiled programs received and stored."
)
CACHE_SERVER_STORED = _gauge("cache_server_stored_bytes", "Compiled programs on its disk.")
CACHE_SERVER_LIMIT = _gauge("cache_server_limit_bytes", "The most that it keeps.")
CACHE_SERVER_LEASES = _gauge("cache_server_leases", "Programs that are being compiled somewhere.")

CATALOGUE = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
