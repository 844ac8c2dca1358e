"""Functions, compiles, places and times in words: the same on the terminal, in HTML and in limits.

Everything here is plain text of unknown origin: whoever prints or draws it escapes it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import islice

from firstlight.trace.model import Compile, Finding, Function, Place, Process, Signature
from firstlight.trace.recompiles import described, is_wide

#: Where a function of JAX itself is defined: nowhere that the user could go to.
OF_JAX = "JAX's own"


def seconds(value: float | None) -> str:
    """Three digits at most: 0.0123 is '12 ms', 12.34 is '12.3 s', 754 is '12 min 34 s'."""
    if value is None:
        return "unknown"
    if value < 0:
        return "−" + seconds(-value)
    if value < 0.0005:
        return f"{value * 1e6:.0f} µs" if value else "0 s"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms" if value >= 0.00995 else f"{value * 1e3:.1f} ms"
    if value < 120:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """'1 compile', '2 compiles'."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def place(where: Place | None, short: bool = True) -> str:
    """file:line; short: as seen from here, or by name where that is shorter."""
    if where is None:
        return "unknown place"
    if where.file.startswith("<"):  # <stdin>, <string>, a cell
        return f"{where.file}:{where.line}"
    return f"{_shortened(where.file) if short else where.file}:{where.line}"


def _shortened(file: str) -> str:
    """Of an installed package the path within it; of the user's own files, relative to here."""
    return _shortened_from(os.getcwd(), file)


@lru_cache(1000)
def _shortened_from(here: str, file: str) -> str:
    for marker in ("site-packages", "dist-packages"):
        _, found, rest = file.partition(f"{os.sep}{marker}{os.sep}")
        if found:
            return rest
    cell = _cell(file)
    if cell:
        return cell
    relative = os.path.relpath(file, here) if os.path.isabs(file) else file
    return file if relative.startswith(f"..{os.sep}..") else relative


def _cell(file: str) -> str | None:
    """Files that stand for cells of a notebook."""
    folder = os.path.basename(os.path.dirname(file))
    return "cell" if folder.startswith("ipykernel_") else None


def location(text: str) -> str:
    """file:line as a finding has it, as seen from here."""
    file, colon, line = text.rpartition(":")
    return f"{_shortened(file)}:{line}" if colon and line.isdigit() and file else text


def spent_on(process: Process, total: float) -> str:
    """Which time of a process is now divided; total: the seconds of it."""
    first, start = process.first_result_seconds, process.starts_at_seconds
    if first is None:
        return f"Where the {seconds(total)} of the whole run went"
    if start < 0.0005 * first:
        return f"Where the {seconds(first)} until the first result went"
    return (
        f"Where the {seconds(total)} of process {process.pid} went, from its start at "
        f"{seconds(start)} until the first result at {seconds(first)}"
    )


def sentence_of(finding: Finding) -> str:
    """What was found, and what of its cost the first result waited for, where that is not all."""
    early, cost = finding.before_first_result_seconds, finding.seconds
    if early is None or early >= 0.99 * cost:
        return finding.title
    if early < 0.01 * cost:
        return f"{finding.title} All of that is after the first result."
    return f"{finding.title} Of that, {seconds(early)} are before the first result."


def signature(value: Signature | None, most: int = 6) -> str:
    """Arguments in a line: 'x: f32[8], n=3'."""
    if value is None:
        return ""
    wide = is_wide(value)
    parts = [f"{a.path}: {described(a, wide)}" for a in value.arguments[:most]]
    if value.leaves > len(parts):
        parts.append(f"{value.leaves - len(parts)} more")
    parts += [f"{name}={text}" for name, text in islice(value.static.items(), most)]
    if len(value.static) > most:  # a module has hundreds
        parts.append(f"{len(value.static) - most} more static values")
    return ", ".join(parts)


def called_from(compile_: Compile) -> str:
    """The user's line, and that of the library it called where there is one between."""
    user, near = compile_.user_site, compile_.site
    if user is None or near is None or (user.file, user.line) == (near.file, near.line):
        return place(user or near)
    return f"{place(user)} (through {place(near)})"


def function_line(function: Function) -> str:
    """A function with how often it was compiled."""
    times = counted(sum(c.compiled for c in function.compiles), "compile")
    calls = list(dict.fromkeys(called_from(c) for c in function.compiles))
    where = place(function.place) if not function.library else OF_JAX
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    called = f", called from {calls[0]}{more}" if calls else ""
    return f"{function.name} ({where}): {times}, {seconds(function.seconds)}{called}"


def compile_line(function: Function, compile_: Compile) -> str:
    """One compile with its arguments, its place, and why it was needed again."""
    reason = compile_.recompile_detail or compile_.recompile_reason
    when = f"at {seconds(compile_.begin_seconds)}, {seconds(compile_.seconds)}"
    about = f"{when}, called from {called_from(compile_)}"
    if reason:  # says what differs: among all arguments it would be hard to find
        return f"{function.name} {about}: {reason}"
    return f"{function.name}({signature(compile_.signature)}) {about}"
