"""Parses requests and formats answers for models that another process computes.

That process receives rows and returns results. A request that is not valid inference is passed on
whole, so that every decision and count is made there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from firstlight.serve.app import (
    CANARY_HEADER,
    TRACE_HEADERS,
    Exchange,
    answer_result,
    deadline_of,
    fail_unexpectedly,
    has_token,
    parse_inference,
    timeout_of,
)
from firstlight.serve.compiled_models import Loaded
from firstlight.serve.http_formats import ParsedRequest
from firstlight.serve.jobs import Outputs, Result
from firstlight.serve.models import Deployment, Endpoint
from firstlight.serve.reader_messages import (
    Again,
    Answered,
    Computed,
    Gone,
    Infer,
    Message,
    Pass,
    bytes_of,
)
from firstlight.serve.tensors import InvalidRequestError, Rows


@dataclass(frozen=True)
class Described:
    """A version that is served, without its executables."""

    number: int
    loaded: Loaded
    canary_share: float | None  # None: the current version


@dataclass(frozen=True)
class ReaderSetup:
    """Everything that a reader needs to know."""

    token: bytes | None
    versions: Sequence[Described]


class _Version(Endpoint):
    def __init__(self, described: Described) -> None:
        super().__init__(described.loaded)
        self.number = described.number


class _Sent(NamedTuple):
    """Rows that are being computed, and the request that they came from."""

    version: _Version
    rows: Rows
    parsed: ParsedRequest | None


class _Waiting(NamedTuple):
    """A request without an answer yet; `sent` is None if it was passed on whole."""

    exchange: Exchange
    sent: _Sent | None = None


class Reader:
    """Takes the place of an `App` in a server."""

    def __init__(
        self, send: Callable[[Message], None], draw: Callable[[], float] = random.random
    ) -> None:
        """draw: Returns uniform random numbers between 0 and 1."""
        self._send, self._draw = send, draw
        self._token: bytes | None = None
        self._paths: dict[bytes, tuple[Deployment[_Version], bool]] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._last = 0
        self.is_set_up = False

    def set_up(self, setup: ReaderSetup) -> None:
        names: dict[str, Deployment[_Version]] = {}
        for described in sorted(setup.versions, key=lambda d: d.canary_share is not None):
            version = _Version(described)
            if described.canary_share is None:
                names[version.model.name] = Deployment(version)
            else:
                deployment = names[version.model.name]
                deployment.canary, deployment.share = version, described.canary_share
        self._token, self.is_set_up = setup.token, True
        self._paths = {
            path: (deployment, plain)
            for deployment in names.values()
            for path, plain in deployment.current.paths.items()
        }

    def handle(self, exchange: Exchange) -> None:
        """Send its rows, or the whole request, to the other process. Never raises."""
        self._last += 1
        found = self._paths.get(exchange.path)
        if found is not None and has_token(exchange, self._token):
            try:
                self._send_rows(exchange, *found)
                return
            except InvalidRequestError:
                pass  # answered and counted by the other process
            except Exception as error:
                fail_unexpectedly(exchange, error)
                return
        self._waiting[self._last] = _Waiting(exchange)
        headers, body = exchange.headers, memoryview(exchange.body)
        self._send(
            Pass(self._last, exchange.method, exchange.path, headers, body, exchange.arrived)
        )

    def _send_rows(self, exchange: Exchange, deployment: Deployment[_Version], plain: bool) -> None:
        headers = exchange.headers
        version = deployment.choose(headers.get(CANARY_HEADER) == b"true", self._draw)
        seconds = timeout_of(headers)
        rows, parsed = parse_inference(exchange, version, plain)
        deadline = deadline_of(exchange, version, parsed, seconds)
        self._waiting[self._last] = _Waiting(exchange, _Sent(version, rows, parsed))
        arrays = [bytes_of(array) for array in rows.arrays]
        trace = {name: headers[name] for name in TRACE_HEADERS if name in headers}
        self._send(
            Infer(self._last, version.number, rows.rows, rows.sizes, arrays, exchange.arrived,
                  deadline, trace)
        )  # fmt: skip

    def received(self, message: Computed | Answered | Again) -> None:
        """Handle the reply to a request."""
        waiting = self._waiting.pop(message.number, None)
        if waiting is None:
            return  # its client has left
        match message:
            case Computed(_, outputs):
                assert waiting.sent is not None
                self._write(waiting.exchange, waiting.sent, outputs)
            case Answered(_, status, body, content_type, more):
                waiting.exchange.answer(status, [body], content_type, more)
            case Again():
                self.handle(waiting.exchange)

    def _write(self, exchange: Exchange, sent: _Sent, outputs: Sequence[memoryview]) -> None:
        version, rows, parsed = sent
        signature = version.loaded.signature
        sizes = dict(zip(signature.axes, rows.sizes, strict=True))
        arrays = [
            np.frombuffer(output, tensor.dtype).reshape(rows.rows, *tensor.sized(sizes))
            for output, tensor in zip(outputs, signature.outputs, strict=True)
        ]
        result = Result(Outputs(signature, arrays), 0, rows.rows)
        try:
            answer_result(exchange, version, parsed, rows.extents, result)
        except Exception as error:
            fail_unexpectedly(exchange, error)

    def report_departures(self) -> None:
        """Tell the other process which clients have left: their rows need not be computed."""
        gone = [n for n, waiting in self._waiting.items() if waiting.exchange.is_gone()]
        for number in gone:
            del self._waiting[number]
        if gone:
            self._send(Gone(gone))
