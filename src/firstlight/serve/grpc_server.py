"""The Open Inference Protocol v2 over gRPC, on the event loop of the server.

Engine, limits, deadlines, token and metrics are the same as over HTTP; only the format of messages
and errors differs. Messages are deserialised here, so that an invalid one is the client's error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any

import grpc
import msgspec
import numpy as np

from firstlight.serve import description, log
from firstlight.serve.app import (
    NO_SETTINGS,
    NO_SHARED_MEMORY,
    STATUS,
    App,
    Exchange,
    ExchangeJob,
    has_token,
    retry_after,
)
from firstlight.serve.grpc_messages import HEALTH, REFLECTION, SERVICE, message
from firstlight.serve.grpc_standards import Health, parsed, reflected
from firstlight.serve.http_server import AddressError, Limits, address
from firstlight.serve.jobs import Job, Refusal, Result, Source
from firstlight.serve.models import Served
from firstlight.serve.signature import Tensor
from firstlight.serve.tensors import (
    MAX_TIMEOUT,
    NOTHING_ASKED,
    REQUEST_PARAMETERS,
    Array,
    InvalidRequestError,
    Rows,
    arrange,
    as_array,
    from_bytes,
    inflated,
    require_datatype,
    require_known,
    reshape,
    timeout_seconds,
    wrong_name,
)

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
#: The field of typed contents for each datatype; FP16 and BF16 are sent as bytes only.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
_Request, _Response = message("ModelInferRequest"), message("ModelInferResponse")
_OutputTensor = message("OutputTensor")
_GZIP = b"\x1f\x8b"
#: Methods of Triton's that are refused.
_SHARED_MEMORY = tuple(
    f"{kind}SharedMemory{what}"
    for kind in ("System", "Cuda")
    for what in ("Status", "Register", "Unregister")
)
_SETTINGS = "TraceSetting", "LogSettings"


class _RefusedError(InvalidRequestError):
    """A request that the engine refuses."""

    def __init__(self, served: Served, refusal: Refusal) -> None:
        status, why = STATUS[refusal.reason]
        super().__init__(f"{served.model.name}: {why}.", status)
        self.retry_seconds = refusal.retry_seconds
        served.refused(refusal.reason, status)


class _Call(Exchange):
    """The headers and deadline of a call."""

    def __init__(self, context: Any) -> None:
        self.arrived = time.perf_counter()
        self.remaining_seconds: float | None = context.time_remaining()
        self._source = _source_of(context.peer())
        self.headers = {
            key.encode(): value if isinstance(value, bytes) else value.encode()
            for key, value in context.invocation_metadata() or ()
        }

    def source(self) -> Source:
        return self._source


@lru_cache(1024)
def _source_of(_: str) -> Source:
    """The same for all calls from an address."""
    return Source()


class _Inference(ExchangeJob):
    """A job that a call awaits; when the call ends for any reason, its future is cancelled."""

    __slots__ = ("outcome",)

    def __init__(self, rows: Rows, deadline: float, call: _Call, served: Served) -> None:
        super().__init__(rows, deadline, call, served)
        self.outcome: asyncio.Future[Result | Refusal] = asyncio.get_running_loop().create_future()

    def is_gone(self) -> bool:
        return self.outcome.cancelled()

    def finish(self, outcome: Result | Refusal) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)
        elif isinstance(outcome, Refusal):  # the client's deadline has ended the call already
            self.served.refused(outcome.reason, STATUS[outcome.reason][0])


class GrpcServer:
    """Answers calls with the models of an app."""

    def __init__(self, app: App, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._body_bytes = 0
        self._draining, self._stopping = False, asyncio.Event()
        self._health = Health(app, self._stopping)
        self._calls: set[asyncio.Task[Any]] = set()
        options = [
            ("grpc.so_reuseport", 0),  # a second server on the port is an error
            ("grpc.max_receive_message_length", limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.head_bytes),
            ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1000)),
            # gRPC would decompress a message before it looks at its length: `_body` does it.
            ("grpc.per_message_decompression", 0),
            ("grpc.compression_enabled_algorithms_bitset", 0b101),  # none and gzip
        ]
        self._server = grpc.aio.server(
            options=options, maximum_concurrent_rpcs=self._limits.connections
        )
        methods = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "ModelInfer": self._infer,
            **dict.fromkeys(_SHARED_MEMORY, _refusing(NO_SHARED_MEMORY)),
            **dict.fromkeys(_SETTINGS, _refusing(NO_SETTINGS)),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(name, method))
            for name, method in methods.items()
        }
        stream = self._stream(self._infer_in_stream)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(stream)
        health = {
            "Check": grpc.unary_unary_rpc_method_handler(self._handler("Check", self._check)),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        services = [(SERVICE, handlers), (HEALTH, health)]
        for service in REFLECTION:
            reflect = self._stream(_reflecting(service.rpartition(".")[0]))
            info = grpc.stream_stream_rpc_method_handler(reflect)
            services.append((service, {"ServerReflectionInfo": info}))
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(*service) for service in services)
        )

    async def listen(self, host: str, port: int) -> int:
        """Start accepting calls; returns the port."""
        where = address(host, port)
        try:
            bound: int = self._server.add_insecure_port(where)
        except RuntimeError:
            await self._server.stop(None)
            raise AddressError(where, "--grpc-port") from None
        await self._server.start()
        return bound

    async def drain(self, seconds: float) -> None:
        """Answer pending calls, for at most `seconds`; new ones are answered UNAVAILABLE."""
        self._draining, begin = True, time.perf_counter()
        self._stopping.set()  # ends streams
        # While calls are pending, new ones are refused here: a stopping gRPC server cancels what
        # arrives at that moment, and clients do not retry cancelled calls.
        if self._calls:
            await asyncio.wait(self._calls, timeout=seconds)
        await self._server.stop(max(0.0, seconds - (time.perf_counter() - begin)))

    def _take(self) -> None:
        """Register this call as pending, which draining waits for."""
        if self._draining:
            raise InvalidRequestError("the server is stopping.", 503)
        if task := asyncio.current_task():
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    def _handler(
        self, name: str, method: Callable[[bytes, _Call], Awaitable[Any]]
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        is_open = name in ("ServerLive", "ServerReady", "Check")  # for probes

        async def handle(body: bytes, context: Any) -> bytes:
            retry_seconds = None
            try:
                call = _Call(context)
                if not is_open:
                    self._require_token(call)
                    self._take()
                found = await method(self._inflated(body), call)
                answer: bytes = found.SerializeToString()
                return answer
            except InvalidRequestError as error:
                status, text = error.status, _text(error)
                if status in (429, 503):
                    retry_seconds = getattr(error, "retry_seconds", 0.0)
            except Exception as error:  # goes to the log, not to the client
                log.failed(name, error)
                status, text = 500, "this request could not be handled."
            if retry_seconds is not None:
                context.set_trailing_metadata((("retry-after", str(retry_after(retry_seconds))),))
            await context.abort(_CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT), text)
            raise AssertionError("abort raises")

        return handle

    def _require_token(self, call: _Call) -> None:
        if not has_token(call, self._app.token):
            raise InvalidRequestError("send the token: authorization: Bearer TOKEN.", 401)

    def _inflated(self, body: bytes) -> bytes:
        """A message, which no other way than its beginning says to be compressed."""
        # Field 3 with wire type 7, which does not exist: no message begins like this.
        return inflated(body, self._limits.body_bytes) if body.startswith(_GZIP) else body

    def _stream(
        self, method: Callable[[bytes, _Call], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """Answer the messages of a stream one after the other, until the server drains."""

        async def handle(_: Any, context: Any) -> None:
            call = _Call(context)
            if not has_token(call, self._app.token):
                await context.abort(_CODES[401], "send the token: authorization: Bearer TOKEN.")
            async for body in self._messages(context):
                call.arrived = time.perf_counter()
                try:
                    answer = await method(self._inflated(body), call)
                except InvalidRequestError as error:
                    code = _CODES.get(error.status, grpc.StatusCode.INVALID_ARGUMENT)
                    await context.abort(code, _text(error))
                await context.write(answer.SerializeToString())

        return handle

    async def _messages(self, context: Any) -> AsyncIterator[bytes]:
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                reading = asyncio.ensure_future(context.read())
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    return
                if reading.result() is grpc.aio.EOF:
                    return
                yield reading.result()
        finally:
            stopping.cancel()

    async def _infer_in_stream(self, body: bytes, call: _Call) -> Any:
        answer = message("ModelStreamInferResponse")
        try:
            return answer(infer_response=await self._infer(body, call))
        except InvalidRequestError as error:
            return answer(error_message=_text(error))
        except Exception as error:
            log.failed("ModelStreamInfer", error)
            return answer(error_message="this request could not be handled.")

    async def _check(self, body: bytes, _: _Call) -> Any:
        return self._health.check(body)

    async def _watch(self, body: bytes, context: Any) -> None:
        try:
            await self._health.watch(self._inflated(body), context)
        except InvalidRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    # --- the protocol -----------------------------------------------------------------------------

    async def _live(self, _: bytes, __: _Call) -> Any:
        return message("ServerLiveResponse")(live=not self._app.stuck())

    async def _ready(self, _: bytes, __: _Call) -> Any:
        return message("ServerReadyResponse")(ready=self._app.ready and not self._app.overdue())

    async def _server_metadata(self, _: bytes, __: _Call) -> Any:
        about = {**description.server(), "extensions": []}
        return message("ServerMetadataResponse")(**about)

    async def _model_ready(self, body: bytes, call: _Call) -> Any:
        asked = parsed(message("ModelReadyRequest"), body)
        try:
            self._served(call, asked.name, asked.version)
        except InvalidRequestError:  # as over HTTP, an unknown model is not ready
            return message("ModelReadyResponse")(ready=False)
        is_ready = self._app.ready and asked.name not in self._app.overdue()
        return message("ModelReadyResponse")(ready=is_ready)

    async def _model_config(self, body: bytes, call: _Call) -> Any:
        asked = parsed(message("ModelConfigRequest"), body)
        about = description.configuration(self._served(call, asked.name, asked.version))
        fields = message("ModelConfig").DESCRIPTOR.fields_by_name
        config = {name: about[name] for name in fields}
        return message("ModelConfigResponse")(config=config)

    async def _model_statistics(self, body: bytes, call: _Call) -> Any:
        asked = parsed(message("ModelStatisticsRequest"), body)
        served = self._app.models.all_served()
        if asked.name:
            served = [self._served(call, asked.name, asked.version)]
        return message("ModelStatisticsResponse")(**description.statistics(served))

    async def _repository_index(self, body: bytes, _: _Call) -> Any:
        asked = parsed(message("RepositoryIndexRequest"), body)
        found = self._app.repository.index(asked.ready)
        return message("RepositoryIndexResponse")(models=found)

    async def _load(self, body: bytes, _: _Call) -> Any:
        asked = parsed(message("RepositoryModelLoadRequest"), body)
        await self._app.repository.load(asked.model_name, _values(asked.parameters))
        return message("RepositoryModelLoadResponse")()

    async def _unload(self, body: bytes, _: _Call) -> Any:
        asked = parsed(message("RepositoryModelUnloadRequest"), body)
        await self._app.repository.unload(asked.model_name, _values(asked.parameters))
        return message("RepositoryModelUnloadResponse")()

    async def _model_metadata(self, body: bytes, call: _Call) -> Any:
        asked = parsed(message("ModelMetadataRequest"), body)
        served = self._served(call, asked.name, asked.version)
        return message("ModelMetadataResponse")(**description.metadata(served, self._app.models))

    def _served(self, call: _Call, name: str, version: str) -> Served:
        return self._app.find_version(call, name.encode(), version.encode() or None)

    async def _infer(self, body: bytes, call: _Call) -> Any:
        if not (self._app.ready or self._app.draining):
            raise InvalidRequestError("the server is not ready.", 503)
        if self._body_bytes + len(body) > self._limits.all_bodies_bytes:
            raise InvalidRequestError("too many large requests at once.", 429)
        self._body_bytes += len(body)
        try:
            request = parsed(_Request, body)
            served = self._served(call, request.model_name, request.model_version)
            return await self._computed(request, served, call)
        finally:
            self._body_bytes -= len(body)

    async def _computed(self, request: Any, served: Served, call: _Call) -> Any:
        try:
            rows, wanted = _rows(request, served), _wanted(request, served)
            deadline = call.arrived + _seconds(request, served, call)
        except InvalidRequestError as error:
            served.invalid(error.status)
            raise
        job = _Inference(rows, deadline, call, served)
        refusal = self._app.models.engine.submit(served.lanes[rows.sizes], job)
        outcome = refusal if refusal is not None else await self._outcome(job)
        if isinstance(outcome, Refusal):
            raise _RefusedError(job.served, outcome)
        served = job.served  # if a canary was ended meanwhile, the current version
        answer = _answer(request, served, wanted, job, outcome)
        served.answered(outcome.batch.cold, call.arrived)
        return answer

    async def _outcome(self, job: _Inference) -> Result | Refusal:
        try:
            return await job.outcome
        except asyncio.CancelledError:
            self._app.left()
            raise


def _text(error: InvalidRequestError) -> str:
    if error.valid is None:
        return str(error)
    return f"{error} Valid: {msgspec.json.encode(error.valid).decode()}"


def _refusing(why: str) -> Callable[[bytes, _Call], Awaitable[Any]]:
    async def refuse(_: bytes, __: _Call) -> Any:
        raise InvalidRequestError(why)

    return refuse


def _reflecting(package: str) -> Callable[[bytes, _Call], Awaitable[Any]]:
    async def reflect(body: bytes, _: _Call) -> Any:
        return reflected(package, body)

    return reflect


def _values(parameters: Any) -> dict[str, object]:
    """Parameters of a message by name."""
    kinds = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) if kind else None for name, kind in kinds.items()}


def _seconds(request: Any, served: Served, call: _Call) -> float:
    """The timeout: that of the call, or the parameter `timeout` in microseconds, or the model's."""
    seconds = served.model.deadline_seconds
    parameters = _values(request.parameters)
    require_known("the request", parameters, REQUEST_PARAMETERS, NOTHING_ASKED)
    if "timeout" in parameters:
        seconds = timeout_seconds(parameters["timeout"])
    if call.remaining_seconds is not None:
        seconds = min(call.remaining_seconds, MAX_TIMEOUT)
    return seconds


