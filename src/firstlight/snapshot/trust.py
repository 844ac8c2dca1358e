"""Whose signatures this user trusts: a folder with one public key a file."""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from firstlight.records import write_text
from firstlight.snapshot.errors import KeyFileError
from firstlight.snapshot.keys import PublicKey

_MOST_LETTERS = 80
_MARKS = " ._@+-'"


def config_folder() -> Path:
    """Where a user's settings live: $XDG_CONFIG_HOME/firstlight, or ~/.config/firstlight."""
    base = os.environ.get("XDG_CONFIG_HOME")
    # The specification says that a relative path is to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".config"
    return root / "firstlight"


def default_private_key() -> Path:
    """Where `firstlight keys generate` puts a key unless told otherwise."""
    return config_folder() / "signing-key.pem"


@dataclass(frozen=True)
class TrustedKeys:
    """The keys in `folder`, each in a file named by its id: base64, a space, a name."""

    folder: Path

    @classmethod
    def of_user(cls) -> TrustedKeys:
        return cls(config_folder() / "trusted-keys")

    def add(self, key: PublicKey, name: str) -> None:
        """Trust `key`, shown as `name`."""
        name = unicodedata.normalize("NFC", name)  # ü has one spelling
        if (
            not name[:1].isalnum()
            or len(name) > _MOST_LETTERS
            or not all(c.isalnum() or c in _MARKS for c in name)
        ):
            raise KeyFileError(
                f"{name!r:.90} is no name for a key: letters, digits, spaces and . _ @ + - ' only, "
                f"at most {_MOST_LETTERS}, a letter or digit first."
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_text(self.folder / f"{key.id}.pub", f"{key.base64} {name}\n")

    def remove(self, beginning: str) -> str:
        """Trust a key no longer; returns its id, of which `beginning` is enough if it is unique."""
        key_id = self.full_id(beginning)
        (self.folder / f"{key_id}.pub").unlink()
        return key_id

    def full_id(self, beginning: str) -> str:
        """The one trusted key whose id begins like this."""
        found = [key_id for key_id in self.all() if beginning and key_id.startswith(beginning)]
        if len(found) != 1:
            why = "several of the trusted keys begin so" if found else "not among the trusted keys"
            raise KeyFileError(f"{beginning[:60]}: {why}.")
        return found[0]

    def all(self) -> dict[str, tuple[PublicKey, str]]:
        """{id: (key, name)}; a file that is not what its name says is an error, not skipped."""
        found = {}
        for path in sorted(self.folder.glob("*.pub")) if self.folder.is_dir() else ():
            text, _, name = _line(path).partition(" ")
            try:
                key = PublicKey.from_base64(text)
            except KeyFileError:
                raise KeyFileError(f"{path}: holds no public key. Remove it.") from None
            if f"{key.id}.pub" != path.name:
                raise KeyFileError(f"{path}: holds another key than its name says. Remove it.")
            found[key.id] = (key, name)
        return found

    def others_named(self, key: PublicKey, name: str) -> list[str]:
        """Ids of other keys that are shown by the same name."""
        name = unicodedata.normalize("NFC", name)
        return [i for i, (other, called) in self.all().items() if called == name and other != key]

    def name_of(self, key: PublicKey) -> str | None:
        """What the user calls this key, or None if it is not trusted."""
        found = self.all().get(key.id)
        return found[1] if found is not None and found[0] == key else None


def _line(path: Path) -> str:
    try:
        return path.read_text("utf-8").rstrip("\n")
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{path}: holds no text, so no public key. Remove it.") from None
