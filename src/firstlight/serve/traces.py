"""OpenTelemetry spans of requests: a request span with the children queue and execute.

The engine only records a note; a thread turns notes into spans and sends them as OTLP over HTTP.
Only OpenTelemetry's messages are loaded: spans of its SDK, created on the event loop's thread,
would cost as much as answering a small request.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from firstlight.errors import FirstlightError
from firstlight.serve.declaration import Model
from firstlight.serve.jobs import Reason
from firstlight.serve.lanes import Batch
from firstlight.telemetry.collectors import Destination, Signal, add_resource

#: Notes waiting to be sent; beyond that the oldest are dropped.
_MAX_WAITING = 16_384
_INTERVAL_SECONDS, _LAST_SECONDS = 1.0, 4.0
#: W3C trace context: version, trace, parent, flags.
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class CollectorError(FirstlightError):
    """A URL that cannot be a collector's."""


Context = tuple[bytes | None, bytes | None]  # the headers traceparent and tracestate


class Note(NamedTuple):
    """The end of a request as the engine knows it; times are those of `time.perf_counter`."""

    context: Context
    model: str
    version: str
    rows: int
    arrived: float
    ended: float
    refused: Reason | None = None
    began: float = 0.0  # of the batch, as all fields below
    seconds: float = 0.0
    bucket: int = 0
    batch_rows: int = 0
    requests: int = 0
    cold: bool = False
    compiles: int = 0


@dataclass(frozen=True)
class Sampled:
    """Where spans are sent, and the sampled share of requests whose caller has not decided."""

    to: Destination
    share: float = 1.0


def destination(url: str | None, environment: Mapping[str, str]) -> Sampled | None:
    """The collector at a URL, or else the one named by OpenTelemetry's variables, if any.

    Raises:
        CollectorError: The URL is not an HTTP URL.
    """
    if url is None:
        to = Destination.of_variables(environment, Signal.TRACES)
    else:
        try:
            to = Destination.at(url, environment, Signal.TRACES)
        except ValueError as error:
            raise CollectorError(f"{error}, its address for OTLP over HTTP.") from None
    return None if to is None else Sampled(to, _share(environment))


def _share(environment: Mapping[str, str]) -> float:
    sampler = environment.get("OTEL_TRACES_SAMPLER", "")
    if sampler.endswith("always_off"):
        return 0.0
    if sampler.endswith("traceidratio"):
        return float(environment.get("OTEL_TRACES_SAMPLER_ARG") or 1.0)
    return 1.0


class Traces:
    """Collects notes on the event loop's thread and sends them from its own."""

    def __init__(self, sampled: Sampled) -> None:
        # Loaded now rather than after the first request.
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: F401

        self._to, self._share = sampled.to, sampled.share
        self._notes: deque[Note] = deque(maxlen=_MAX_WAITING)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="firstlight-traces", daemon=True)
        self._thread.start()

    def computed(self, batch: Batch) -> None:
        """Note all requests of a batch that has been answered."""
        now, model = time.perf_counter(), batch.lane.loaded.model
        for job in batch.jobs:
            self._notes.append(
                Note(
                    job.trace_context(), model.name, model.version, job.rows, job.arrived, now,
                    None, batch.began, batch.seconds, batch.bucket.rows, batch.rows,
                    len(batch.jobs), batch.cold, batch.compiles,
                )
            )  # fmt: skip

    def refused(
        self, model: Model, context: Context, arrived: float, reason: Reason, rows: int = 0
    ) -> None:
        """Note a request without a result; rows: 0 if it was not parsed."""
        now = time.perf_counter()
        self._notes.append(Note(context, model.name, model.version, rows, arrived, now, reason))

    def close(self) -> None:
        """Send the remaining notes, without waiting long for the collector."""
        self._ending.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while not self._ending.wait(_INTERVAL_SECONDS):
            self._send()
        self._send()

    def _send(self) -> None:
        if notes := [self._notes.popleft() for _ in range(len(self._notes))]:
            self._to.send(encoded(notes, self._share).SerializeToString())


def encoded(notes: Iterable[Note], share: float) -> Any:
    """The spans of these requests as an OTLP message."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    of_process = message.resource_spans.add()
    add_resource(of_process, {"service.name": "firstlight"})
    scope = of_process.scope_spans.add()
    scope.scope.name = "firstlight.serve"
    offset = time.time_ns() - time.perf_counter_ns()
    for note in notes:
        parent = _parent(note.context[0])
        sampled = parent[2] if parent else random.random() < share
        if sampled:
            _put_request(scope.spans, note, parent, offset)
    return message


def _parent(header: bytes | None) -> tuple[bytes, bytes, bool] | None:
    """(trace, span, is sampled) of the caller; None without a valid W3C header."""
    found = _TRACEPARENT.fullmatch(header or b"")
    if found is None or not found[1].strip(b"0") or not found[2].strip(b"0"):
        return None
    if header is not None and header.startswith(b"00") and found[4]:
        return None  # version 00 ends with the flags
    trace, span = bytes.fromhex(found[1].decode()), bytes.fromhex(found[2].decode())
    return trace, span, bool(int(found[3], 16) & 1)


def _put_request(spans: Any, note: Note, parent: Any, offset: int) -> None:
    trace = parent[0] if parent else _random_id(16)

    def add(name: str, kind: int, start: float, end: float, within: bytes) -> Any:
        return spans.add(
            name=name,
            kind=kind,
            trace_id=trace,
            span_id=_random_id(8),
            parent_span_id=within,
            start_time_unix_nano=int(start * 1e9) + offset,
            end_time_unix_nano=int(end * 1e9) + offset,
        )

    internal, server = 1, 2
    request = add(
        f"infer {note.model}", server, note.arrived, note.ended, parent[1] if parent else b""
    )
    if parent and note.context[1]:
        request.trace_state = note.context[1].decode("ascii", "replace")
    about: dict[str, Any] = {"model": note.model, "version": note.version, "rows": note.rows}
    if note.refused is not None:
        request.status.code = 2  # STATUS_CODE_ERROR
        _attributes(request, {**about, "refused": note.refused.value})
        return
    phase = {"phase": "cold" if note.cold else "warm", "compiled": note.compiles > 0}
    _attributes(request, {**about, **phase})
    add("queue", internal, note.arrived, note.began, request.span_id)
    end = note.began + note.seconds
    execute = add("execute", internal, note.began, end, request.span_id)
    batch = {"bucket": note.bucket, "rows": note.batch_rows, "requests": note.requests,
             "padding": note.bucket - note.batch_rows}  # fmt: skip
    _attributes(execute, {**batch, **phase})
    if note.compiles:
        for span in (request, execute):
            event = span.events.add(name="compile", time_unix_nano=int(end * 1e9) + offset)
            _attributes(event, {"compiles": note.compiles})


def _random_id(length: int) -> bytes:
    """Random bytes, which must not all be zero."""
    return (random.getrandbits(8 * length) or 1).to_bytes(length, "big")


def _attributes(thing: Any, values: dict[str, object]) -> None:
    for name, value in values.items():
        put = thing.attributes.add(key=f"firstlight.{name}").value
        if isinstance(value, bool):
            put.bool_value = value
        elif isinstance(value, int):
            put.int_value = value
        else:
            put.string_value = value
