"""Who published a snapshot, and since when it exists: signature and proof of time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from firstlight.snapshot.errors import SnapshotError
from firstlight.snapshot.keys import signed_by
from firstlight.snapshot.layout import LIMITS, MANIFEST, SIGNATURE, Index, is_id
from firstlight.snapshot.storage import full_location, open_store
from firstlight.snapshot.strict_json import Plain, parse_object
from firstlight.snapshot.timestamps import MAX_BYTES, read_token
from firstlight.snapshot.trust import Standing, TrustedKeys, skeleton
from firstlight.snapshot.verification import Record


def token_of(location: str | Path) -> bytes | None:
    """The content of `ID.tsr` beside a snapshot or its archive."""
    folder, slash, name = full_location(location).rstrip("/").rpartition("/")
    stem = name.partition(".")[0]
    if not is_id(stem):
        return None
    return open_store(folder or slash or ".").read(f"{stem}.tsr", MAX_BYTES)


def check_time(
    data: bytes, token: bytes | None, trusted: TrustedKeys, manifest: bytes | None, record: Record
) -> None:
    """Record the time at which the index existed, according to a time-stamping authority."""
    if token is None:
        return
    try:
        found = read_token(token, data)
    except SnapshotError as error:
        record.find("time", f"the time stamp is not valid: {error}")
        return
    when = found.time.isoformat(timespec="seconds")
    measured = str(_parsed(manifest).get("measured_to", ""))
    if measured > when:  # both in UTC, in one spelling up to the second
        record.find("time", f"it existed at {when}, but claims to be measured at {measured}")
    known = trusted.authorities().values()
    name = next((name for anchor, name in known if found.is_vouched_for(anchor)), None)
    if name is None:
        record.unknown(
            f"whose clock shows that it existed at {when}: {found.authority!r:.120} is not among "
            "your trusted authorities (firstlight keys trust CERTIFICATE.pem --name NAME)"
        )
        return
    record.proven_time = found.time
    record.passed("time", f"it existed at {when}, by the clock of {name}")


def _parsed(manifest: bytes | None) -> Plain:
    """The manifest; empty if unreadable, which `check_contents` reports."""
    try:
        return parse_object(manifest or b"", MANIFEST, LIMITS.json_bytes)
    except SnapshotError:
        return {}


def note_lookalikes(manifest: bytes | None, trusted: TrustedKeys, record: Record) -> None:
    """Note creators whose names look like a trusted one whose key did not sign."""
    publication = _parsed(manifest).get("publication")
    creators = publication.get("creators") if isinstance(publication, dict) else None
    cited = [c.get("name") for c in creators or () if isinstance(c, dict)]
    names = {skeleton(known.name): known.name for known in trusted.all().values()}
    for name in cited[:100]:
        other = names.get(skeleton(name)) if isinstance(name, str) else None
        if other is not None:
            record.unknown(
                f"whether its creator {name!r:.100} is your {other!r}: the names look alike, and "
                "no trusted key signed it"
            )


def check_signature(
    index: Index,
    data: bytes,
    document: bytes | None,
    trusted: TrustedKeys,
    now: datetime,
    record: Record,
) -> None:
    """Check the signature; `now` is when keys must not have expired."""
    if index.signer is None and document is None:
        record.unknown("who published it: it is not signed")
        record.signature = "none"
        return
    if index.signer is None:
        record.find("signature", f"{SIGNATURE} was added: the index says it is unsigned")
        return
    if document is None:
        record.find("signature", f"{SIGNATURE} is missing: the index says it is signed")
        return
    try:
        key = signed_by(document, data)
    except SnapshotError as error:
        record.find("signature", str(error))
        return
    if key.base64 != index.signer:
        record.find("signature", f"{SIGNATURE} uses another key than the index names")
        return
    known = trusted.known(key)
    if known is None:
        record.passed("signature", f"signed with the key {key.id}")
        record.unknown(
            f"who holds the key {key.id}: it is not among your trusted keys (firstlight keys trust "
            f"{key.base64} --name NAME)"
        )
        record.signature, record.signer = "valid", key.id
        return
    standing, signer = known.standing(record.proven_time, now), f"{known.name} (key {key.id})"
    if standing is Standing.REVOKED:
        record.find(
            "signature",
            f"signed by {signer}, whose key was revoked on {known.revoked}, and nothing proves "
            "that it was signed before that",
        )
    record.passed("signature", f"signed by {signer}")
    if standing is Standing.EXPIRED:
        record.unknown(f"whether it was signed before the key of {signer} expired on {known.until}")
    record.signature, record.signer, record.signer_name = standing.value, key.id, known.name
