"""The keys that this user trusts: a folder with one public key per file."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.snapshot.errors import KeyFileError
from firstlight.snapshot.keys import PublicKey
from firstlight.whole_files import write_text

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_MAX_LETTERS = 80
_MARKS = " ._@+-'"
#: Characters that look like Latin letters, and the letters.
_CONFUSABLE = str.maketrans(
    "АВЕЅІЈКМНОРСТУХҮԚԜаеѕіјорсухһԁԛԝвкмнтгпьӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧαικνορτυχγ01|ıłøđℓ",
    "ABESIJKMHOPCTYXYQWaesijopcyxhdqwbkmhtrnblABEZHIKMNOPTYXaikvoptuxyollilodl",
)


def config_folder() -> Path:
    """The folder of a user's settings: $XDG_CONFIG_HOME/firstlight, or ~/.config/firstlight."""
    base = os.environ.get("XDG_CONFIG_HOME")
    # The specification requires that a relative path is ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".config"
    return root / "firstlight"


def default_private_key() -> Path:
    """The default path of `firstlight keys generate`."""
    return config_folder() / "signing-key.pem"


class Standing(StrEnum):
    """What a signature by a known key is worth."""

    TRUSTED = "trusted"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True)
class Trusted:
    """A key that the user trusts or has trusted; from each of the two days on, it is not."""

    key: PublicKey
    name: str
    until: date | None = None
    revoked: date | None = None

    def standing(self, proven: datetime | None, now: datetime) -> Standing:
        """The standing of a signature made at `proven`, which a thief cannot backdate, or `now`."""
        if self.revoked and (proven is None or proven.date() >= self.revoked):
            return Standing.REVOKED
        if self.until and (proven or now).date() >= self.until:
            return Standing.EXPIRED
        return Standing.TRUSTED


