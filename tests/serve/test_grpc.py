"""The inference protocol over gRPC, with Triton's client and its generated messages."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from fake_serving import fake_loaded
from tritonclient.grpc import InferInput, model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.grpc.aio import InferenceServerClient

from firstlight.serve.app import App
from firstlight.serve.engine import Engine
from firstlight.serve.grpc_messages import _INFERENCE, HEALTH, SERVICE, message
from firstlight.serve.grpc_server import GrpcServer
from firstlight.serve.http_server import Limits
from firstlight.serve.lanes import INLINE_SECONDS
from firstlight.serve.models import Models
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

Code = grpc.StatusCode
_NESTED = {
    "TensorMetadata": service_pb2.ModelMetadataResponse.TensorMetadata,
    "InputTensor": service_pb2.ModelInferRequest.InferInputTensor,
    "RequestedOutput": service_pb2.ModelInferRequest.InferRequestedOutputTensor,
    "OutputTensor": service_pb2.ModelInferResponse.InferOutputTensor,
    "ModelIndex": service_pb2.RepositoryIndexResponse.ModelIndex,
}


@pytest.mark.parametrize("name", _INFERENCE.messages)
def test_fields_have_the_numbers_and_types_that_clients_know(name: str) -> None:
    theirs = _NESTED.get(name) or getattr(service_pb2, name, None)
    theirs = theirs or getattr(model_config_pb2, name)

    def described(kind: Any) -> dict[str, Any]:
        return {
            f.name: (
                f.number,
                f.type,
                f.label,
                f.message_type and f.message_type.GetOptions().map_entry,
            )
            for f in kind.DESCRIPTOR.fields
        }

    assert described(message(name)).items() <= described(theirs).items()


def test_datatypes_have_the_numbers_that_clients_know() -> None:
    ours = message("ModelInput").DESCRIPTOR.fields_by_name["data_type"].enum_type
    assert {v.name: v.number for v in ours.values} == dict(model_config_pb2.DataType.items())


class Served:
    """A server of a few models in this event loop, and a client."""

    def __init__(self, app: App, server: GrpcServer, values: Values, port: int) -> None:
        self.app, self.server, self.values = app, server, values
        self.address = f"127.0.0.1:{port}"
        self.client = InferenceServerClient(self.address)
        self.channel = grpc.aio.insecure_channel(self.address)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    async def double(self, numbers: list[float], name: str = "double", **options: Any) -> list[Any]:
        sent = InferInput("x", [len(numbers)], "FP32")
        sent.set_data_from_numpy(np.array(numbers, np.float32))
        result = await self.client.infer(name, [sent], **options)
        found: list[Any] = result.as_numpy("y").tolist()
        return found

    def count(self, metric: metrics.Metric, *labels: str) -> float:
        return self.values.counter(metric, *labels).value


@asynccontextmanager
async def serving(
    token: bytes | None = None,
    limits: Limits | None = None,
    slow: Callable[[Any], Any] | None = None,
) -> AsyncIterator[Served]:
    """A server of the models `double`, `broken` and, if given, `slow`, which runs on a thread."""
    values = Values()
    engine = Engine(values)
    models = Models(engine, values, lambda: 1.0)
    app = App(models, values, token)
    models.put(fake_loaded(lambda x: x * 2, {1: 1e-6, 8: 1e-6}, "double"))
    models.put(fake_loaded(lambda x: x / x.secret, {1: 1e-6}, "broken"))
    if slow is not None:
        models.put(fake_loaded(slow, {1: 2 * INLINE_SECONDS}, "slow", max_queue_rows=1))
    app.ready = True
    server = GrpcServer(app, limits or Limits())
    served = Served(app, server, values, await server.listen("127.0.0.1", 0))
    try:
        yield served
    finally:
        await served.client.close()
        await served.channel.close()
        await server.drain(0)
        engine.close()


async def refused(call: Any) -> tuple[Code, str]:
    """The status and text of a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    except Exception as error:  # Triton's own
        return Code[str(error.status()).partition(".")[2]], str(error.message())  # type: ignore[attr-defined]
    raise AssertionError("it was answered")


def request(**fields: Any) -> Any:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1]}
    raw = [np.float32(3).tobytes()]
    return service_pb2.ModelInferRequest(
        **{"model_name": "double", "inputs": [tensor], "raw_input_contents": raw, **fields}
    )


