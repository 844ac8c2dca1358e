"""`firstlight verify SNAPSHOT`: what holds, what does not, what was skipped, what no file tells."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firstlight.snapshot.verifying import Verification

EPILOG = """\
exit codes: 0 everything was checked and holds, 1 something does not, 2 it is no snapshot that can
be read (also one of a newer Firstlight, or one that holds links, bombs or paths that lead out), 3
nothing wrong was found, but not everything could be checked: what, is listed as `skipped`, and
every file of which only the hash is known as `unchecked`
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
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

        print(json.dumps({**to_json(found), **_verdict(found)}, indent=1))
    else:
        tell(found)
    return found.exit_code


def _with_distrust(found: Verification) -> Verification:
    from dataclasses import replace

    from firstlight.snapshot.verifying import Finding

    finding = Finding("signature", f"no trusted key signed it (signature: {found.signature})")
    return replace(found, findings=(*found.findings, finding))


def _verdict(found: Verification) -> dict[str, Any]:
    return {"ok": not found.findings, "outcome": found.outcome}


def tell(found: Verification) -> None:
    from firstlight.report.plain_text import printable

    print(f"Snapshot {found.id}")
    for text in found.checked:
        print(f"  ok         {printable(text)}")
    for text in found.not_checked:
        print(f"  unknown    {printable(text)}")
    for text in found.skipped:
        print(f"  skipped    {printable(text)}")
    for path in found.unchecked_files:
        print(f"  unchecked  {printable(path)}")
    for finding in found.findings:
        print(f"  FINDING    {printable(finding.message)}")
    print(last_line(found))
    for text in found.loads:
        print(f"Measured on a loaded machine: {printable(text)} when it began.")


def last_line(found: Verification) -> str:
    """The verdict in words. `Valid` alone only if everything that can be checked was."""
    from firstlight.snapshot.verifying import Outcome

    if found.outcome is Outcome.NOT_VALID:
        return f"Not valid: {len(found.findings)} finding(s). Do not quote its numbers."
    if found.outcome is Outcome.NUMBERS_NOT_CHECKED:
        return "Nothing wrong was found, but its numbers were not held against its samples."
    if found.outcome is Outcome.VALID:
        return "Valid, as far as files can tell."
    if found.unchecked_files:
        return (
            f"Valid, but {len(found.unchecked_files)} files were not checked (see `unchecked`): "
            "do not rely on them."
        )
    return f"Valid, but {len(found.skipped)} check(s) were skipped (see `skipped`)."
