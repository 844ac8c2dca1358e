"""The style of all figures (colours, sizes, labels, legends), and how a figure is saved.

No global state of matplotlib is changed: no pyplot, no style. Colour-blind readers can distinguish
the colours (Okabe and Ito), and a line style, fill or position repeats what a colour shows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

#: Keyword arguments of matplotlib for the look of an artist.
Look: TypeAlias = dict[str, Any]
BLUE, VERMILLION, GREY, BLACK = "#0072B2", "#D55E00", "#8A8A8A", "#1A1A1A"
LETTER_INCHES = 0.085
_ROW_INCHES = 0.27


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of its suffix (.png, .svg), under a temporary name at first."""
    from matplotlib import rc_context

    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    metadata = {"Date": None} if kind == "svg" else {}
    try:
        # Text stays text in an SVG, so it can be searched and the file is the same in every run.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "firstlight"}):
            figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def new_figure(width: float, height: float, compress: bool = False) -> Figure:
    engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, compress=compress)
    return Figure(figsize=(width, height), layout=engine)


def rows_of(names: Sequence[str], title: str, panels: int = 1) -> tuple[Figure, Axes]:
    """A figure with one row per name, the first at the top, wide enough for the longest."""
    letters = LETTER_INCHES * max((len(n) for n in names), default=0)
    size = (4.4 + 3.0 * (panels - 1) + letters, 1.6 + _ROW_INCHES * max(len(names), 4))
    figure = new_figure(*size)
    figure.suptitle(title, x=0.02, ha="left", fontsize=11)
    axes = figure.add_subplot(1, panels, 1)
    axes.set_yticks(range(len(names)), [plain(n) for n in names], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return figure, axes


def empty(figure: Figure, axes: Axes, why: str) -> Figure:
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=GREY)
    return figure


def legend_above(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)


def out_of(shown: int, total: int, what: str, which: str) -> str:
    return f": {total} {what}" if shown == total else f": {shown} of {total} {what}, {which}"


def with_error(value: float, sigma: float) -> str:
    """Value and uncertainty, rounded to two digits of the uncertainty."""
    if not (math.isfinite(sigma) and sigma > 0):
        return f"{value:.4g}"
    places = 1 - math.floor(math.log10(sigma))
    if not 0 <= places <= 6:
        return f"{value:.4g} ± {sigma:.2g}"
    return f"{value:.{places}f} ± {sigma:.{places}f}"


def plain(name: str) -> str:
    """A name as plain text: `$` would begin a formula, and a lone surrogate has no glyph."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8").replace("$", r"\$")
