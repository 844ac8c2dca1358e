"""`firstlight verify SNAPSHOT`: what holds of a snapshot, what does not, what nobody can check."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firstlight.snapshot.verifying import Verification

EPILOG = """\
exit codes: 0 all that could be checked holds, 1 something does not, 2 it is no snapshot that can be
read (also one of a newer Firstlight, or one that holds links, bombs or paths that lead out)
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        help="check a snapshot: hashes, signature, schemas, and that its numbers follow",
        description="Check a snapshot without trusting it. Nothing is unpacked or executed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("snapshot", metavar="SNAPSHOT", help="a directory, a .tar, a .tar.gz, or a URL")
    add("--id", metavar="ID", help="the id that it must have, from a paper or a colleague")
    add("--require-trusted", action="store_true", help="a finding unless a trusted key signed it")
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(handle=handle)


def handle(options: argparse.Namespace) -> int:
    from firstlight.snapshot.errors import UnusableSnapshotError
    from firstlight.snapshot.verifying import verify

    try:
        found = verify(options.snapshot, options.id)
    except UnusableSnapshotError as error:
        if not options.json:
            raise
        print(json.dumps({"location": options.snapshot, "ok": False, "unusable": str(error)}))
        return 2
    if options.require_trusted and found.signature != "trusted":
        found = _with_distrust(found)
    if options.json:
        from firstlight.records import to_json

        print(json.dumps({**to_json(found), "ok": not found.findings}, indent=1))
    else:
        tell(found)
    return found.exit_code


def _with_distrust(found: Verification) -> Verification:
    from dataclasses import replace

    from firstlight.snapshot.verifying import Finding

    finding = Finding("signature", f"no trusted key signed it (signature: {found.signature})")
    return replace(found, findings=(*found.findings, finding))


def tell(found: Verification) -> None:
    from firstlight.report.plain_text import printable

    print(f"Snapshot {found.id}")
    for text in found.checked:
        print(f"  ok         {printable(text)}")
    for text in found.not_checked:
        print(f"  unknown    {printable(text)}")
    for finding in found.findings:
        print(f"  FINDING    {printable(finding.message)}")
    if found.findings:
        print(f"Not sound: {len(found.findings)} finding(s). Do not quote its numbers.")
    else:
        print("Sound, as far as files can tell.")
