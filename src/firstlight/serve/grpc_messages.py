"""gRPC messages of the protocol, of health checks and of reflection, from a table of their fields.

They live in a separate descriptor pool, because a client's generated code in the same process may
define the same names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"


@dataclass(frozen=True)
class _File:
    """A `.proto` file: fields by message, with the protocol's names and numbers."""

    service: str  # with its package
    messages: dict[str, str]
    methods: dict[str, tuple[str, str]]  # request and answer
    streams: dict[str, tuple[bool, bool]] = field(default_factory=dict)  # which of them
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    one_of: dict[str, str] = field(default_factory=dict)  # the name of the fields marked `one`


_TYPES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
_NAMED = "string name = 1; string version = 2"
_INFERENCE = _File(
    SERVICE,
    {
        "ServerLiveRequest": "",
        "ServerLiveResponse": "bool live = 1",
        "ServerReadyRequest": "",
        "ServerReadyResponse": "bool ready = 1",
        "ModelReadyRequest": _NAMED,
        "ModelReadyResponse": "bool ready = 1",
        "ServerMetadataRequest": "",
        "ServerMetadataResponse": f"{_NAMED}; repeated string extensions = 3",
        "ModelMetadataRequest": _NAMED,
        "TensorMetadata": "string name = 1; string datatype = 2; repeated int64 shape = 3",
        "ModelMetadataResponse": "string name = 1; repeated string versions = 2; "
        "string platform = 3; repeated TensorMetadata inputs = 4; "
        "repeated TensorMetadata outputs = 5",
        "InferParameter": "one bool bool_param = 1; one int64 int64_param = 2; "
        "one string string_param = 3; one double double_param = 4; one uint64 uint64_param = 5",
        "InferTensorContents": "repeated bool bool_contents = 1; repeated int32 int_contents = 2; "
        "repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4; "
        "repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6; "
        "repeated double fp64_contents = 7; repeated bytes bytes_contents = 8",
        "InputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3; "
        "map InferParameter parameters = 4; InferTensorContents contents = 5",
        "RequestedOutput": "string name = 1; map InferParameter parameters = 2",
        "ModelInferRequest": "string model_name = 1; string model_version = 2; string id = 3; "
        "map InferParameter parameters = 4; repeated InputTensor inputs = 5; "
        "repeated RequestedOutput outputs = 6; repeated bytes raw_input_contents = 7",
        "OutputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3",
        "ModelInferResponse": "string model_name = 1; string model_version = 2; string id = 3; "
        "repeated OutputTensor outputs = 5; repeated bytes raw_output_contents = 6",
        "ModelStreamInferResponse": "string error_message = 1; "
        "ModelInferResponse infer_response = 2",
        "ModelConfigRequest": _NAMED,
        "ModelInput": "string name = 1; DataType data_type = 2; repeated int64 dims = 4",
        "ModelOutput": "string name = 1; DataType data_type = 2; repeated int64 dims = 3",
        "ModelConfig": "string name = 1; string platform = 2; int32 max_batch_size = 4; "
        "repeated ModelInput input = 5; repeated ModelOutput output = 6; string backend = 17",
        "ModelConfigResponse": "ModelConfig config = 1",
        "ModelStatisticsRequest": _NAMED,
        "StatisticDuration": "uint64 count = 1; uint64 ns = 2",
        "InferStatistics": "StatisticDuration success = 1; StatisticDuration fail = 2; "
        "StatisticDuration queue = 3; StatisticDuration compute_infer = 5",
        "ModelStatistics": f"{_NAMED}; uint64 inference_count = 4; uint64 execution_count = 5; "
        "InferStatistics inference_stats = 6",
        "ModelStatisticsResponse": "repeated ModelStatistics model_stats = 1",
        "RepositoryIndexRequest": "string repository_name = 1; bool ready = 2",
        "ModelIndex": f"{_NAMED}; string state = 3; string reason = 4",
        "RepositoryIndexResponse": "repeated ModelIndex models = 1",
        "ModelRepositoryParameter": "one bool bool_param = 1; one int64 int64_param = 2; "
        "one string string_param = 3; one bytes bytes_param = 4",
        "RepositoryModelLoadRequest": "string repository_name = 1; string model_name = 2; "
        "map ModelRepositoryParameter parameters = 3",
        "RepositoryModelLoadResponse": "",
        "RepositoryModelUnloadRequest": "string repository_name = 1; string model_name = 2; "
        "map ModelRepositoryParameter parameters = 3",
        "RepositoryModelUnloadResponse": "",
    },
    {
        name: (f"{name}Request", f"{name}Response")
        for name in (
            "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata",
            "ModelInfer", "ModelConfig", "ModelStatistics", "RepositoryIndex",
            "RepositoryModelLoad", "RepositoryModelUnload",
        )
    }
    | {"ModelStreamInfer": ("ModelInferRequest", "ModelStreamInferResponse")},
    {"ModelStreamInfer": (True, True)},
    {"DataType": {f"TYPE_{name}": number for number, name in enumerate(_TYPES.split())}},
    {"InferParameter": "parameter_choice", "ModelRepositoryParameter": "parameter_choice"},
)  # fmt: skip
_STATUSES = {"UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2, "SERVICE_UNKNOWN": 3}
_HEALTH = _File(
    HEALTH,
    {
        "HealthCheckRequest": "string service = 1",
        "HealthCheckResponse": "ServingStatus status = 1",
    },
    dict.fromkeys(("Check", "Watch"), ("HealthCheckRequest", "HealthCheckResponse")),
    {"Watch": (False, True)},
    {"ServingStatus": _STATUSES},
)


def _reflection(service: str) -> _File:
    asked, answered = "ServerReflectionRequest", "ServerReflectionResponse"
    return _File(
        service,
        {
            asked: "string host = 1; one string file_by_filename = 3; "
            "one string file_containing_symbol = 4; one string all_extension_numbers_of_type = 6; "
            "one string list_services = 7",
            "FileDescriptorResponse": "repeated bytes file_descriptor_proto = 1",
            "ServiceResponse": "string name = 1",
            "ListServiceResponse": "repeated ServiceResponse service = 1",
            "ErrorResponse": "int32 error_code = 1; string error_message = 2",
            answered: f"string valid_host = 1; {asked} original_request = 2; "
            "one FileDescriptorResponse file_descriptor_response = 4; "
            "one ListServiceResponse list_services_response = 6; "
            "one ErrorResponse error_response = 7",
        },
        {"ServerReflectionInfo": (asked, answered)},
        {"ServerReflectionInfo": (True, True)},
        one_of={asked: "message_request", answered: "message_response"},
    )


_FILES = (_INFERENCE, _HEALTH, *map(_reflection, REFLECTION))
_FIELD = re.compile(r"(repeated |map |one )?(\w+) (\w+) = (\d+)")
_Field, _Described = descriptor_pb2.FieldDescriptorProto, descriptor_pb2.FileDescriptorProto


def _described(file: _File) -> descriptor_pb2.FileDescriptorProto:
    package, _, service = file.service.rpartition(".")
    made = _Described(name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3")
    for name, numbers in file.enums.items():
        values = made.enum_type.add(name=name).value
        for value, number in numbers.items():
            values.add(name=value, number=number)
    for name, fields in file.messages.items():
        message = made.message_type.add(name=name)
        if name in file.one_of:
            message.oneof_decl.add(name=file.one_of[name])
        for kind, of, named, number in _FIELD.findall(fields):
            added = message.field.add(name=named, number=int(number))
            added.label = _Field.LABEL_OPTIONAL
            if kind == "one ":
                added.oneof_index = 0
            elif kind:
                added.label = _Field.LABEL_REPEATED
            _set_type(added, of, file, package)
            if kind == "map ":
                _set_map(message, added, package)
    methods = made.service.add(name=service).method
    for name, (asked, answered) in file.methods.items():
        many = file.streams.get(name, (False, False))
        methods.add(
            name=name, input_type=f".{package}.{asked}", output_type=f".{package}.{answered}",
            client_streaming=many[0], server_streaming=many[1],
        )  # fmt: skip
    return made


def _set_type(added: Any, of: str, file: _File, package: str) -> None:
    if of in file.messages:
        added.type, added.type_name = _Field.TYPE_MESSAGE, f".{package}.{of}"
    elif of in file.enums:
        added.type, added.type_name = _Field.TYPE_ENUM, f".{package}.{of}"
    else:
        added.type = _Field.Type.Value(f"TYPE_{of.upper()}")


def _set_map(message: Any, added: Any, package: str) -> None:
    """On the wire, a map from strings is a repeated message of pairs."""
    pairs = message.nested_type.add(name=f"{added.name.title()}Entry")
    pairs.options.map_entry = True
    key = pairs.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL)
    key.type = _Field.TYPE_STRING
    pairs.field.add(
        name="value", number=2, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_MESSAGE,
        type_name=added.type_name,
    )  # fmt: skip
    added.type_name = f".{package}.{message.name}.{pairs.name}"


_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES:
    _POOL.Add(_described(_file))
SERVICES = tuple(file.service for file in _FILES)


def message(name: str, package: str = PACKAGE) -> Any:
    """The class of a message type."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{package}.{name}"))


def file_of(symbol: str = "", name: str = "") -> bytes | None:
    """The file that defines a symbol, or that has a name, as reflection sends it."""
    try:
        found = _POOL.FindFileContainingSymbol(symbol) if symbol else _POOL.FindFileByName(name)
    except KeyError:
        return None
    described = _Described()
    found.CopyToProto(described)
    return bytes(described.SerializeToString())
