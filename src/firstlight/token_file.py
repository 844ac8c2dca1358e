"""Files with the tokens that clients send."""

from __future__ import annotations

import os
import stat

from firstlight.errors import FirstlightError

_MIN_LENGTH, _MAX_LENGTH, _MAX_BYTES = 16, 4096, 1 << 20
_HOW = "Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'."


class TokenError(FirstlightError):
    """A file of tokens that cannot be used."""


def read_token(path: str) -> bytes:
    """The only line of a file that only its owner can read."""
    return _checked(_private_content(path).strip(), path)


def read_tokens(path: str) -> tuple[str, ...]:
    """One token per line of such a file; empty lines and those that begin with # are left out."""
    lines = [line.strip() for line in _private_content(path).splitlines()]
    found = [_checked(line, path) for line in lines if not line.startswith(b"#") and line]
    if not found:
        raise TokenError(f"{path}: there is no token in this file. {_HOW}")
    return tuple(token.decode() for token in found)


def _private_content(path: str) -> bytes:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise TokenError(f"{path} is neither a file nor a pipe.")
        if status.st_mode & 0o077:
            raise TokenError(
                f"{path} can be read by others: chmod 600 {path}, and renew the token."
            )
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:  # a part of a token must not become one
        raise TokenError(f"{path}: a file of tokens has at most {_MAX_BYTES} bytes.")
    return content


def _checked(token: bytes, path: str) -> bytes:
    if not _MIN_LENGTH <= len(token) <= _MAX_LENGTH or any(not 33 <= b <= 126 for b in token):
        raise TokenError(
            f"{path}: a token is {_MIN_LENGTH} to {_MAX_LENGTH} printable characters on one line. "
            f"{_HOW}"
        )
    return token
