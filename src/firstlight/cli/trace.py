"""`firstlight trace script.py`: where a program's time to first result went, and what to do."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstlight.cli.values import between, program_of

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.trace.findings.ci_limits import Excess, Limits
    from firstlight.trace.read.model import Trace
    from firstlight.trace.running import Outcome
    from firstlight.trace.what_if import WhatIf

EPILOG = """\
examples:
  firstlight trace train.py --epochs 1
  firstlight trace --max-recompiles 0 -m mypackage.train --epochs 1
  FIRSTLIGHT_TRACE=traces python train.py && firstlight trace report traces
  firstlight trace diff before/ after/

Firstlight's options come before the script; everything after it goes to the program. Write a script
called `report` or `diff` as a path: ./report.

exit codes: the program's own; 1 if the program succeeded but exceeded a limit; 2 wrong usage. If a
signal ends the program, this command ends with the same signal."""


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "trace",
        usage="firstlight trace [options] (script.py | -m module) [program arguments]\n"
        "       firstlight trace report DIR [options]\n"
        "       firstlight trace diff A B [--json FILE]",
        description="Run an unmodified program and show where its time to first result went.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # `script.py --max 3` must not abbreviate our options
    )
    add = parser.add_argument
    first_result = (
        "what marks the first result: a regular expression that matches a line the program prints, "
        "or the source line that reads the result (train.py:27)"
    )
    what_if = (
        "run the program again with less optimisation and with a warm compilation cache; measure "
        "what that would gain"
    )
    out = "output directory; must be new (default: firstlight-traces/TIME-NAME)"
    add("-m", dest="module", action="store_true", help="run a module, as python -m does")
    add("--out", type=Path, metavar="DIR", help=out)
    add("--first-result", type=_pattern, metavar="PATTERN", help=first_result)
    _add_outputs_and_limits(parser)
    add("--what-if", action="store_true", help=what_if)
    add(
        "--what-if-rounds",
        type=between(1),
        default=3,
        metavar="N",
        help="number of runs of each (default: 3)",
    )
    add("--dump-hlo", action="store_true", help="keep the compiled programs, for `trace diff`")
    add("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(handle=handle, parser=parser)


def _add_outputs_and_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for option, about in (
        ("--json", "write the report as JSON too"),
        ("--html", "write the HTML report to FILE (default: DIR/report.html)"),
        ("--chrome", "write a timeline for ui.perfetto.dev or chrome://tracing"),
    ):
        add(option, type=Path, metavar="FILE", help=about)
    add("--redact", action="store_true", help="leave out paths, values, source lines and arguments")
    add("--quiet", action="store_true", help="print only exceeded limits")
    add = parser.add_argument_group("limits, for CI").add_argument
    add("--max-compiles", type=between(0), metavar="N", help="programs compiled in total")
    add("--max-recompiles", type=between(0), metavar="N", help="recompiles of the same function")
    add("--max-ttfr", type=_seconds, metavar="SECONDS", help="time to first result")
    late = "after a time since the start (30s) or a number of results read by the program (100)"
    add("--forbid-compile-after", metavar="WHEN", help=late)


def handle(options: argparse.Namespace) -> int:
    program = program_of(options)
    if not program:
        options.parser.error("give a script, or -m and a module")
    if not options.module and program[0] in _COMMANDS:
        return _COMMANDS[program[0]](program[1:], options)
    return _trace(program, options)


# --- firstlight trace script.py -------------------------------------------------------------------


def _trace(program: list[str], options: argparse.Namespace) -> int:
    from firstlight.trace import running

    given = (options.max_compiles, options.max_recompiles, options.max_ttfr)
    if any(limit is not None for limit in (*given, options.forbid_compile_after)):
        _limits(options)  # reports invalid limits now
    if options.redact and options.dump_hlo:
        options.parser.error("--dump-hlo keeps source lines: do not use it with --redact")
    running.require_hook()
    running.compile_bytecode()
    _require_folders(options)
    # The name of a script is the user's own.
    folder = running.new_folder(options.out, "program" if options.redact else program[0])
    command = running.command_of(program, options.module)
    variables = _first_result_variable(options)
    if options.dump_hlo:
        variables |= running.dumping(folder)
    outcome = running.run(
        command, folder, variables, meanwhile=partial(_load_what_reports_need, options.quiet)
    )
    hold = _report(command, folder, outcome, options, "" if options.redact else " ".join(program))
    gc.freeze()  # or Python would search all of it for garbage once more at exit
    return 1 if not hold and outcome.succeeded else running.end_like(outcome)


def _require_folders(options: argparse.Namespace) -> None:
    """Fail now rather than after an hour of training if an output cannot be written."""
    for path in (options.json, options.html, options.chrome):
        if path is None:
            continue
        from firstlight.records import OutputError

        if path.suffix == ".py":  # `trace --json program.py` would replace the program
            raise OutputError(f"{path}: is a program, not a file for a report. Name one first.")
        if not path.absolute().parent.is_dir():
            raise OutputError(f"{path}: there is no folder {path.parent}. Make it first.")


def _first_result_variable(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variable that tells a traced process what its first result is."""
    return {"FIRSTLIGHT_FIRST_RESULT": options.first_result} if options.first_result else {}


