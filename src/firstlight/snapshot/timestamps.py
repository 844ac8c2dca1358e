"""RFC 3161 tokens: an authority states that a file existed at a time. Verified offline.

    TimeStampResp ─ ContentInfo ─ SignedData ─┬─ TSTInfo: hash of the file, time
                                              ├─ certificates
                                              └─ SignerInfo: attributes, signature

The token is any authority's response to `openssl ts -query -data index.json -sha256 -cert`. The
checks: it is over this file; the signature is over this TSTInfo, by the one certificate that the
signed attributes name; the certificate is for time stamps, and was valid then. Whether the user
trusts its issuer is reported separately. Parsing is strict DER; signatures and certificates are
checked with `cryptography`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import (
    BasicConstraints,
    Certificate,
    ExtendedKeyUsage,
    ExtensionNotFound,
    InvalidVersion,
    load_der_x509_certificate,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from firstlight.snapshot.errors import TimestampError

MAX_BYTES = 1 << 16
_SEQUENCE, _SET, _OID = 0x30, 0x31, 0x06
#: Object identifiers of RFC 3161 and RFC 5652, as encoded.
_SIGNED_DATA, _TST_INFO = "2a864886f70d010702", "2a864886f70d0109100104"
_CONTENT_TYPE, _MESSAGE_DIGEST = "2a864886f70d010903", "2a864886f70d010904"
_SIGNING_CERTIFICATE = {
    "2a864886f70d010910020c": "sha1",
    "2a864886f70d010910022f": "sha256",  # unless the attribute names another
}
_HASHES = {
    "608648016503040201": "sha256",
    "608648016503040202": "sha384",
    "608648016503040203": "sha512",
}
_MAX_CHAIN = 5


@dataclass(frozen=True)
class Token:
    """A valid token for the file it was read with."""

    time: datetime
    authority: str  # the name in the certificate that signed it
    chain: tuple[Certificate, ...]  # the signer, then its issuers as far as the token has them

    def is_vouched_for(self, anchor: Certificate) -> bool:
        """Whether `anchor` is in the chain or issued its last certificate."""
        issued = _valid_at(anchor, self.time) and _is_issued_by(self.chain[-1], anchor)
        return anchor in self.chain or issued


@dataclass(frozen=True)
class _Node:
    tag: int
    value: bytes
    whole: bytes

    def __iter__(self) -> Iterator[_Node]:
        rest = self.value
        while rest:
            node, rest = _first(rest)
            yield node

    def parts(self, min_count: int, tag: int = _SEQUENCE) -> list[_Node]:
        """The elements of a sequence or set, at least `min_count`."""
        found = list(self) if self.tag == tag else []
        if len(found) < min_count:
            raise TimestampError("not an RFC 3161 token: unexpected structure.")
        return found

    def oid(self) -> str:
        """An object identifier: the hexadecimal digits of its encoding."""
        if self.tag != _OID:
            raise TimestampError("not an RFC 3161 token: an object identifier is missing.")
        return self.value.hex()


def _first(data: bytes) -> tuple[_Node, bytes]:
    """(first element, rest); refuses a length in non-canonical encoding."""
    size, start = (data[1], 2) if len(data) > 1 else (0, 0)
    if size > 0x80:
        start = 2 + size - 0x80
        size = int.from_bytes(data[2:start], "big")
        if size < 0x80 or data[2] == 0:
            start = 0
    elif size == 0x80:
        start = 0
    if not 2 <= start <= start + size <= len(data) or data[0] & 0x1F == 0x1F:
        raise TimestampError("not an RFC 3161 token: damaged, or not DER.")
    return _Node(data[0], data[start : start + size], data[: start + size]), data[start + size :]


def read_token(data: bytes, subject: bytes) -> Token:
    """Parse a token, or a response that contains one; raises `TimestampError` unless it is valid
    for `subject`."""
    if len(data) > MAX_BYTES:
        raise TimestampError(f"more than {MAX_BYTES} bytes: not an RFC 3161 token.")
    odd = (UnsupportedAlgorithm, InvalidVersion, StopIteration, IndexError, TypeError, ValueError)
    try:
        return _read(data, subject)
    except odd as error:
        # A stranger's bytes may break the parsing in many ways.
        raise TimestampError(f"not a readable RFC 3161 token ({error!r:.100}).") from None


def _read(data: bytes, subject: bytes) -> Token:
    node, rest = _first(data)
    if rest:
        raise TimestampError("the token has data after its end.")
    parts = node.parts(2)
    if parts[0].tag == _SEQUENCE:  # a response: status, token
        parts = parts[1].parts(2)
    if parts[0].oid() != _SIGNED_DATA:
        raise TimestampError("not an RFC 3161 token: it signs nothing.")
    _, _, content, *others = next(iter(parts[1])).parts(4)
    kind, wrapped = content.parts(2)[:2]
    if kind.oid() != _TST_INFO:
        raise TimestampError("what it signs is not a time stamp.")
    info = next(iter(wrapped)).value
    certificates = [
        load_der_x509_certificate(n.whole) for part in others if part.tag == 0xA0 for n in part
    ]
    signers = others[-1].parts(1, _SET)
    if len(signers) != 1:
        raise TimestampError("it has several signatures.")
    time = _time_of(info, subject)
    signer = _signer(signers[0], info, certificates)
    chain = _chain(signer, certificates, time)
    return Token(time, signer.subject.rfc4514_string(), chain)


def _time_of(info: bytes, subject: bytes) -> datetime:
    _, _, imprint, _, time, *_ = _first(info)[0].parts(5)
    algorithm, digest = imprint.parts(2)[:2]
    if hashlib.new(_hash_of(algorithm), subject).digest() != digest.value:
        raise TimestampError("the token is over another file.")
    text = time.value.decode("ascii", "replace")
    try:
        form = "%Y%m%d%H%M%S.%fZ" if "." in text else "%Y%m%d%H%M%SZ"
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        raise TimestampError(f"its time is {text[:40]!r}, not a valid time.") from None


def _hash_of(algorithm: _Node) -> str:
    oid = algorithm.parts(1)[0].oid()
    if oid not in _HASHES:
        raise TimestampError(f"it uses the hash {oid}; SHA-256, 384 and 512 are accepted.")
    return _HASHES[oid]


def _signer(node: _Node, info: bytes, certificates: Sequence[Certificate]) -> Certificate:
    """The certificate that signed the attributes of `info`."""
    _, _, hashing, attributes, _, signature = node.parts(6)[:6]
    algorithm = _hash_of(hashing)
    if attributes.tag != 0xA0:
        raise TimestampError("its attributes are not signed.")
    found = {}
    for attribute in attributes:
        kind, values = attribute.parts(2)[:2]
        found[kind.oid()] = values.parts(1, _SET)[0]
    if _CONTENT_TYPE not in found or found[_CONTENT_TYPE].oid() != _TST_INFO:
        raise TimestampError("what it signs is not a time stamp.")
    digest = found.get(_MESSAGE_DIGEST)
    if digest is None or digest.value != hashlib.new(algorithm, info).digest():
        raise TimestampError("its signature is over another time stamp.")
    hashing_name, wanted = _named_certificate(found)
    for certificate in certificates:
        if hashlib.new(hashing_name, certificate.public_bytes(Encoding.DER)).digest() == wanted:
            # The message tags the attributes differently; the signature is over them as a set.
            signed = bytes([_SET]) + attributes.whole[1:]
            _require_signature(certificate, signature.value, signed, algorithm)
            return certificate
    raise TimestampError("the certificate that signed it is not in it: ask for it with -cert.")


def _named_certificate(attributes: dict[str, _Node]) -> tuple[str, bytes]:
    """(hash, digest) of the certificate that the attributes name."""
    for oid, algorithm in _SIGNING_CERTIFICATE.items():
        if oid in attributes:
            first = attributes[oid].parts(1)[0].parts(1)[0].parts(1)
            if first[0].tag == _SEQUENCE:
                return _hash_of(first[0]), first[1].value
            return algorithm, first[0].value
    raise TimestampError("it does not say which certificate signed it.")


def _require_signature(certificate: Certificate, signature: bytes, data: bytes, name: str) -> None:
    hashing: hashes.HashAlgorithm = getattr(hashes, name.upper())()
    try:
        match certificate.public_key():
            case rsa.RSAPublicKey() as key:
                key.verify(signature, data, padding.PKCS1v15(), hashing)
            case ec.EllipticCurvePublicKey() as key:
                key.verify(signature, data, ec.ECDSA(hashing))
            case ed25519.Ed25519PublicKey() as key:
                key.verify(signature, data)
            case _:
                raise TimestampError("it is signed with an unsupported kind of key.")
    except InvalidSignature:
        raise TimestampError("its signature does not match its certificate.") from None


def _chain(
    signer: Certificate, certificates: Sequence[Certificate], time: datetime
) -> tuple[Certificate, ...]:
    """The signer and its issuers, as far as the token has them; each was valid at `time`."""
    try:
        usage = signer.extensions.get_extension_for_class(ExtendedKeyUsage)
    except (ExtensionNotFound, ValueError):
        usage = None
    if usage is None or [*usage.value] != [ExtendedKeyUsageOID.TIME_STAMPING]:
        raise TimestampError("the certificate that signed it is not for time stamps.")
    if not _valid_at(signer, time):
        raise TimestampError("the certificate that signed it was not valid at that time.")
    chain = [signer]
    while len(chain) < _MAX_CHAIN:
        issuers = (c for c in certificates if c not in chain and _is_issued_by(chain[-1], c))
        issuer = next((c for c in issuers if _valid_at(c, time)), None)
        if issuer is None:
            break
        chain.append(issuer)
    return tuple(chain)


def _valid_at(certificate: Certificate, time: datetime) -> bool:
    return certificate.not_valid_before_utc <= time <= certificate.not_valid_after_utc


def _is_issued_by(certificate: Certificate, issuer: Certificate) -> bool:
    try:
        constraints = issuer.extensions.get_extension_for_class(BasicConstraints)
        certificate.verify_directly_issued_by(issuer)
    except (ExtensionNotFound, InvalidSignature, TypeError, ValueError):
        return False
    return constraints.value.ca
