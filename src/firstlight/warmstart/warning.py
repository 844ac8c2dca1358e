"""The warning that the cache cannot be used."""

from __future__ import annotations

import sys
import warnings


def warn(about: str) -> None:
    """Warn; where warnings are errors, print to stderr instead of raising."""
    text = f"firstlight: compilation cache: {about}"
    try:
        # Without a line of the program: the one that happens to compile is not the cause.
        warnings.warn_explicit(text, RuntimeWarning, "firstlight.warmstart", 1)
    except RuntimeWarning:
        print(text, file=sys.stderr)
