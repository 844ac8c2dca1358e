"""Executables of a program that has a name, in the compilation cache: loaded without tracing.

JAX's cache is asked with a lowered program, and tracing and lowering it are most of what is left of
a restart. A model that says which program it is (`Model.program`) needs neither: its executables
are kept as a whole, under that name and all that they depend on beside the program.
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

#: Of the form below; another number begins anew.
_FORM = 1


class Output(msgspec.Struct, frozen=True):
    """A tensor that the program returns."""

    name: str
    dtype: str
    shape: list[int | str]


class Executable(msgspec.Struct, frozen=True):
    """One executable as JAX serializes it, and the memory that a call takes."""

    sizes: Sizes
    rows: int
    serialized: bytes
    work_bytes: int


class Kept(msgspec.Struct, frozen=True):
    """All executables of a model."""

    outputs: list[Output]
    executables: list[Executable]

    def signature(self, model: Model) -> Signature:
        """As `signature_of`, without tracing; its function is not needed any more."""
        inputs, axes, _ = declared_inputs(model)
        outputs = tuple(
            Tensor(o.name, jax.numpy.dtype(o.dtype), tuple(o.shape)) for o in self.outputs
        )
        return Signature(inputs, outputs, axes, model.function)


def key_of(model: Model, abstract: object, wide: bool) -> str | None:
    """What the executables depend on; None: the model does not say which program it is."""
    if model.program is None:
        return None
    leaves, tree = jax.tree.flatten(abstract)
    device = jax.devices()[0]
    parts = (
        *(_FORM, model.program, model.name, wide, model.compute_dtype, model.compiler_options),
        *(tuple(model.buckets), sorted(model.axes.items()), declared_inputs(model)[0]),
        *(str(tree), [(leaf.shape, str(leaf.dtype)) for leaf in leaves]),
        *(device.device_kind, len(jax.devices()), device.client.platform_version),
        *(os.environ.get("XLA_FLAGS"), jax.config.jax_default_matmul_precision),
    )
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return f"firstlight-serve-{model.name}-{digest}"


def find(key: str) -> Kept | None:
    """What an earlier process has kept."""
    store = current_store()
    value = store.look(key) if store is not None else None
    try:
        return None if value is None else msgspec.msgpack.decode(value, type=Kept)
    except msgspec.DecodeError:
        return None


def keep(key: str, signature: Signature, executables: dict[tuple[Sizes, int], Any]) -> None:
    """Keep compiled executables and the memory of each; where that cannot be done, nothing is."""
    from jax.experimental.serialize_executable import serialize

    store = current_store()
    if store is None:
        return
    try:
        kept = Kept(
            [Output(t.name, t.dtype.name, list(t.shape)) for t in signature.outputs],
            [
                Executable(sizes, rows, serialize(call)[0], work_bytes)
                for (sizes, rows), (call, work_bytes) in executables.items()
            ],
        )
    except (ValueError, NotImplementedError):  # constants of the program that are JAX's arrays
        return
    store.put(key, msgspec.msgpack.encode(kept))


def loaded(kept: Kept, abstract: Any, signature: Signature) -> dict[tuple[Sizes, int], Any] | None:
    """The executables by sizes and rows; None where they do not load, which is said."""
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
        warn(f"executables that were kept do not load, they are compiled again: {error!r}.")
        return None
    return calls
