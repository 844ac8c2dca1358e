"""`firstlight verify SNAPSHOT`: what holds, what does not, what was skipped or cannot be known."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command
from firstlight.present.plain_text import printable
from firstlight.present.progress import LiveLine
from firstlight.present.quantities import counted
from firstlight.records import JsonObject, to_json
from firstlight.snapshot.errors import UnusableSnapshotError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firstlight.cli.values import Commands
    from firstlight.errors import FirstlightError
    from firstlight.snapshot.verification import Verification

EPILOG = """\
exit codes: 0 everything was checked and holds; 1 something does not hold; 2 not a readable snapshot
(this includes one from a newer Firstlight, and links, decompression bombs or paths that lead out of
it); 3 nothing wrong was found, but not everything could be checked: skipped checks are listed as
`skipped`, files of which only the hash is known as `unchecked`. For several, the worst."""


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "verify",
        handle,
        "Check a snapshot without trusting it. Nothing is unpacked or executed.",
        EPILOG,
    )
    add = parser.add_argument
    add(
        "snapshot",
        metavar="SNAPSHOT",
        help="a directory, a .tar, a .tar.gz, or a URL (a prefix of the id is enough); or a place "
        "that holds snapshots, all of which are verified",
    )
    add("--id", metavar="ID", help="the id it must have, from a paper or a colleague")
    add("--require-trusted", action="store_true", help="fail unless a trusted key signed it")
    token = "an RFC 3161 token over its index.json (default: ID.tsr beside it)"
    add("--timestamp", type=Path, metavar="FILE", help=token)
    add("--json", action="store_true", help="print JSON")


def handle(options: argparse.Namespace) -> int:
    from firstlight.snapshot.storage import open_store

    ids = snapshots_within(options.snapshot)
    if ids:
        if options.id is not None or options.timestamp is not None:
            options.parser.error("--id and --timestamp need one snapshot; this place has several")
        return verify_all(options, open_store(options.snapshot).name.rstrip("/"), ids)
    try:
        found = checked(options.snapshot, options)
    except UnusableSnapshotError as error:
        if not options.json:
            raise
        print(json.dumps(unusable(options.snapshot, error)))
        return 2
    if options.json:
        print(json.dumps(plain(found), indent=1))
    else:
        print_verification(found)
    return found.exit_code


def snapshots_within(place: str) -> list[str]:
    """Return the ids of the snapshots in a store; [] if `place` is a snapshot or not a folder."""
    from firstlight.snapshot.archive import ARCHIVES
    from firstlight.snapshot.layout import INDEX
    from firstlight.snapshot.storage import full_location, local_path, open_store

    location = full_location(place)
    path = local_path(location)
    if location.endswith(ARCHIVES) or (path is not None and not path.is_dir()):
        return []
    store = open_store(location)
    return [] if store.read(INDEX, 1 << 22) is not None else store.ids()


def checked(location: str, options: argparse.Namespace) -> Verification:
    from firstlight.snapshot.verification import Finding
    from firstlight.snapshot.verifying import verify

    token = options.timestamp.read_bytes() if options.timestamp else None
    found = verify(location, options.id, timestamp=token)
    if found.signature == "trusted" or not options.require_trusted:
        return found
    finding = Finding("signature", f"no trusted key signed it (signature: {found.signature})")
    return replace(found, findings=(*found.findings, finding))


def verify_all(options: argparse.Namespace, place: str, ids: Sequence[str]) -> int:
    """Print one line per snapshot of a store, followed by its findings."""
    steps, shown = LiveLine(sys.stderr), []
    codes: Counter[int] = Counter()
    for number, snapshot_id in enumerate(ids, start=1):
        steps.show(f"[{number}/{len(ids)}] verifying {snapshot_id[:12]}…")
        location = f"{place}/{snapshot_id}"
        try:
            found = checked(location, options)
        except UnusableSnapshotError as error:
            codes[2] += 1
            shown.append(unusable(location, error))
            lines = [f"unusable   {snapshot_id}  {error}"]
        else:
            codes[found.exit_code] += 1
            shown.append(plain(found))
            by = found.signer_name or (f"key {found.signer[:12]}" if found.signer else "")
            signed = f"signed by {by}" if by else "not signed"
            lines = [f"{found.outcome.value:<10} {snapshot_id}  {signed}"]
            lines += [f"  FINDING  {finding.message}" for finding in found.findings]
            lines += [f"  unchecked  {path}" for path in found.unchecked_files]
            lines += [f"  loaded machine: {text}" for text in found.loads]
        steps.clear()
        if not options.json:
            print("\n".join(printable(line) for line in lines))
    if options.json:
        print(json.dumps(shown, indent=1))
    else:
        words = {0: "valid", 3: "valid as far as checked", 1: "not valid", 2: "unusable"}
        counts = ", ".join(f"{codes[code]} {word}" for code, word in words.items())
        print(f"{counted(len(ids), 'snapshot')}: {counts}")
    return next((code for code in (2, 1, 3) if codes[code]), 0)


def plain(found: Verification) -> JsonObject:
    return {**to_json(found), "ok": not found.findings, "outcome": found.outcome.value}


def unusable(location: str, error: FirstlightError) -> JsonObject:
    return {"location": location, "ok": False, "unusable": str(error)}


def print_verification(found: Verification) -> None:
    print(f"Snapshot {found.id}")
    for word, texts in (
        ("ok", found.checked),
        ("unknown", found.not_checked),
        ("skipped", found.skipped),
        ("unchecked", found.unchecked_files),
        ("FINDING", [finding.message for finding in found.findings]),
    ):
        for text in texts:
            print(f"  {word:<10} {printable(text)}")
    print(last_line(found))
    for text in found.loads:
        print(f"Measured on a loaded machine: {printable(text)} at the start.")


def last_line(found: Verification) -> str:
    """Return the verdict in words: plain `Valid` only if everything checkable was checked."""
    if found.findings:
        return f"Not valid: {counted(len(found.findings), 'finding')}. Do not quote its numbers."
    if found.unchecked_files:
        files = counted(len(found.unchecked_files), "file was", "files were")
        return f"Valid, but {files} not checked (see `unchecked`): do not rely on them."
    return "Valid, as far as files can tell."
