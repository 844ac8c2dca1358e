"""Seals and opens files of frozen functions, whose authors run code in all that load them.

The file has the format of a cache entry (`sealed`), with a kind and key that no entry has.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from firstlight.warmstart import sealed
from firstlight.warmstart.folder import is_trusted
from firstlight.warmstart.frozen.errors import FrozenError, NotTrustedError

_KIND, _KEY = "frozen function", "1"


def sealed_function(body: bytes, is_signed: bool = True, key: Path | None = None) -> bytes:
    """The content of the file, signed with the given key or with the user's own, if any."""
    entry = sealed.seal(_KIND, _KEY, body)
    if not is_signed:
        return entry
    try:
        from firstlight.snapshot.keys import load_private
        from firstlight.warmstart.signing import Signatures
    except ModuleNotFoundError:  # without cryptography the user can have no key
        if key is not None:
            raise
        return entry
    by = Signatures(load_private(key), frozenset()) if key is not None else Signatures.of_user()
    return by.sign(entry)


def opened(path: Path) -> bytes:
    """The body of a file that is undamaged and comes from a trusted author.

    Raises:
        NotTrustedError: Somebody else may have written it. FrozenError: It is damaged or missing.
    """
    try:
        # NONBLOCK: opening a pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read() if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise FrozenError(f"{path}: cannot be read: {error.strerror}.") from None
    body = sealed.value_of(content, _KIND, _KEY)
    if body is None:
        raise FrozenError(
            f"{path}: not a frozen function, or a damaged one. Freeze it again with "
            "firstlight.warmstart.freeze, or copy it again."
        )
    if any(sealed.signature_of(content)[0]):
        _require_trusted_signer(path, content)
    else:
        _require_own(path, status)
    return body


def _require_own(path: Path, status: os.stat_result) -> None:
    if is_trusted(status):
        return
    foreign = status.st_uid not in (os.geteuid(), 0)
    why = f"belongs to another user (uid {status.st_uid})" if foreign else "is open to others"
    fix = "" if foreign else f", or chmod go-w {path} if you know that nobody has changed it"
    raise NotTrustedError(
        f"{path}: it is not signed and {why}; its code would run with your rights. Ask for a "
        f"signed one (firstlight keys generate, then freeze){fix}."
    )


def _require_trusted_signer(path: Path, content: bytes) -> None:
    from firstlight.warmstart.signing import Signatures, Verdict, what_to_do

    verdict = Signatures.of_user().verdict(content)
    if verdict is Verdict.TRUSTED:
        return
    if verdict is not Verdict.FOREIGN:
        raise NotTrustedError(f"{path}: it was changed after it was signed. Copy it again.")
    raise NotTrustedError(
        f"{path}: it was signed with a key that you do not trust for programs, or no longer; its "
        f"code would run with your rights.{what_to_do(verdict, content)}"
    )
