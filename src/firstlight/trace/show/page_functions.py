"""The table of functions as HTML, with every compile of a function under it."""

from __future__ import annotations

from collections.abc import Sequence

from firstlight.present.document import table
from firstlight.present.markup import breakable, escaped
from firstlight.present.quantities import counted, duration, size
from firstlight.trace.read.model import Compile, Function, SourceLine, Trace
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.wording import OF_JAX, called_from, place, signature

#: key, heading, whether it is a number
_COLUMNS = (
    ("name", "function", False),
    ("place", "defined", False),
    ("compiles", "compiles", True),
    ("again", "again", True),
    ("trace", "trace", True),
    ("lower", "lower", True),
    ("compile", "compile", True),
    ("total", "total", True),
    ("cache", "cache", False),
    ("equations", "equations", True),
    ("constants", "constants", True),
    ("first", "first at", True),
)
_MAX_CALLS = 50


def section(trace: Trace) -> str:
    """All functions, the most expensive first."""
    if not trace.functions:
        return ""
    head = "".join(
        f'<th scope="col" data-key="{key}"{"" if number else " class=words"}>{name}</th>'
        for key, name, number in _COLUMNS
    )
    rows, source = "".join(_row(f) for f in trace.functions), SourceLines(trace)
    libraries = sum(f.library for f in trace.functions)
    note = (
        f" {counted(libraries, 'row')} in grey: what JAX itself compiles when it is called outside "
        "of any jit, each a program of its own."
        if libraries
        else ""
    )
    return (
        '<div class="scroll" tabindex="0"><table id="functions-table"><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="hint">Press a heading to sort.{note}</p>'
        f'<details class="more"><summary>Every compile, with its arguments</summary>'
        f"{''.join(_calls(f, source) for f in trace.functions)}</details>"
    )


def _row(function: Function) -> str:
    stages = function.stage_seconds
    equations = max((c.equations or 0 for c in function.compiles), default=0)
    constants = max((c.constant_bytes or 0 for c in function.compiles), default=0)
    first = min(c.begin_seconds for c in function.compiles)
    cells: dict[str, tuple[object, str]] = {
        "place": _place(function),
        "compiles": _count(sum(c.compiled for c in function.compiles)),
        "again": _count(0 if function.library else function.recompiles),
        **{stage: (f"{value:.9f}", duration(value)) for stage, value in stages.items()},
        "total": (f"{function.seconds:.9f}", duration(function.seconds)),
        "cache": (_cache(function), _cache(function)),
        "equations": _count(equations),
        "constants": (constants, size(constants) if constants else ""),
        "first": (f"{first:.9f}", duration(first)),
    }
    name = escaped(function.name)
    searched = escaped(_searched(function))
    body = "".join(
        f'<td data-key="{key}" data-value="{escaped(str(cells[key][0]))}"'
        + (f">{escaped(cells[key][1])}" if number else f" class=words>{breakable(cells[key][1])}")
        + "</td>"
        for key, _, number in _COLUMNS[1:]
    )
    kind = ' class="library"' if function.library else ""
    return (
        f'<tr data-search="{searched}"{kind}><th scope="row" data-key="name" data-value="{name}">'
        f"<code>{breakable(function.name)}</code></th>{body}</tr>"
    )


def _searched(function: Function) -> str:
    """All that a search looks into."""
    sites = dict.fromkeys(called_from(c) for c in function.compiles)
    reasons = dict.fromkeys(c.recompile_reason for c in function.compiles if c.recompile_reason)
    return " ".join([function.name, _place(function)[1], *sites, *reasons]).lower()


def _place(function: Function) -> tuple[str, str]:
    text = OF_JAX if function.library else place(function.place)
    return text, text


def _count(number: int) -> tuple[int, str]:
    return number, str(number) if number else ""


def _cache(function: Function) -> str:
    counts = function.cache_counts
    if len(counts) == 1 and "off" in counts:
        return "off"
    return ", ".join(f"{n} {status}" for status, n in counts.items())


def _calls(function: Function, source: SourceLines) -> str:
    shown = function.compiles[:_MAX_CALLS]
    rows = "".join(_call(c, source) for c in shown)
    more = len(function.compiles) - len(shown)
    rest = f'<p class="hint">and {more} more</p>' if more > 0 else ""
    name = escaped(function.name)
    return (
        f'<div class="calls" data-search="{escaped(_searched(function))}">'
        f"<h3><code>{name}</code></h3>"
        f"{table(('at', 'took', 'arguments', 'called from', 'cache'), rows, 'wide-text')}"
        f"{rest}</div>"
    )


def _call(compile_: Compile, source: SourceLines) -> str:
    cache = compile_.cache
    status = "" if cache is None else cache.status + (f": {cache.reason}" if cache.reason else "")
    cells: Sequence[str] = (
        duration(compile_.begin_seconds),
        duration(compile_.seconds),
        signature(compile_.signature, most=20) or "unknown",
    )
    plain = "".join(f"<td>{escaped(cell)}</td>" for cell in cells)
    told = escaped(status if compile_.compiled else "not compiled")
    return f"<tr>{plain}<td>{_called(compile_, source)}</td><td>{told}</td></tr>"


def _called(compile_: Compile, source: SourceLines) -> str:
    """The line of the call, as it is written, and the stack that led to it."""
    line = source.of(compile_.user_site or compile_.site)
    text = escaped(called_from(compile_)) + (f"<br><code>{escaped(line)}</code>" if line else "")
    if len(compile_.stack) < 2:
        return text
    frames = "".join(_frame(one, source) for one in compile_.stack)
    return f'{text}<details><summary>stack</summary><ol class="stack">{frames}</ol></details>'


def _frame(where: SourceLine, source: SourceLines) -> str:
    within = f" in {where.function}" if where.function else ""
    line = source.of(where)
    shown = f"<br><code>{escaped(line)}</code>" if line else ""
    return f"<li>{escaped(place(where) + within)}{shown}</li>"
