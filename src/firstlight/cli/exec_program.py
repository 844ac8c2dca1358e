"""`firstlight exec python program.py`: a program with a compilation cache, otherwise unchanged.

This process becomes the program: its streams, signals and exit code are nobody else's.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

EPILOG = """\
examples:
  firstlight exec python train.py --epochs 1
  firstlight exec --cache /scratch/me/compiled mpirun -n 8 python train.py
  firstlight exec --cache http://cache.lab:8750 python train.py    a cache that machines share
  FIRSTLIGHT_WARMSTART=1 python train.py      the same, without this command

Firstlight's options come before the program; everything after it is the program's.

exit codes: the program's own; 126 it cannot be run; 127 there is no such program; 2 wrong usage."""
HOOK = "firstlight-warmstart.pth"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "exec",
        usage="firstlight exec [--cache DIR|URL] program [program arguments]",
        description="Run a program whose JAX code is compiled once: by one process, and kept.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = "where compiled programs are kept (default: firstlight in your cache folder)"
    parser.add_argument("--cache", metavar="DIR|URL", help=where)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(handle=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        options.parser.error("give a program, for example: python train.py")
    os.environ["FIRSTLIGHT_WARMSTART"] = "1"
    if options.cache is not None:
        if not options.cache:
            options.parser.error("--cache '': give a folder or a URL")
        is_url = "://" in options.cache
        os.environ["FIRSTLIGHT_CACHE_DIR"] = (
            options.cache if is_url else os.path.abspath(options.cache)
        )
    _warn_of_other_pythons(program[0])
    for name in ("SIGPIPE", "SIGXFSZ"):  # ignored by Python, which a program would inherit
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        from firstlight.present.plain_text import printable

        print(f"firstlight: {printable(program[0])}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _warn_of_other_pythons(program: str) -> None:
    """Say so if the cache would not be used, as far as that can be seen from here."""
    if not os.path.basename(program).startswith("python"):
        return
    import shutil
    import site

    found = shutil.which(program)
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    if found and os.path.dirname(os.path.abspath(found)) != os.path.dirname(sys.executable):
        why = (
            f"{found} is not the Python that Firstlight is installed for. Unless it has Firstlight "
            f"too, nothing is cached: run the program with {sys.executable}"
        )
    elif not any(os.path.exists(os.path.join(folder, HOOK)) for folder in folders):
        why = (
            f"nothing is cached: {HOOK}, which Python reads at its start, is not in {folders[0]}. "
            "Install it again: pip install --force-reinstall --no-deps firstlight"
        )
    else:
        return
    print(f"firstlight: {why}.", file=sys.stderr)
