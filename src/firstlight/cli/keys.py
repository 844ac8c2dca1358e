"""`firstlight keys`: make and show a signing key, and choose whose keys are trusted."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, date, datetime
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_actions
from firstlight.present.plain_text import printable
from firstlight.snapshot.errors import KeyFileError

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.records import JsonObject
    from firstlight.snapshot.trust import TrustedKeys


def add_to(commands: Commands) -> None:
    about = "Manage your signing key, and the keys whose signatures you trust."
    action = add_actions(commands, "keys", about)
    add = action("generate", "make a key pair (Ed25519)", generate)
    out = "private key file; must be new (default: your own key)"
    add("--out", type=Path, metavar="FILE", help=out)
    add("--passphrase", action="store_true", help="ask for a passphrase to encrypt the key with")
    add("--passphrase-file", type=Path, metavar="FILE", help="its first line is the passphrase")
    add = action("show", "print the public key and its id", show_key)
    add("key", nargs="?", metavar="KEY", help="a key file (default: your own)")
    add = action("trust", "trust signatures by this key", trust_key)
    add(
        "key",
        metavar="KEY",
        help="a public key: a file, or its base64; or the certificate (PEM) of an authority whose "
        "time stamps you trust",
    )
    add("--name", required=True, metavar="NAME", help="whose key it is")
    day = {"type": _day, "metavar": "DAY"}
    add("--until", **day, help="only signatures before this day, such as 2027-01-31")
    programs = {"action": "store_true"}
    about = (
        "trust it for compiled programs instead: everything its holder signs runs with your rights"
    )
    add("--programs", "--for-programs", **programs, help=about)
    add = action("revoke", "stop trusting the signatures of a lost or stolen key", revoke_key)
    add("id", metavar="ID", help="the id of the key, or its first characters")
    since = "from this day on (default: today); signatures proven to be older stay trusted"
    add("--since", **day, help=since)
    for_programs = "among the keys trusted for compiled programs"
    add("--programs", "--for-programs", **programs, help=for_programs)
    add = action("forget", "remove a key from the trusted keys", forget_key)
    add("id", metavar="ID", help="the id of the key, or its first characters")
    add("--programs", "--for-programs", **programs, help=for_programs)
    add = action("list", "list the trusted keys", list_keys)
    add("--json", action="store_true", help="print JSON")
    add("--programs", "--for-programs", **programs, help="the keys trusted for compiled programs")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give a day such as 2027-01-31") from None


def _trusted(options: argparse.Namespace) -> TrustedKeys:
    from firstlight.snapshot.trust import TrustedKeys

    return TrustedKeys.for_programs() if options.programs else TrustedKeys.of_user()


def generate(options: argparse.Namespace) -> int:
    from firstlight.cli.publish import read_passphrase
    from firstlight.snapshot.keys import generate as make
    from firstlight.snapshot.trust import default_private_key

    path = options.out or default_private_key()
    passphrase = read_passphrase(options.passphrase_file)
    if options.passphrase and passphrase is None:
        passphrase = getpass("Passphrase: ").encode()
        if not passphrase or getpass("Again: ").encode() != passphrase:
            raise KeyFileError("the passphrases are empty or differ; no key was made.")
    public = make(path, passphrase)
    print(f"Private key: {path} (only you can read it; keep a backup somewhere private)")
    print(f"Public key:  {public.base64}")
    print(f"Id:          {public.id}")
    print(f"Others trust it with: firstlight keys trust {public.base64} --name NAME")
    return 0


def show_key(options: argparse.Namespace) -> int:
    from firstlight.snapshot.keys import load_public
    from firstlight.snapshot.trust import default_private_key

    own = default_private_key()
    if options.key is None and not own.is_file():
        raise KeyFileError(f"{own}: you have no key yet. Make one: firstlight keys generate")
    public = load_public(options.key or str(own))
    print(f"Public key: {public.base64}")
    print(f"Id:         {public.id}")
    print(public.pem().decode(), end="")
    return 0


def trust_key(options: argparse.Namespace) -> int:
    from firstlight.snapshot.keys import load_public

    trusted, path = _trusted(options), Path(options.key)
    if (
        not options.programs
        and path.is_file()
        and b"BEGIN CERTIFICATE" in (pem := path.read_bytes())
    ):
        certificate_id = trusted.add_authority(pem, options.name)
        print(f"Trusted for time stamps: {options.name} ({certificate_id})")
        return 0
    public = load_public(options.key)
    same = trusted.others_named(public, options.name)
    trusted.add(public, options.name, options.until)
    for key_id, name in same.items():
        looks = "also has this name" if name == options.name else f"is {name!r}, which looks alike"
        print(
            f"warning: the key {key_id} {looks}. Make sure who holds which; if one is no longer "
            f"in use: firstlight keys forget {key_id[:12]}",
            file=sys.stderr,
        )
    if options.until is not None and options.until <= datetime.now(UTC).date():
        print(
            f"warning: {options.until} is in the past: only signatures that a time stamp proves to "
            "be older are trusted.",
            file=sys.stderr,
        )
    what = "Trusted to run its programs" if options.programs else "Trusted"
    print(f"{what}: {options.name} ({public.id})")
    return 0


def revoke_key(options: argparse.Namespace) -> int:
    found = _trusted(options).revoke(options.id, options.since or datetime.now(UTC).date())
    print(f"Revoked since {found.revoked}: {found.name} ({found.key.id})")
    _print_how_to_prune(options, found.key.id)
    return 0


def forget_key(options: argparse.Namespace) -> int:
    key_id = _trusted(options).remove(options.id)
    print(f"No longer trusted: {key_id}")
    _print_how_to_prune(options, key_id)
    return 0


def _print_how_to_prune(options: argparse.Namespace, key_id: str) -> None:
    if options.programs:
        command = f"firstlight cache prune --signed-by {key_id}"
        print(f"What it signed before may be in your cache. Remove it: {command}")


def list_keys(options: argparse.Namespace) -> int:
    trusted = _trusted(options)
    found, authorities = trusted.all(), trusted.authorities()
    if options.json:
        plain: list[JsonObject] = [
            {"id": key_id, "name": one.name, "public_key": one.key.base64,
             "until": one.until and str(one.until), "revoked": one.revoked and str(one.revoked)}
            for key_id, one in found.items()
        ]  # fmt: skip
        plain += [{"id": i, "name": n, "authority": True} for i, (_, n) in authorities.items()]
        print(json.dumps(plain, indent=1))
        return 0
    for key_id, one in found.items():
        ends = f"  until {one.until}" if one.until else ""
        ends += f"  REVOKED since {one.revoked}" if one.revoked else ""
        print(f"{key_id}  {one.key.base64}  {printable(one.name)}{ends}")
    for certificate_id, (_, name) in authorities.items():
        print(f"{certificate_id}  {'time stamps':<44}  {printable(name)}")
    if not found and not authorities:
        print("No key is trusted yet: firstlight keys trust KEY --name NAME", file=sys.stderr)
    return 0
