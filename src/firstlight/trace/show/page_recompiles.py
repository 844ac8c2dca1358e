"""Why functions compiled again, as HTML: recompiles that are alike together, with what differs.

Alike are those for the same reason, from the same line, in which the same arguments differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from firstlight.present.document import table
from firstlight.present.plain_text import escaped
from firstlight.present.quantities import counted, duration, listed
from firstlight.trace.read.model import Compile, Difference, Function, Reason, Trace
from firstlight.trace.wording import called_from, why_again

_MAX_FUNCTIONS = 50
_MAX_GROUPS = 12
_MAX_LINES = 12
_MAX_NAMES = 4
_MAX_VALUES = 6
#: What differs where no argument is named.
_OF_THE_WHOLE = {
    Reason.NEW_FUNCTION: "function",
    Reason.TREE: "structure",
    Reason.CONTEXT: "other settings of JAX",
}


def section(trace: Trace) -> str:
    """A block for every function that compiled more than once for its own reasons."""
    again = [(_again(f), f) for f in trace.functions if f.recompiles and not f.library]
    again.sort(key=lambda pair: -_cost(pair[0]))
    blocks = "".join(
        _function(f, compiles, unfolded=number < 3)
        for number, (compiles, f) in enumerate(again[:_MAX_FUNCTIONS])
    )
    more = len(again) - _MAX_FUNCTIONS
    rest = f'<p class="hint">and {counted(more, "function")} more, which cost less</p>'
    return blocks + (rest if more > 0 else "")


def _again(function: Function) -> list[Compile]:
    return [c for c in function.compiles if c.recompile_reason is not None]


def _cost(compiles: Sequence[Compile]) -> float:
    return sum(c.seconds for c in compiles)


def _function(function: Function, again: Sequence[Compile], unfolded: bool) -> str:
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
    first, together = group[0], " together" if len(group) > 1 else ""
    when = listed((duration(c.begin_seconds) for c in group), 3)
    detail = f"<p>{escaped(why_again(first) or '')}</p>"
    return (
        f'<div class="pairing"><p><span class="badge">{escaped(first.recompile_reason or "")}'
        f"</span> {counted(len(group), 'time')}, took {duration(_cost(group))}{together}, at "
        f"{when}, called from <code>{escaped(called_from(first))}</code></p>"
        f"{_differences(group) or detail}</div>"
    )


def _differences(group: Sequence[Compile]) -> str:
    """What differs: for what it had been compiled, and for what again."""
    changes: dict[str, list[Difference]] = defaultdict(list)
    for one in (d for now in group for d in now.recompile_differences):
        changes[_name(one)].append(one)
    by_values: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, found in changes.items():
        again_for = listed(dict.fromkeys(one.after for one in found), _MAX_VALUES)
        by_values[found[0].before, again_for].append(name)
    if not by_values:
        return ""
    lines = [_line(names, *values) for values, names in by_values.items()]
    rows = [*lines[:_MAX_LINES], _note(group, changes, len(lines) - _MAX_LINES)]
    return table(("", "compiled for", "and again for"), rows, "diff")


def _name(one: Difference) -> str:
    if one.field is None:
        return _OF_THE_WHOLE.get(one.kind, "another argument")
    return f"{one.field} (static)" if one.kind is Reason.STATIC else one.field


def _line(names: Sequence[str], before: str, after: str) -> str:
    old = f"<del>{escaped(before)}</del>" if before else ""
    new = f"<ins>{escaped(after)}</ins>" if after else ""
    return (
        f'<tr><th scope="row"><code>{escaped(listed(names, _MAX_NAMES))}</code></th>'
        f'<td class="old">{old}</td><td class="new">{new}</td></tr>'
    )


def _note(group: Sequence[Compile], changes: Mapping[str, Sequence[Difference]], more: int) -> str:
    """What the table leaves out."""
    signature = group[-1].signature
    notes = [f"{more} more lines"] if more > 0 else []
    if signature is not None:
        named = sum(found[0].is_of_argument for found in changes.values())
        same = len(signature.arguments) + len(signature.static) - named
        words = "argument is" if same == 1 else "arguments are"
        notes += [f"{same} more {words} the same"] if same > 0 else []
    return f'<tr class="same"><td colspan="3">{"; ".join(notes)}</td></tr>' if notes else ""
