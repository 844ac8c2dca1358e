"""The format of an entry: a compiled program with its key, kind of machine and signature.

MAGIC; a checksum; the signer's public key and the signature (zeros if unsigned); then the body:
the kind of machine, JAX's key and a description of the program (JSON), each preceded by its
length, and the value. The signature covers the body's SHA-256, so a value signed for one key and
kind of machine is refused under any other. The checksum covers signer, signature and that digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAGIC = b"firstlight compiled 2\n"
_CHECKSUM_BYTES, _SIGNER_BYTES, _SIGNATURE_BYTES, _LENGTH_BYTES = 32, 32, 64, 4
_SIGNER_AT = len(MAGIC) + _CHECKSUM_BYTES
_BODY_AT = _SIGNER_AT + _SIGNER_BYTES + _SIGNATURE_BYTES
#: Bound of everything before the value: as much as a reader of heads has to read.
MAX_HEAD_BYTES = 1 << 16
_UNSIGNED = bytes(_SIGNER_BYTES + _SIGNATURE_BYTES)
#: Signed with the digest, so that no signature of an entry is valid for anything else.
_CONTEXT = b"firstlight compiled program 1\n"


@dataclass(frozen=True)
class Head:
    """Everything in an entry but its value; unverified until the whole entry was checked."""

    kind: str
    key: str
    about: dict[str, Any]
    signer: bytes  # empty: unsigned
    value_at: int


def seal(kind: str, key: str, value: bytes, about: bytes = b"{}") -> bytes:
    """An unsigned entry; a description that is too long is left out."""
    fields = [kind.encode(), key.encode(), about]
    if sum(map(len, fields)) > MAX_HEAD_BYTES - _BODY_AT - 3 * _LENGTH_BYTES:
        fields[2] = b"{}"
    body = b"".join([*(len(f).to_bytes(_LENGTH_BYTES, "big") + f for f in fields), value])
    return b"".join([MAGIC, _checksum(_UNSIGNED, hashlib.sha256(body).digest()), _UNSIGNED, body])


def signed(entry: bytes, signer: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """The entry with this signature instead of its own; signer: the public key."""
    digest = _digest(entry)
    signature = sign(_CONTEXT + digest)
    checksum = _checksum(signer + signature, digest)
    return b"".join([MAGIC, checksum, signer, signature, memoryview(entry)[_BODY_AT:]])


def signed_message(entry: bytes) -> bytes | None:
    """The message that a signature of the entry covers; None if the entry is damaged."""
    if not entry.startswith(MAGIC) or len(entry) < _BODY_AT:
        return None
    digest = _digest(entry)
    is_whole = _checksum(entry[_SIGNER_AT:_BODY_AT], digest) == entry[len(MAGIC) : _SIGNER_AT]
    return _CONTEXT + digest if is_whole else None


def signature_of(entry: bytes) -> tuple[bytes, bytes]:
    """(public key, signature), unverified."""
    split = _SIGNER_AT + _SIGNER_BYTES
    return entry[_SIGNER_AT:split], entry[split:_BODY_AT]


def is_whole(entry: bytes) -> bool:
    """Whether it is an undamaged entry."""
    return signed_message(entry) is not None


def head(beginning: bytes) -> Head | None:
    """The head of an entry from its first MAX_HEAD_BYTES; None if they are not an entry's."""
    if not beginning.startswith(MAGIC):
        return None
    fields, at = [], _BODY_AT
    for _ in range(3):
        length = int.from_bytes(beginning[at : at + _LENGTH_BYTES], "big")
        at += _LENGTH_BYTES + length
        if at > min(len(beginning), MAX_HEAD_BYTES):
            return None
        fields.append(beginning[at - length : at])
    try:
        kind, key = fields[0].decode(), fields[1].decode()
    except UnicodeDecodeError:
        return None
    signer = signature_of(beginning)[0]
    return Head(kind, key, _object(fields[2]), signer if any(signer) else b"", at)


def value_of(entry: bytes, kind: str, key: str) -> bytes | None:
    """The value of an undamaged entry of this kind and key; None for any other content."""
    found = head(entry[:MAX_HEAD_BYTES])
    if found is None or (found.kind, found.key) != (kind, key) or not is_whole(entry):
        return None
    return entry[found.value_at :]


def unchecked_value(entry: bytes) -> bytes | None:
    """The value of an entry that was already checked."""
    found = head(entry[:MAX_HEAD_BYTES])
    return None if found is None else entry[found.value_at :]


def _digest(entry: bytes) -> bytes:
    return hashlib.sha256(memoryview(entry)[_BODY_AT:]).digest()


def _checksum(signature: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(signature + digest).digest()


def _object(text: bytes) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
