"""Errors about snapshots, keys and stores.

SnapshotError
├── UnusableSnapshotError     not a snapshot, or not readable
│   ├── NewerSnapshotError    written by a newer Firstlight
│   └── HostileSnapshotError  contains links, bombs or paths that lead out of it
├── ChangedSnapshotError      a file is missing or not the one listed in the index
├── RefusedError              the run must not be published in this form
├── StorageError              a store cannot be read or written
├── KeyFileError              a key cannot be read, written or used
└── TimestampError            a proof of time is invalid, or for another file
"""

from __future__ import annotations

from firstlight.errors import FirstlightError


class SnapshotError(FirstlightError):
    """The base of all errors about snapshots."""


class UnusableSnapshotError(SnapshotError):
    """Not a snapshot, or not readable."""


class NewerSnapshotError(UnusableSnapshotError):
    """Written by a newer Firstlight."""


class HostileSnapshotError(UnusableSnapshotError):
    """Contains something that no snapshot has, such as a link; it is left untouched."""


class ChangedSnapshotError(SnapshotError):
    """A file is missing or not the one listed in the index."""


class RefusedError(SnapshotError):
    """The run must not be published in this form."""


class StorageError(SnapshotError):
    """A store cannot be read or written."""


class KeyFileError(SnapshotError):
    """A key cannot be read, written or used."""


class TimestampError(SnapshotError):
    """A proof of time is invalid, or for another file."""
