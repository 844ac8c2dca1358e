"""Errors of clusters.

FirstlightError
└── ClusterError
    ├── RayMissingError      Ray is not installed here
    ├── UnreachableError     no Ray cluster answers at the address
    ├── NodeMismatchError    nodes with other versions, or without Firstlight
    ├── NoNodesError         no node is left; finished work is kept
    └── CheckpointError      a checkpoint of another job, damaged, or not writable
"""

from __future__ import annotations

from firstlight.errors import FirstlightError


class ClusterError(FirstlightError):
    """Base of the errors of clusters."""


class RayMissingError(ClusterError):
    """Ray is not installed here."""


class UnreachableError(ClusterError):
    """No Ray cluster answers at the address."""


class NodeMismatchError(ClusterError):
    """Nodes with other versions than here, or without Firstlight."""


class NoNodesError(ClusterError):
    """No node is left; finished work is kept."""


class CheckpointError(ClusterError):
    """A checkpoint of another job, a damaged one, or one that cannot be written."""
