"""Ed25519 keys: generated, stored, and used to sign, with `cryptography`.

A private key is a PEM file (PKCS 8, as OpenSSL writes it) that only its owner can read. A public
key is 32 bytes, written in base64; its id is the beginning of its SHA-256. The index of a snapshot
names its signer, so `signature.json` can be neither removed nor replaced unnoticed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

# What only key files and signature.json need is imported in the functions that read them: programs
# that load something signed do so before their first result.
from firstlight.snapshot.errors import KeyFileError, UnusableSnapshotError

_SCHEMA = "firstlight.snapshot.signature"
_MAX_BYTES = 1 << 14


@dataclass(frozen=True)
class PublicKey:
    raw: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.raw).decode()

    @property
    def id(self) -> str:
        """32 hexadecimal digits that name the key."""
        return hashlib.sha256(self.raw).hexdigest()[:32]

    @classmethod
    def from_base64(cls, text: str) -> PublicKey:
        """The key; refuses any spelling other than that of `base64`."""
        return cls(_from_base64(text, 32, "a public key"))

    def pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Whether `signature` over `data` was made with this key's private half."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    public: PublicKey
    _key: Ed25519PrivateKey = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """The signature: 64 bytes, deterministic."""
        return self._key.sign(data)


def _from_base64(text: str, size: int, what: str) -> bytes:
    """The decoded bytes; refuses non-canonical base64, such as unused bits that are set."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != size or base64.b64encode(raw).decode() != text:
        raise KeyFileError(f"{text[:60]!r} is not {what}: {size} bytes in base64.")
    return raw


def generate(path: Path, passphrase: bytes | None = None) -> PublicKey:
    """Make a key pair: the private key in `path`, the public one beside it; neither may exist."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    beside = path.with_name(path.name + ".pub")
    key = Ed25519PrivateKey.generate()
    lock = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)
    try:
        if beside.exists():
            raise FileExistsError
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Created with its final mode: at no moment can somebody else read it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        taken = path if path.exists() else beside
        raise KeyFileError(f"{taken} exists. Keys are never overwritten: name another.") from None
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be written: {error.strerror}.") from None
    with open(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    public = PublicKey(key.public_key().public_bytes_raw())
    beside.write_bytes(public.pem())
    return public


def load_private(path: Path, passphrase: bytes | None = None) -> PrivateKey:
    """The private key in `path`; refuses a file that others can read."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read_small(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise KeyFileError(f"{path}: others can read it. First: chmod 600 {quote(str(path))}")
    try:
        key = load_pem_private_key(data, passphrase)
    except TypeError:
        need = "needs its passphrase" if passphrase is None else "has no passphrase"
        raise KeyFileError(f"{path}: the key {need}.") from None
    except ValueError:
        raise KeyFileError(f"{path}: not a private key in PEM, or a wrong passphrase.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: a private key, but not an Ed25519 key.")
    return PrivateKey(PublicKey(key.public_key().public_bytes_raw()), key)


def is_encrypted(path: Path) -> bool:
    return b"ENCRYPTED" in _read_small(path)


def load_public(text: str) -> PublicKey:
    """A public key from base64 or a PEM file; for a private key, the file beside it."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    path = Path(text)
    if not path.is_file():
        try:
            return PublicKey.from_base64(text)
        except KeyFileError:
            raise KeyFileError(f"{text[:80]}: neither a file nor a public key.") from None
    data = _read_small(path)
    if b"PRIVATE KEY" in data:
        beside = path.with_name(path.name + ".pub")
        if not beside.is_file():
            raise KeyFileError(f"{path}: a private key; give its public one ({beside.name}).")
        data = _read_small(beside)
    try:
        key = load_pem_public_key(data)
    except ValueError:
        raise KeyFileError(f"{path}: not a public key in PEM.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path}: a public key, but not an Ed25519 key.")
    return PublicKey(key.public_bytes_raw())


def _read_small(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}.") from None


def sign(key: PrivateKey, data: bytes, signs: str = "index.json") -> bytes:
    """`signature.json` for `data`, which is the content of the file called `signs`."""
    from firstlight.snapshot.layout import VERSION
    from firstlight.snapshot.strict_json import canonical

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


def signed_by(document: bytes, data: bytes, signs: str = "index.json") -> PublicKey:
    """The key that has signed `data`; raises `UnusableSnapshotError` if none has."""
    from firstlight.snapshot.layout import SIGNATURE, require_version
    from firstlight.snapshot.strict_json import canonical, parse_object

    plain = parse_object(document, SIGNATURE, _MAX_BYTES)
    require_version(plain, _SCHEMA, SIGNATURE)
    if canonical(plain) != document or set(plain) != {
        *("schema", "schema_version", "algorithm", "signs", "key_id", "public_key", "signature")
    }:
        raise UnusableSnapshotError(f"{SIGNATURE}: not in canonical form: it was rewritten.")
    if plain["algorithm"] != "ed25519" or plain["signs"] != signs:
        raise UnusableSnapshotError(f"{SIGNATURE}: not an Ed25519 signature of {signs}.")
    try:
        public = PublicKey.from_base64(str(plain["public_key"]))
        signature = _from_base64(str(plain["signature"]), 64, "a signature")
    except KeyFileError as error:
        raise UnusableSnapshotError(f"{SIGNATURE}: {error}") from None
    if plain["key_id"] != public.id:
        raise UnusableSnapshotError(f"{SIGNATURE}: key_id is not that of the public key.")
    if not public.has_signed(data, signature):
        raise UnusableSnapshotError(f"{SIGNATURE}: the signature does not match {signs}.")
    return public
