"""The command line: one file per subcommand; everything heavy is imported in its handler.

Exit codes: 0 success, 1 a case failed, is unproven or got worse, 2 wrong usage or a machine
problem, 3 undecided (gate, replicate, verify), 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from firstlight import __version__

#: Commands, their modules, and their lines in `firstlight --help`: only the module of the requested
#: command is imported.
COMMANDS = {
    "run": ("run", "measure a suite, a workload, or the benchmarks in your own file"),
    "trace": ("trace", "show where a JAX program's time to first result went, and what to do"),
    "exec": ("exec_program", "run a program with a compilation cache that its processes share"),
    "cache": ("cache", "look into a compilation cache, explain its misses, or serve one"),
    "warm": ("warm", "record what a program compiles; build, check and pack it for elsewhere"),
    "serve": ("serve", "serve jitted functions over HTTP; no request pays for a compile"),
    "load": ("load", "send load to a server and keep the latencies as a run"),
    "ops": ("ops", "write alert rules with their tests, dashboards and manifests"),
    "doctor": ("doctor", "check a machine, a cache and their monitoring"),
    "chaos": ("chaos", "cause a failure on purpose, for practice"),
    "incident": ("incident", "collect the current state, as the start of a postmortem"),
    "show": ("show", "print the results of a run again"),
    "list": ("list_cases", "list workloads, backends and the cases of a suite"),
    "system": ("system", "show what a run would record about this machine"),
    "export": ("export", "write a run for another tool"),
    "compare": ("compare", "compare runs or snapshots: effect, interval, p and verdict"),
    "gate": ("gate", "compare two revisions or environments: did it get worse?"),
    "calibrate": ("calibrate", "measure the noise of this machine, for the thresholds of `gate`"),
    "publish": ("publish", "make an immutable snapshot of runs that others can check"),
    "verify": ("verify", "check a snapshot, and that its numbers follow from its samples"),
    "replicate": ("replicate", "measure a snapshot again here and report what agrees"),
    "snapshots": ("snapshots", "list the snapshots in a directory or at a URL"),
    "site": ("site", "build a static site from snapshots"),
    "keys": ("keys", "manage signing keys and trusted keys"),
    "hf": ("histfactory", "fits, limits and plots of a HistFactory workspace (pyhf JSON)"),
}


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for `command` alone, for all commands (None), or with only their names.

    Each parser takes a millisecond or two to build: argparse looks for translations.
    """
    parser = argparse.ArgumentParser(
        prog="firstlight",
        description="Measure the time to first result of compiled Python, phase by phase.",
        epilog="Start with `firstlight run`, or with `firstlight trace YOUR_PROGRAM.py`.\n\n"
        "exit codes: 0 success; 1 a check failed; 2 wrong usage or a machine problem;\n"
        "3 undecided; 130 interrupted. The help of each command says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"firstlight {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, about) in COMMANDS.items():
        if command in (None, name):
            import_module(f"firstlight.cli.{module}").add_to(commands)
        elif command not in COMMANDS:
            commands.add_parser(name, help=about)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors meant for the user are printed without a traceback."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = build_parser(arguments[0] if arguments else "")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # reported with the usage of the command, where it is known
        getattr(options, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = options.handle(options)
    except KeyboardInterrupt:
        print("firstlight: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has left, as in `firstlight show RUN | head`: what the command would have
        # returned is not known, so it ends as if by SIGPIPE, and never as a gate that passes.
        if sys.stdout is not None:  # flushed again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(f"firstlight: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 2
    except Exception as error:
        # Imported only on failure, to keep the start of every command short.
        from firstlight.errors import FirstlightError
        from firstlight.present.plain_text import printable

        if not isinstance(error, FirstlightError):
            raise
        print(f"firstlight: {printable(str(error))}", file=sys.stderr)
        return 2
    return code
