"""Why functions compiled again, as HTML: recompiles that are alike together, with what differs.

Alike are those for the same reason, from the same line, in which the same arguments differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from firstlight.present.document import table
from firstlight.present.markup import escaped
from firstlight.present.quantities import counted, duration, listed
from firstlight.trace.read.model import Compile, Difference, Function, Reason, Trace
from firstlight.trace.wording import called_from, why_again

_MAX_FUNCTIONS = 50
_MAX_GROUPS = 12
_MAX_LINES = 12
_MAX_NAMES = 4


def section(trace: Trace) -> str:
    """A block for every function that compiled more than once for its own reasons."""
    again = [f for f in trace.functions if f.recompiles and not f.library]
    again.sort(key=lambda f: -_cost(f))
    blocks = "".join(_function(f, number < 3) for number, f in enumerate(again[:_MAX_FUNCTIONS]))
    more = len(again) - _MAX_FUNCTIONS
    rest = f'<p class="hint">and {counted(more, "function")} more, which cost less</p>'
    return blocks + (rest if more > 0 else "")


def _cost(function: Function) -> float:
    return sum(c.seconds for c in function.compiles if c.recompile_reason is not None)


def _function(function: Function, unfolded: bool) -> str:
    groups = _alike(function)
    blocks = "".join(_group(group) for group in groups[:_MAX_GROUPS])
    more = sum(map(len, groups[_MAX_GROUPS:]))
    rest = f'<p class="hint">and {more} more of other kinds</p>' if more else ""
    again = dict.fromkeys(c.recompile_reason for c in function.compiles if c.recompile_reason)
    hint = f"{counted(function.recompiles, 'time')} again, {duration(_cost(function))}: "
    hint += ", ".join(again)
    name = escaped(function.name)
    return (
        f'<details class="again"{" open" if unfolded else ""}><summary><code>{name}</code> '
        f'<span class="hint">{escaped(hint)}</span></summary>{blocks}{rest}</details>'
    )


def _alike(function: Function) -> list[list[Compile]]:
    """Recompiles by what they have in common, the most expensive first."""
    groups: dict[object, list[Compile]] = defaultdict(list)
    for one in sorted(function.compiles, key=lambda c: c.begin_seconds):
        if one.recompile_reason is not None:
            key = (one.recompile_reason, one.differing, called_from(one), one.process)
            groups[key].append(one)
    return sorted(groups.values(), key=lambda group: -sum(c.seconds for c in group))


def _group(group: Sequence[Compile]) -> str:
    first, spent = group[0], duration(sum(c.seconds for c in group))
    when = listed((duration(c.begin_seconds) for c in group), 3)
    took = f"took {spent}" if len(group) == 1 else f"took {spent} together"
    head = (
        f'<p><span class="badge">{escaped(first.recompile_reason or "")}</span> '
        f"{counted(len(group), 'time')}, {took}, at {when}, called from "
        f"<code>{escaped(called_from(first))}</code></p>"
    )
    rows = _rows(group)
    detail = escaped(why_again(first) or "")
    return f'<div class="pairing">{head}{rows or f"<p>{detail}</p>"}</div>'


def _rows(group: Sequence[Compile]) -> str:
    """What differs: for what it had been compiled, and for what again."""
    changes: dict[str, list[Difference]] = defaultdict(list)
    for now in group:
        for one in now.recompile_differences:
            changes[_name(one)].append(one)
    by_values: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, of_name in changes.items():
        by_values[of_name[0].before, _again_for(of_name)].append(name)
    if not by_values:
        return ""
    lines = "".join(
        _line(names, *values) for values, names in list(by_values.items())[:_MAX_LINES]
    )
    return _table(lines + _note(group, changes, len(by_values) - _MAX_LINES))


_OF_THE_WHOLE = {
    Reason.NEW_FUNCTION: "function",
    Reason.TREE: "structure",
    Reason.CONTEXT: "other settings of JAX",
}


def _name(one: Difference) -> str:
    if one.field is None:
        return _OF_THE_WHOLE.get(one.kind, "another argument")
    return f"{one.field} (static)" if one.kind is Reason.STATIC else one.field


def _again_for(of_name: Sequence[Difference]) -> str:
    return listed(dict.fromkeys(one.after for one in of_name), 6)


def _note(group: Sequence[Compile], changes: Mapping[str, Sequence[Difference]], more: int) -> str:
    """What the table leaves out."""
    signature = group[-1].signature
    told = []
    if more > 0:
        told.append(f"{more} more lines")
    if signature is not None:
        named = sum(of_name[0].is_of_argument for of_name in changes.values())
        same = len(signature.arguments) + len(signature.static) - named
        words = "argument is" if same == 1 else "arguments are"
        told += [f"{same} more {words} the same"] if same > 0 else []
    return f'<tr class="same"><td colspan="3">{"; ".join(told)}</td></tr>' if told else ""


def _table(rows: str) -> str:
    return table(("", "compiled for", "and again for"), rows, "diff")


def _line(names: Sequence[str], before: str, after: str) -> str:
    name = escaped(listed(names, _MAX_NAMES))
    old, new = escaped(before), escaped(after)
    return (
        f'<tr><th scope="row"><code>{name}</code></th>'
        f'<td class="old">{f"<del>{old}</del>" if old else ""}</td>'
        f'<td class="new">{f"<ins>{new}</ins>" if new else ""}</td></tr>'
    )
