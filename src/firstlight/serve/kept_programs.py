"""Executables of a named program, kept in the compilation cache and loaded without tracing.

JAX looks up its cache by the lowered program, and tracing and lowering are most of the time of a
warm restart. A model that names its program (`Model.program`) needs neither: its executables are
stored whole, under a key of that name and everything else that they depend on.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import msgspec

from firstlight.histfactory.lazy_jax import jax
from firstlight.serve.declaration import Model
from firstlight.serve.signature import Signature, Sizes, Tensor, declared_inputs
from firstlight.warmstart.jax_cache import current_store
from firstlight.warmstart.warning import warn

#: Version of the stored form; entries of other versions are not found.
_FORM = 2


class Output(msgspec.Struct, frozen=True):
    """One output of the program."""

    name: str
    dtype: str
    shape: list[int | str]


class Executable(msgspec.Struct, frozen=True):
    """One executable as serialized by JAX, and the memory of a call."""

    sizes: Sizes
    rows: int
    serialized: bytes
    work_bytes: int


class Kept(msgspec.Struct, frozen=True):
    """All executables of a model."""

    outputs: list[Output]
    rows_may_meet: bool
    executables: list[Executable]

    def signature(self, model: Model) -> Signature:
        """Like `signature_of`, without tracing; its function is never called."""
        inputs, axes, _ = declared_inputs(model)
        outputs = tuple(
            Tensor(o.name, jax.numpy.dtype(o.dtype), tuple(o.shape)) for o in self.outputs
        )
        return Signature(inputs, outputs, axes, model.function, self.rows_may_meet)


def key_of(model: Model, abstract: object, wide: bool) -> str | None:
    """A hash of everything that the executables depend on; None if the program has no name."""
    if model.program is None:
        return None
    leaves, tree = jax.tree.flatten(abstract)
    device = jax.devices()[0]
    parts = (
        *(_FORM, model.program, model.name, wide, model.compiler_options),
        *(
            model.batched,
            model.in_turn,
            tuple(model.buckets),
            sorted(model.axes.items()),
            declared_inputs(model)[0],
        ),
        *(str(tree), [(leaf.shape, str(leaf.dtype)) for leaf in leaves]),
        *(device.device_kind, len(jax.devices()), device.client.platform_version),
        *(os.environ.get("XLA_FLAGS"), jax.config.jax_default_matmul_precision),
    )
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return f"firstlight-serve-{model.name}-{digest}"


def find(key: str) -> Kept | None:
    """What an earlier process has kept, if it is there and readable."""
    store = current_store()
    value = store.look(key) if store is not None else None
    try:
        return None if value is None else msgspec.msgpack.decode(value, type=Kept)
    except msgspec.DecodeError:
        return None


def keep(key: str, signature: Signature, executables: dict[tuple[Sizes, int], Any]) -> None:
    """Store all executables, with the memory of each, or none if one cannot be serialized."""
    from jax.experimental.serialize_executable import serialize

    store = current_store()
    if store is None:
        return
    try:
        kept = Kept(
            [Output(t.name, t.dtype.name, list(t.shape)) for t in signature.outputs],
            signature.rows_may_meet,
            [
                Executable(sizes, rows, serialize(call)[0], work_bytes)
                for (sizes, rows), (call, work_bytes) in executables.items()
            ],
        )
    except (ValueError, NotImplementedError):  # the program has JAX arrays as constants
        return
    store.put(key, msgspec.msgpack.encode(kept))


def loaded(kept: Kept, abstract: Any, signature: Signature) -> dict[tuple[Sizes, int], Any] | None:
    """The executables by sizes and rows; None, with a warning, if they do not load."""
    from jax.experimental.serialize_executable import deserialize_and_load

    device = jax.devices()[0]
    results = jax.tree.structure((0,) * len(signature.outputs))
    calls = {}
    try:
        if device.platform == "cpu" and any(b"lapack" in e.serialized for e in kept.executables):
            from firstlight.warmstart.frozen.jaxlib_runtime import start_lapack

            start_lapack()
        for one in kept.executables:
            arguments = (*abstract, *signature.structs(one.rows, one.sizes))
            calls[one.sizes, one.rows] = deserialize_and_load(
                one.serialized,
                jax.tree.structure((arguments, {})),
                results,
                backend=device.client,
                execution_devices=[device],
            )
    except Exception as error:
        warn(f"stored executables do not load and are compiled again: {error!r}.")
        return None
    return calls
