"""What can be wrong with a snapshot, a key or a place to keep them.

SnapshotError
├── UnusableSnapshotError   not a snapshot, or not a readable one
│   ├── NewerSnapshotError  it was written by a newer Firstlight
│   └── HostileSnapshotError  it contains links, bombs or paths that lead out
├── ChangedSnapshotError    a file is not the one that the index names
├── RefusedError            the run must not be published as it is
├── StorageError            the place cannot be read or written
├── KeyFileError            a key cannot be read, written or used
└── TimestampError          a proof of time is invalid, or for something else
"""

from __future__ import annotations

from firstlight.errors import FirstlightError


class SnapshotError(FirstlightError):
    """Something about a snapshot is not as it should be."""


class UnusableSnapshotError(SnapshotError):
    """Not a snapshot, or not a readable one."""


class NewerSnapshotError(UnusableSnapshotError):
    """Written by a newer Firstlight."""


class HostileSnapshotError(UnusableSnapshotError):
    """Something in it is never part of a snapshot, and is not touched."""


class ChangedSnapshotError(SnapshotError):
    """A file is missing or is not the one that the index names."""


class RefusedError(SnapshotError):
    """The run must not be published as it is."""


class StorageError(SnapshotError):
    """The place cannot be read or written."""


class KeyFileError(SnapshotError):
    """A key cannot be read, written or used."""


class TimestampError(SnapshotError):
    """A proof of time is invalid, or for something else."""
