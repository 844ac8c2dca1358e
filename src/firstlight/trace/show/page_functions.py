"""The table of functions as HTML, with every compile of a function under it."""

from __future__ import annotations

from firstlight.present.document import table
from firstlight.present.plain_text import breakable, escaped
from firstlight.present.quantities import counted, duration, size
from firstlight.trace.read.model import Compile, Function, SourceLine, Trace
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.show.verdict import cache_text
from firstlight.trace.wording import OF_JAX, called_from, place, signature

#: Key and heading of each column.
_COLUMNS = {
    "name": "function",
    "place": "defined",
    "compiles": "compiles",
    "again": "again",
    "trace": "trace",
    "lower": "lower",
    "compile": "compile",
    "total": "total",
    "cache": "cache",
    "equations": "equations",
    "constants": "constants",
    "first": "first at",
}
_WORDS = ("name", "place", "cache")  # all others are numbers
_MAX_CALLS = 50


def section(trace: Trace) -> str:
    """All functions, the most expensive first."""
    if not trace.functions:
        return ""
    head = "".join(
        f'<th scope="col" data-key="{key}"{" class=words" if key in _WORDS else ""}>{name}</th>'
        for key, name in _COLUMNS.items()
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
    constants = max(c.constant_bytes or 0 for c in function.compiles)
    counts = {
        "compiles": sum(c.compiled for c in function.compiles),
        "again": 0 if function.library else function.recompiles,
        "equations": max(c.equations or 0 for c in function.compiles),
    }
    seconds = {
        **function.stage_seconds,
        "total": function.seconds,
        "first": min(c.begin_seconds for c in function.compiles),
    }
    # What is sorted by, and what is shown.
    cells: dict[str, tuple[object, str]] = {
        "place": (_place(function), _place(function)),
        "cache": (cache_text(function), cache_text(function)),
        "constants": (constants, size(constants) if constants else ""),
        **{key: (count, str(count or "")) for key, count in counts.items()},
        **{key: (f"{value:.9f}", duration(value)) for key, value in seconds.items()},
    }
    body = "".join(_cell(key, *cells[key]) for key in _COLUMNS if key != "name")
    kind = ' class="library"' if function.library else ""
    return (
        f'<tr data-search="{escaped(_searched(function))}"{kind}><th scope="row" data-key="name" '
        f'data-value="{escaped(function.name)}"><code>{breakable(function.name)}</code></th>'
        f"{body}</tr>"
    )


def _cell(key: str, value: object, text: str) -> str:
    shown = f" class=words>{breakable(text)}" if key in _WORDS else f">{escaped(text)}"
    return f'<td data-key="{key}" data-value="{escaped(str(value))}"{shown}</td>'


def _searched(function: Function) -> str:
    """All that a search looks into."""
    sites = dict.fromkeys(called_from(c) for c in function.compiles)
    reasons = dict.fromkeys(c.recompile_reason for c in function.compiles if c.recompile_reason)
    return " ".join([function.name, _place(function), *sites, *reasons]).lower()


def _place(function: Function) -> str:
    return OF_JAX if function.library else place(function.place)


def _calls(function: Function, source: SourceLines) -> str:
    rows = "".join(_call(c, source) for c in function.compiles[:_MAX_CALLS])
    more = len(function.compiles) - _MAX_CALLS
    rest = f'<p class="hint">and {more} more</p>' if more > 0 else ""
    return (
        f'<div class="calls" data-search="{escaped(_searched(function))}">'
        f"<h3><code>{escaped(function.name)}</code></h3>"
        f"{table(('at', 'took', 'arguments', 'called from', 'cache'), rows, 'wide-text')}"
        f"{rest}</div>"
    )


def _call(one: Compile, source: SourceLines) -> str:
    cache = ": ".join(filter(None, (one.cache.status, one.cache.reason))) if one.cache else ""
    arguments = signature(one.signature, most=20) or "unknown"
    called = _with_source(called_from(one), one.user_site or one.site, source)
    if len(one.stack) > 1:
        frames = "".join(f"<li>{_frame(where, source)}</li>" for where in one.stack)
        called += f'<details><summary>stack</summary><ol class="stack">{frames}</ol></details>'
    return (
        f"<tr><td>{duration(one.begin_seconds)}</td><td>{duration(one.seconds)}</td>"
        f"<td>{escaped(arguments)}</td><td>{called}</td>"
        f"<td>{escaped(cache if one.compiled else 'not compiled')}</td></tr>"
    )


def _frame(where: SourceLine, source: SourceLines) -> str:
    within = f" in {where.function}" if where.function else ""
    return _with_source(place(where) + within, where, source)


def _with_source(text: str, where: SourceLine | None, source: SourceLines) -> str:
    line = source.of(where)
    return escaped(text) + (f"<br><code>{escaped(line)}</code>" if line else "")
