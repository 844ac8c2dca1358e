"""Admits snapshots that verify to the site; the others are listed with the reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from firstlight.errors import FirstlightError
from firstlight.snapshot.layout import INDEX, LIMITS, SIGNATURE, id_of, parse_index
from firstlight.snapshot.sources import Source, read_whole
from firstlight.snapshot.verification import Verification
from firstlight.snapshot.verifying import verify


@dataclass(frozen=True)
class Refused:
    """A folder that is not shown, with the reason."""

    id: str
    reason: str


def admit(location: str, snapshot_id: str) -> Verification | Refused:
    """The snapshot's verification, or the refusal."""
    try:
        found = verify(location, snapshot_id)
    except FirstlightError as error:
        return Refused(snapshot_id, str(error))
    if found.findings:
        more = f" (and {len(found.findings) - 1} more)" if len(found.findings) > 1 else ""
        return Refused(snapshot_id, found.findings[0].message + more)
    return found


def status(signature: str, signer: str | None) -> str:
    """In a few words, who signed a snapshot."""
    return {
        "trusted": f"signed by {signer}",
        "expired": f"signed by {signer}, key expired",
        "valid": "signed, key not known",
        "none": "not signed",
    }.get(signature, "signature not checked")


def fingerprint(source: Source, snapshot_id: str) -> str | None:
    """A hash of all bytes of a snapshot, or None if they do not match its index.

    Verification depends only on these bytes, our code and the trusted keys. If none has changed
    since the last build, its result is reused; hashing takes a tenth of the time.
    """
    digest = hashlib.sha256()
    try:
        items = source.walk()
        first = next(items, None)
        if first is None or first.path != INDEX or first.content is None:
            return None
        data = read_whole(first.content, INDEX, LIMITS.index_bytes)
        expected = dict(parse_index(data).files) if id_of(data) == snapshot_id else {}
        digest.update(data)
        for item in items:
            if item.content is None:
                return None
            own = hashlib.sha256()
            while part := item.content.read(1 << 20):
                own.update(part)
            if item.path == SIGNATURE:
                digest.update(own.digest())
                continue
            entry = expected.pop(item.path, None)
            if entry is None or entry.sha256 != own.hexdigest():
                return None
    except FirstlightError:
        return None
    return None if expected else digest.hexdigest()
