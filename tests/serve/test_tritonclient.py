"""All that Triton's clients offer, over both protocols: supported, or refused with a reason."""

from __future__ import annotations

import inspect
import queue
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving_process import Running
from tritonclient.utils import InferenceServerException

from firstlight import warmstart
from firstlight.warmstart.frozen import freezing

pytestmark = pytest.mark.slow


class Side(NamedTuple):
    """A client of one protocol, and the module that it comes from."""

    name: str
    module: Any
    client: Any


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("triton")
    row = jax.ShapeDtypeStruct((1, 2), np.float32)
    (folder / "more").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freezing, "prove", lambda frozen, proofs: frozen)
        for path in (folder / "twice.frozen", folder / "more" / "other.frozen"):
            warmstart.freeze(lambda x: {"y": 2 * x}, row, path=path, buckets=(1, 4))
    running = Running(folder, "twice.frozen", "--grpc-port", "0", "--repository", "more")
    running.grpc_address = running.until("grpc://").split("grpc://")[1].strip()
    running.until("ready after")
    yield running
    running.stop()


@pytest.fixture(scope="module", params=["http", "grpc"])
def side(request: pytest.FixtureRequest, server: Running) -> Iterator[Side]:
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    address = server.address if request.param == "http" else server.grpc_address
    client = module.InferenceServerClient(address)
    yield Side(request.param, module, client)
    client.close()


def sent(side: Side) -> Any:
    made = side.module.InferInput("x", [1, 2], "FP32")
    made.set_data_from_numpy(np.array([[1, 2]], np.float32))
    return made


def infer(side: Side, **options: Any) -> Any:
    return side.client.infer("twice", [sent(side)], **options).as_numpy("y").tolist()


def infer_shared(side: Side) -> Any:
    shared = side.module.InferInput("x", [1, 2], "FP32")
    shared.set_shared_memory("region", 8)
    return side.client.infer("twice", [shared])


def infer_later(side: Side) -> Any:
    if side.name == "http":
        return side.client.async_infer("twice", [sent(side)]).get_result().as_numpy("y").tolist()
    answers: queue.Queue[Any] = queue.Queue()
    side.client.async_infer(
        "twice", [sent(side)], lambda result, error: answers.put((result, error))
    )
    result, error = answers.get(timeout=30)
    assert error is None
    return result.as_numpy("y").tolist()


def infer_in_stream(side: Side) -> Any:
    answers: queue.Queue[Any] = queue.Queue()
    side.client.start_stream(lambda result, error: answers.put((result, error)))
    side.client.async_stream_infer("twice", [sent(side)])
    result, error = answers.get(timeout=30)
    side.client.stop_stream()
    assert error is None
    return result.as_numpy("y").tolist()


def fields(answer: Any) -> Any:
    """The same for JSON and messages."""
    if isinstance(answer, (dict, list, bool)):
        return answer
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(answer, preserving_proto_field_name=True)


def loaded_and_unloaded(side: Side) -> list[str]:
    seen = []
    for change in (side.client.load_model, side.client.unload_model):
        change("other")
        index = fields(side.client.get_model_repository_index())
        models = index["models"] if side.name == "grpc" else index
        seen += [one["state"] for one in models if one["name"] == "other"]
        seen.append(str(side.client.is_model_ready("other")))
    return seen


class Refused(str):
    """Part of the reason why a method is refused."""


