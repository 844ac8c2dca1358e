"""Tables and snippets of another Firstlight, compared by what they say and not by their bytes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

#: For a README.
SNIPPET = "snippet.md"


def is_table(path: str) -> bool:
    """Whether the file is a table of numbers."""
    return path.startswith("tables/") and path.endswith(".csv")


def same_columns(published: bytes, computed: bytes) -> bool:
    """Whether every column of a table is one that can be compared."""
    theirs, ours = (data.split(b"\n", 1)[0].strip() for data in (published, computed))
    return next(csv.reader([theirs.decode()]), None) == next(csv.reader([ours.decode()]), None)


def table_differences(published: bytes, computed: bytes) -> Iterator[str]:
    """Where a CSV table says something else; a column that only one of them has is not compared."""
    theirs, ours = _rows(published), _rows(computed)
    if len(theirs) != len(ours):
        yield f"{len(theirs)} rows, not {len(ours)}"
        return
    for number, (one, other) in enumerate(zip(theirs, ours, strict=True), start=1):
        if "case" not in one or None in one:
            yield f"row {number} is no row of this table"
            return
        for column in one.keys() & other.keys():
            if not _same(one[column], other[column]):
                yield f"row {number}, {column}: {one[column]!r:.60}, not {other[column]!r:.60}"


def snippet_differences(published: bytes, computed: bytes) -> Iterator[str]:
    """Where the rows with numbers differ; the words around them, and how a name is escaped, may."""
    theirs, ours = _numbers(published), _numbers(computed)
    for one in theirs:
        if one not in ours:
            yield f"the row {' '.join(one)!r:.100}"
    if len(theirs) != len(ours):
        yield f"{len(theirs)} rows with a number, not {len(ours)}"


def _rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8"), newline="")))


def _numbers(data: bytes) -> list[tuple[str, ...]]:
    """The rows of a Markdown table: the letters and digits of the case, and the cells after it."""
    rows = [line for line in data.decode("utf-8").splitlines() if line.startswith("| `")]
    parts = [row.strip("| ").rsplit(" | ", 3) for row in rows]
    return [("".join(filter(str.isalnum, name)), *cells) for name, *cells in parts]


def _same(one: str | None, other: str | None) -> bool:
    if one == other or one is None or other is None:
        return one == other
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-9)
    except ValueError:
        return False
