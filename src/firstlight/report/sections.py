"""The frame of the page: header, contents, environment and method."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from firstlight.present import document
from firstlight.present.quantities import THIN_SPACE, counted, size
from firstlight.records import Run
from firstlight.report import protocols
from firstlight.report.admission import Workload, flag


def header(run: Run, workloads: Sequence[Workload], sample_count: int) -> str:
    """Title, when, where, with what, and what must be known before any number is read."""
    cases = [case for workload in workloads for case in workload.cases]
    troubled = sum(1 for case in cases if flag(case))
    facts = [
        f"{counted(len(cases), 'case')} of {counted(len(workloads), 'workload')}",
        f"{sample_count} processes",
        f"{counted(troubled, 'case')} not valid, marked below" if troubled else "every case valid",
    ]
    when = f'<time datetime="{html.escape(run.created_at)}">{_when(run.created_at)}</time>'
    if run.finished_at:
        when += f" to {_when(run.finished_at, run.created_at)}"
    state = "complete" if run.complete else "incomplete: interrupted before every process had run"
    badge = f'<span class="badge{" fine" if run.complete else ""}">{state}</span>'
    lead = (
        f"<p>{when} {badge}</p><p>{html.escape(_machine(run.host))}</p>"
        f"<p>{html.escape(_software(run))}</p><p>{', '.join(facts)}</p>"
    )
    return document.masthead("Time to first result", lead) + _warnings(run.warnings)


def _when(moment: str, since: str = "") -> str:
    """'2026-03-01 09:15 UTC' from ISO 8601; of the same day only the time."""
    day, _, clock = moment.partition("T")
    if not clock:
        return html.escape(moment)
    zone = " UTC" if clock.endswith(("Z", "+00:00")) else ""
    shown = clock[:5] + zone
    return html.escape(shown if since.startswith(day) else f"{day} {shown}")


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{html.escape(w)}</li>" for w in warnings)
    return (
        '<aside class="warnings" aria-label="Warnings"><h2>Read the numbers with this in mind</h2>'
        f"<ul>{items}</ul></aside>"
    )


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def find(host: Mapping[str, Any], *names: str) -> Any:
    """The first leaf whose dotted path ends in one of `names`; names that come first win."""
    leaves = [(f".{'.'.join(path)}", v) for path, v in _leaves(host) if v not in (None, "")]
    for name in names:
        for path, value in leaves:
            if path.endswith(f".{name}"):
                return value
    return None


def _machine(host: Mapping[str, Any]) -> str:
    """CPU, cores, memory, accelerator and operating system: what is known of them."""
    cpu = find(host, "cpu.model", "cpu_model", "cpu")
    cores = find(host, "usable_cores", "logical_cores", "cores")
    memory = find(host, "memory_bytes")
    parts = [str(cpu) if cpu else "", f"{cores} cores" if cores else ""]
    parts.append(f"{size(memory)} memory" if isinstance(memory, (int, float)) else "")
    parts += _gpus(host.get("gpus"))
    parts.append(str(find(host, "os.distribution", "os.system", "os") or ""))
    return ", ".join(p for p in parts if p) or "machine not described"


def _gpus(found: Any) -> list[str]:
    """Names of the accelerators, equal ones counted."""
    names = [str(g.get("name", "GPU")) if isinstance(g, Mapping) else str(g) for g in found or ()]
    counted = {name: names.count(name) for name in names}
    return [name if n == 1 else f"{n} × {name}" for name, n in counted.items()]


def _software(run: Run) -> str:
    python = find(run.host, "python.version", "python_version", "python")
    parts = [f"Python {python}"] if python else []
    for package in ("jax", "jaxlib", "torch", "numpy"):
        version = find(run.host, f"packages.{package}", package)
        if isinstance(version, str):
            parts.append(f"{package} {version}")
    mine = f"Firstlight {run.harness.get('version') or ''}".rstrip()
    commit = find(run.harness, "commit.id", "commit")
    if commit:
        changed = ", changed since" if find(run.harness, "commit.changed") else ""
        mine += f" (commit {str(commit)[:12]}{changed})"
    return ", ".join([*parts, mine])


def contents(workloads: Sequence[Workload]) -> str:
    """Links to every part, and the box that filters cases."""
    places = [("answer", "Answer"), ("all-cases", "All cases"), ("protocols", "Protocols")]
    places += [("environment", "Environment"), ("method", "Method")]
    places += [(w.anchor, w.label) for w in workloads]  # last: there can be many
    return document.contents(places, "Filter cases", "filter: jit warm")


def environment(run: Run) -> str:
    """The machine, the harness and the settings, as they were recorded."""
    parts = [("Host", run.host), ("Harness", run.harness), ("Settings", run.settings)]
    blocks = "".join(
        f'<div class="tree"><h3>{name}</h3>{protocols.tree(value)}</div>' for name, value in parts
    )
    checksum = run.samples_sha256 or "not recorded"
    raw = (
        f"Run {html.escape(run.id)}, schema version {run.schema_version}. Every process is a line "
        f"of <code>{html.escape(run.samples_file)}</code>, SHA-256 "
        f"<code>{html.escape(checksum)}</code>."
    )
    return (
        f'<section id="environment"><h2>Environment</h2><p>{raw}</p>'
        f'<div class="trees">{blocks}</div></section>'
    )


_METHOD = f"""
<p><b>A number</b> is the median over fresh processes, one process at a time, with the cases in an
order that is shuffled in every round, so that a drift of the machine falls on all of them.</p>
<p><b>[low, high]</b> is an interval that contains the true median of this machine and this protocol
with at least the stated confidence. It says nothing about other machines, and two intervals that
overlap are not ranked in the answer.</p>
<p><b>Phases</b>, in order: interpreter (spawn to the first line of the worker), import, backend
init, setup (data in place), trace, lower, compile, first execute (to the synchronised result).
Unattributed is what the parent’s clock saw and no phase claims. A framework without a phase has a
dash there, not 0{THIN_SPACE}s. Medians of phases need not add up to the median of the total.</p>
<p><b>Warm calls</b> are synchronised one by one in the same process. The steady part is found by
change points: flat, warmup (it became faster), slowdown, no steady state, or inconsistent between
processes.</p>
<p><b>Break-even</b> is the smallest number of calls, the first included, after which a compiled
case has cost less in total than an uncompiled one; the interval comes from the ends of the medians’
intervals.</p>
<p><b>No outlier is dropped.</b> A slow start is what a user met. The median does not need the
protection, and a mean without its worst cases would be a number nobody has seen.</p>
<p><b>Not valid</b> means failed, unproven (the cache was not in the declared state), crashed,
timeout, out-of-memory, skipped or incomplete. An incomplete case shows what there is, marked, and
is left out of the answer; every other case that is not valid shows no number.</p>
"""


def method() -> str:
    """What the numbers mean, in a few lines."""
    return f'<section id="method"><h2>Method</h2><div class="prose">{_METHOD}</div></section>'
