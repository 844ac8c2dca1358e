"""Whose file it is: the recorder's, that of an installed package, of Python's standard library."""

from __future__ import annotations

import os

#: All of `firstlight.trace`: a cell of a notebook is run by it as well.
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_LIBRARY = os.path.dirname(os.__file__)
#: By the name that it has, and by the one that links lead to.
STANDARD_LIBRARY = (_LIBRARY + os.sep, os.path.realpath(_LIBRARY) + os.sep)


def package_of(file: str) -> str | None:
    """The installed package that a file is of; None: of none."""
    for folder in PACKAGES:
        if folder in file:
            return file.rpartition(folder)[2].partition(os.sep)[0].removesuffix(".py")
    return None
