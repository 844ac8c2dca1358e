"""Routes requests to models and pages, independent of the transport.

A server passes in an `Exchange`, complete with its body, and is called back with the answer: no
task, no framework. Paths of inference are looked up in a dict; everything else is rare.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from firstlight.serve import description, log
from firstlight.serve.http_formats import ParsedRequest
from firstlight.serve.jobs import Job, Reason, Refusal, Result, Source
from firstlight.serve.models import Deployment, Models, Served
from firstlight.serve.repository import Repository
from firstlight.serve.tensors import MAX_TIMEOUT, InvalidRequestError, Rows, decode, inflated
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
NO_SHARED_MEMORY = "shared memory is not supported: send tensors as bytes."
NO_SETTINGS = "traces and the log are set by options of the server, not by requests."
READING = b"GET", b"HEAD"
_encode = msgspec.json.encode


class _Index(msgspec.Struct):
    """A request for the index of the repository."""

    ready: bool = False


class _Change(msgspec.Struct):
    """A request to load or unload a model."""

    parameters: dict[str, object] = {}


_index, _change = msgspec.json.Decoder(_Index), msgspec.json.Decoder(_Change)
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

    def source(self) -> Source | None:
        """Who sent it, if that is known."""
        return None


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

    def is_drawn(self) -> bool:
        return self.exchange.headers.get(CANARY_HEADER) != b"true"

    def move(self, to: object) -> None:
        assert isinstance(to, Served)
        self.served = to

    def source(self) -> Source | None:
        return self.exchange.source()

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


def require_method(exchange: Exchange, *allowed: bytes) -> None:
    """Refuse other methods, with those that are allowed."""
    if exchange.method not in allowed:
        names = b", ".join(allowed)
        raise InvalidRequestError(
            f"this address takes {names.decode()}.", 405, more=b"allow: %s\r\n" % names
        )


def parse_inference(
    exchange: Exchange, served: Served, plain: bool, most: int
) -> tuple[Rows, ParsedRequest | None]:
    """The rows of a request for inference. Raises InvalidRequestError.

    most: Bytes of a decompressed body.
    """
    require_method(exchange, b"POST")
    headers = exchange.headers
    if b"content-encoding" in headers:
        exchange.body = _decoded(exchange.body, headers[b"content-encoding"].lower(), most)
    if plain:
        return served.plain.read(exchange.body), None
    length = headers.get(b"inference-header-content-length")
    parsed = served.protocol.read(exchange.body, None if length is None else _whole(length))
    return parsed.rows, parsed


def _decoded(body: Any, encoding: bytes, most: int) -> Any:
    if encoding == b"identity":
        return body
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        raise InvalidRequestError(
            "this content-encoding is not supported.",
            415,
            more=b"accept-encoding: gzip, deflate\r\n",
        )
    return inflated(body, most)


def answer_result(
    exchange: Exchange,
    served: Served,
    parsed: ParsedRequest | None,
    extents: dict[str, int] | None,
    result: Result,
) -> None:
    """Answer with a result, in the format of the request."""
    if parsed is None:
        exchange.answer(200, [served.plain.write(extents, result)])
        return
    parts, json_bytes = served.protocol.write(parsed, result)
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
    exchange: Exchange, served: Served, parsed: ParsedRequest | None, seconds: float | None
) -> float:
    """When the result is due; seconds: the timeout in the headers."""
    if seconds is None and parsed is not None:
        seconds = parsed.timeout_seconds
    return exchange.arrived + (served.model.deadline_seconds if seconds is None else seconds)


def trace_context(headers: Mapping[bytes, bytes]) -> tuple[bytes | None, bytes | None]:
    parent, state = TRACE_HEADERS
    return headers.get(parent), headers.get(state)


def refuse(exchange: Exchange, served: Served, refusal: Refusal) -> None:
    """Answer that there is no result, and count the reason."""
    status, why = STATUS[refusal.reason]
    served.refused(refusal.reason, status)
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
        body_bytes: int = 64 * 2**20,
    ) -> None:
        """token: Required from clients; open_pages: Also shown without it.

        body_bytes: The most that a compressed body may contain.
        """
        self.models = models
        self.ready = self.draining = False
        #: A batch that is overdue after so many seconds makes the server not ready, or not live.
        self.overdue_seconds, self.stuck_seconds = 30.0, 120.0
        self._engine = models.engine
        self.token = token
        self._pages, self._open_pages = pages, open_pages
        self.body_bytes = body_bytes
        self.repository = Repository(models)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unnamed = values.counter(metrics.REJECTED, "", "not_found")
        self._unauthorized = values.counter(metrics.REJECTED, "", "unauthorized")
        values.gauge(metrics.READY, lambda: float(self.ready and not self.overdue()))

    def overdue(self) -> dict[str, float]:
        """Models with a batch that does not end, because of which the server is not ready."""
        return self._engine.stuck(self.overdue_seconds)

    def stuck(self) -> dict[str, float]:
        """Models with a batch that does not end, because of which the server must be restarted."""
        return self._engine.stuck(self.stuck_seconds)

    def handle(self, exchange: Exchange) -> None:
        try:
            self._handle(exchange)
        except InvalidRequestError as error:
            fail(exchange, error.status, str(error), error.valid, error.more)
        except Exception as error:
            fail_unexpectedly(exchange, error)

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.path
        found = self.models.paths.get(path)
        if found is not None:
            deployment, plain = found
            self._infer(exchange, self._choose(exchange, deployment), plain)
            return
        parts = path.split(b"/")[1:]
        match parts:
            case [b"models", name]:
                self._infer(exchange, self.find_version(exchange, name, None), plain=True)
            case [b"v2", b"health", _]:
                self._health(exchange, path)
            case [b"v2", b"models", b"stats"] if "stats" not in self.models.names:
                self._read(exchange, description.statistics(self.models.all_served()))
            case [b"v2", b"models", name, b"versions", version, *rest]:
                self._model(exchange, self.find_version(exchange, name, version), rest)
            case [b"v2", b"models", name, *rest]:
                self._model(exchange, self.find_version(exchange, name, None), rest)
            case [b"v2", b"repository", *rest]:
                self._repository(exchange, rest)
            case [b"v2", (b"systemsharedmemory" | b"cudasharedmemory"), *_]:
                raise InvalidRequestError(NO_SHARED_MEMORY)
            case [b"v2", (b"trace" | b"logging"), *_]:
                raise InvalidRequestError(NO_SETTINGS)
            case _:
                self._other(exchange, path)

    def _model(self, exchange: Exchange, served: Served, rest: list[bytes]) -> None:
        """/v2/models/NAME[/versions/VERSION][/infer|/ready|/config|/stats|/canary/abort]"""
        match rest:
            case [b"infer"]:
                self._infer(exchange, served, plain=False)
            case [b"ready"]:
                require_method(exchange, *READING)
                stuck = {n: age for n, age in self.overdue().items() if n == served.model.name}
                self._answer_health(exchange, self.ready, stuck)
            case []:
                self._read(exchange, description.metadata(served, self.models))
            case [b"config"]:
                self._read(exchange, description.configuration(served))
            case [b"stats"]:
                self._read(exchange, description.statistics([served]))
            case [b"canary", b"abort"]:
                self._abort_canary(exchange, served.model.name)
            case [b"trace", *_]:
                raise InvalidRequestError(NO_SETTINGS)
            case _:
                self._not_found(exchange)

    def _repository(self, exchange: Exchange, rest: list[bytes]) -> None:
        """/v2/repository/index, /v2/repository/models/NAME/load and unload"""
        match rest:
            case [b"index"]:
                require_method(exchange, b"POST")
                asked = decode(_index, exchange.body) if len(exchange.body) else _Index()
                found = self.repository.index(asked.ready)
                exchange.answer(200, [_encode(found)])
            case [b"models", name, (b"load" | b"unload") as what]:
                require_method(exchange, b"POST")
                named = name.decode("utf-8", "replace")
                given = decode(_change, exchange.body) if len(exchange.body) else _Change()
                change = self.repository.load if what == b"load" else self.repository.unload
                self._answer_after(exchange, change(named, given.parameters))
            case _:
                self._not_found(exchange)

    def _answer_after(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Answer when some work is done."""

        async def answered() -> None:
            try:
                await work
                exchange.answer(200, [b""])
            except InvalidRequestError as error:
                fail(exchange, error.status, str(error))
            except Exception as error:
                fail_unexpectedly(exchange, error)

        task = asyncio.get_running_loop().create_task(answered())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read(self, exchange: Exchange, about: object) -> None:
        """Answer a request that only reads."""
        require_method(exchange, *READING)
        exchange.answer(200, [_encode(about)])

    def _abort_canary(self, exchange: Exchange, name: str) -> None:
        require_method(exchange, b"POST")
        if self.token is None:
            fail(exchange, 403, "this needs a token: start the server with --token-file.")
        elif (version := self.models.take_back(name)) is None:
            fail(exchange, 409, f"{name} has no canary.")
        else:
            self.models.say(f"{name} {version}: canary taken back on request")
            exchange.answer(200, [_encode({"name": name, "aborted": version})])

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

    def _choose(self, exchange: Exchange, deployment: Deployment) -> Served:
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
                rows, parsed = parse_inference(exchange, served, plain, self.body_bytes)
                deadline = deadline_of(exchange, served, parsed, seconds)
                job = _Inference(rows, deadline, exchange, served, parsed)
            elif self._engine.traces is not None:
                context, arrived = trace_context(exchange.headers), exchange.arrived
                self._engine.traces.refused(served.model, context, arrived, refusal.reason)
        except InvalidRequestError as error:
            served.invalid(error.status)
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
        require_method(exchange, *READING)
        if path == b"/v2/health/live":
            self._answer_health(exchange, True, self.stuck())
        elif path == b"/v2/health/ready":
            stuck = self.overdue()
            if not stuck and exchange.headers.get(b"accept", b"").startswith(JSON):
                about = description.readiness(self.models, self.ready)
                exchange.answer(200 if self.ready else 503, [_encode(about)])
            else:
                self._answer_health(exchange, self.ready, stuck)
        else:
            self._not_found(exchange)

    def _answer_health(self, exchange: Exchange, is_well: bool, stuck: dict[str, float]) -> None:
        if stuck:
            ages = (f"a batch of {name} has run for {age:.0f} s" for name, age in stuck.items())
            fail(exchange, 503, f"{', '.join(ages)}.")
        else:
            exchange.answer(200 if is_well else 503, [b""])

    def _other(self, exchange: Exchange, path: bytes) -> None:
        if path == b"/v2":
            self._read(exchange, description.server())
        elif path == b"/v2/models":
            known = [
                {"name": s.model.name, "version": s.model.version} for s in self.models.all_served()
            ]
            self._read(exchange, known)
        elif path in self._open_pages and not has_token(exchange, self.token):
            self._page(exchange, self._open_pages)
        elif path in self._pages:
            self._page(exchange, self._pages)
        else:
            self._not_found(exchange)

    def _page(self, exchange: Exchange, pages: Pages) -> None:
        require_method(exchange, *READING)
        body, content_type = pages[exchange.path]()
        exchange.answer(200, [body], content_type)

    def _not_found(self, exchange: Exchange) -> None:
        self._unnamed.add()
        fail(exchange, 404, "there is nothing here. See /openapi.json.")


def _whole(text: bytes) -> int:
    if not text.isdigit() or len(text) > 12:
        raise InvalidRequestError("Inference-Header-Content-Length must be a whole number.")
    return int(text)
