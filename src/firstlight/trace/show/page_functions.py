"""The functions of a trace as HTML: a table, every compile, and the reasons of recompiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from firstlight.present.document import table
from firstlight.present.plain_text import breakable, escaped
from firstlight.present.quantities import counted, duration, listed, size
from firstlight.trace.read.model import Compile, Difference, Function, Reason, SourceLine, Trace
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.show.verdict import cache_text
from firstlight.trace.wording import OF_JAX, called_from, place, signature, why_again

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
_WORDS = ("name", "place", "cache")  # columns of text; all others are numbers
_MAX_CALLS = 50
_MAX_FUNCTIONS = 50
_MAX_GROUPS = 12
_MAX_LINES = 12
_MAX_NAMES = 4
_MAX_VALUES = 6
#: What differs if no argument is named.
_OF_THE_WHOLE = {
    Reason.NEW_FUNCTION: "function",
    Reason.TREE: "structure",
    Reason.CONTEXT: "other settings of JAX",
}


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
        f" {counted(libraries, 'row')} in grey: JAX's own operations outside any jit, each a "
        "separate program."
        if libraries
        else ""
    )
    return (
        '<div class="scroll" tabindex="0"><table id="functions-table"><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="hint">Click a heading to sort.{note}</p>'
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
    # (sort key, text)
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
    """The text that a search looks in."""
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
    arguments = signature(one.signature, limit=20) or "unknown"
    called = _with_source(called_from(one), one.user_site or one.site, source)
    if len(one.stack) > 1:
        named = [(place(w) + (f" in {w.function}" if w.function else ""), w) for w in one.stack]
        frames = "".join(f"<li>{_with_source(text, w, source)}</li>" for text, w in named)
        called += f'<details><summary>stack</summary><ol class="stack">{frames}</ol></details>'
    return (
        f"<tr><td>{duration(one.begin_seconds)}</td><td>{duration(one.seconds)}</td>"
        f"<td>{escaped(arguments)}</td><td>{called}</td>"
        f"<td>{escaped(cache if one.compiled else 'not compiled')}</td></tr>"
    )


def _with_source(text: str, where: SourceLine | None, source: SourceLines) -> str:
    line = source.of(where)
    return escaped(text) + (f"<br><code>{escaped(line)}</code>" if line else "")


# --- recompiles -----------------------------------------------------------------------------------


def recompiles(trace: Trace) -> str:
    """A block per recompiled function.

    Recompiles with the same reason, line and differing arguments are grouped.
    """
    again = [(_again(f), f) for f in trace.functions if f.recompiles and not f.library]
    again.sort(key=lambda pair: -_cost(pair[0]))
    blocks = "".join(
        _recompiled(f, compiles, unfolded=number < 3)
        for number, (compiles, f) in enumerate(again[:_MAX_FUNCTIONS])
    )
    more = len(again) - _MAX_FUNCTIONS
    rest = f'<p class="hint">and {counted(more, "more function")}, which cost less</p>'
    return blocks + (rest if more > 0 else "")


def _again(function: Function) -> list[Compile]:
    return [c for c in function.compiles if c.recompile_reason is not None]


def _cost(compiles: Sequence[Compile]) -> float:
    return sum(c.seconds for c in compiles)


def _recompiled(function: Function, again: Sequence[Compile], unfolded: bool) -> str:
    alike: dict[object, list[Compile]] = defaultdict(list)
    for one in sorted(again, key=lambda c: c.begin_seconds):
        alike[one.recompile_reason, one.differing, called_from(one), one.process].append(one)
    groups = sorted(alike.values(), key=lambda group: -_cost(group))
    blocks = "".join(_group(group) for group in groups[:_MAX_GROUPS])
    more = sum(map(len, groups[_MAX_GROUPS:]))
    rest = f'<p class="hint">and {more} more of other kinds</p>' if more else ""
    reasons = dict.fromkeys(c.recompile_reason or "" for c in again)
    hint = f"{counted(len(again), 'time')} again, {duration(_cost(again))}: {', '.join(reasons)}"
    return (
        f'<details class="again"{" open" if unfolded else ""}><summary>'
        f'<code>{escaped(function.name)}</code> <span class="hint">{escaped(hint)}</span>'
        f"</summary>{blocks}{rest}</details>"
    )


def _group(group: Sequence[Compile]) -> str:
    first, together = group[0], " in total" if len(group) > 1 else ""
    when = listed((duration(c.begin_seconds) for c in group), 3)
    detail = f"<p>{escaped(why_again(first) or '')}</p>"
    return (
        f'<div class="pairing"><p><span class="badge">{escaped(first.recompile_reason or "")}'
        f"</span> {counted(len(group), 'time')}, took {duration(_cost(group))}{together}, at "
        f"{when}, called from <code>{escaped(called_from(first))}</code></p>"
        f"{_differences(group) or detail}</div>"
    )


def _differences(group: Sequence[Compile]) -> str:
    """A table of the differences: compiled for …, and again for …"""
    changes: dict[str, list[Difference]] = defaultdict(list)
    for one in (d for now in group for d in now.recompile_differences):
        changes[_difference_name(one)].append(one)
    by_values: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, found in changes.items():
        again_for = listed(dict.fromkeys(one.after for one in found), _MAX_VALUES)
        by_values[found[0].before, again_for].append(name)
    if not by_values:
        return ""
    lines = [_difference(names, *values) for values, names in by_values.items()]
    rows = [*lines[:_MAX_LINES], _note(group, changes, len(lines) - _MAX_LINES)]
    return table(("", "compiled for", "and again for"), rows, "diff")


def _difference_name(one: Difference) -> str:
    if one.field is None:
        return _OF_THE_WHOLE.get(one.kind, "another argument")
    return f"{one.field} (static)" if one.kind is Reason.STATIC else one.field


def _difference(names: Sequence[str], before: str, after: str) -> str:
    old = f"<del>{escaped(before)}</del>" if before else ""
    new = f"<ins>{escaped(after)}</ins>" if after else ""
    return (
        f'<tr><th scope="row"><code>{escaped(listed(names, _MAX_NAMES))}</code></th>'
        f'<td class="old">{old}</td><td class="new">{new}</td></tr>'
    )


def _note(group: Sequence[Compile], changes: Mapping[str, Sequence[Difference]], more: int) -> str:
    """A row with what the table omits."""
    signature = group[-1].signature
    notes = [f"{more} more lines"] if more > 0 else []
    if signature is not None:
        named = sum(found[0].is_of_argument for found in changes.values())
        same = len(signature.arguments) + len(signature.static) - named
        words = "argument is" if same == 1 else "arguments are"
        notes += [f"{same} more {words} the same"] if same > 0 else []
    return f'<tr class="same"><td colspan="3">{"; ".join(notes)}</td></tr>' if notes else ""