def _load_what_reports_need(quiet: bool) -> None:
    """Import what reports need while the program runs, to save the time afterwards."""
    with suppress(Exception):  # an error comes again when the module is needed
        from firstlight.trace import findings  # noqa: F401
        from firstlight.trace.show import html  # noqa: F401

        if not quiet:
            from firstlight.trace.show import terminal  # noqa: F401


def _limits(options: argparse.Namespace) -> Limits:
    from firstlight.trace.findings.ci_limits import Limits, after

    late: Any = after(options.forbid_compile_after) if options.forbid_compile_after else {}
    return Limits(
        max_compiles=options.max_compiles,
        max_recompiles=options.max_recompiles,
        max_ttfr_seconds=options.max_ttfr,
        **late,
    )


def _report(
    command: list[str], folder: Path, outcome: Outcome, options: argparse.Namespace, name: str
) -> bool:
    """Write all outputs; return whether all limits hold.

    An error here must not hide how the program ended.
    """
    from firstlight.errors import FirstlightError
    from firstlight.trace import running

    limits = _limits(options)
    hold = not limits  # a limit that could not be checked does not hold
    if not any(folder.glob("*.jsonl")):
        _say(running.why_no_log(command))
        return hold
    try:
        if options.redact:
            from firstlight.trace.read.redaction import redact_folder

            redact_folder(folder)
        what_if = _what_if(command, folder, outcome, options)
        trace, found = _load(folder, limits)
        hold = not found
        _outputs(trace, found, folder, options, name, outcome, what_if)
    except Exception as error:
        why = str(error).rstrip(".") if isinstance(error, FirstlightError) else repr(error)
        _say(f"no report: {why}. The log was kept: firstlight trace report {folder}")
    return hold


def _what_if(
    command: list[str], folder: Path, outcome: Outcome, options: argparse.Namespace
) -> WhatIf | None:
    if not options.what_if:
        return None
    if not outcome.succeeded:
        _say(f"--what-if: not run again, because the program {outcome.words}.")
        return None
    from firstlight.trace.what_if import measure

    runs, variables = folder / "what-if", _first_result_variable(options)
    found = measure(command, runs, options.what_if_rounds, _say, variables)
    if options.redact:
        import shutil

        shutil.rmtree(runs)  # unredacted output and logs
    return found


def _load(folder: Path, limits: Limits) -> tuple[Trace, tuple[Excess, ...]]:
    """Return the trace and the exceeded limits."""
    from firstlight.trace.findings import load
    from firstlight.trace.findings.ci_limits import exceeded

    trace = load(folder)
    return trace, exceeded(trace, limits)


