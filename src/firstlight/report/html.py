"""One self-contained HTML page for a run: the answer, the figures, the table, the protocol.

Works offline and without a script: pictures are SVG made here, and the script only adds filtering,
sorting and a theme that is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

from firstlight.present.document import document, packaged
from firstlight.records import Run, Sample
from firstlight.report import answer, blocks, protocols, sections, table, warm
from firstlight.report.admission import Workload, admit

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
    return document(
        f"Firstlight: {run.id}", body, script=packaged("behaviour.js", "firstlight.report")
    )


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
