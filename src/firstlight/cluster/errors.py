"""What can go wrong with a cluster.

FirstlightError
└── ClusterError
    ├── RayMissingError      Ray is not installed here
    ├── UnreachableError     nothing that speaks Ray answers at the address
    ├── NodeMismatchError    nodes with other versions, or without Firstlight
    ├── NoNodesError         every node that could work is gone; what is finished is kept
    └── CheckpointError      a checkpoint of something else, damaged, or not writable
"""

from __future__ import annotations

from firstlight.errors import FirstlightError


class ClusterError(FirstlightError):
    """Base of what can go wrong with a cluster."""


class RayMissingError(ClusterError):
    """Ray is not installed here."""


class UnreachableError(ClusterError):
    """Nothing that speaks Ray answers at the address."""


class NodeMismatchError(ClusterError):
    """Nodes with other versions than here, or without Firstlight."""


class NoNodesError(ClusterError):
    """Every node that could work is gone; what is finished is kept."""


class CheckpointError(ClusterError):
    """A checkpoint of something else, a damaged one, or one that cannot be written."""
