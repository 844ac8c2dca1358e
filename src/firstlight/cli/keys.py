"""`firstlight keys`: make a key to sign with, show it, and say whose keys are trusted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    parser = commands.add_parser("keys")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    make = actions.add_parser("generate", help="make a key pair (Ed25519)")
    make.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="private key, new (default: your own place)",
    )
    make.add_argument("--passphrase", action="store_true", help="ask for one to lock the key")
    make.add_argument(
        "--passphrase-file", type=Path, metavar="FILE", help="lock it with the first line of FILE"
    )
    make.set_defaults(handle=generate)

    show = actions.add_parser("show", help="print the public key and its id")
    show.add_argument("key", nargs="?", metavar="KEY", help="a key file (default: your own)")
    show.set_defaults(handle=show_key)

    trust = actions.add_parser("trust", help="trust what this key signs")
    trust.add_argument("key", metavar="KEY", help="a public key: a file, or its base64")
    trust.add_argument("--name", required=True, metavar="NAME", help="whose key it is")
    trust.set_defaults(handle=trust_key)

    forget = actions.add_parser("forget", help="trust a key no longer")
    forget.add_argument("id", metavar="ID", help="its id, as `firstlight keys list` shows it")
    forget.set_defaults(handle=forget_key)

    listing = actions.add_parser("list", help="whose keys are trusted")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(handle=list_keys)


def generate(options: argparse.Namespace) -> int:
    from firstlight.cli.publish import read_passphrase
    from firstlight.snapshot.keys import generate as make
    from firstlight.snapshot.trust import default_private_key

    path = options.out or default_private_key()
    passphrase = read_passphrase(options.passphrase_file)
    if options.passphrase and passphrase is None:
        passphrase = _asked_twice()
    public = make(path, passphrase)
    print(f"Private key: {path} (only you can read it; keep a copy where nobody else can)")
    print(f"Public key:  {public.base64}")
    print(f"Id:          {public.id}")
    print(f"Others trust it with: firstlight keys trust {public.base64} --name NAME")
    return 0


def _asked_twice() -> bytes:
    from getpass import getpass

    from firstlight.snapshot.errors import KeyFileError

    first = getpass("Passphrase: ")
    if not first or getpass("Again: ") != first:
        raise KeyFileError("the passphrases are empty or differ; no key was made.")
    return first.encode()


def show_key(options: argparse.Namespace) -> int:
    from firstlight.snapshot.errors import KeyFileError
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
    from firstlight.snapshot.trust import TrustedKeys

    public, trusted = load_public(options.key), TrustedKeys.of_user()
    same = trusted.others_named(public, options.name)
    trusted.add(public, options.name)
    for key_id in same:
        print(
            f"warning: the key {key_id} has this name too. If it is no longer used: firstlight "
            f"keys forget {key_id}",
            file=sys.stderr,
        )
    print(f"Trusted: {options.name} ({public.id})")
    return 0


def forget_key(options: argparse.Namespace) -> int:
    from firstlight.snapshot.trust import TrustedKeys

    print(f"No longer trusted: {TrustedKeys.of_user().remove(options.id)}")
    return 0


def list_keys(options: argparse.Namespace) -> int:
    from firstlight.report.plain_text import printable
    from firstlight.snapshot.trust import TrustedKeys

    found = TrustedKeys.of_user().all()
    if options.json:
        import json

        plain = [
            {"id": key_id, "name": name, "public_key": key.base64}
            for key_id, (key, name) in found.items()
        ]
        print(json.dumps(plain, indent=1))
        return 0
    for key_id, (key, name) in found.items():
        print(f"{key_id}  {key.base64}  {printable(name)}")
    if not found:
        print("No key is trusted yet: firstlight keys trust KEY --name NAME", file=sys.stderr)
    return 0
