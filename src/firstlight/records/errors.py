"""What can be wrong with records and their files.

FirstlightError
├── RecordError               a record cannot be read or written
│   ├── NewerSchemaError      the file was written by a newer Firstlight
│   └── MalformedRecordError  the file is not what its name says
└── OutputError               a file or directory cannot be written
"""

from __future__ import annotations

from firstlight.errors import FirstlightError


class RecordError(FirstlightError):
    """A record cannot be read or written."""


class NewerSchemaError(RecordError):
    """The record was written by a newer Firstlight."""


class MalformedRecordError(RecordError):
    """The file is damaged or something else than its name says."""


class OutputError(FirstlightError):
    """A file or directory cannot be written."""
