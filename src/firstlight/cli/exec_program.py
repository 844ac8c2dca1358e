"""`firstlight exec python program.py`: run a program with a compilation cache.

This process becomes the program, so streams, signals and exit code are the program's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from firstlight.cli.values import location, program_of

EPILOG = """\
examples:
  firstlight exec python train.py --epochs 1
  firstlight exec --cache /scratch/me/compiled mpirun -n 8 python train.py
  firstlight exec --cache http://cache.lab:8750 python train.py    a cache that machines share
  FIRSTLIGHT_WARMSTART=1 python train.py                           the same, without this command
  firstlight exec --metrics 127.0.0.1:9464 python train.py         metrics for Prometheus

Firstlight's options come before the program; everything after it is passed to the program.

exit codes: the program's own; 126 it cannot be run; 127 there is no such program; 2 wrong usage"""
#: Files that Python reads at its start; without them there is no cache and no watch.
CACHE_HOOK, WATCH_HOOK = "firstlight-warmstart.pth", "firstlight-telemetry.pth"
#: Options that become environment variables of the program.
_WATCH_OPTIONS = (
    (
        "--metrics",
        "HOST:PORT",
        "FIRSTLIGHT_METRICS",
        "serve metrics for Prometheus; with HOST:FIRST-LAST, each process takes one port",
    ),
    (
        "--push",
        "URL",
        "FIRSTLIGHT_METRICS_PUSH",
        "push metrics to this Pushgateway every 10 seconds and on exit",
    ),
    (
        "--otlp",
        "URL",
        "FIRSTLIGHT_METRICS_OTLP",
        "send metrics to this OpenTelemetry collector (http://HOST:4318), at the same interval",
    ),
    (
        "--token-file",
        "FILE",
        "FIRSTLIGHT_METRICS_TOKEN_FILE",
        "token required by POST /debug/profile?seconds=5; without it, only SIGUSR2 profiles",
    ),
    (
        "--profiles",
        "DIR",
        "FIRSTLIGHT_PROFILES",
        "where profiles are written (default: firstlight-profiles)",
    ),
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "exec",
        usage="firstlight exec [options] program [program arguments]",
        description="Run a program with a compilation cache: processes load what others compiled.\n"
        "With --metrics, --push or --otlp, export metrics too.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = "the compilation cache (default: FIRSTLIGHT_CACHE_DIR, or ~/.cache/firstlight)"
    parser.add_argument("--cache", metavar="DIR|URL", help=where)
    for flag, metavar, _, about in _WATCH_OPTIONS:
        parser.add_argument(flag, metavar=metavar, help=about)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(handle=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    program = program_of(options)
    if not program:
        options.parser.error("give a program, for example: python train.py")
    _watch(options)
    os.environ["FIRSTLIGHT_WARMSTART"] = "1"
    if options.cache is not None:
        if not options.cache:
            options.parser.error("--cache '': give a folder or a URL")
        os.environ["FIRSTLIGHT_CACHE_DIR"] = location(options.cache)
    _warn_of_other_pythons(program[0], _is_watched(options))
    for name in ("SIGPIPE", "SIGXFSZ"):  # ignored by Python, which a program would inherit
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        from firstlight.present.plain_text import printable

        print(f"firstlight: {printable(program[0])}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _is_watched(options: argparse.Namespace) -> bool:
    return any(value is not None for value in (options.metrics, options.push, options.otlp))


def _watch(options: argparse.Namespace) -> None:
    """Check the options about metrics and pass them on as environment variables."""
    given = {
        name: getattr(options, flag[2:].replace("-", "_")) for flag, _, name, _ in _WATCH_OPTIONS
    }
    if not any(value is not None for value in given.values()):
        return
    from firstlight.errors import FirstlightError
    from firstlight.telemetry.watch.addresses import Address, gateway_url

    try:
        if options.metrics is not None:
            Address.parse(options.metrics)
        if options.push is not None:
            gateway_url(options.push)
        if options.otlp is not None:
            from firstlight.telemetry.collectors import Signal

            Signal.METRICS.url(options.otlp)
        if options.token_file is not None:
            from firstlight.token_file import read_token

            read_token(options.token_file)
    except (ValueError, OSError, FirstlightError) as error:
        options.parser.error(str(error))
    if not _is_watched(options):
        options.parser.error("--token-file and --profiles need --metrics, --push or --otlp")
    for name, value in given.items():
        if value is not None:
            is_path = name in ("FIRSTLIGHT_METRICS_TOKEN_FILE", "FIRSTLIGHT_PROFILES")
            os.environ[name] = os.path.abspath(value) if is_path else value


def _warn_of_other_pythons(program: str, is_watched: bool) -> None:
    """Warn if the program would visibly run without the cache or the watch."""
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
    else:
        hooks = (CACHE_HOOK, WATCH_HOOK) if is_watched else (CACHE_HOOK,)
        missing = [h for h in hooks if not any(os.path.exists(f"{f}/{h}") for f in folders)]
        if not missing:
            return
        what = "cached" if CACHE_HOOK in missing else "watched"
        why = (
            f"nothing is {what}: {missing[0]}, which Python reads at its start, is not in "
            f"{folders[0]}. Install it again: pip install --force-reinstall --no-deps firstlight"
        )
    print(f"firstlight: {why}.", file=sys.stderr)
