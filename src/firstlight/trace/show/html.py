"""One self-contained HTML page for a trace: verdict, timeline, functions, recompiles.

It is made from the log alone, to attach to a bug report, and works offline and without its script,
which only adds sorting, searching and zooming. All text of the program is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from firstlight.present.document import contents, document, masthead, packaged, text_table
from firstlight.present.plain_text import escaped
from firstlight.present.quantities import counted, duration
from firstlight.trace.read import phases
from firstlight.trace.read.model import Finding, ImportedPackage, Process, Trace
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.read.torch_regions import regions, why
from firstlight.trace.show import page_functions, page_timeline
from firstlight.trace.show.verdict import headline, nothing_found, unknown
from firstlight.trace.wording import place, sentence_of

if TYPE_CHECKING:
    from firstlight.trace.what_if import WhatIf

_MAX_PACKAGES = 15
_MAX_WAITS = 20
_MAX_SIDE_BY_SIDE = 4
_OVERLAP = (
    '<p class="hint">Costs are upper bounds. They may overlap: the same compile can be both '
    "unnecessary and without a cache.</p>"
)


def render(trace: Trace, what_if: WhatIf | None = None) -> str:
    """The page."""
    measured = ""
    if what_if is not None:  # rarely, so its module is loaded here
        from firstlight.trace.show.what_if_text import section

        measured = section(what_if)
    every = (
        ("Verdict", _verdict(trace)),
        ("Timeline", page_timeline.section(trace)),
        ("Functions", page_functions.section(trace)),
        ("Recompiles", page_functions.recompiles(trace)),
        ("Imports", _imports(trace)),
        ("Waits", _waits(trace)),
        ("What if", measured),
        ("Processes", _processes(trace)),
    )
    sections = [(t.lower().replace(" ", "-"), t, content) for t, content in every if content]
    body = "".join(
        f'<section id="{name}"><h2>{title}</h2>{content}</section>'
        for name, title, content in sections
    )
    first = trace.time_to_first_result_seconds
    title = "No first result" if first is None else f"First result after {duration(first)}"
    about = "".join(f"<p>{line}</p>" for line in _about(trace.processes))
    links = contents([part[:2] for part in sections], "Search functions", "search functions")
    page = document(
        "Firstlight trace",
        f"{masthead(title, about, 'Firstlight trace')}{links}<main>{body}</main>",
        style=f"\n{packaged('trace.css', 'firstlight.trace.show')}",
        style_attributes=True,  # the positions and widths of the boxes in the timeline
        script=packaged("trace.js", "firstlight.trace.show"),
    )
    # A path need not be valid text: what cannot be encoded becomes a question mark.
    return page.encode("utf-8", "replace").decode("utf-8")


def _about(processes: Sequence[Process]) -> list[str]:
    if not processes:
        return []
    first, command = processes[0], " ".join(processes[0].command)
    names = ("Python", "JAX", "torch")
    versions = dict.fromkeys(
        f"{name} {version}"
        for p in processes
        for name, version in zip(names, (p.python, p.jax_version, p.torch_version), strict=True)
        if version
    )
    lines = [f"<code>{escaped(command)}</code>"] if command else []
    lines.append(escaped(", ".join(versions)))
    if len(processes) > 1:
        lines.append(counted(len(processes), "process", "processes"))
    if first.wall_seconds is not None and first.whole:
        lines[-1] += f", {duration(first.wall_seconds)} in total"
    return lines


# --- the verdict ----------------------------------------------------------------------------------


def _verdict(trace: Trace) -> str:
    source, none = SourceLines(trace), nothing_found(trace)
    shown = {
        apart: [_finding(f, source) for f in trace.findings if f.apart == apart]
        for apart in (False, True)
    }
    parts = [f'<p class="headline">{escaped(headline(trace))}</p>']
    if none:
        parts.append(f'<p class="fine">{escaped(none)}</p>')
    if shown[False]:
        parts.append(f'<ol class="findings">{"".join(shown[False])}</ol>')
    if len(shown[False]) > 1:
        parts.append(_OVERLAP)
    if shown[True]:
        parts.append("<h3>Apart from the program</h3>")
        parts.append(f'<ol class="findings">{"".join(shown[True])}</ol>')
    doubts = "".join(f"<li>{escaped(text)}</li>" for text in unknown(trace))
    if doubts:
        head = '<aside class="warnings"><h2>What could not be determined</h2>'
        parts.append(f"{head}<ul>{doubts}</ul></aside>")
    return "".join(parts)


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


def _evidence(evidence: Mapping[str, object]) -> str:
    if not evidence:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escaped(key.replace("_", " "))}</th><td>{_value(value)}</td></tr>'
        for key, value in evidence.items()
    )
    return (
        "<details><summary>evidence</summary>"
        f'<table class="facts"><tbody>{rows}</tbody></table></details>'
    )


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{escaped(str(k))}: {_value(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(v, (list, tuple, Mapping)) for v in value)
        return ("<br>" if nested else ", ").join(map(_value, value))
    return escaped(f"{value:.4g}" if isinstance(value, float) else str(value))


# --- imports, waits, processes --------------------------------------------------------------------


def _imports(trace: Trace) -> str:
    """Packages of the process with the first result, by their own time, as bars."""
    leading = phases.leading(trace)
    packages = sorted(leading.imports if leading else (), key=lambda p: -p.seconds)
    if not packages:
        return ""
    shown, others = packages[:_MAX_PACKAGES], packages[_MAX_PACKAGES:]
    rows = "".join(_package(p, shown[0].seconds or 1.0) for p in shown)
    rest = duration(sum(p.seconds for p in others))
    more = f" {counted(len(others), 'more package')} took {rest} in total." if others else ""
    return (
        f'<table class="bars"><tbody>{rows}</tbody></table><p class="hint">Own time of each '
        "top-level package; in brackets, with the packages that it was the first to import."
        f"{more}</p>"
    )


def _package(package: ImportedPackage, longest: float) -> str:
    whole = f" ({duration(package.with_others_seconds)})"
    if package.with_others_seconds < 1.05 * package.seconds + 0.001:
        whole = ""
    return (
        f'<tr><th scope="row"><code>{escaped(package.name)}</code></th><td class="bar">'
        f'<span class="p-import" style="width:{100 * package.seconds / longest:.2f}%"></span></td>'
        f"<td>{duration(package.seconds)}{whole}</td>"
        f'<td class="hint">{counted(package.modules, "module")}</td></tr>'
    )


def _waits(trace: Trace) -> str:
    """Lines that waited for results, the longest first."""
    found = sorted((w for p in trace.processes for w in p.waits), key=lambda w: -w.seconds)
    short = sum(p.short_waits for p in trace.processes)
    if not found and not short:
        return ""
    rows = [
        (
            place(w.user_site or w.site),
            str(w.count),
            duration(w.seconds),
            f"{duration(w.first_seconds)} to {duration(w.last_seconds)}",
        )
        for w in found[:_MAX_WAITS]
    ]
    lines = text_table(("line", "waits", "waited", "from … to"), rows) if rows else ""
    brief = duration(sum(p.short_waits_seconds for p in trace.processes))
    note = f" {counted(short, 'wait')} of less than 0.1 ms took {brief} in total." if short else ""
    return (
        f'{lines}<p class="hint">Lines that waited for a device: they read a value or called '
        f"block_until_ready.{note}</p>"
    )


def _processes(trace: Trace) -> str:
    """Every process with its time by kind, then torch's regions if there are any."""
    kinds = [k for k in phases.LOOKS if any(p.phases_seconds.get(k) for p in trace.processes)]
    names = ("pid", "rank", "started at", "first result at", "whole")
    head: tuple[str, ...] = (*names, *map(phases.name_of, kinds), "the recorder")
    rows = [_process(p, kinds) for p in trace.processes]
    if len(rows) <= _MAX_SIDE_BY_SIDE:  # a column per process
        head, *rows = zip(head, *rows, strict=True)
    return text_table(head, rows) + _regions(trace)


def _process(process: Process, kinds: Sequence[str]) -> tuple[str, ...]:
    first = process.first_result_seconds
    return (
        str(process.pid) + ("" if process.whole else ", in part"),
        process.rank or "",
        duration(process.starts_at_seconds),
        "none" if first is None else duration(first),
        "did not end" if process.wall_seconds is None else duration(process.wall_seconds),
        *(duration(process.phases_seconds.get(k, 0.0)) for k in kinds),
        duration(process.own_seconds),
    )


def _regions(trace: Trace) -> str:
    rows = [
        (
            one.readable,
            place(one.place),
            one.number or "",
            place(one.user_site),
            duration(one.seconds),
            duration(one.seconds - one.own_seconds),
            "" if one.backend_seconds is None else duration(one.backend_seconds),
            why(one),
        )
        for one in regions(trace)
    ]
    head = ("function", "defined", "frame/compile", "called from", "whole", "imports", "backend")
    return f"<h3>torch.compile</h3>{text_table((*head, 'what happened'), rows)}" if rows else ""
