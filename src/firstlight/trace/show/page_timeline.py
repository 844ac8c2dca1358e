"""The timeline of a trace as HTML: a lane per process, and one per additional thread.

Boxes are placed in percent of the whole, so that zooming only changes the width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

from firstlight.present.plain_text import escaped
from firstlight.present.quantities import duration
from firstlight.present.svg import Linear
from firstlight.trace.read import phases
from firstlight.trace.read.model import Process, Span, Trace
from firstlight.trace.show.verdict import in_other_threads
from firstlight.trace.wording import spent_on

_MAX_BOXES = 900  # per lane; the shortest are merged with their neighbours
_ROOM_FOR_WORDS = 0.045  # narrower boxes, as a share of the whole, get no text


def section(trace: Trace) -> str:
    """The shares of each kind up to the first result, then the whole run."""
    leading = phases.leading(trace)
    spans = [s for p in trace.processes for lane in phases.lanes(p) for s in lane]
    end = max((s.end_seconds for s in spans), default=0.0)
    if leading is None or end <= 0:
        return ""
    kinds = dict.fromkeys(s.kind for s in spans)
    known = [k for k in phases.LOOKS if k in kinds] + [k for k in kinds if k not in phases.LOOKS]
    ticks = "".join(
        f'<span style="left:{100 * t / end:.4f}%">{f"{t:.6g} s" if t else "0"}</span>'
        for t in Linear(0.0, end, 0.0, 1.0).ticks(8)
    )
    lanes = "".join(_process(p, end, len(trace.processes) > 1) for p in trace.processes)
    return (
        f"{_shares(leading)}<h3>The whole run</h3>{_legend(dict.fromkeys(known, ''))}"
        '<div class="zoom" hidden><button type="button" data-zoom="0.5" aria-label="Zoom out">−'
        '</button><button type="button" data-zoom="2" aria-label="Zoom in">+</button>'
        '<button type="button" data-zoom="0">all</button>'
        '<button type="button" data-zoom="first">to the first result</button></div>'
        f'<div class="scroll timeline" tabindex="0" data-end="{end:.6f}" '
        f'data-first="{leading.first_result_seconds or 0.0:.6f}"><div class="lanes">'
        f'<div class="axis">{ticks}</div>{lanes}</div></div>'
        '<p class="hint">At any moment the innermost activity counts: a compile within an import '
        "is a compile. Execution on a device is visible only while the host waits for it.</p>"
    )


def _shares(process: Process) -> str:
    moment = process.first_result_seconds
    by_kind = phases.until(process, moment)
    total = sum(by_kind.values())
    if not total:
        return ""
    boxes = "".join(
        f'<span class="box {phases.class_of(k)}" style="flex-grow:{v / total:.5f}" '
        f'title="{escaped(phases.name_of(k))} {duration(v)}"></span>'
        for k, v in by_kind.items()
    )
    shares = {
        k: f' <b>{duration(v)}</b> <span class="hint">{v / total:.0%}</span>'
        for k, v in sorted(by_kind.items(), key=lambda item: -item[1])
    }
    title = escaped(spent_on(process, total))
    bar = f'<h3>{title}</h3><div class="shares">{boxes}</div>{_legend(shares)}'
    elsewhere = in_other_threads(process)
    return f'{bar}<p class="hint">{escaped(elsewhere)}</p>' if elsewhere else bar


def _legend(kinds: Mapping[str, str]) -> str:
    """Kinds of time in their colours, each with additional markup."""
    items = "".join(
        f'<li><i class="{phases.class_of(k)}"></i>{escaped(phases.name_of(k))}{more}</li>'
        for k, more in kinds.items()
    )
    return f'<ul class="legend">{items}</ul>'


def _process(process: Process, end: float, several: bool) -> str:
    first = process.first_result_seconds
    mark = ""
    if first is not None:
        mark = (
            f'<span class="first" style="left:{100 * first / end:.4f}%">'
            f"<b>first result {duration(first)}</b></span>"
        )
    rank = f", rank {process.rank}" if process.rank else ""
    name = f"process {process.pid}{rank}" if several else "main thread" if process.threads else ""
    lanes = [_lane(process, name, process.timeline, end, mark)]
    lanes += [_lane(process, thread.name, thread.timeline, end) for thread in process.threads]
    return "".join(lanes)


def _lane(process: Process, name: str, spans: Sequence[Span], end: float, mark: str = "") -> str:
    head = f'<p class="lane-name">{escaped(name)}</p>' if name else ""
    return (
        f'{head}<div class="lane" data-process="{process.number}">'
        f"{''.join(_box(s, end) for s in merged(spans, end))}{mark}</div>"
    )


def _box(span: Span, end: float) -> str:
    width = span.end_seconds - span.begin_seconds
    kind = phases.name_of(span.kind)
    short = span.label.rpartition("/")[2] if span.kind == "wait" else span.label
    label = escaped(short or kind)
    words = f"<b>{label}</b>" if width / end > _ROOM_FOR_WORDS else ""
    what = f"{kind}: {span.label}" if span.label else kind
    about = f"{what}, {duration(width)} from {duration(span.begin_seconds)}"
    return (
        f'<span class="box {phases.class_of(span.kind)}" '
        f'style="left:{100 * span.begin_seconds / end:.4f}%;width:{100 * width / end:.4f}%" '
        f'title="{escaped(about)}" data-label="{label}">{words}</span>'
    )


def merged(spans: Sequence[Span], end: float) -> list[Span]:
    """At most `_MAX_BOXES` spans: short neighbours become one, of the kind with the most time."""
    every = [s for s in spans if s.end_seconds > s.begin_seconds]
    kept, part = every, end / 20000
    while len(kept) > _MAX_BOXES:
        groups = groupby(every, key=partial(_part_or_itself, part=part))
        kept = [_one(list(group)) for _, group in groups]
        part *= 2  # at end / 450 there are at most 450 long spans and 450 groups
    return kept


def _part_or_itself(span: Span, part: float) -> object:
    """A key to group by: for a short span the part of the timeline where it begins."""
    short = span.end_seconds - span.begin_seconds < part
    return span.begin_seconds // part if short else span


def _one(group: Sequence[Span]) -> Span:
    if len(group) == 1:
        return group[0]
    sums: dict[str, float] = defaultdict(float)
    for span in group:
        sums[span.kind] += span.end_seconds - span.begin_seconds
    kind = max(sums, key=lambda k: sums[k])
    label = f"{len(group)} short parts, mostly {phases.name_of(kind)}"
    return Span(kind, group[0].begin_seconds, group[-1].end_seconds, label)
