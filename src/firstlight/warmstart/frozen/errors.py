"""Errors of frozen functions.

FrozenError
├── CannotFreezeError    the function, or what it compiles to, cannot be put into a file
├── NotTrustedError      somebody else may have written the file
├── DoesNotBelongError   it was made for another machine or other versions
└── UnknownCallError     it has no executable for these arguments
"""

from __future__ import annotations

from firstlight.errors import FirstlightError


class FrozenError(FirstlightError):
    """A frozen function cannot be made, read or called."""


class CannotFreezeError(FrozenError):
    """The function, or what it compiles to, cannot be put into a file."""


class NotTrustedError(FrozenError):
    """Somebody else may have written the file, whose code would run with the user's rights."""


class DoesNotBelongError(FrozenError):
    """It was made for another machine or for other versions."""


class UnknownCallError(FrozenError, TypeError):
    """There is no executable for these arguments."""
