"""A line on stderr, said once: the process belongs to somebody else."""

from __future__ import annotations

import os
from contextlib import suppress

_said: set[str] = set()


def say_once(about: str, text: str) -> None:
    """Write a line on stderr, one per process for each thing that it is about."""
    if about in _said:
        return
    _said.add(about)
    with suppress(OSError):  # closed
        os.write(2, f"firstlight: {text}\n".encode("utf-8", "replace"))
