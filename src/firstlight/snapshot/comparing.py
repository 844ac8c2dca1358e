"""What lies at a place held against what would be written there: the same, or damaged."""

from __future__ import annotations

from collections.abc import Mapping

from firstlight.snapshot.errors import StorageError
from firstlight.snapshot.sources import Source, read_up_to


def require_same(source: Source, files: Mapping[str, bytes]) -> None:
    """Refuse a snapshot that is there already, under the same id, and is not these files."""
    odd = _first_difference(source, files)
    if odd is not None:
        raise StorageError(
            f"{source.name} is there and damaged: {odd}. Move it away, then publish again."
        )


def _first_difference(source: Source, files: Mapping[str, bytes]) -> str | None:
    missing = dict(files)
    for item in source.walk():
        data = missing.pop(item.path, None)
        if item.content is None:
            return f"{item.path!r:.150} is {item.odd}"
        if data is None:
            return f"{item.path!r:.150} was added"
        if read_up_to(item.content, len(data) + 1) != data:
            return f"{item.path} was changed"
    return f"{min(missing)} is missing" if missing else None
