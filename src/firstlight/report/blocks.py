"""The block of one workload: its problems, then its figures, each with its protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from firstlight.present import quantities
from firstlight.present.document import table
from firstlight.records import CaseSummary
from firstlight.report import amortisation, bars, protocols, strips, warm
from firstlight.report.admission import Workload, badge, flag, flag_reason, has_number, label
from firstlight.report.answer import title_of

#: Shares are drawn too if the bars differ by more than this factor: phases of short bars would
#: otherwise be invisible.
_MAX_BAR_RATIO = 4.0


def block(workload: Workload, unfolded: bool, call_points: int) -> str:
    """The whole block; at most `call_points` warm calls per process are drawn."""
    body = troubles(workload) + _notes(workload)
    if any(has_number(c) for c in workload.cases):
        body += _phases(workload) + _pair(workload)
        body += _warm_calls(workload, call_points) + _memory(workload)
    cases = escape("\n".join(c.case for c in workload.cases))
    sound = sum(1 for c in workload.cases if flag(c) is None)
    hint = f"{sound} of {len(workload.cases)} cases valid"
    return (
        f'<details class="workload" id="{workload.anchor}" data-cases="{cases}"'
        f"{' open' if unfolded else ''}><summary><h2>{title_of(workload)}</h2>"
        f'<span class="hint">{hint}</span></summary>{body}</details>'
    )


def troubles(workload: Workload) -> str:
    """A list of the cases that are not valid, with the reason and the end of stderr."""
    items = "".join(_trouble(c, workload) for c in workload.cases if flag(c))
    return f'<ul class="troubles">{items}</ul>' if items else ""


def _trouble(case: CaseSummary, workload: Workload) -> str:
    shown = "" if has_number(case) else " No number is shown."
    item = (
        f"{badge(case)} {workload.name_of(case)} <span>{escape(flag_reason(case))}.{shown}</span>"
    )
    if case.stderr_tail:
        item += (
            "<details><summary>end of its stderr</summary>"
            f'<pre tabindex="0">{escape(case.stderr_tail)}</pre></details>'
        )
    return f'<li data-case="{escape(case.case)}">{item}</li>'


def _notes(workload: Workload) -> str:
    groups: dict[str, list[str]] = {}
    for case in workload.cases:
        if case.note:
            groups.setdefault(case.note, []).append(label(case))
    shown = ""
    for note, names in groups.items():
        some = len(names) < len(workload.cases)
        whose = f" <i>({escape(', '.join(names))})</i>" if some else ""
        shown += f'<p class="note">{escape(note)}{whose}</p>'
    return shown


def _figure(heading: str, pictures: str, caption: str) -> str:
    return f"<figure><h3>{heading}</h3>{pictures}<figcaption>{caption}</figcaption></figure>"


def _both(draw: Callable[[float], str], wide: float = bars.WIDE) -> str:
    """The figure for wide and for narrow screens; the style sheet shows one of them."""
    return draw(wide) + draw(bars.NARROW)


def _phases(workload: Workload) -> str:
    rows, marks = bars.time_rows(workload), workload.marks
    caption = f"{workload.label}: median seconds to the first result, by phase"
    pictures = bars.legend(rows)
    pictures += _both(lambda width: bars.draw(rows, marks, caption, quantities.TIME_UNITS, width))
    totals = [row.total for row in rows if row.total]
    if len(totals) > 1 and max(totals) > _MAX_BAR_RATIO * min(totals):
        shares = bars.share_rows(rows)
        about = f"{workload.label}: share of each phase in the time to the first result"
        pictures += '<p class="sub">The same as shares of each total</p>'
        pictures += _both(
            lambda width: bars.draw(shares, marks, about, quantities.TIME_UNITS, width, rows)
        )
    words = (
        "Median of each phase over fresh processes; vertical mark and whisker: median of the total "
        "with its interval. A phase that a framework does not have is not drawn."
    )
    return _figure("Time to first result, by phase", pictures, words + _protocol_line(workload))


def _protocol_line(
    workload: Workload, readers: Mapping[str, protocols.Reader] = protocols.COLD
) -> str:
    return protocols.essentials([c for c in workload.cases if has_number(c)], readers)


def _pair(workload: Workload) -> str:
    """The figures of single processes and of total time side by side, with one protocol line."""
    left = _figure(
        "Every process",
        _both(lambda width: strips.draw(workload, width), 500.0),
        "Each dot is one fresh process, from the first of the run (top) to the last (bottom), "
        "relative to the case’s median; shaded: the interval of the median. None is dropped.",
    )
    if not amortisation.curves(workload.cases):
        return f'<div class="pair">{left}</div>{_protocol_line(workload)}'
    right = _figure(
        "Total time after N calls",
        _both(lambda width: amortisation.draw(workload, width), 520.0) + _break_evens(workload),
        "First result plus further calls, from the medians; band: from the ends of both intervals. "
        "Ring: where a compiled case has overtaken the last uncompiled one, with its interval.",
    )
    return f'<div class="pair">{left}{right}</div>{_protocol_line(workload, protocols.BOTH)}'


def _break_evens(workload: Workload) -> str:
    """The break-evens in words."""
    items = "".join(
        f'<li data-case="{escape(c.case)}">'
        f"{workload.name_of(c)} {escape(amortisation.break_even_tip(c))}{badge(c)}</li>"
        for c in workload.cases
        if c.break_even_calls is not None
    )
    return f'<ul class="break-evens">{items}</ul>' if items else ""


def _warm_calls(workload: Workload, limit: int) -> str:
    cases = warm.drawn(workload)
    if not cases:
        return ""
    words = (
        "Each dot is one call, in order after the first result, all processes superimposed; "
        "line and band: steady-state median with its interval. Both axes are logarithmic, and each "
        "panel has its own time scale."
    )
    if any(warm.is_thinned(own, limit) for own in workload.samples.values()):
        words += (
            f" At most {limit} calls per process are drawn: the fastest and the slowest of every "
            "stretch. The numbers use all calls."
        )
    words += protocols.essentials(cases, protocols.WARM)
    picture = _figure("Warm calls", warm.draw(workload, limit), words)
    return _folded("Warm calls, every process", picture)


def _memory(workload: Workload) -> str:
    rows = bars.memory_rows(workload)
    if not rows:
        return ""
    caption = f"{workload.label}: peak host memory, by the phase that raised it"
    pictures = bars.legend(rows)
    pictures += _both(
        lambda width: bars.draw(rows, workload.marks, caption, quantities.BYTE_UNITS, width)
    )
    words = "By how much each phase raised the peak resident memory of the process (median)."
    picture = _figure(
        "Peak memory", pictures + _compiler(workload), words + _protocol_line(workload)
    )
    return _folded("Peak memory", picture)


def _compiler(workload: Workload) -> str:
    """The table of the compiler's own estimates; '' if there are none."""
    cases = [c for c in workload.cases if c.compiler_bytes]
    if not cases:
        return ""
    keys = list(dict.fromkeys(k for c in cases for k in (c.compiler_bytes or {})))
    rows = (
        f'<tr data-case="{escape(c.case)}"><th scope="row">{escape(label(c))}</th>'
        + "".join(f"<td>{quantities.size((c.compiler_bytes or {}).get(k))}</td>" for k in keys)
        + "</tr>"
        for c in cases
    )
    head = ("case", *(key.replace("_", " ") for key in keys))
    return table(head, rows, caption="<caption>The compiler’s own estimate</caption>")


def _folded(summary: str, body: str) -> str:
    return f'<details class="more"><summary>{summary}</summary>{body}</details>'