def test_tritons_client_is_answered_and_counted() -> None:
    async def body() -> None:
        async with serving() as served:
            client = served.client
            assert await client.is_server_live() and await client.is_server_ready()
            assert await client.is_model_ready("double")
            assert (await client.get_server_metadata()).name == "firstlight"
            about = await client.get_model_metadata("double", as_json=True)
            assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1"]}]
            assert await served.double([1, 2.5], request_id="7", timeout=5_000_000) == [2, 5]
            assert served.count(metrics.REQUESTS, "double", "1", "200") == 1

    asyncio.run(body())


def test_typed_contents_are_read_and_the_id_comes_back() -> None:
    async def body() -> None:
        async with serving() as served:
            tensor = {"name": "x", "datatype": "FP32", "shape": [2]}
            sent = request(
                id="abc",
                inputs=[{**tensor, "contents": {"fp32_contents": [1.5, -1]}}],
                raw_input_contents=[],
            )
            answer = await served.stub.ModelInfer(sent)
            assert answer.id == "abc" and list(answer.outputs[0].shape) == [2]
            assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [3, -2]

    asyncio.run(body())


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"model_name": "nothing"}, Code.NOT_FOUND, "There are: double"),
        ({"model_version": "9"}, Code.NOT_FOUND, "no such model"),
        ({"raw_input_contents": [b"123"]}, Code.INVALID_ARGUMENT, "whole number of FP32"),
        ({"raw_input_contents": [b""] * 2}, Code.INVALID_ARGUMENT, "one for each"),
        ({"inputs": [], "raw_input_contents": []}, Code.INVALID_ARGUMENT, "'x' is missing"),
        (
            {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1]}]},
            Code.INVALID_ARGUMENT, "takes FP32",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}]},
            Code.INVALID_ARGUMENT, "has 1 numbers",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]},
            Code.INVALID_ARGUMENT, "has 1 numbers",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [9]}],
             "raw_input_contents": [b"\0" * 36]},
            Code.INVALID_ARGUMENT, '"rows":[1,8]',
        ),
        ({"outputs": [{"name": "z"}]}, Code.INVALID_ARGUMENT, "outputs are y"),
        (
            {"parameters": {"timeout": {"int64_param": -1}}},
            Code.INVALID_ARGUMENT, "microseconds",
        ),
        ({"parameters": {"timeout": {"int64_param": 10**13}}}, Code.INVALID_ARGUMENT, "timeout"),
        ({"parameters": {"priority": {"int64_param": 2}}}, Code.INVALID_ARGUMENT, "'priority'"),
        (
            {"parameters": {"sequence_id": {"string_param": "s"}}},
            Code.INVALID_ARGUMENT, "'sequence_id'",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": {"int64_param": 1}}}]},
            Code.INVALID_ARGUMENT, "'classification'",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1],
                         "parameters": {"shared_memory_region": {"string_param": "r"}}}]},
            Code.INVALID_ARGUMENT, "'shared_memory_region'",
        ),
        ({"model_name": "broken"}, Code.INTERNAL, "the model failed on this request"),
    ],
)  # fmt: skip
def test_errors_have_their_status_and_reveal_no_internals(
    fields: dict[str, Any], code: Code, text: str
) -> None:
    async def body() -> None:
        async with serving() as served:
            found, details = await refused(served.stub.ModelInfer(request(**fields)))
            assert found is code and text in details
            assert "Traceback" not in details and "secret" not in details
            assert await served.double([1]) == [2]

    asyncio.run(body())


def test_invalid_messages_are_the_clients_error() -> None:
    """A thousand corrupted requests cause no internal error, and the server continues."""
    draw = random.Random(3)

    async def body() -> None:
        async with serving() as served:
            send = served.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            whole = request().SerializeToString()
            for _ in range(1000):
                damaged = bytearray(whole)
                for _ in range(draw.randint(1, 4)):
                    damaged[draw.randrange(len(damaged))] = draw.randrange(256)
                cut = bytes(damaged[: draw.randint(0, len(damaged))])
                try:
                    await send(cut)
                except grpc.aio.AioRpcError as error:
                    assert error.code() in (Code.INVALID_ARGUMENT, Code.NOT_FOUND), error
            assert await served.double([1]) == [2]

    asyncio.run(body())


