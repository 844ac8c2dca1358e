"""Signatures of programs: this user runs those of their own key and of keys they trust for that.

Imports `cryptography`, so it is loaded only for entries from elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from shlex import quote

from firstlight.snapshot.errors import KeyFileError
from firstlight.snapshot.keys import PrivateKey, PublicKey, is_encrypted, load_private
from firstlight.snapshot.trust import Standing, TrustedKeys, default_private_key
from firstlight.warmstart import sealed
from firstlight.warmstart.folder import is_trusted

#: Names the file of the private key that signs what this process compiles.
KEY_VARIABLE = "FIRSTLIGHT_SIGNING_KEY"


class Verdict(Enum):
    """Whether an entry may be loaded; if not, why not."""

    TRUSTED = "signed by a trusted key"
    DAMAGED = "damaged"
    UNSIGNED = "not signed"
    FORGED = "its signature does not match"
    EXPOSED = "of another user, or others can write to it"
    FOREIGN = "signed by a key that is not trusted"


@dataclass(frozen=True)
class Signatures:
    """own: the key that signs. trusted: the public keys whose programs this user runs."""

    own: PrivateKey | None
    trusted: frozenset[bytes]

    @classmethod
    def of_user(cls) -> Signatures:
        """The keys in the user's settings; KeyFileError if one that was named cannot be used."""
        own = _own_key()
        _require_private(TrustedKeys.for_programs().folder)
        now = datetime.now(UTC)
        known = TrustedKeys.for_programs().all().values()
        trusted = {k.key.raw for k in known if k.standing(None, now) is Standing.TRUSTED}
        revoked = {k.key.raw for k in known if k.revoked}
        if own is not None and own.public.raw not in revoked:
            trusted.add(own.public.raw)
        return cls(own, frozenset(trusted))

    def sign(self, entry: bytes) -> bytes:
        if self.own is None:
            return entry
        return sealed.signed(entry, self.own.public.raw, self.own.sign)

    def verdict(self, entry: bytes) -> Verdict:
        """Whether this user may run it; the caller still has to compare its key and kind."""
        found = checked_signature(entry)
        is_foreign = sealed.signature_of(entry)[0] not in self.trusted
        return Verdict.FOREIGN if found is Verdict.TRUSTED and is_foreign else found


def checked_signature(entry: bytes) -> Verdict:
    """TRUSTED if the signature is valid for the key that the entry names, with any holder."""
    data = sealed.signed_message(entry)
    if data is None:
        return Verdict.DAMAGED
    signer, signature = sealed.signature_of(entry)
    if not any(signer):
        return Verdict.UNSIGNED
    if not PublicKey(signer).has_signed(data, signature):
        return Verdict.FORGED
    return Verdict.TRUSTED


def what_to_do(verdict: Verdict, entry: bytes) -> str:
    """The sentence on how to trust a foreign key; empty for other verdicts."""
    if verdict is not Verdict.FOREIGN:
        return ""
    signer = PublicKey(sealed.signature_of(entry)[0]).base64
    return (
        " If you want to run everything that its holder compiles: firstlight keys trust --programs "
        f"{signer} --name NAME"
    )


def _require_private(folder: Path) -> None:
    """Refuse a folder of keys that others can write to: adding a key there means running code."""
    for path in (folder.parent, folder, *folder.glob("*")):
        if path.exists() and not is_trusted(path.stat()):
            raise KeyFileError(
                f"{path}: belongs to another user, or others can write to it. "
                f"First: chmod go-w {quote(str(path))}"
            )


def _own_key() -> PrivateKey | None:
    named = os.environ.get(KEY_VARIABLE)
    if named:
        return load_private(Path(named))
    path = default_private_key()
    try:
        # A running program cannot ask for a passphrase.
        return None if not path.is_file() or is_encrypted(path) else load_private(path)
    except KeyFileError:
        return None
