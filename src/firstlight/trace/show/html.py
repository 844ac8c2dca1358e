"""One self-contained HTML page for a trace: verdict, timeline, functions, why they compiled again.

Made from the log alone, to be attached to a bug report: works offline and without a script, which
only adds sorting, searching and zooming. All text of the program is escaped where it enters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from firstlight.present.document import document, masthead, packaged
from firstlight.present.markup import escaped
from firstlight.present.quantities import counted, duration
from firstlight.trace.read.model import Finding, Process, Trace
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.show import page_functions, page_recompiles, page_sections, page_timeline
from firstlight.trace.show.verdict import headline, nothing_found, unknown
from firstlight.trace.wording import place, sentence_of

if TYPE_CHECKING:
    from firstlight.trace.what_if import WhatIf

_PARTS = (
    ("verdict", "Verdict"),
    ("timeline", "Timeline"),
    ("functions", "Functions"),
    ("recompiles", "Recompiles"),
    ("imports", "Imports"),
    ("waits", "Waits"),
    ("what-if", "What if"),
    ("processes", "Processes"),
)


_OVERLAP = (
    '<p class="hint">Each says what it costs at most. They may overlap: the same compile can be '
    "both needless and without a cache.</p>"
)


def render(trace: Trace, what_if: WhatIf | None = None) -> str:
    """The page."""
    sections = {
        "verdict": _verdict(trace),
        "timeline": page_timeline.section(trace),
        "functions": page_functions.section(trace),
        "recompiles": page_recompiles.section(trace),
        "imports": page_sections.imports(trace),
        "waits": page_sections.waits(trace),
        "what-if": _what_if(what_if),
        "processes": page_sections.processes(trace),
    }
    body = "".join(
        f'<section id="{name}"><h2>{title}</h2>{sections[name]}</section>'
        for name, title in _PARTS
        if sections[name]
    )
    page = document(
        "Firstlight trace",
        f"{_header(trace)}{_contents(sections)}<main>{body}</main>",
        style=f"\n{packaged('trace.css', 'firstlight.trace.show')}",
        style_attributes=True,  # where a box of the timeline lies, and how wide it is
        script=packaged("trace.js", "firstlight.trace.show"),
    )
    # A path need not be text: what cannot be written becomes a question mark.
    return page.encode("utf-8", "replace").decode("utf-8")


def _what_if(found: WhatIf | None) -> str:
    if found is None:  # as mostly: what measures it need not be loaded
        return ""
    from firstlight.trace.show.what_if_text import section

    return section(found)


def _header(trace: Trace) -> str:
    first = trace.time_to_first_result_seconds
    title = "No first result" if first is None else f"First result after {duration(first)}"
    lines = "".join(f"<p>{line}</p>" for line in _about(trace.processes))
    return masthead(title, lines, "Firstlight trace")


def _about(processes: Sequence[Process]) -> list[str]:
    if not processes:
        return []
    first = processes[0]
    command = " ".join(first.command)
    versions = dict.fromkeys(
        text
        for p in processes
        for text in (
            f"Python {p.python}",
            f"JAX {p.jax_version}" if p.jax_version else "",
            f"torch {p.torch_version}" if p.torch_version else "",
        )
        if text
    )
    lines = [f"<code>{escaped(command)}</code>"] if command else []
    lines.append(escaped(", ".join(versions)))
    if len(processes) > 1:
        lines.append(counted(len(processes), "process", "processes"))
    if first.wall_seconds is not None and first.whole:
        lines[-1] += f", {duration(first.wall_seconds)} in all"
    return lines


def _contents(sections: Mapping[str, str]) -> str:
    links = "".join(f'<a href="#{n}">{t}</a>' for n, t in _PARTS if sections[n])
    return (
        f'<nav aria-label="Contents"><div class="links">{links}</div><div class="tools">'
        '<span id="filter-count" class="hint" hidden></span><input id="filter" type="search" '
        'placeholder="search functions" aria-label="Search functions" hidden></div></nav>'
    )


def _verdict(trace: Trace) -> str:
    source = SourceLines(trace)
    found = [f for f in trace.findings if not f.apart]
    none = nothing_found(trace)
    listed = f'<p class="fine">{escaped(none)}</p>' if none else ""
    if found:
        listed += f'<ol class="findings">{"".join(_finding(f, source) for f in found)}</ol>'
        listed += _OVERLAP if len(found) > 1 else ""
    apart = "".join(_finding(f, source) for f in trace.findings if f.apart)
    if apart:
        listed += f'<h3>Apart from the program</h3><ol class="findings">{apart}</ol>'
    doubts = "".join(f"<li>{escaped(text)}</li>" for text in unknown(trace))
    told = (
        f'<aside class="warnings"><h2>What could not be told</h2><ul>{doubts}</ul></aside>'
        if doubts
        else ""
    )
    return f'<p class="headline">{escaped(headline(trace))}</p>{listed}{told}'


def _finding(finding: Finding, source: SourceLines) -> str:
    where = [finding.function, finding.place and place(finding.place), source.of(finding.place)]
    shown = " · ".join(f"<code>{escaped(w)}</code>" for w in where if w)
    return (
        f'<li><div class="cost">{duration(finding.seconds)}</div><div class="found">'
        f"<h3>{escaped(sentence_of(finding))}</h3>"
        f'<p class="where">{shown}</p>'
        f'<p class="remedy">{escaped(finding.remedy)}</p>'
        f"{_evidence(finding.evidence)}</div></li>"
    )


def _evidence(evidence: Mapping[str, Any]) -> str:
    if not evidence:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escaped(key.replace("_", " "))}</th><td>{_value(value)}</td></tr>'
        for key, value in evidence.items()
    )
    return (
        "<details><summary>what it rests on</summary>"
        f'<table class="facts"><tbody>{rows}</tbody></table></details>'
    )


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{escaped(str(k))}: {_value(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        if not any(isinstance(v, (list, tuple, Mapping)) for v in value):
            return escaped(", ".join(_text(v) for v in value))
        return "<br>".join(_value(v) for v in value)
    return escaped(_text(value))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
