"""gRPC messages of the Open Inference Protocol v2, generated from a table of their fields.

They live in a separate descriptor pool, because a client's generated code in the same process may
define the same names.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
#: Fields with the protocol's names and numbers.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1",
    "ModelReadyRequest": "string name = 1; string version = 2",
    "ModelReadyResponse": "bool ready = 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name = 1; string version = 2; repeated string extensions = 3",
    "ModelMetadataRequest": "string name = 1; string version = 2",
    "TensorMetadata": "string name = 1; string datatype = 2; repeated int64 shape = 3",
    "ModelMetadataResponse": "string name = 1; repeated string versions = 2; string platform = 3; "
    "repeated TensorMetadata inputs = 4; repeated TensorMetadata outputs = 5",
    "InferParameter": "bool bool_param = 1; int64 int64_param = 2; string string_param = 3; "
    "double double_param = 4; uint64 uint64_param = 5",
    "InferTensorContents": "repeated bool bool_contents = 1; repeated int32 int_contents = 2; "
    "repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4; "
    "repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6; "
    "repeated double fp64_contents = 7; repeated bytes bytes_contents = 8",
    # On the wire, a map is a repeated message of such pairs.
    "Parameter": "string key = 1; InferParameter value = 2",
    "InputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3; "
    "repeated Parameter parameters = 4; InferTensorContents contents = 5",
    "RequestedOutput": "string name = 1; repeated Parameter parameters = 2",
    "ModelInferRequest": "string model_name = 1; string model_version = 2; string id = 3; "
    "repeated Parameter parameters = 4; repeated InputTensor inputs = 5; "
    "repeated RequestedOutput outputs = 6; repeated bytes raw_input_contents = 7",
    "OutputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3",
    "ModelInferResponse": "string model_name = 1; string model_version = 2; string id = 3; "
    "repeated OutputTensor outputs = 5; repeated bytes raw_output_contents = 6",
}
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+)")
_ONE_OF = {"InferParameter": "parameter_choice"}
_Field = descriptor_pb2.FieldDescriptorProto


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="open_inference_protocol_v2.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name=_ONE_OF[name])
        for repeated, kind, field, number in _FIELD.findall(fields):
            added = message.field.add(name=field, number=int(number))
            added.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind in _MESSAGES:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                added.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
            if name in _ONE_OF:
                added.oneof_index = 0
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_described())


def message(name: str) -> Any:
    """The class of a message type."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
