"""How a program learns that its cache cannot be used."""

from __future__ import annotations

import sys
import warnings


def warn(about: str) -> None:
    """A warning, which ends nothing even where warnings are errors."""
    text = f"firstlight: compilation cache: {about}"
    try:
        # Of no line: that of the program which happens to compile has nothing to do with it.
        warnings.warn_explicit(text, RuntimeWarning, "firstlight.warmstart", 1)
    except RuntimeWarning:
        print(text, file=sys.stderr)
