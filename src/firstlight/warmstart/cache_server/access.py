"""Who may do what at a server: tokens out of files that only their owner can read."""

from __future__ import annotations

import hmac
import os
import stat
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from firstlight.errors import FirstlightError

_MIN_LETTERS = 16


class TokenFileError(FirstlightError):
    """A file of tokens that cannot be used."""


class Access(IntEnum):
    NONE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Tokens:
    """Without any, everybody may do everything: for one machine only."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def access(self, token: str) -> Access:
        """What a token allows; the time it takes says nothing about the tokens."""
        if not self.read and not self.write:
            return Access.WRITE
        given = token.encode("utf-8", "replace")
        may_write = [hmac.compare_digest(given, known.encode()) for known in self.write]
        may_read = [hmac.compare_digest(given, known.encode()) for known in self.read]
        return Access.WRITE if any(may_write) else Access.READ if any(may_read) else Access.NONE


def tokens_in(path: Path) -> tuple[str, ...]:
    """The tokens in a file, a line each."""
    try:
        with open(path, encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            lines = [line.strip() for line in file]
    except UnicodeDecodeError:
        raise TokenFileError(f"{path}: not a file of tokens: one per line, in ASCII.") from None
    except OSError as error:
        raise TokenFileError(f"{path}: cannot be read: {error.strerror}.") from None
    if mode & 0o077:
        raise TokenFileError(f"{path}: others can read it. First: chmod 600 {path}")
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens or min(map(len, tokens)) < _MIN_LETTERS:
        raise TokenFileError(
            f"{path}: give tokens of at least {_MIN_LETTERS} characters, one per line, such as "
            "openssl rand -hex 32 prints."
        )
    return tokens
