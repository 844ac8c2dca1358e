"""Routes requests to models and pages, independent of the transport.

A server passes in an `Exchange`, complete with its body, and is called back with the answer: no
task, no framework. Paths of inference are looked up in a dict; everything else is rare.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from firstlight.serve import description, log
from firstlight.serve.engine import Job, Reason, Refusal, Result
from firstlight.serve.http_formats import ParsedRequest
from firstlight.serve.models import Deployment, Endpoint, Models, Served
from firstlight.serve.tensors import MAX_TIMEOUT, InvalidRequestError, Rows
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

JSON, BINARY = b"application/json", b"application/octet-stream"
HTML, TEXT = b"text/html; charset=utf-8", b"text/plain; charset=utf-8"
#: In seconds; the inference protocol has a parameter `timeout` as well.
TIMEOUT_HEADER = b"firstlight-timeout"
#: "true": answer with the canary, if there is one.
CANARY_HEADER = b"firstlight-canary"
#: W3C trace context.
TRACE_HEADERS = b"traceparent", b"tracestate"
STATUS = {
    Reason.QUEUE_FULL: (429, "the queue is full"),
    Reason.DEADLINE: (429, "the queue is too long for the request's deadline"),
    Reason.EXPIRED: (504, "the deadline passed before the request was computed"),
    Reason.FAILED: (500, "the model failed on this request"),
    Reason.STOPPED: (503, "the server is stopping"),
}
_encode = msgspec.json.encode
#: Body and content type by path.
Pages = Mapping[bytes, Callable[[], tuple[bytes, bytes]]]


class Exchange:
    """One request, and the way to answer it."""

    __slots__ = ("arrived", "body", "headers", "method", "path")

    method: bytes
    path: bytes  # without query
    headers: dict[bytes, bytes]  # names in lower case
    body: Any  # bytes, or another object with a buffer
    arrived: float

    def answer(
        self, status: int, parts: list[Any], content_type: bytes = JSON, more: bytes = b""
    ) -> None:
        """Send the answer; `more` holds further header lines."""
        raise NotImplementedError

    def is_gone(self) -> bool:
        """Whether the client has left."""
        return False


class Objection(NamedTuple):
    """An answer to a head, in place of reading the body."""

    status: int
    message: str
    more: bytes = b""  # further header lines


class Handler:
    """Answers the exchanges of a server."""

    def objection(self, exchange: Exchange) -> Objection | None:
        """Why the body of a request is not read; called when its head is complete."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer, now or when the result is there. Never raises."""
        raise NotImplementedError

    def left(self) -> None:
        """The client of an exchange without an answer has left."""


class ExchangeJob(Job):
    """The job of an exchange."""

    __slots__ = ("exchange", "served")

    def __init__(self, rows: Rows, deadline: float, exchange: Exchange, served: Served) -> None:
        super().__init__(rows, deadline, exchange.arrived)
        self.exchange, self.served = exchange, served

    def is_gone(self) -> bool:
        return self.exchange.is_gone()

    def trace_context(self) -> tuple[bytes | None, bytes | None]:
        return trace_context(self.exchange.headers)


class _Inference(ExchangeJob):
    """A job whose outcome is the answer to an exchange, in plain JSON if `parsed` is None."""

    __slots__ = ("parsed",)

    def __init__(
        self,
        rows: Rows,
        deadline: float,
        exchange: Exchange,
        served: Served,
        parsed: ParsedRequest | None,
    ) -> None:
        super().__init__(rows, deadline, exchange, served)
        self.parsed = parsed

    def finish(self, outcome: Result | Refusal) -> None:
        try:
            self._answer(outcome)
        except Exception as error:  # the other jobs of its batch still need their answers
            fail_unexpectedly(self.exchange, error)

    def _answer(self, outcome: Result | Refusal) -> None:
        served = self.served
        if isinstance(outcome, Refusal):
            refuse(self.exchange, served, outcome)
            return
        answer_result(self.exchange, served, self.parsed, self.extents, outcome)
        served.answered(outcome.batch.cold, self.arrived)


def parse_inference(
    exchange: Exchange, endpoint: Endpoint, plain: bool
) -> tuple[Rows, ParsedRequest | None]:
    """The rows of a request for inference. Raises InvalidRequestError."""
    if exchange.method != b"POST":
        raise InvalidRequestError("send requests for inference by POST.", 405)
    headers = exchange.headers
    if b"content-encoding" in headers:
        raise InvalidRequestError("compressed requests are not supported.", 415)
    if plain:
        return endpoint.plain.read(exchange.body), None
    length = headers.get(b"inference-header-content-length")
    parsed = endpoint.protocol.read(exchange.body, None if length is None else _whole(length))
    return parsed.rows, parsed