def _outputs(
    trace: Trace,
    found: Sequence[Excess],
    folder: Path,
    options: argparse.Namespace,
    name: str,
    outcome: Outcome | None = None,
    what_if: WhatIf | None = None,
) -> None:
    from firstlight.trace.show.html import render
    from firstlight.whole_files import write_text

    page = None
    try:
        if options.json:
            from firstlight.records import to_json, write_json
            from firstlight.trace.show.json_report import report

            plain = report(trace, found, outcome._asdict() if outcome else None, to_json(what_if))
            write_json(options.json, plain, schema="trace-report-1.schema.json")
        if options.chrome:
            from firstlight.records import write_json
            from firstlight.trace.show.chrome_trace import chrome_trace

            write_json(options.chrome, chrome_trace(trace))
        write_text(options.html or folder / "report.html", render(trace, what_if))
        page = options.html or folder / "report.html"
    finally:  # printed even if a file cannot be written
        if not options.quiet:
            _shown(_print, trace, what_if, page, name, outcome)
        if found:
            from firstlight.trace.show.terminal import print_exceeded

            _shown(print_exceeded, found)


def _print(
    trace: Trace, what_if: WhatIf | None, page: Path | None, name: str, outcome: Outcome | None
) -> None:
    from firstlight.trace.show.terminal import print_trace, terminal

    console = terminal()
    if outcome is not None and not outcome.succeeded:
        console.print(f"The program {outcome.words}.", markup=False)
        if not any(p.jax_version or p.torch_version for p in trace.processes):
            # Most likely a wrong name, which Python has already reported.
            console.print("It had not imported JAX or torch: nothing more to report.")
            return
    print_trace(trace, console, name)
    if what_if is not None:
        from firstlight.trace.show.what_if_text import print_what_if

        print_what_if(what_if, console)
    if page is not None:
        console.print(f"Report: {page}", markup=False, soft_wrap=True)


# --- firstlight trace report, firstlight trace diff -----------------------------------------------


def _report_again(arguments: list[str], options: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser(
        prog="firstlight trace report",
        description="Print the report of a trace again, from its logs.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the logs are")
    _add_outputs_and_limits(parser)
    parser.parse_args(arguments, options)
    limits, folder = _limits(options), options.folder
    if options.redact and options.html is None:
        parser.error("--redact leaves the folder unchanged: name the output with --html FILE")
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as copy:
        if options.redact:
            from firstlight.trace.read.redaction import redact_copy

            folder = Path(copy)
            redact_copy(options.folder, folder)
        trace, found = _load(folder, limits)
        _outputs(trace, found, folder, options, "" if options.redact else str(folder))
    return 1 if found else 0


def _diff(arguments: list[str], options: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser(
        prog="firstlight trace diff", description="Show what changed between two traces."
    )
    parser.add_argument("before", type=Path, metavar="A", help="folder of a trace")
    parser.add_argument("after", type=Path, metavar="B", help="folder of the other trace")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison as JSON")
    parser.add_argument("--all", action="store_true", help="include unchanged functions")
    parser.parse_args(arguments, options)
    from firstlight.trace.show.diff import compare_folders, print_comparison

    comparison = compare_folders(options.before, options.after)
    if options.json:
        from firstlight.records import write_json

        write_json(options.json, comparison)
    print_comparison(comparison, options.all)
    return 0


_COMMANDS = {"report": _report_again, "diff": _diff}


def _say(text: str) -> None:
    from firstlight.present.plain_text import printable

    _shown(partial(print, f"firstlight: {printable(text)}", file=sys.stderr))


def _shown(write: Callable[..., None], *about: object) -> None:
    """Print; a reader that has left does not change the exit code."""
    if sys.stderr is None:
        return
    try:
        write(*about)
        sys.stderr.flush()
    except (OSError, SystemExit):  # a broken pipe, which rich turns into an exit
        with suppress(OSError, ValueError):
            # Otherwise Python would fail again at exit while flushing the rest.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _pattern(text: str) -> str:
    import re

    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not a regular expression: {error}") from None
    return text


def _seconds(text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds, for instance 5 or 0.5") from None
