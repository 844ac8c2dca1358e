"""Work spread with Ray: toys, grids, benchmark samples and replicas on many machines.

    from firstlight import cluster

    cluster.toys(model, 1_000_000, key=1, on="ray://head:10001", checkpoint="toys")

The rooms whose work is spread know nothing of this one. Ray is imported when something is to run
on it; without `on` the same functions work on this machine alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstlight.lazy_names import lazy_names

if TYPE_CHECKING:
    from firstlight.cluster.errors import ClusterError
    from firstlight.cluster.fits import FittedToys, cls, fitted_toys, scan, toy_cls, toys
    from firstlight.cluster.limits import PatchLimit, upper_limits

_HOME = {
    "errors": ("ClusterError",),
    "fits": ("FittedToys", "cls", "fitted_toys", "scan", "toy_cls", "toys"),
    "limits": ("PatchLimit", "upper_limits"),
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

__getattr__ = lazy_names(__name__, _HOME)