def answer_result(
    exchange: Exchange,
    endpoint: Endpoint,
    parsed: ParsedRequest | None,
    extents: dict[str, int] | None,
    result: Result,
) -> None:
    """Answer with a result, in the format of the request."""
    if parsed is None:
        exchange.answer(200, [endpoint.plain.write(extents, result)])
        return
    parts, json_bytes = endpoint.protocol.write(parsed, result)
    if json_bytes is None:
        exchange.answer(200, parts)
    else:
        length = b"inference-header-content-length: %d\r\n" % json_bytes
        exchange.answer(200, parts, BINARY, length)


def timeout_of(headers: Mapping[bytes, bytes]) -> float | None:
    """The timeout in a request's headers, in seconds."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIMEOUT:
        raise InvalidRequestError(
            f"{TIMEOUT_HEADER.decode()}: give seconds, more than 0 and at most {MAX_TIMEOUT:g}."
        )
    return seconds


def deadline_of(
    exchange: Exchange, endpoint: Endpoint, parsed: ParsedRequest | None, seconds: float | None
) -> float:
    """When the result is due; seconds: the timeout in the headers."""
    if seconds is None and parsed is not None:
        seconds = parsed.timeout_seconds
    return exchange.arrived + (endpoint.model.deadline_seconds if seconds is None else seconds)


def trace_context(headers: Mapping[bytes, bytes]) -> tuple[bytes | None, bytes | None]:
    parent, state = TRACE_HEADERS
    return headers.get(parent), headers.get(state)


def refuse(exchange: Exchange, served: Served, refusal: Refusal) -> None:
    """Answer that there is no result, and count the reason."""
    status, why = STATUS[refusal.reason]
    served.refused(refusal.reason.value, status)
    more = b""
    if status in (429, 503):
        more = b"retry-after: %d\r\n" % retry_after(refusal.retry_seconds)
    exchange.answer(status, [_encode({"error": f"{served.model.name}: {why}."})], more=more)


def retry_after(seconds: float) -> int:
    """Whole seconds for the header retry-after, at least 1."""
    return max(1, math.ceil(seconds))


def fail(
    exchange: Exchange, status: int, message: str, valid: object = None, more: bytes = b""
) -> None:
    """Answer with an error, in the protocol's format."""
    body = {"error": message} if valid is None else {"error": message, "valid": valid}
    exchange.answer(status, [_encode(body)], more=more)


def has_token(exchange: Exchange, token: bytes | None) -> bool:
    """Whether a request has the token, if one is required."""
    if token is None:
        return True
    scheme, _, given = exchange.headers.get(b"authorization", b"").partition(b" ")
    # In constant time, so that its duration says nothing about the token.
    is_right = hmac.compare_digest(given.strip(b" "), token)
    return scheme.lower() == b"bearer" and is_right


def has_body(exchange: Exchange) -> bool:
    """Whether a head announces a body."""
    headers = exchange.headers
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def fail_unexpectedly(exchange: Exchange, error: Exception) -> None:
    """Answer 500; the error goes to the log, not to the client."""
    log.failed(repr(exchange.path), error)
    fail(exchange, 500, "this request could not be handled.")


