"""What every gRPC server is asked: its health (`grpc.health.v1`) and its services (reflection)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from firstlight.serve.app import App
from firstlight.serve.grpc_messages import HEALTH, SERVICE, SERVICES, file_of, message
from firstlight.serve.tensors import InvalidRequestError

_PACKAGE = HEALTH.rpartition(".")[0]
_LOOK_SECONDS = 0.5


class Health:
    """The health of the server, which is asked for by "", the protocol's name or a model's."""

    def __init__(self, app: App, stopping: asyncio.Event) -> None:
        self._app, self._stopping = app, stopping

    def check(self, body: bytes) -> Any:
        """The answer now. Raises InvalidRequestError for an unknown service."""
        status = self._status(_service(body))
        if status == "SERVICE_UNKNOWN":
            raise InvalidRequestError("there is no such service or model.", 404)
        return message("HealthCheckResponse", _PACKAGE)(status=status)

    async def watch(self, body: bytes, context: Any) -> None:
        """Send the health now, and whenever it has changed. Raises InvalidRequestError."""
        service, sent = _service(body), ""
        while True:
            now = self._status(service)
            if now != sent:
                answer = message("HealthCheckResponse", _PACKAGE)(status=now)
                await context.write(answer.SerializeToString())
            sent = now
            if self._stopping.is_set():
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _LOOK_SECONDS)

    def _status(self, service: str) -> str:
        if service not in ("", SERVICE) and service not in self._app.models.names:
            return "SERVICE_UNKNOWN"
        overdue = self._app.overdue()
        is_well = not overdue if service in ("", SERVICE) else service not in overdue
        is_serving = self._app.ready and is_well and not self._stopping.is_set()
        return "SERVING" if is_serving else "NOT_SERVING"


def _service(body: bytes) -> str:
    return str(parsed(message("HealthCheckRequest", _PACKAGE), body).service)


def reflected(package: str, body: bytes) -> Any:
    """The answer to a question of reflection; its package is a version of it."""
    asked = parsed(message("ServerReflectionRequest", package), body)
    answer = message("ServerReflectionResponse", package)(original_request=asked)
    kind = asked.WhichOneof("message_request")
    if kind == "list_services":
        for service in SERVICES:
            answer.list_services_response.service.add(name=service)
        return answer
    found = None
    if kind == "file_containing_symbol":
        found = file_of(symbol=asked.file_containing_symbol)
    elif kind == "file_by_filename":
        found = file_of(name=asked.file_by_filename)
    if found is None:
        answer.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
        answer.error_response.error_message = "there is no such symbol or file."
    else:
        answer.file_descriptor_response.file_descriptor_proto.append(found)
    return answer


def parsed(kind: Any, body: bytes) -> Any:
    """A message of this kind. Raises InvalidRequestError."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise InvalidRequestError("the request is not a valid message.") from None
