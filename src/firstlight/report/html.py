"""One self-contained HTML page for a run: the answer, the figures, the table, the protocol.

Works offline and without a script: pictures are SVG made here, and the script only adds filtering,
sorting and a theme that is remembered.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files

from firstlight.records import Run, Sample
from firstlight.report import answer, blocks, palette, protocols, sections, table, warm
from firstlight.report.admission import Workload, admit

#: The browser itself holds the page to what it promises: nothing is fetched from anywhere.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)

#: Blocks that are unfolded when the page opens; a reader of more finds the rest by its name.
_UNFOLDED = 3


def render(run: Run, samples: Sequence[Sample]) -> str:
    """The page of `run`; `samples` are its processes, of which the timed ones are drawn."""
    workloads = admit(run, samples)
    body = "".join(
        (
            sections.header(run, workloads, len(samples)),
            sections.contents(workloads),
            "<main>",
            _answers(workloads),
            _figures(workloads),
            _table(workloads),
            _protocols(workloads),
            sections.environment(run),
            sections.method(),
            "</main>",
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="generator" content="Firstlight">'
        f"<title>Firstlight: {html.escape(run.id)}</title>"
        f"<style>{palette.stylesheet()}\n{_packaged('style.css')}</style></head>"
        f"<body>{_HATCH}{body}<script>{_packaged('behaviour.js')}</script></body></html>\n"
    )


#: For what no phase claims: a pattern, because it is no colour among the others.
_HATCH = (
    '<svg width="0" height="0" class="defs" aria-hidden="true"><defs>'
    '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 0V5" class="hatch"/></pattern></defs></svg>'
)


def _packaged(name: str) -> str:
    return files("firstlight.report").joinpath(name).read_text("utf-8")


def _answers(workloads: Sequence[Workload]) -> str:
    cards = "".join(answer.card(workload) for workload in workloads)
    if not cards:
        cards = "<p>The run has no cases.</p>"
    return f'<section id="answer"><h2>The answer</h2>{cards}</section>'


def _figures(workloads: Sequence[Workload]) -> str:
    everything = {name: own for w in workloads for name, own in w.samples.items()}
    points = warm.points_per_process(everything)
    drawn = (blocks.block(w, i < _UNFOLDED, points) for i, w in enumerate(workloads))
    return f'<section id="figures" aria-label="Figures">{"".join(drawn)}</section>'


def _table(workloads: Sequence[Workload]) -> str:
    return f'<section id="all-cases"><h2>All cases</h2>{table.table(workloads)}</section>'


def _protocols(workloads: Sequence[Workload]) -> str:
    parts = "".join(
        f"<details><summary>{answer.title_of(w)}</summary>{protocols.full(w)}</details>"
        for w in workloads
    )
    return (
        '<section id="protocols"><h2>Protocols</h2><p>Everything that must be equal before two '
        f"numbers may be compared. What all cases of a workload share is said once.</p>{parts}"
        "</section>"
    )
