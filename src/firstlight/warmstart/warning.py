"""How a program learns that its cache cannot be used."""

from __future__ import annotations

import sys
import warnings


def warn(about: str) -> None:
    """A warning, which ends nothing even where warnings are errors."""
    text = f"firstlight: compilation cache: {about}"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(text, file=sys.stderr)
