"""`firstlight publish RUN… --out PLACE`: an immutable snapshot that anyone can check."""

from __future__ import annotations

import argparse
import json
import re
import sys
from getpass import getpass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from firstlight.cli.values import add_command
from firstlight.present.plain_text import printable
from firstlight.present.progress import LiveLine
from firstlight.records import to_json
from firstlight.snapshot.errors import KeyFileError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firstlight.cli.values import Commands
    from firstlight.snapshot.keys import PrivateKey
    from firstlight.snapshot.manifest import Creator
    from firstlight.snapshot.publishing import Published
    from firstlight.snapshot.storage import Store

EPILOG = """\
examples:
  firstlight publish firstlight-runs/20260301T091500-quick --out results
  firstlight publish RUN1 RUN2 --out s3://bucket/results --key my-key.pem --archive
  firstlight publish RUN --out results --creator 'Doe, Jane; 0000-0002-1825-0097; CERN' \\
      --title 'Start-up of our fits' --license CC-BY-4.0

What is published: the raw samples, the plan, the machine, the versions of all packages, and the
environment variables shown by `firstlight system`. Home directories, passwords, tokens, values of
variables named like secrets, and the user and machine names are replaced, and listed; use --redact
for anything else that must not be public.

exit codes: 0 published; 2 refused, wrong usage or a machine problem; 130 interrupted"""


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "publish",
        handle,
        "Make an immutable, content-addressed snapshot of one or more runs.",
        EPILOG,
    )
    add, signing = parser.add_argument, parser.add_mutually_exclusive_group()
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    many: dict[str, Any] = {"action": "append", "default": []}
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    add("--out", required=True, metavar="PLACE", help="directory or URL that holds snapshots")
    own = "sign with this private key (default: the one from `firstlight keys generate`)"
    signing.add_argument("--key", **file, help=own)
    signing.add_argument("--unsigned", action="store_true", help="do not sign")
    add("--passphrase-file", **file, help="its first line unlocks the key")
    add("--archive", action="store_true", help="also write PLACE/ID.tar, always the same bytes")
    add("--title", metavar="TEXT", help="for citation (default: what was measured)")
    add(
        "--creator",
        **many,
        metavar="'FAMILY, GIVEN[; ORCID[; AFFILIATION]]'",
        help="author to cite (repeatable); a name without a comma is a group",
    )
    add("--license", metavar="SPDX", help="such as CC-BY-4.0")
    add(
        "--allow",
        **many,
        choices=("incomplete", "unproven", "failed"),
        help="publish such cases too: the snapshot says so, and has no numbers for unproven or "
        "failed ones (repeatable)",
    )
    add("--redact", **many, metavar="TEXT", help="text to replace (repeatable)")
    source = "add your own benchmark file, so that others can measure it again"
    add("--with-source", action="store_true", help=source)
    add("--json", action="store_true", help="print what was published as JSON")


def handle(options: argparse.Namespace) -> int:
    from firstlight.snapshot.publishing import Wishes, publish
    from firstlight.snapshot.storage import open_store

    if options.out.lower().startswith("memory:"):
        raise RefusedError(
            f"--out {options.out}: memory lasts only as long as this command, and the snapshot "
            "would be lost. Give a directory, or a URL such as s3://bucket/results."
        )
    wishes = Wishes(
        title=options.title,
        creators=tuple(creator(text) for text in options.creator),
        license=options.license,
        allow=tuple(options.allow),
        redact=tuple(text for text in options.redact if text),
        with_source=options.with_source,
    )
    key = signing_key(options.key or own_key(options.unsigned), options.passphrase_file)
    store, signer = open_store(options.out), key.public.base64 if key else None
    steps = LiveLine(sys.stderr)
    try:
        done = publish(options.runs, store, wishes, key, options.archive, steps.show)
    finally:
        steps.clear()
    beside = write_beside(store, done.id, signer)
    if options.json:
        print(json.dumps({**to_json(done), **beside}, indent=1))
    else:
        print_published(done, beside, signer)
    return 0


def write_beside(store: Store, snapshot_id: str, signer: str | None) -> dict[str, str]:
    """Write snippet and citation with the id, which they cannot contain inside the snapshot."""
    from firstlight.snapshot.citation import citation_with_id, snippet_with_id
    from firstlight.snapshot.layout import LIMITS

    written = {}
    for kind, name, with_id in (
        ("snippet", "snippet.md", snippet_with_id),
        ("citation", "CITATION.cff", citation_with_id),
    ):
        within = store.source(snapshot_id).read(name, LIMITS.json_bytes)
        store.write(f"{snapshot_id}.{name}", with_id(within, snapshot_id, signer))
        written[kind] = f"{store.name.rstrip('/')}/{snapshot_id}.{name}"
    return written


