"""A run in a notebook: its table and amortisation curves in a frame."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from firstlight.present.document import document
from firstlight.records import Run, Sample
from firstlight.report import amortisation, table
from firstlight.report.admission import admit
from firstlight.report.answer import title_of

_COLUMNS = ("cold", "n", "warm", "class", "break-even")
_WIDTH = 720.0
#: Pixels around the table, of a row, and around a figure: a notebook does not fit the height of a
#: frame to its content.
_HEAD, _ROW, _FIGURE = 150, 36, 70


def run_html(run: Run, samples: Sequence[Sample]) -> str:
    """Markup for a notebook's output, in a frame that separates its styles from the notebook's."""
    workloads = admit(run, samples)
    drawn = [w for w in workloads if amortisation.curves(w.cases)]
    curves = "".join(
        f'<figure id="{w.anchor}"><h3>{title_of(w)}: total time by calls</h3>'
        f"{amortisation.draw(w, _WIDTH)}</figure>"
        for w in drawn
    )
    body = f"<main>{table.table(workloads, _COLUMNS)}{curves}</main>"
    page = document(f"Firstlight: {run.id}", body)
    heights = [amortisation.height_of(len(w.cases)) for w in drawn]
    # Figures may be drawn up to 15 % larger than designed.
    height = _HEAD + _ROW * len(run.cases) + sum(_FIGURE + 1.15 * own for own in heights)
    return (
        f'<iframe srcdoc="{escape(page)}" title="Firstlight run {escape(run.id)}" '
        f'style="width:100%;height:{height:.0f}px;border:0"></iframe>'
    )
