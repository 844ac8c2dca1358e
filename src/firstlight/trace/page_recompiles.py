"""Why functions compiled again, as HTML: the signature beside the nearest one before it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from firstlight.trace.markup import escaped
from firstlight.trace.model import Compile, Function, Signature, Trace
from firstlight.trace.signatures import Difference, differences, nearest
from firstlight.trace.wording import called_from, counted, seconds

_MOST_SHOWN = 12
_MOST_LINES = 12


def section(trace: Trace) -> str:
    """A block for every function that compiled more than once for its own reasons."""
    again = [f for f in trace.functions if f.recompiles and not f.library]
    again.sort(key=lambda f: -_cost(f))
    return "".join(_function(f, number < 3) for number, f in enumerate(again))


def _cost(function: Function) -> float:
    return sum(c.seconds for c in function.compiles if c.recompile_reason is not None)


def _function(function: Function, unfolded: bool) -> str:
    # Of thousands only some are shown, and only of these the nearest is looked for.
    blocks = "".join(_recompile(*pair) for pair in islice(_pairs(function), _MOST_SHOWN))
    more = function.recompiles - _MOST_SHOWN
    rest = f'<p class="hint">and {more} more like these</p>' if more > 0 else ""
    again = dict.fromkeys(c.recompile_reason for c in function.compiles if c.recompile_reason)
    hint = f"{counted(function.recompiles, 'time')} again, {seconds(_cost(function))}: "
    hint += ", ".join(again)
    name = escaped(function.name)
    return (
        f'<details class="again"{" open" if unfolded else ""}><summary><code>{name}</code> '
        f'<span class="hint">{escaped(hint)}</span></summary>{blocks}{rest}</details>'
    )


def _pairs(function: Function) -> Iterator[tuple[Compile, Compile | None]]:
    """Every recompile with the earlier compile that it resembles most."""
    earlier: dict[int, list[Compile]] = {}  # every process has programs of its own
    for compile_ in sorted(function.compiles, key=lambda c: c.begin_seconds):
        before = earlier.setdefault(compile_.process, [])
        if compile_.recompile_reason is not None:
            yield compile_, nearest(compile_, before)
        before.append(compile_)


def _recompile(now: Compile, before: Compile | None) -> str:
    reason = escaped(now.recompile_reason or "")
    detail = escaped(now.recompile_detail or "")
    head = (
        f'<p><span class="badge">{reason}</span> {detail}</p>'
        f'<p class="where">at {seconds(now.begin_seconds)}, took {seconds(now.seconds)}, called '
        f"from <code>{escaped(called_from(now))}</code></p>"
    )
    if before is None or now.signature is None or before.signature is None:
        return f'<div class="pairing">{head}</div>'
    return (
        f'<div class="pairing">{head}{_side_by_side(before, before.signature, now.signature)}</div>'
    )


def _side_by_side(before: Compile, old: Signature, new: Signature) -> str:
    found = differences(old, new)
    rows = "".join(_line(d) for d in found[:_MOST_LINES])
    more = len(found) - _MOST_LINES
    if more > 0:
        rows += f'<tr class="same"><td colspan="3">and {more} more that differ</td></tr>'
    same = len(new.arguments) + len(new.static) - sum(d.of_argument for d in found)
    if same > 0:
        words = "argument is" if same == 1 else "arguments are"
        rows += f'<tr class="same"><td colspan="3">{same} more {words} the same</td></tr>'
    return (
        '<div class="scroll" tabindex="0"><table class="diff"><thead><tr><th></th>'
        f"<th>compiled at {seconds(before.begin_seconds)}</th><th>compiled again</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _line(difference: Difference) -> str:
    name, old, new = (
        escaped(text) for text in (difference.name, difference.before, difference.after)
    )
    return (
        f'<tr><th scope="row"><code>{name}</code></th>'
        f'<td class="old">{f"<del>{old}</del>" if old else ""}</td>'
        f'<td class="new">{f"<ins>{new}</ins>" if new else ""}</td></tr>'
    )