@dataclass(frozen=True)
class TrustedKeys:
    """The keys in `folder`, each in a file named by its id: base64, a space, a name.

    Lines `until DAY` and `revoked DAY` may follow. Certificates of time-stamping authorities are
    in the same folder: a line with the name, then PEM.
    """

    folder: Path

    @classmethod
    def of_user(cls) -> TrustedKeys:
        return cls(config_folder() / "trusted-keys")

    @classmethod
    def for_programs(cls) -> TrustedKeys:
        """Keys whose compiled programs run with this user's rights; trusted separately."""
        return cls(config_folder() / "trusted-program-keys")

    def add(self, key: PublicKey, name: str, until: date | None = None) -> None:
        """Trust `key`; refused if it was revoked, since a thief may ask for just that."""
        known = self.known(key)
        if known is not None and known.revoked is not None:
            raise KeyFileError(
                f"the key {key.id} ({known.name}) was revoked on {known.revoked}. Ask its holder "
                "for the new key. If the revocation was a mistake, undo it first: "
                f"firstlight keys forget {key.id[:12]}"
            )
        self._write_key(Trusted(key, require_name(name), until))

    def revoke(self, beginning: str, since: date) -> Trusted:
        """Trust a key only for what is proven to be older than the day `since`."""
        found = self.all().get(self.full_id(beginning))
        if found is None:
            raise KeyFileError(
                f"{beginning[:60]}: a time-stamping authority, not a key. Remove it with: "
                f"firstlight keys forget {beginning[:60]}"
            )
        revoked = replace(found, revoked=since)
        self._write_key(revoked)
        return revoked

    def _write_key(self, trusted: Trusted) -> None:
        days = {"until": trusted.until, "revoked": trusted.revoked}
        lines = [f"{trusted.key.base64} {trusted.name}"]
        lines += [f"{word} {day}" for word, day in days.items() if day]
        self._write(f"{trusted.key.id}.pub", "\n".join(lines) + "\n")

    def _write(self, name: str, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_text(self.folder / name, text)

    def remove(self, beginning: str) -> str:
        """Forget a key or an authority by a prefix of its id; returns the id."""
        key_id = self.full_id(beginning)
        for ending in (".pub", ".pem"):
            (self.folder / f"{key_id}{ending}").unlink(missing_ok=True)
        return key_id

    def full_id(self, beginning: str) -> str:
        """The id of the one trusted key or authority that begins like this."""
        known = {*self.all(), *self.authorities()}
        found = [key_id for key_id in known if beginning and key_id.startswith(beginning)]
        if len(found) != 1:
            why = "several trusted keys begin with this" if found else "not among the trusted keys"
            raise KeyFileError(f"{beginning[:60]}: {why}.")
        return found[0]

    def all(self) -> dict[str, Trusted]:
        """{id: key}; raises for a file whose content does not match its name."""
        found = {}
        for path, text in self._files(".pub"):
            first, *rest = text.rstrip("\n").split("\n")
            encoded, _, name = first.partition(" ")
            try:
                days = {word: date.fromisoformat(day) for word, day in map(str.split, rest)}
                trusted = Trusted(PublicKey.from_base64(encoded), name, **days)
            except (KeyFileError, ValueError, TypeError):
                raise KeyFileError(f"{path}: contains no public key. Remove it.") from None
            if trusted.key.id != path.stem:
                raise KeyFileError(f"{path}: a different key than its name says. Remove it.")
            found[path.stem] = trusted
        return found

    def _files(self, ending: str) -> Iterator[tuple[Path, str]]:
        for path in sorted(self.folder.glob(f"*{ending}")):
            try:
                yield path, path.read_text("utf-8")
            except OSError as error:
                raise KeyFileError(f"{path}: cannot be read: {error.strerror}.") from None
            except UnicodeDecodeError:
                raise KeyFileError(f"{path}: contains no text, so no key. Remove it.") from None

    def add_authority(self, pem: bytes, name: str) -> str:
        """Trust the time stamps of this certificate and of those it issues; returns its id."""
        certificate_id, _ = _certificate(pem)
        text = f"{require_name(name)}\n{pem.decode('ascii', 'replace')}"
        self._write(f"{certificate_id}.pem", text)
        return certificate_id

    def authorities(self) -> dict[str, tuple[Certificate, str]]:
        """{id: (certificate, name)} of the trusted time-stamping authorities."""
        found = {}
        for path, text in self._files(".pem"):
            name, _, pem = text.partition("\n")
            certificate_id, certificate = _certificate(pem.encode())
            if certificate_id != path.stem:
                raise KeyFileError(f"{path}: a certificate of another name. Remove it.")
            found[path.stem] = (certificate, name)
        return found

    def others_named(self, key: PublicKey, name: str) -> dict[str, str]:
        """{id: name} of other keys whose names look the same."""
        others = {key_id: other for key_id, other in self.all().items() if other.key != key}
        looks = skeleton(name)
        return {key_id: o.name for key_id, o in others.items() if skeleton(o.name) == looks}

    def known(self, key: PublicKey) -> Trusted | None:
        found = self.all().get(key.id)
        return found if found is not None and found.key == key else None

    def name_of(self, key: PublicKey) -> str | None:
        """The user's name for this key, if it is trusted today."""
        known = self.known(key)
        trusts = known is not None and known.standing(None, datetime.now(UTC)) is Standing.TRUSTED
        return known.name if known is not None and trusts else None


def require_name(name: str) -> str:
    """The name of a key, normalised; refused if it has invisible characters."""
    name = unicodedata.normalize("NFC", name)  # ü may be one character or two
    visible = all(c.isalnum() or c in _MARKS for c in name)
    if not visible or not name[:1].isalnum() or len(name) > _MAX_LETTERS:
        raise KeyFileError(
            f"{name!r:.90} is not a key name: letters, digits, spaces and . _ @ + - ' only, "
            f"at most {_MAX_LETTERS}, a letter or digit first."
        )
    return name


def skeleton(name: str) -> str:
    """A key that is equal for names that look alike: without accents, case and word order."""
    plain = unicodedata.normalize("NFKD", name).translate(_CONFUSABLE).casefold()
    plain = "".join(c for c in plain if not unicodedata.combining(c)).translate(_CONFUSABLE)
    plain = plain.replace("rn", "m").replace("vv", "w").replace("i", "l")  # I and l are one stroke
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return " ".join(sorted(words))


def _certificate(pem: bytes) -> tuple[str, Certificate]:
    """(id, certificate) from PEM."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(pem)
    except ValueError:
        raise KeyFileError("not a certificate in PEM.") from None
    return certificate.fingerprint(SHA256()).hex()[:32], certificate
