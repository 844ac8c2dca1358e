"""`firstlight chaos MODE`: cause a failure in a small program, to practise on."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from firstlight.cli.values import add_command

if TYPE_CHECKING:
    from firstlight.cli.values import Commands

EPILOG = """\
examples:
  firstlight chaos repeated-recompilation                     runs until interrupted
  firstlight chaos repeated-recompilation --trace             what `firstlight trace` says about it
  firstlight chaos repeated-recompilation --mended            the same work, fixed by its runbook

Each failure has a runbook of the same name, and an alert: docs/operate.md.

exit codes: the program's own; 2 wrong usage"""


def add_to(commands: Commands) -> None:
    from firstlight.ops.chaos import MODES

    width = max(len(mode.name) for mode in MODES)
    parser = add_command(
        commands,
        "chaos",
        handle,
        "Run a small program that fails in one way, with its metrics exported:\n\n"
        + "\n".join(f"  {mode.name:{width}}  {mode.about}" for mode in MODES),
        EPILOG,
    )
    add = parser.add_argument
    add("mode", choices=[mode.name for mode in MODES], metavar="MODE", help="one of the above")
    add(
        "--metrics",
        default="127.0.0.1:9464-9471",
        metavar="HOST:PORT",
        help="where to serve its metrics (default: 127.0.0.1:9464-9471)",
    )
    add("--mended", action="store_true", help="run the same work without the failure")
    add("--trace", action="store_true", help="run it for a moment under `firstlight trace`")
    add("--folder", metavar="DIR", help="folder for its caches (default: a new one)")


def handle(options: argparse.Namespace) -> int:
    import tempfile

    from firstlight.ops.chaos import BY_NAME, FOLDER, program

    mode = BY_NAME[options.mode]
    variant = mode.mended if options.mended else mode.broken
    folder = options.folder or tempfile.mkdtemp(prefix="firstlight-chaos-")
    cache = variant.cache.replace(FOLDER, os.path.abspath(folder))
    os.makedirs(cache, 0o700, exist_ok=True)
    os.environ |= dict(variant.environment)
    arguments = program(mode, variant, os.path.abspath(folder))
    if options.trace:
        command = ["trace", "--out", os.path.join(folder, "trace"), *arguments, *mode.short]
    else:
        command = ["exec", "--metrics", options.metrics, "--cache", cache, sys.executable]
        command += arguments
    print(f"firstlight {' '.join(command)}", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "firstlight", *command])