RIGHT = [[2.0, 4.0]]
#: What a method gives, by its name.
TABLE: dict[str, tuple[Callable[[Side], Any], Any]] = {
    "is_server_live": (lambda s: s.client.is_server_live(), True),
    "is_server_ready": (lambda s: s.client.is_server_ready(), True),
    "is_model_ready": (lambda s: s.client.is_model_ready("twice"), True),
    "is_model_ready, unknown": (lambda s: s.client.is_model_ready("nothing"), False),
    "get_server_metadata": (lambda s: fields(s.client.get_server_metadata())["name"], "firstlight"),
    "get_model_metadata": (
        lambda s: fields(s.client.get_model_metadata("twice"))["inputs"][0]["name"], "x",
    ),
    "get_model_config": (
        lambda s: _config(s)["input"],
        [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    ),
    "get_model_config, limit": (lambda s: _config(s)["max_batch_size"], 4),
    "get_inference_statistics": (
        lambda s: fields(s.client.get_inference_statistics("twice"))["model_stats"][0]["name"],
        "twice",
    ),
    "get_inference_statistics, all": (
        lambda s: len(fields(s.client.get_inference_statistics())["model_stats"]), 1,
    ),
    "get_model_repository_index": (
        lambda s: len(_models(s)), 2,
    ),
    "load_model": (loaded_and_unloaded, ["READY", "True", "UNAVAILABLE", "False"]),
    "unload_model": (lambda s: s.client.unload_model("nothing"), Refused("no model 'nothing'")),
    "load_model, unknown": (lambda s: s.client.load_model("nothing"), Refused("has no nothing.py")),
    "infer": (infer, RIGHT),
    "infer, gzip": (
        lambda s: infer(s, **{_COMPRESSION[s.name]: "gzip"}), RIGHT,
    ),
    "infer, timeout": (lambda s: infer(s, timeout=5_000_000), RIGHT),
    "infer, sequence_id": (lambda s: infer(s, sequence_id=7), Refused("'sequence_id' is not")),
    "infer, sequence_start": (
        lambda s: infer(s, sequence_id=7, sequence_start=True), Refused("is not supported"),
    ),
    "infer, priority": (lambda s: infer(s, priority=2), Refused("'priority' is not")),
    "infer, parameters": (lambda s: infer(s, parameters={"mine": 1}), Refused("'mine' is not")),
    "infer, class_count": (
        lambda s: infer(s, outputs=[s.module.InferRequestedOutput("y", class_count=1)]),
        Refused("'classification' is not"),
    ),
    "infer, shared memory": (infer_shared, Refused("'shared_memory_")),
    "async_infer": (infer_later, RIGHT),
    "async_stream_infer": (infer_in_stream, RIGHT),
    **{
        name: (lambda s, name=name, given=given: getattr(s.client, name)(*given), Refused(why))
        for why, methods in {
            "shared memory is not supported": {
                "get_system_shared_memory_status": (),
                "register_system_shared_memory": ("r", "/r", 8),
                "unregister_system_shared_memory": ("r",),
                "get_cuda_shared_memory_status": (),
                "register_cuda_shared_memory": ("r", b"aGFuZGxl", 0, 8),
                "unregister_cuda_shared_memory": ("r",),
            },
            "set by options of the server": {
                "get_trace_settings": (),
                "update_trace_settings": (None, {"trace_level": "OFF"}),
                "get_log_settings": (),
                "update_log_settings": ({"log_info": True},),
            },
        }.items()
        for name, given in methods.items()
    },
}  # fmt: skip
_COMPRESSION = {"http": "request_compression_algorithm", "grpc": "compression_algorithm"}
#: Of one protocol only, or nothing that reaches the server.
ONLY = {"async_stream_infer": "grpc"}
LOCAL = {"close", "generate_request_body", "parse_response_body", "plugin", "register_plugin",
         "start_stream", "stop_stream", "unregister_plugin"}  # fmt: skip


def _config(side: Side) -> Any:
    found = fields(side.client.get_model_config("twice"))
    if side.name == "http":
        return found
    inputs = [{**one, "dims": list(map(int, one["dims"]))} for one in found["config"]["input"]]
    return {**found["config"], "input": inputs}


def _models(side: Side) -> Any:
    found = fields(side.client.get_model_repository_index())
    return found["models"] if side.name == "grpc" else found


@pytest.mark.parametrize("row", TABLE)
def test_a_method_of_tritons_client_is_supported_or_refused_with_a_reason(
    side: Side, row: str
) -> None:
    if ONLY.get(row, side.name) != side.name:
        return
    method, expected = TABLE[row]
    if not isinstance(expected, Refused):
        assert method(side) == expected
        return
    with pytest.raises(InferenceServerException, match=expected) as caught:
        method(side)
    assert str(caught.value.status()) in ("400", "StatusCode.INVALID_ARGUMENT")


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_the_table_has_every_method(module: Any) -> None:
    methods = inspect.getmembers(module.InferenceServerClient, inspect.isfunction)
    names = {name for name, _ in methods if not name.startswith("_")} - LOCAL
    assert names <= {row.partition(",")[0] for row in TABLE}
