"""The verdict of a recording: as text, and as HTML under a notebook cell."""

from __future__ import annotations

from firstlight.present.plain_text import escaped, printable
from firstlight.present.quantities import counted, duration
from firstlight.trace.read import phases
from firstlight.trace.read.model import Function, Trace
from firstlight.trace.show.verdict import headline, unknown
from firstlight.trace.wording import OF_JAX, place, sentence_of

_MAX_FUNCTIONS = 8
_HEADINGS = ("function", "defined", "compiles", "trace", "lower", "compile")


def as_text(trace: Trace) -> str:
    """The verdict as plain text."""
    lines = [headline(trace)]
    for number, finding in enumerate(trace.findings, start=1):
        lines.append(f"{number}. {duration(finding.seconds)}  {sentence_of(finding)}")
        if finding.place:
            lines.append(f"   {place(finding.place)}")
        lines.append(f"   → {finding.remedy}")
    lines += [f"Not known: {sentence}" for sentence in unknown(trace)]
    return printable("\n".join(lines))


def as_html(trace: Trace) -> str:
    """The verdict, time by kind and the functions, in colours for light and dark themes."""
    found = "".join(
        f"<li><b>{duration(finding.seconds)}</b> {escaped(sentence_of(finding))}"
        + (f" <code>{escaped(place(finding.place))}</code>" if finding.place else "")
        + f"<br>→ {escaped(finding.remedy)}</li>"
        for finding in trace.findings
    )
    verdict = f'<ol style="margin:.4em 0;padding-left:1.4em">{found}</ol>' if found else ""
    doubts = "".join(f"<div>Not known: {escaped(text)}</div>" for text in unknown(trace))
    return (
        '<div style="border-left:3px solid #f3c13a;padding:.2em 0 .2em .8em">'
        f"<b>{escaped(headline(trace))}</b>{verdict}{_shares(trace)}{_functions(trace)}{doubts}"
        "</div>"
    )


def _shares(trace: Trace) -> str:
    process = phases.leading(trace)
    spent = sorted(phases.until(process, None).items() if process else (), key=lambda kv: -kv[1])
    total = sum(value for _, value in spent)
    words = (f"{phases.name_of(k)} {duration(v)}" for k, v in spent if v >= 0.01 * total)
    return f"<div>{duration(total)} in total: {escaped(', '.join(words))}</div>" if total else ""


def _functions(trace: Trace) -> str:
    if not trace.functions:
        return ""
    head = "".join(f"<th>{name}</th>" for name in _HEADINGS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in _cells(function))}</tr>"
        for function in trace.functions[:_MAX_FUNCTIONS]
    )
    more = len(trace.functions) - _MAX_FUNCTIONS
    rest = f"<div>and {counted(more, 'more function')}</div>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{rest}"


def _cells(function: Function) -> tuple[str, ...]:
    where = OF_JAX if function.library else place(function.place)
    compiles = str(sum(c.compiled for c in function.compiles))
    return (function.name, where, compiles, *map(duration, function.stage_seconds.values()))
