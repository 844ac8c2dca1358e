"""The HTML page of a run (answer, figures, table, protocols), and its part for a notebook.

Self-contained, and readable without its script, which adds filtering, sorting and a stored theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from firstlight.present.document import contents, document, masthead, packaged
from firstlight.present.quantities import counted, size
from firstlight.records import JsonObject, Run, Sample
from firstlight.report import amortisation, answer, blocks, protocols, table, warm
from firstlight.report.admission import Workload, admit, flag

#: Blocks that are unfolded when the page opens.
_UNFOLDED = 3
_NOTEBOOK_COLUMNS = ("cold", "n", "warm", "class", "break-even")
_NOTEBOOK_WIDTH = 720.0
#: Pixels around the table, of a row, and around a figure: a notebook does not fit the height of a
#: frame to its content.
_HEAD, _ROW, _FIGURE = 150, 36, 70


def render(run: Run, samples: Sequence[Sample]) -> str:
    """The page of `run`; `samples` are its processes."""
    workloads = admit(run, samples)
    everything = {name: own for w in workloads for name, own in w.samples.items()}
    points = warm.points_per_process(everything)
    cards = "".join(map(answer.card, workloads)) or "<p>The run has no cases.</p>"
    figures = "".join(blocks.block(w, i < _UNFOLDED, points) for i, w in enumerate(workloads))
    rules = "".join(
        f"<details><summary>{answer.title_of(w)}</summary>{protocols.full(w)}</details>"
        for w in workloads
    )
    method = packaged("method.html", "firstlight.report")
    body = (
        f"{_header(run, workloads, len(samples))}{_contents(workloads)}<main>"
        f'<section id="answer"><h2>The answer</h2>{cards}</section>'
        f'<section id="figures" aria-label="Figures">{figures}</section>'
        f'<section id="all-cases"><h2>All cases</h2>{table.table(workloads)}</section>'
        '<section id="protocols"><h2>Protocols</h2><p>Everything that must be equal for two '
        "numbers to be comparable. Values shared by all cases of a workload appear once.</p>"
        f"{rules}"
        f"</section>{_environment(run)}"
        f'<section id="method"><h2>Method</h2><div class="prose">\n{method}</div></section></main>'
    )
    script = packaged("behaviour.js", "firstlight.report")
    return document(f"Firstlight: {run.id}", body, script=script)


def notebook_html(run: Run, samples: Sequence[Sample]) -> str:
    """Markup for a notebook's output, in a frame that separates its styles from the notebook's."""
    workloads = admit(run, samples)
    drawn = [w for w in workloads if amortisation.curves(w.cases)]
    curves = "".join(
        f'<figure id="{w.anchor}"><h3>{answer.title_of(w)}: total time by calls</h3>'
        f"{amortisation.draw(w, _NOTEBOOK_WIDTH)}</figure>"
        for w in drawn
    )
    body = f"<main>{table.table(workloads, _NOTEBOOK_COLUMNS)}{curves}</main>"
    page = document(f"Firstlight: {run.id}", body)
    heights = [amortisation.height_of(len(w.cases)) for w in drawn]
    # Figures may be drawn up to 15 % larger than designed.
    height = _HEAD + _ROW * len(run.cases) + sum(_FIGURE + 1.15 * own for own in heights)
    return (
        f'<iframe srcdoc="{escape(page)}" title="Firstlight run {escape(run.id)}" '
        f'style="width:100%;height:{height:.0f}px;border:0"></iframe>'
    )


def _header(run: Run, workloads: Sequence[Workload], sample_count: int) -> str:
    """Title, time, machine, software, and warnings."""
    cases = [case for workload in workloads for case in workload.cases]
    troubled = sum(1 for case in cases if flag(case))
    facts = [
        f"{counted(len(cases), 'case')} of {counted(len(workloads), 'workload')}",
        f"{sample_count} processes",
        f"{counted(troubled, 'case')} not valid, marked below" if troubled else "every case valid",
    ]
    when = f'<time datetime="{escape(run.created_at)}">{_when(run.created_at)}</time>'
    if run.finished_at:
        when += f" to {_when(run.finished_at, run.created_at)}"
    state = "complete" if run.complete else "incomplete: interrupted before every process had run"
    badge = f'<span class="badge{" fine" if run.complete else ""}">{state}</span>'
    lead = (
        f"<p>{when} {badge}</p><p>{escape(_machine(run.host))}</p>"
        f"<p>{escape(_software(run))}</p><p>{', '.join(facts)}</p>"
    )
    warnings = "".join(f"<li>{escape(w)}</li>" for w in run.warnings)
    if warnings:
        warnings = (
            '<aside class="warnings" aria-label="Warnings"><h2>Read the numbers with this in mind'
            f"</h2><ul>{warnings}</ul></aside>"
        )
    return masthead("Time to first result", lead) + warnings


def _when(moment: str, since: str = "") -> str:
    """'2026-03-01 09:15 UTC' from ISO 8601; only the time if `since` is of the same day."""
    day, _, clock = moment.partition("T")
    if not clock:
        return escape(moment)
    shown = clock[:5] + (" UTC" if clock.endswith(("Z", "+00:00")) else "")
    return escape(shown if since.startswith(day) else f"{day} {shown}")


def _at(facts: JsonObject, group: str, name: str) -> object:
    """One fact of a group; None if not recorded."""
    found = facts.get(group)
    return found.get(name) if isinstance(found, Mapping) else None


def _machine(host: JsonObject) -> str:
    """CPU, cores, memory, accelerators and operating system, as far as recorded."""
    cores = _at(host, "cpu", "usable_cores") or _at(host, "cpu", "logical_cores")
    memory = host.get("memory_bytes")
    gpus = [str(gpu["name"]) for gpu in host.get("gpus") or ()]
    parts = [
        _at(host, "cpu", "model"),
        cores and f"{cores} cores",
        memory and f"{size(memory)} memory",
        *(f"{gpus.count(g)} × {g}" if gpus.count(g) > 1 else g for g in dict.fromkeys(gpus)),
        _at(host, "os", "distribution") or _at(host, "os", "system"),
    ]
    return ", ".join(str(p) for p in parts if p) or "machine not described"


def _software(run: Run) -> str:
    versions = {"Python": _at(run.host, "python", "version")}
    versions |= {p: _at(run.host, "packages", p) for p in ("jax", "jaxlib", "torch", "numpy")}
    mine = f"Firstlight {run.harness.get('version') or ''}".rstrip()
    commit = _at(run.harness, "commit", "id")
    if commit:
        changed = ", changed since" if _at(run.harness, "commit", "changed") else ""
        mine += f" (commit {str(commit)[:12]}{changed})"
    return ", ".join([*(f"{name} {v}" for name, v in versions.items() if v), mine])


def _contents(workloads: Sequence[Workload]) -> str:
    """Links to all parts, and the box that filters cases."""
    places = [("answer", "Answer"), ("all-cases", "All cases"), ("protocols", "Protocols")]
    places += [("environment", "Environment"), ("method", "Method")]
    places += [(w.anchor, w.label) for w in workloads]  # last: there can be many
    return contents(places, "Filter cases", "filter: jit warm")


def _environment(run: Run) -> str:
    """Host, harness and settings, as recorded."""
    parts = {"Host": run.host, "Harness": run.harness, "Settings": run.settings}
    trees = "".join(
        f'<div class="tree"><h3>{name}</h3>{protocols.tree(value)}</div>'
        for name, value in parts.items()
    )
    return (
        f'<section id="environment"><h2>Environment</h2><p>Run {escape(run.id)}, schema version '
        f"{run.schema_version}. Every process is a line of "
        f"<code>{escape(run.samples_file)}</code>, "
        f"SHA-256 <code>{escape(run.samples_sha256 or 'not recorded')}</code>.</p>"
        f'<div class="trees">{trees}</div></section>'
    )
