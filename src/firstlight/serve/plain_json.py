"""A plain JSON form for people: `{"x": [[…], …]}` in, `{"y": [[…], …]}` out."""

from __future__ import annotations

from typing import Any

import msgspec

from firstlight.serve.engine import Result
from firstlight.serve.loading import Loaded
from firstlight.serve.tensors import Array, Rows, arranged, as_array, decoded

_NUMBERS = {"b": bool, "i": int, "u": int}
_encode = msgspec.json.Encoder().encode


class PlainJson:
    """Reads and writes the inputs and outputs of one loaded model, by name."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._names = [tensor.name for tensor in loaded.signature.outputs]
        fields: list[tuple[str, object, object]] = []
        for i, tensor in enumerate(loaded.signature.inputs):
            nested: Any = _NUMBERS.get(tensor.dtype.kind, float)
            for _ in range(len(tensor.shape) + 1):
                nested = list[nested]
            fields.append((f"f{i}", nested | msgspec.UnsetType, msgspec.UNSET))
        names = {f"f{i}": tensor.name for i, tensor in enumerate(loaded.signature.inputs)}
        struct = msgspec.defstruct("Inputs", fields, rename=names, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(struct)

    def read(self, body: Any) -> Rows:
        request = decoded(self._decoder, body)
        given: list[Array | None] = []
        for i, tensor in enumerate(self.loaded.signature.inputs):
            value = getattr(request, f"f{i}")
            given.append(None if value is msgspec.UNSET else as_array(tensor, value))
        return arranged(self.loaded, given)

    def write(self, extents: dict[str, int] | None, result: Result) -> bytes:
        """extents: variable sizes before padding."""
        if extents is not None:
            arrays = [result.array(i, extents).tolist() for i in range(len(self._names))]
            return _encode(dict(zip(self._names, arrays, strict=True)))
        start, stop = result.start, result.stop
        rows = [output[start:stop] for output in result.batch.nested]
        return _encode(dict(zip(self._names, rows, strict=True)))
