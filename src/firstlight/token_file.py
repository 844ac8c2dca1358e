"""The token that clients have to send."""

from __future__ import annotations

import os
import stat

from firstlight.errors import FirstlightError

_MIN_LENGTH = 16


class TokenError(FirstlightError):
    """A file from which no token is taken."""


def read_token(path: str) -> bytes:
    """The only line of a file that nobody but its owner can read."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise TokenError(f"{path} is not a plain file.")
        if status.st_mode & 0o077:
            raise TokenError(
                f"{path} can be read by others: chmod 600 {path}, and renew the token."
            )
        token = file.read(4097).strip()
    if not _MIN_LENGTH <= len(token) <= 4096 or any(not 33 <= byte <= 126 for byte in token):
        raise TokenError(
            f"{path}: a token is {_MIN_LENGTH} to 4096 printable characters on one line. Make one: "
            f"python -c 'import secrets; print(secrets.token_urlsafe(32))'."
        )
    return token
