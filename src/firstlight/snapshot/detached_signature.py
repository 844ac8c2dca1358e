"""`signature.json`: a detached Ed25519 signature over the bytes of another file.

It stands beside what it signs, so the same content has the same id whether anybody signed it or
not by this file; that it *is* signed, and by which key, is said in the index, so a signature cannot
be taken away or replaced unseen.
"""

from __future__ import annotations

import base64

from firstlight.snapshot.errors import KeyFileError, UnusableSnapshotError
from firstlight.snapshot.keys import PrivateKey, PublicKey, from_base64
from firstlight.snapshot.layout import INDEX, SIGNATURE, VERSION, require_version
from firstlight.snapshot.strict_json import canonical, parse_object

_SCHEMA = "firstlight.snapshot.signature"
_MAX_BYTES = 1 << 14


def sign(key: PrivateKey, data: bytes, signs: str = INDEX) -> bytes:
    """The signature file for `data`, which is the content of the file called `signs`."""
    return canonical(
        {
            "schema": _SCHEMA,
            "schema_version": VERSION,
            "algorithm": "ed25519",
            "signs": signs,
            "key_id": key.public.id,
            "public_key": key.public.base64,
            "signature": base64.b64encode(key.sign(data)).decode(),
        }
    )


def signed_by(document: bytes, data: bytes, signs: str = INDEX, name: str = SIGNATURE) -> PublicKey:
    """The key that has signed `data`; raises `UnusableSnapshotError` if the signature is not good.

    Every byte of the document counts: it must be in its one spelling.
    """
    plain = parse_object(document, name, _MAX_BYTES)
    require_version(plain, _SCHEMA, name)
    if canonical(plain) != document or set(plain) != {
        *("schema", "schema_version", "algorithm", "signs", "key_id", "public_key", "signature")
    }:
        raise UnusableSnapshotError(f"{name}: not in canonical form: it was rewritten.")
    if plain["algorithm"] != "ed25519" or plain["signs"] != signs:
        raise UnusableSnapshotError(f"{name}: not an Ed25519 signature of {signs}.")
    try:
        public = PublicKey.from_base64(str(plain["public_key"]))
        signature = from_base64(str(plain["signature"]), 64, "a signature")
    except KeyFileError as error:
        raise UnusableSnapshotError(f"{name}: {error}") from None
    if plain["key_id"] != public.id:
        raise UnusableSnapshotError(f"{name}: key_id is not that of the public key.")
    if not public.has_signed(data, signature):
        raise UnusableSnapshotError(f"{name}: the signature does not match {signs}.")
    return public
