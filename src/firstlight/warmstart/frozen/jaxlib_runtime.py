"""Runs XLA executables on the CPU with jaxlib alone, without importing JAX.

It uses private names of jaxlib, but only of the exact version with which `proving` saw them work.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from firstlight.forks import note_threads
from firstlight.warmstart.frozen.artifact import Leaf

# As JAX does on import: otherwise XLA logs the devices that it finds to the terminal.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
Run = Callable[[Sequence[Any]], list[Any]]


def loaded_executable(executable: bytes, needs_lapack: bool) -> Any:
    """jaxlib's object of an executable."""
    from jaxlib import _jax  # type: ignore[attr-defined]

    if needs_lapack:
        start_lapack()
    device, _ = _device()
    return device.client.deserialize_executable(
        executable, executable_devices=_jax.DeviceList((device,))
    )


def runner(loaded: Any, outputs: Sequence[Leaf]) -> Run:
    """A function from NumPy arrays to NumPy arrays, which runs a `loaded_executable`."""
    kinds = [(leaf.shape, dtype(leaf.dtype)) for leaf in outputs]
    handlers = [_handler(shape, kind) for shape, kind in kinds]

    put = _putter()

    def run(arrays: Sequence[Any]) -> list[Any]:
        places = [array.placed if isinstance(array, OnDevice) else put(array) for array in arrays]
        results = loaded.execute_sharded(places).consume_with_handlers(handlers)
        return [_on_host(result, *kind) for result, kind in zip(results, kinds, strict=True)]

    return run


def _handler(shape: tuple[int, ...], kind: Any) -> Any:
    """Makes an array, committed to its device, of a result."""
    from jaxlib import _jax  # type: ignore[attr-defined]

    aval, (_, sharding) = _Aval(shape, kind), _device()
    try:
        return _jax.array_result_handler(aval, sharding, True, True)
    except TypeError:  # jaxlib 0.12 has no argument to skip checks
        return _jax.array_result_handler(aval, sharding, True)


class OnDevice:
    """An argument of many calls, copied once."""

    __slots__ = ("placed",)

    def __init__(self, array: Any) -> None:
        self.placed = _putter()(array)


@cache
def _putter() -> Callable[[Any], Any]:
    """The function that copies a NumPy array to the device; the caller may change it afterwards."""
    from jaxlib import _jax  # type: ignore[attr-defined]

    device, sharding = _device()
    options = (True, True, _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL, True)
    put = _jax.batched_device_put
    return lambda a: put(_Aval(a.shape, a.dtype), sharding, [a], [device], *options)


class _Aval:
    """The attributes that jaxlib reads from JAX's abstract arrays."""

    weak_type = False

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype


@cache
def _device() -> tuple[Any, Any]:
    """The CPU, and the sharding of arrays on it."""
    from jaxlib import _jax, xla_client  # type: ignore[attr-defined]

    class OneDevice(_jax.SingleDeviceSharding):  # type: ignore[misc]
        memory_kind = None

        def _to_xla_hlo_sharding(self, _: int) -> Any:
            return xla_client.HloSharding.replicate()

    note_threads()
    client: Any = xla_client.make_cpu_client()
    device = client.local_devices()[0]
    return device, OneDevice(device, memory_kind=None)


def dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and smaller, which ml_dtypes registers with NumPy
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _on_host(result: Any, shape: tuple[int, ...], kind: Any) -> Any:
    """Copy a result to the host; jaxlib's own function for this would import JAX."""
    array = np.empty(shape, kind)
    if array.nbytes:
        result.block_until_ready()
        ctypes.memmove(array.ctypes.data, result.unsafe_buffer_pointer(), array.nbytes)
    return array


@cache
def start_lapack() -> None:
    """Give scipy's LAPACK to jaxlib; executables that need it would crash without.

    Two extension modules of scipy are enough. While they are imported, stubs replace their
    packages, which would import eighty more modules.
    """
    from jaxlib import xla_client
    from jaxlib.cpu import _lapack  # type: ignore[attr-defined]

    stubs = _stubs_of_scipy()
    sys.modules.update(stubs)
    try:
        _lapack.initialize()
    finally:
        for name in stubs:
            sys.modules.pop(name, None)
    if "jax" not in sys.modules:  # JAX registers them itself
        for name, target in _lapack.registrations().items():
            version = int(name.endswith("_ffi"))
            xla_client.register_custom_call_target(name, target, "cpu", api_version=version)


def _stubs_of_scipy() -> dict[str, ModuleType]:
    if "scipy" in sys.modules:
        return {}
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("scipy")
    if found is None or not found.submodule_search_locations:
        return {}
    folder = found.submodule_search_locations[0]
    stubs = {}
    for name, path in (("scipy", folder), ("scipy.linalg", os.path.join(folder, "linalg"))):
        stubs[name] = ModuleType(name)
        stubs[name].__path__ = [path]
    stubs["scipy"].linalg = stubs["scipy.linalg"]  # type: ignore[attr-defined]
    return stubs
