"""What can be wrong with a snapshot, a key or a place to keep them.

SnapshotError
├── UnusableSnapshotError   it is no snapshot, or not one that can be read
│   ├── NewerSnapshotError  it was written by a newer Firstlight
│   └── HostileSnapshotError  it holds what no snapshot holds: links, bombs, paths that lead out
├── ChangedSnapshotError    a file is not the one that the index names
├── RefusedError            the run must not be published as it is
├── StorageError            the place cannot be read or written
├── KeyFileError            a key cannot be read, written or used
└── TimestampError          a proof of time is none, or one of something else
"""

from __future__ import annotations

from firstlight.errors import FirstlightError


class SnapshotError(FirstlightError):
    """Something about a snapshot is not as it should be."""


class UnusableSnapshotError(SnapshotError):
    """This is no snapshot, or not one that can be read."""


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
    """A proof of time is none, or one of something else."""
