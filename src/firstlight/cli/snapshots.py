"""`firstlight snapshots PLACE`: list what was published there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command
from firstlight.present.plain_text import printable
from firstlight.records import NOISY_SHARE, to_json

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.snapshot.catalogue import Entry


def add_to(commands: Commands) -> None:
    about = "List the snapshots in a directory or at a URL."
    parser = add_command(commands, "snapshots", handle, about)
    add = parser.add_argument
    add("place", metavar="PLACE", help="directory or URL that holds snapshots")
    add("--case", metavar="TEXT", help="only those with a case whose name contains TEXT")
    add("--rebuild", action="store_true", help="rebuild the catalogue from the snapshots")
    add("--json", action="store_true", help="print JSON")


def handle(options: argparse.Namespace) -> int:
    from firstlight.snapshot.catalogue import Catalogue

    catalogue = Catalogue(options.place)
    entries, refused = catalogue.rebuild() if options.rebuild else catalogue.look()
    if options.case:
        entries = [e for e in entries if any(options.case in case for case in e.cases)]
    if options.json:
        print(json.dumps(to_json(entries), indent=1))
    else:
        print_entries(entries)
    for name, why in refused.items():
        print(printable(f"not listed: {name}: {why}"), file=sys.stderr)
    return 0


def print_entries(entries: Sequence[Entry]) -> None:
    for entry in entries:
        busy = entry.cpu_busy_ratio or 0.0
        loaded = f", loaded machine ({busy:.0%} busy)" if busy > NOISY_SHARE else ""
        signed = f"key {entry.signer[:12]}" if entry.signer else "not signed"
        print(
            printable(
                f"{entry.id}  {entry.created_at[:16]}  {entry.cases_passed}/{entry.cases_total} "
                f"valid{loaded}  {signed}  {entry.machine}  {entry.title}"
            ).replace("\n", " ")
        )
    if not entries:
        print("No snapshots there.", file=sys.stderr)