def test_models_need_the_token_and_probes_do_not() -> None:
    async def body() -> None:
        async with serving(token=b"0123456789abcdef") as served:
            assert await served.client.is_server_live()
            for wrong in ({}, {"authorization": "Bearer 0123456789abcdeg"}):
                code, _ = await refused(served.double([1], headers=wrong))
                assert code is Code.UNAUTHENTICATED
            right = {"authorization": "Bearer 0123456789abcdef"}
            assert await served.double([1], headers=right) == [2]

    asyncio.run(body())


def test_messages_above_the_limit_are_refused() -> None:
    async def body() -> None:
        async with serving(limits=Limits(body_bytes=1000)) as served:
            code, _ = await refused(served.stub.ModelInfer(request(id="x" * 2000)))
            assert code is Code.RESOURCE_EXHAUSTED

    asyncio.run(body())


class Gate:
    """A model that blocks until it is opened, and records its inputs."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, x: Any) -> Any:
        self.seen.append(float(x[0]))
        self.entered.set()
        self.opened.wait(60)
        return x

    async def is_entered(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.entered.wait, 60)


def test_rows_of_ended_calls_are_never_computed() -> None:
    gate = Gate()

    async def body() -> None:
        async with serving(slow=gate) as served:
            lane = served.app.models.names["slow"].current.lanes[()]
            first = asyncio.ensure_future(served.double([1], "slow"))
            await gate.is_entered()
            expiring = refused(served.double([2], "slow", client_timeout=0.5))
            expires = asyncio.ensure_future(expiring)
            while not lane.queue:  # a shorter deadline may end before the call arrives
                await asyncio.sleep(0)
            code, _ = await expires
            assert code is Code.DEADLINE_EXCEEDED
            while not all(job.is_gone() for job in lane.queue):
                await asyncio.sleep(0)
            cancelled = served.stub.ModelInfer(request(model_name="slow"))
            while all(job.is_gone() for job in lane.queue):  # the first one is, or has expired
                await asyncio.sleep(0)
            cancelled.cancel()
            while not all(job.is_gone() for job in lane.queue):
                await asyncio.sleep(0)
            gate.opened.set()
            assert await first == [1]
            assert await served.double([5], "slow") == [5]
            assert gate.seen == [1, 5]
            assert (
                served.count(metrics.CANCELLED, "slow")
                + served.count(metrics.REJECTED, "slow", "expired")
                == 2
            )

    asyncio.run(body())


def test_a_full_queue_answers_with_the_time_to_retry() -> None:
    gate = Gate()

    async def body() -> None:
        async with serving(slow=gate) as served:
            calls = []
            for _ in range(3):  # one is computed, two wait
                calls.append(served.stub.ModelInfer(request(model_name="slow")))
                await gate.is_entered()
            lane = served.app.models.names["slow"].current.lanes[()]
            while lane.queued_rows < 2:
                await asyncio.sleep(0)
            full = served.stub.ModelInfer(request(model_name="slow"))
            code, text = await refused(full)
            assert code is Code.RESOURCE_EXHAUSTED and "the queue is full" in text
            assert (await full.trailing_metadata())["retry-after"] == "1"
            gate.opened.set()
            await asyncio.gather(*calls)

    asyncio.run(body())


def test_a_call_that_has_arrived_is_answered_while_draining_and_new_ones_are_not() -> None:
    gate = Gate()

    async def body() -> None:
        async with serving(slow=gate) as served:
            first = asyncio.ensure_future(served.double([4], "slow"))
            await gate.is_entered()
            draining = asyncio.ensure_future(served.server.drain(60))
            await asyncio.sleep(0)
            code, said = await refused(served.double([1]))
            assert code is Code.UNAVAILABLE and "stopping" in said
            gate.opened.set()
            assert await first == [4]
            await draining

    asyncio.run(body())


def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from firstlight.cli import main

    monkeypatch.setitem(sys.modules, "grpc", None)
    assert main(["serve", "app.py", "--grpc-port", "0"]) == 2
    assert "pip install 'firstlight[grpc]'" in capsys.readouterr().err


def test_a_port_in_use_is_named() -> None:
    from firstlight.serve.http_server import AddressError

    async def body() -> None:
        async with serving() as served:
            port = int(served.address.rpartition(":")[2])
            with pytest.raises(AddressError, match="--grpc-port"):
                await GrpcServer(served.app, Limits()).listen("127.0.0.1", port)

    asyncio.run(body())


def test_compressed_messages_are_read_and_bounded() -> None:
    async def body() -> None:
        async with serving(limits=Limits(body_bytes=4 * 2**20)) as served:
            send = served.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            right = request().SerializeToString()
            answer = await send(right, compression=grpc.Compression.Gzip)
            assert service_pb2.ModelInferResponse.FromString(answer).model_name == "double"
            bomb = request(id="x" * 50_000_000).SerializeToString()
            before = psutil.Process().memory_info().rss
            code, _ = await refused(send(bomb, compression=grpc.Compression.Gzip))
            assert code is Code.RESOURCE_EXHAUSTED
            assert psutil.Process().memory_info().rss < before + 40 * 2**20
            assert await served.double([1]) == [2]

    asyncio.run(body())


def health(served: Served, service: bytes) -> Any:
    """As on the wire: field 1 is the service asked for, and the status in the answer."""
    call = served.channel.unary_unary(f"/{HEALTH}/Check")
    return call(b"\x0a%c%s" % (len(service), service) if service else b"")


def test_health_is_checked_by_service_and_model_and_needs_no_token() -> None:
    async def body() -> None:
        async with serving(token=b"0123456789abcdef") as served:
            for service in (b"", SERVICE.encode(), b"double"):
                assert await health(served, service) == b"\x08\x01"  # SERVING
            assert (await refused(health(served, b"nothing")))[0] is Code.NOT_FOUND
            served.app.ready = False
            assert await health(served, b"") == b"\x08\x02"  # NOT_SERVING

    asyncio.run(body())


def test_a_batch_that_does_not_end_is_seen_in_the_health_of_its_model_and_of_the_server() -> None:
    gate = Gate()

    async def body() -> None:
        async with serving(slow=gate) as served:
            call = asyncio.ensure_future(served.double([1], "slow"))
            await gate.is_entered()
            while not served.app.models.engine.stuck(0.0):
                await asyncio.sleep(0)
            served.app.overdue_seconds = 0.0
            for service, status in ((b"", 2), (b"slow", 2), (b"double", 1)):
                assert await health(served, service) == bytes([8, status])
            gate.opened.set()
            assert await call == [1]
            assert await health(served, b"slow") == b"\x08\x01"

    asyncio.run(body())


def test_a_watcher_of_health_sees_changes_and_the_end() -> None:
    async def body() -> None:
        async with serving() as served:
            call = served.channel.unary_stream(f"/{HEALTH}/Watch")
            assert (await refused(anext(aiter(call(b"\xff")))))[0] is Code.INVALID_ARGUMENT
            watch = aiter(call(b"", compression=grpc.Compression.Gzip))
            seen = [await anext(watch)]
            draining = asyncio.ensure_future(served.server.drain(60))
            seen += [one async for one in watch]
            await draining
            assert seen == [b"\x08\x01", b"\x08\x02"]

    asyncio.run(body())


def test_reflection_describes_all_services_and_messages() -> None:
    """Read by gRPC's own client of reflection."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    def read(address: str) -> tuple[set[str], dict[str, bool], set[str]]:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = set(database.get_services())
            pool = DescriptorPool(database)
            described = pool.FindServiceByName(SERVICE)
            fields = pool.FindMessageTypeByName("inference.ModelInferRequest").fields_by_name
            streams = {m.name: m.server_streaming for m in described.methods}
            with pytest.raises(KeyError):
                pool.FindMessageTypeByName("inference.Nothing")
            return services, streams, set(fields)

    async def body() -> None:
        async with serving() as served:
            services, streams, fields = await asyncio.to_thread(read, served.address)
        assert {SERVICE, HEALTH, "grpc.reflection.v1.ServerReflection"} < services
        assert streams["ModelStreamInfer"] and not streams["ModelInfer"]
        assert fields == {f.name for f in service_pb2.ModelInferRequest.DESCRIPTOR.fields}

    asyncio.run(body())


def test_a_stream_is_answered_message_by_message() -> None:
    async def body() -> None:
        async with serving() as served:
            stream = served.stub.ModelStreamInfer()
            for value in (1, 2):
                raw = [np.float32(value).tobytes()]
                await stream.write(request(id=str(value), raw_input_contents=raw))
                answer = (await stream.read()).infer_response
                assert answer.id == str(value)
                assert np.frombuffer(answer.raw_output_contents[0], np.float32) == 2 * value
            await stream.write(request(model_name="nothing"))
            assert "no such model" in (await stream.read()).error_message
            draining = asyncio.ensure_future(served.server.drain(60))  # ends the stream
            assert await stream.read() is grpc.aio.EOF
            await draining

    asyncio.run(body())
