"""`firstlight site PLACE`: a static site of the snapshots in a directory or at a URL."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.site.site_building import Built

EPILOG = """\
examples:
  firstlight site results --out public
  firstlight site s3://bucket/results --files https://bucket.example.org/results
  python -m http.server --directory public         view it: http://127.0.0.1:8000/

Every snapshot is verified first. One that does not verify is named on the first page with the
reason, and none of its content is shown. Rebuilding makes only the pages of new snapshots.

exit codes: 0 built; 1 built, but a snapshot was refused; 2 wrong usage or a machine problem"""


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "site",
        handle,
        "Build a static site of the snapshots in a directory or at a URL.",
        EPILOG,
    )
    add = parser.add_argument
    add("place", metavar="PLACE", help="directory or URL that holds snapshots")
    add("--out", type=Path, default=Path("site"), metavar="SITE", help="folder (default: site)")
    add("--title", default="Firstlight", metavar="TEXT", help="name of the site")
    add("--files", metavar="URL", help="link raw files there instead of copying them")
    add("--url", metavar="URL", help="public address of the site, for links in the feed")
    add(
        "--repository",
        metavar="URL",
        help="repository for links that compare commits, such as https://github.com/me/project",
    )
    add("--json", action="store_true", help="print what was built as JSON")


def handle(options: argparse.Namespace) -> int:
    from firstlight.present.progress import LiveLine
    from firstlight.site.site_building import Options, build

    wanted = Options(options.title, options.files, options.url, options.repository)
    steps = LiveLine(sys.stderr)
    try:
        built = build(
            options.place,
            options.out,
            wanted,
            lambda number, total: steps.show(f"snapshot {number + 1} of {total}"),
        )
    finally:
        steps.clear()
    if options.json:
        import json

        from firstlight.records import to_json

        print(json.dumps({**to_json(built), "out": str(built.out)}, indent=1))
    else:
        _show(built)
    return 1 if built.refused else 0


def _show(built: Built) -> None:
    from firstlight.present.plain_text import printable
    from firstlight.present.quantities import counted

    print(
        f"Site: {built.out} ({counted(built.shown, 'snapshot')}, {counted(built.cases, 'case')}; "
        f"{counted(built.reused, 'page')} unchanged)"
    )
    for refused in built.refused:
        print(f"  refused: {refused.id[:12]}: {printable(refused.reason)}", file=sys.stderr)
    print(f"View it: python -m http.server --directory {built.out}")
