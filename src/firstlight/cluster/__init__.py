"""Toys, grids, benchmark samples and server replicas on many machines, with Ray.

    from firstlight import cluster

    cluster.toys(model, 1_000_000, key=1, on="ray://head:10001", checkpoint="toys")

The packages whose work is spread do not depend on this one. Ray is imported when something runs on
it; without `on` the same functions run on this machine only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstlight.lazy_names import lazy_names

if TYPE_CHECKING:
    from firstlight.cluster.errors import ClusterError
    from firstlight.cluster.fits import FittedToys, cls, fitted_toys, scan, toy_cls, toys
    from firstlight.cluster.patch_limits import PatchLimit, upper_limits

_HOME = {
    "errors": ("ClusterError",),
    "fits": ("FittedToys", "cls", "fitted_toys", "scan", "toy_cls", "toys"),
    "patch_limits": ("PatchLimit", "upper_limits"),
}

__all__ = [
    "ClusterError",
    "FittedToys",
    "PatchLimit",
    "cls",
    "fitted_toys",
    "scan",
    "toy_cls",
    "toys",
    "upper_limits",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