class App(Handler):
    """Routes exchanges to models and pages."""

    def __init__(
        self,
        models: Models,
        values: Values,
        token: bytes | None = None,
        pages: Pages = MappingProxyType({}),
        open_pages: Pages = MappingProxyType({}),
    ) -> None:
        """token: Required from clients; open_pages: Also shown without it."""
        self.models = models
        self.ready = self.draining = False
        self._engine = models.engine
        self.token = token
        self._pages, self._open_pages = pages, open_pages
        self._unnamed = values.counter(metrics.REJECTED, "", "not_found")
        self._unauthorized = values.counter(metrics.REJECTED, "", "unauthorized")
        values.gauge(metrics.READY, lambda: float(self.ready))

    def handle(self, exchange: Exchange) -> None:
        try:
            self._handle(exchange)
        except InvalidRequestError as error:
            fail(exchange, error.status, str(error), error.valid)
        except Exception as error:
            fail_unexpectedly(exchange, error)

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.path
        found = self.models.paths.get(path)
        if found is not None:
            deployment, plain = found
            self._infer(exchange, self._choose(exchange, deployment), plain)
            return
        if path.startswith(b"/v2/health/"):
            self._health(exchange, path)
            return
        parts = path.split(b"/")
        if parts[1:3] == [b"v2", b"models"] and len(parts) > 3:
            self._model(exchange, parts[3:])
        elif parts[1:2] == [b"models"] and len(parts) == 3:
            self._infer(exchange, self.find_version(exchange, parts[2], None), plain=True)
        else:
            self._other(exchange, path)

    def _model(self, exchange: Exchange, parts: list[bytes]) -> None:
        """/v2/models/NAME[/versions/VERSION][/infer|/ready]"""
        name, rest = parts[0], parts[1:]
        version = None
        if len(rest) > 1 and rest[0] == b"versions":
            version, rest = rest[1], rest[2:]
        served = self.find_version(exchange, name, version)
        if rest == [b"infer"]:
            self._infer(exchange, served, plain=False)
        elif rest == [b"ready"]:
            exchange.answer(200 if self.ready else 503, [b""])
        elif not rest:
            exchange.answer(200, [_encode(description.metadata(served, self.models))])
        elif rest == [b"config"]:
            exchange.answer(200, [_encode(description.configuration(served))])
        else:
            self._not_found(exchange)

    def find_version(self, exchange: Exchange, name: bytes, version: bytes | None) -> Served:
        """The version that a request addresses. Raises InvalidRequestError if there is none."""
        deployment = self.models.names.get(name.decode("utf-8", "replace"))
        if deployment is not None:
            if version is None:
                return self._choose(exchange, deployment)
            wanted = version.decode("utf-8", "replace")
            for _, served in deployment.versions():
                if served.model.version == wanted:
                    return served
        self._unnamed.add()
        if not self.ready:
            raise InvalidRequestError("the models are being prepared.", 503)
        known = ", ".join(self.models.names)
        raise InvalidRequestError(f"no such model. There are: {known}.", 404)

    def _choose(self, exchange: Exchange, deployment: Deployment[Served]) -> Served:
        wants_canary = exchange.headers.get(CANARY_HEADER) == b"true"
        return deployment.choose(wants_canary, self.models.draw)

    def _infer(self, exchange: Exchange, served: Served, plain: bool) -> None:
        # While draining, requests that have arrived are still answered.
        if not (self.ready or self.draining):
            fail(exchange, 503, "the server is not ready.", more=b"retry-after: 1\r\n")
            return
        try:
            seconds = timeout_of(exchange.headers)
            if seconds is None and plain:  # plain JSON has no timeout in its body
                seconds = served.model.deadline_seconds
            refusal = self._engine.refusal_of(served.lanes.values(), seconds)
            if refusal is None:
                rows, parsed = parse_inference(exchange, served, plain)
                deadline = deadline_of(exchange, served, parsed, seconds)
                job = _Inference(rows, deadline, exchange, served, parsed)
            elif self._engine.traces is not None:
                context, arrived = trace_context(exchange.headers), exchange.arrived
                self._engine.traces.refused(served.model, context, arrived, refusal.reason)
        except InvalidRequestError as error:
            served.refused("invalid", error.status)
            raise
        if refusal is None:
            refusal = self._engine.submit(served.lanes[rows.sizes], job)
        if refusal is not None:
            refuse(exchange, served, refusal)

    def objection(self, exchange: Exchange) -> Objection | None:
        """Without a token, only health is answered, which probes need, and the open pages."""
        if self.token is None or has_token(exchange, self.token):
            return None
        is_open = exchange.path.startswith(b"/v2/health/") or exchange.path in self._open_pages
        if is_open and not has_body(exchange):
            return None
        self._unauthorized.add()
        more = b"www-authenticate: Bearer\r\n"
        return Objection(401, "send the token: Authorization: Bearer TOKEN.", more)

    def left(self) -> None:
        self._engine.departures += 1

    def _health(self, exchange: Exchange, path: bytes) -> None:
        if path == b"/v2/health/live":
            exchange.answer(200, [b""])
        elif path == b"/v2/health/ready":
            exchange.answer(200 if self.ready else 503, [b""])
        else:
            self._not_found(exchange)

    def _other(self, exchange: Exchange, path: bytes) -> None:
        if exchange.method not in (b"GET", b"HEAD"):
            fail(exchange, 405, "this address is read-only.", more=b"allow: GET\r\n")
        elif path == b"/v2":
            exchange.answer(200, [_encode(description.server())])
        elif path == b"/v2/models":
            known = [
                {"name": s.model.name, "version": s.model.version} for s in self.models.all_served()
            ]
            exchange.answer(200, [_encode(known)])
        elif path in self._open_pages and not has_token(exchange, self.token):
            self._page(exchange, self._open_pages)
        elif path in self._pages:
            self._page(exchange, self._pages)
        else:
            self._not_found(exchange)

    def _page(self, exchange: Exchange, pages: Pages) -> None:
        body, content_type = pages[exchange.path]()
        exchange.answer(200, [body], content_type)

    def _not_found(self, exchange: Exchange) -> None:
        self._unnamed.add()
        fail(exchange, 404, "there is nothing here. See /openapi.json.")


def _whole(text: bytes) -> int:
    if not text.isdigit() or len(text) > 12:
        raise InvalidRequestError("Inference-Header-Content-Length must be a whole number.")
    return int(text)