def _rows(request: Any, served: Served) -> Rows:
    loaded = served.loaded
    index = {tensor.name: i for i, tensor in enumerate(loaded.signature.inputs)}
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequestError(
            f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs: send one for each."
        )
    given: list[Array | None] = [None] * len(index)
    for position, sent in enumerate(request.inputs):
        i = index.get(sent.name)
        if i is None or given[i] is not None:
            raise wrong_name("input", sent.name, index, twice=i is not None)
        tensor = loaded.signature.inputs[i]
        require_known(f"input {sent.name!r}", _values(sent.parameters), ())
        require_datatype(tensor, sent.datatype)
        flat = from_bytes(tensor, raw[position]) if raw else _from_contents(tensor, sent.contents)
        given[i] = reshape(tensor, flat, list(sent.shape))
    return arrange(loaded, given)


def _from_contents(tensor: Tensor, contents: Any) -> Array:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidRequestError(
            f"input {tensor.name!r}: send {tensor.datatype} in raw_input_contents."
        )
    with np.errstate(over="raise"):
        return as_array(tensor, getattr(contents, field))


def _wanted(request: Any, served: Served) -> list[int]:
    names = [tensor.name for tensor in served.loaded.signature.outputs]
    if not request.outputs:
        return list(range(len(names)))
    wanted: list[int] = []
    for output in request.outputs:
        if output.name not in names or names.index(output.name) in wanted:
            raise wrong_name("output", output.name, names, twice=output.name in names)
        about = f"output {output.name!r}"
        require_known(about, _values(output.parameters), ("binary_data",), NOTHING_ASKED)
        wanted.append(names.index(output.name))
    return wanted


def _answer(request: Any, served: Served, wanted: list[int], job: Job, result: Result) -> Any:
    outputs, raw = [], []
    for i in wanted:
        tensor = served.loaded.signature.outputs[i]
        array = result.array(i, job.extents)
        outputs.append(_OutputTensor(name=tensor.name, datatype=tensor.datatype, shape=array.shape))
        raw.append(array.tobytes())
    return _Response(
        model_name=served.model.name,
        model_version=served.model.version,
        id=request.id,
        outputs=outputs,
        raw_output_contents=raw,
    )
