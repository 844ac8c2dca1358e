"""Selects the devices of this host that a call uses, and spreads its rows over them.

Rows (toys, points of a scan, parameter vectors) are independent, so they are divided among the
devices along a mesh of one axis, the model is copied to each, and one program runs on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.lazy_jax import jax

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding
    from numpy.typing import NDArray

#: JAX devices, how many of them to use, or None: all of this process, if that pays.
Devices: TypeAlias = "Sequence[jax.Device] | int | None"
#: Name of the mesh's axis.
ROWS = "rows"
#: With fewer fits or points per device than this, one device is as fast as several.
MIN_FITS, MIN_POINTS = 16, 256


def devices_for(
    rows: int, devices: Devices = None, at_least: int = MIN_FITS
) -> tuple[jax.Device, ...]:
    """The devices for a call with this many rows, at least `at_least` per device.

    By default all local devices of JAX, or `jax.default_device` if that is set.
    """
    if devices is None:
        chosen = jax.config.jax_default_device
        if isinstance(chosen, str):
            return tuple(jax.local_devices(backend=chosen)[:1])
        if chosen is not None:
            return (chosen,)
        every = jax.local_devices()
        return tuple(every if rows >= at_least * len(every) else every[:1])
    if isinstance(devices, int) and not isinstance(devices, bool):
        every = jax.local_devices()
        if not 1 <= devices <= len(every):
            raise ModelError(
                f"devices={devices}: JAX has {len(every)} here. Give a number from 1 to "
                f"{len(every)}, or a list of devices."
            )
        return tuple(every[:devices])
    given = tuple(devices) if isinstance(devices, Sequence) else ()
    if not given or not all(isinstance(device, jax.Device) for device in given):
        raise ModelError(
            f"devices is {devices!r}; give JAX devices, such as jax.devices()[:2], or a number."
        )
    if len({device.platform for device in given}) > 1 or len(set(given)) < len(given):
        raise ModelError(f"devices is {devices!r}; give distinct devices of one kind.")
    return given


def divided(devices: tuple[jax.Device, ...]) -> NamedSharding:
    """The leading axis divided among the devices."""
    return jax.sharding.NamedSharding(mesh_of(devices), jax.sharding.PartitionSpec(ROWS))


def copied(devices: tuple[jax.Device, ...]) -> NamedSharding:
    """The whole array on each device."""
    return jax.sharding.NamedSharding(mesh_of(devices), jax.sharding.PartitionSpec())


@cache
def mesh_of(devices: tuple[jax.Device, ...]) -> Mesh:
    """A mesh of one axis, `ROWS`."""
    return jax.sharding.Mesh(np.array(devices), (ROWS,))


def filled(array: NDArray[Any], size: int) -> NDArray[Any]:
    """An array extended to `size` rows by repeating its first row."""
    return np.concatenate([array, array[:1].repeat(size - len(array), 0)])
