"""Who may have written a frozen function: whoever writes one runs code in all that load it.

The file is MAGIC, the length of a signature document and the document (empty: nobody signed), the
SHA-256 of the body, the body. A signature is of MAGIC and body.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.warmstart.folder import is_trusted
from firstlight.warmstart.frozen.errors import FrozenError, NotTrustedError

if TYPE_CHECKING:
    from firstlight.snapshot.keys import PrivateKey

MAGIC = b"firstlight frozen function 1\n"
_SIGNED = "frozen function"
_LENGTH_BYTES, _CHECKSUM_BYTES = 4, 32


def own_key(given: Path | None = None) -> PrivateKey | None:
    """The key that signs: the one in the file given, or the user's own, or none.

    The user's own is not used where it has a passphrase: a program cannot ask for it.
    """
    from firstlight.snapshot.keys import is_encrypted, load_private
    from firstlight.snapshot.trust import default_private_key

    path = given or default_private_key()
    if given is None and (not path.is_file() or is_encrypted(path)):
        return None
    return load_private(path)


def sealed(body: bytes, key: PrivateKey | None) -> bytes:
    """The content of the file."""
    document = b""
    if key is not None:
        from firstlight.snapshot.keys import sign

        document = sign(key, MAGIC + body, _SIGNED)
    length = len(document).to_bytes(_LENGTH_BYTES, "big")
    return b"".join([MAGIC, length, document, hashlib.sha256(body).digest(), body])


def opened(path: Path) -> bytes:
    """The body of the file, if it is whole and somebody trusted wrote it."""
    try:
        # NONBLOCK: opening a pipe would wait for somebody who writes to it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read() if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise FrozenError(f"{path}: cannot be read: {error.strerror}.") from None
    if not content.startswith(MAGIC):
        raise FrozenError(f"{path}: not a frozen function. Make one: firstlight.warmstart.freeze")
    document_at = len(MAGIC) + _LENGTH_BYTES
    checksum_at = document_at + int.from_bytes(content[len(MAGIC) : document_at], "big")
    document = content[document_at:checksum_at]
    body = content[checksum_at + _CHECKSUM_BYTES :]
    if hashlib.sha256(body).digest() != content[checksum_at : checksum_at + _CHECKSUM_BYTES]:
        raise FrozenError(f"{path}: damaged. Freeze the function again, or copy the file again.")
    if document:
        _require_trusted_signer(path, document, body)
    elif not is_trusted(status):
        foreign = status.st_uid not in (os.geteuid(), 0)
        why = f"belongs to another user (uid {status.st_uid})" if foreign else "is open to others"
        fix = "" if foreign else f", or chmod go-w {path} if you know that nobody has changed it"
        raise NotTrustedError(
            f"{path}: it is not signed and {why}; its code would run with your rights. Ask for "
            f"a signed one (firstlight keys generate, then freeze){fix}."
        )
    return body


def _require_trusted_signer(path: Path, document: bytes, body: bytes) -> None:
    from datetime import UTC, datetime

    from firstlight.snapshot.errors import SnapshotError
    from firstlight.snapshot.keys import load_public, signed_by
    from firstlight.snapshot.trust import Standing, TrustedKeys, default_private_key

    try:
        signer = signed_by(document, MAGIC + body, _SIGNED)
    except SnapshotError as error:
        raise NotTrustedError(f"{path}: it was changed after it was signed: {error}") from None
    known = TrustedKeys.for_programs().known(signer)
    if known is not None:
        standing = known.standing(None, datetime.now(UTC))
        if standing is not Standing.TRUSTED:
            raise NotTrustedError(
                f"{path}: signed by {known.name} (key {signer.id}), whose key is {standing}. Ask "
                "for one signed with a valid key."
            )
        return
    own = default_private_key()
    if own.is_file() and load_public(str(own)) == signer:
        return
    raise NotTrustedError(
        f"{path}: signed with the key {signer.id}, which you do not trust for programs; its code "
        f"would run with your rights. Trust it with: firstlight keys trust {signer.base64} "
        "--for-programs --name NAME"
    )