def creator(text: str) -> Creator:
    """Parse 'Doe, Jane; 0000-0002-1825-0097; CERN'."""
    from firstlight.snapshot.manifest import Creator

    name, orcid, affiliation, *more = [*(part.strip() for part in text.split(";")), "", ""]
    if any(more) or not name:
        raise RefusedError(f"--creator {text!r}: write 'FAMILY, GIVEN; ORCID; AFFILIATION'.")
    orcid = orcid.removeprefix("https://orcid.org/")
    if orcid and not is_orcid(orcid):
        raise RefusedError(
            f"--creator {text!r}: {orcid!r} is not an ORCID (such as 0000-0002-1825-0097), or one "
            "of its digits is wrong: the check digit does not match."
        )
    return Creator(name, orcid or None, affiliation or None)


def is_orcid(text: str) -> bool:
    """Return whether `text` is an ORCID with a valid check digit (ISO 7064, MOD 11-2)."""
    if not re.fullmatch(r"([0-9]{4}-){3}[0-9]{3}[0-9X]", text):
        return False
    total = 0
    for digit in text[:-1].replace("-", ""):
        total = (total + int(digit)) * 2
    return text[-1] == "0123456789X"[(12 - total % 11) % 11]


def own_key(unsigned: bool) -> Path | None:
    """Return the user's own key unless `unsigned`; warn if there is none."""
    from firstlight.snapshot.trust import default_private_key

    path = default_private_key()
    if unsigned or path.is_file():
        return None if unsigned else path
    print(
        "warning: NOT SIGNED. Nobody can tell from this snapshot who published it. Make a key "
        "once (firstlight keys generate) to sign with, or silence this with --unsigned.",
        file=sys.stderr,
    )
    return None


def require_standing(key: PrivateKey) -> None:
    from datetime import UTC, datetime

    from firstlight.snapshot.trust import Standing, TrustedKeys

    known = TrustedKeys.of_user().known(key.public)
    standing = known.standing(None, datetime.now(UTC)) if known else Standing.TRUSTED
    if known is not None and standing is not Standing.TRUSTED:
        raise KeyFileError(
            f"the key {known.key.id} ({known.name}) is {standing} and can no longer sign. "
            "Make another with `firstlight keys generate --out FILE`."
        )


def signing_key(path: Path | None, passphrase_file: Path | None) -> PrivateKey | None:
    """Return the unlocked signing key; asks for the passphrase on the terminal if needed.

    A key that the user has revoked, or that has expired, is refused.
    """
    if path is None:
        return None
    from firstlight.snapshot.keys import is_encrypted, load_private

    passphrase = read_passphrase(passphrase_file)
    if passphrase is None and is_encrypted(path) and sys.stdin.isatty():
        passphrase = getpass(f"Passphrase of {path}: ").encode()
    key = load_private(path, passphrase)
    require_standing(key)
    return key


def read_passphrase(path: Path | None) -> bytes | None:
    """Return the first line of a file."""
    if path is None:
        return None

    try:
        line = path.read_bytes().split(b"\n", 1)[0].rstrip(b"\r")
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}.") from None
    if not line:
        raise KeyFileError(f"{path}: its first line is empty.")
    return line


def print_published(done: Published, beside: Mapping[str, str], signer: str | None) -> None:
    from firstlight.snapshot.keys import PublicKey

    print(f"{'Published' if done.new else 'Already published'}: {done.location}")
    signed = f"signed with the key {PublicKey.from_base64(signer).id}" if signer else "NOT SIGNED"
    print(f"  {done.files} files, {done.bytes} bytes, {signed}")
    if done.archive:
        print(f"  archive: {done.archive}")
    for path, found in done.replaced.items():
        kinds = (
            f"{one.times} × {f'value of {one.variable}' if one.variable else one.kind}"
            for one in found
        )
        print(f"  replaced in {path}: {', '.join(kinds)}")
    for source in done.publication.sources:
        if source["path"] is None:
            name = printable(str(source["name"]))
            print(f"  {name} is not included; --with-source lets others measure it again")
    print(f"  for a README: {beside['snippet']}")
    print(f"  for citing: {beside['citation']}")
    print(f"Id: {done.id}" + (f"\nKey: {signer}" if signer else ""))
    print(f"Check it: firstlight verify {quote(done.location)}")
