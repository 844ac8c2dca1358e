"""Figures of results: each function takes a result and returns a matplotlib `Figure`, unsaved.

Parameter names are shown in full; if there are too many, the title says how many are shown.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from firstlight.histfactory.exclusion import CLs
from firstlight.histfactory.figure_style import (
    BLACK,
    BLUE,
    GREY,
    LETTER_INCHES,
    VERMILLION,
    Look,
    empty,
    legend_above,
    new_figure,
    out_of,
    plain,
    rows_of,
    with_error,
)
from firstlight.histfactory.fitting import FitResult
from firstlight.histfactory.limits import UpperLimit
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.scans import Impacts, Scan, constraint_widths, interval

#: The traditional colours of exclusion plots, in tones that also differ in greyscale.
ONE_SIGMA, TWO_SIGMA = "#6CC071", "#F9E27D"
_INNER, _OUTER = "#DCDCDC", "#EFEFEF"  # ± 1 and ± 2 standard deviations of a pull


def profile_scan(scan: Scan) -> Figure:
    """2ΔNLL along a parameter, with the 1σ and 2σ intervals of a single parameter."""
    figure = new_figure(7.0, 5.0)
    axes = figure.add_subplot()
    order = np.argsort(scan.values)
    values, heights = scan.values[order], scan.twice_delta_nll[order]
    good = scan.status_code[order] == 0
    line: Look = {"color": BLUE, "marker": "o" if len(values) <= 60 else "", "markersize": 3.5}
    axes.plot(values[good], heights[good], label="profile", **line)
    if not good.all():
        label = f"not converged ({int(np.sum(~good))})"
        axes.plot(values[~good], heights[~good], "x", color=VERMILLION, label=label)
    best = scan.best.parameters[scan.parameter]
    label = f"best fit {_fitted(scan.best, scan.parameter)}"
    axes.axvline(best, color=BLACK, linestyle=":", linewidth=1.2, label=label)
    finite = heights[good & np.isfinite(heights)]
    top = max(float(np.max(finite, initial=0.0)), 1.0) * 1.08
    for number, height, style in ((1, 1.0, "--"), (2, 4.0, "-.")):
        ends = interval(scan, height)
        if height > top and ends == (None, None):
            continue
        low, high = ("…" if end is None else f"{end:#.4g}" for end in ends)
        label = f"{number}σ: [{low}, {high}]"
        axes.axhline(height, color=GREY, linestyle=style, linewidth=1.0, label=label)
        for end in ends:
            if end is not None:
                axes.plot([end, end], [0, height], color=GREY, linestyle=style, linewidth=1.0)
    if len(values) > 1:
        axes.set_xlim(float(values[0]), float(values[-1]))
    axes.set_ylim(0.0, top)
    axes.set_xlabel(plain(scan.parameter))
    axes.set_ylabel("2 ΔNLL, all other parameters fitted")
    legend_above(figure, axes)
    return figure


def limit_band(results: CLs, limit: UpperLimit, poi: str = "μ") -> Figure:
    """CLs against the signal strength with its expected bands, and the limits at the level.

    results: `cls` of several signal strengths, with arrays as fields.
    """
    figure = new_figure(7.0, 5.0)
    axes = figure.add_subplot()
    mu, expected = np.asarray(results.mu), np.asarray(results.expected)
    low, median, high = (float(limit.expected[i]) for i in (1, 2, 3))
    axes.fill_between(mu, expected[:, 0], expected[:, 4], color=TWO_SIGMA, label="expected ± 2σ")
    axes.fill_between(mu, expected[:, 1], expected[:, 3], color=ONE_SIGMA, label="expected ± 1σ")
    label = f"expected < {median:#.4g}  (+{high - median:.2g} −{median - low:.2g})"
    axes.plot(mu, expected[:, 2], color=BLACK, linestyle="--", label=label)
    observed = np.asarray(results.observed)
    axes.plot(mu, observed, color=BLACK, label=f"observed < {float(limit.observed):#.4g}")
    level = float(limit.level)
    axes.axhline(level, color=VERMILLION, linewidth=1.2, label=f"CLs = {level:g}")
    for value, face in ((median, "white"), (float(limit.observed), BLACK)):
        axes.plot([value, value], [0, level], color=BLACK, linewidth=0.8, linestyle=":")
        marker: Look = {"markerfacecolor": face, "markeredgecolor": BLACK, "zorder": 5}
        axes.plot(value, level, "o", markersize=6, **marker)
    axes.set_xlim(float(mu.min()), float(mu.max()))
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel(plain(poi))
    axes.set_ylabel("CLs")
    axes.set_title(f"Upper limit at {100 * (1 - level):.4g}% confidence level", loc="left")
    legend_above(figure, axes)
    return figure


def pulls(model: Model, result: FitResult, top: int = 30) -> Figure:
    """Constrained parameters in units of their constraints: (best fit - centre) / width."""
    width, centre = constraint_widths(model)
    pull = (np.asarray(result.values) - centre) / width
    error = np.array(list(result.uncertainties.values())) / width
    moved = np.flatnonzero(np.isfinite(pull) & (np.asarray(result.is_free) > 0))
    chosen = np.sort(moved[np.argsort(-np.abs(pull[moved]), kind="stable")][:top])
    names = [result.names[i] for i in chosen]
    title = "Pulls" + out_of(len(names), len(moved), "constrained parameters", "largest pulls")
    figure, axes = rows_of(names, title)
    if not names:
        return empty(figure, axes, "no constrained parameter was free in this fit")
    _pull_panel(axes, pull[chosen], error[chosen])
    return figure


def ranking(impacts: Impacts, top: int = 20) -> Figure:
    """Nuisance parameters by their impact on the parameter of interest, largest at the top.

    Left: pulls, with the constraint as error bar. Right: change of the POI when the parameter moves
    by its uncertainty before (hollow) and after the fit (filled).
    """
    shown = min(top, len(impacts.names))
    names = impacts.names[:shown]
    title = "Impacts" + out_of(shown, len(impacts.names), "parameters", "largest impacts")
    title += f"\n{plain(impacts.poi)} = {_fitted(impacts.best, impacts.poi)}"
    figure, left = rows_of(names, title, panels=2)
    if not names:
        return empty(figure, left, "no nuisance parameter was free in this fit")
    right = figure.add_subplot(1, 2, 2, sharey=left)
    right.tick_params(axis="y", length=0, labelleft=False)
    _pull_panel(left, impacts.pulls[:shown], impacts.constraints[:shown])
    for row in np.flatnonzero(np.isnan(impacts.pulls[:shown])).tolist():
        text = with_error(impacts.values[row], impacts.uncertainties[row])
        box = {"facecolor": _INNER, "edgecolor": "none", "pad": 1.0}
        left.text(0.0, row, text, ha="center", va="center", fontsize=8.5, color=BLACK, bbox=box)
    _impact_panel(right, impacts, shown)
    right.set_xlabel(f"impact on {plain(impacts.poi)}")
    handles = [
        Patch(facecolor=BLUE, label="parameter up"),
        Patch(facecolor=VERMILLION, label="parameter down"),
        Patch(facecolor="none", edgecolor=BLACK, label="before the fit"),
        Patch(facecolor=GREY, label="after the fit"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.align_xlabels()
    return figure


def _impact_panel(axes: Axes, impacts: Impacts, shown: int) -> None:
    rows = np.arange(shown)
    reach = 0.0
    for side, colour in (("up", BLUE), ("down", VERMILLION)):
        post, pre = (getattr(impacts, f"{when}_{side}")[:shown] for when in ("post", "pre"))
        axes.barh(rows, post, height=0.5, color=colour, alpha=0.85, label=f"post {side}")
        known = np.isfinite(pre)
        hollow: Look = {
            "fill": False,
            "edgecolor": colour,
            "linewidth": 1.1,
            "label": f"pre {side}",
        }
        axes.barh(rows[known], pre[known], height=0.78, **hollow)
        reach = float(np.nanmax(np.abs([post, pre]), initial=reach))
    reach = reach or 1.0
    axes.set_xlim(-1.1 * reach, 1.1 * reach)
    axes.axvline(0.0, color=BLACK, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)


def _pull_panel(axes: Axes, pull: Floats, error: Floats) -> None:
    reach = max(2.4, float(np.nanmax(np.abs(pull) + error, initial=0.0)) * 1.08)
    axes.axvspan(-2, 2, color=_OUTER, linewidth=0)
    axes.axvspan(-1, 1, color=_INNER, linewidth=0)
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    (rows,) = np.nonzero(np.isfinite(pull))
    points: Look = {"color": BLACK, "fmt": "o", "markersize": 4, "linewidth": 1.3, "capsize": 2}
    axes.errorbar(pull[rows], rows, xerr=error[rows], **points)
    axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set_xlabel("(θ̂ − θ₀) / Δθ")


def correlations(result: FitResult, top: int = 20) -> Figure:
    """Correlation matrix of the parameters with the largest correlations."""
    matrix, free = np.asarray(result.correlation), np.flatnonzero(np.asarray(result.is_free) > 0)
    strength = np.abs(matrix[np.ix_(free, free)] - np.eye(len(free))).max(axis=1, initial=0.0)
    chosen = np.sort(free[np.argsort(-strength, kind="stable")][:top])
    names = [result.names[i] for i in chosen]
    count = len(names)
    letters = LETTER_INCHES * max((len(n) for n in names), default=0)
    cell = 0.40 if count <= 25 else 0.20
    size = (max(5.0, cell * count + letters + 1.8), max(4.0, cell * count + letters + 1.0))
    figure = new_figure(*size, compress=True)
    axes = figure.add_subplot()
    title = "Correlations" + out_of(count, len(free), "parameters", "largest correlations")
    axes.set_title(title, loc="left", fontsize=11)
    if not names:
        return empty(figure, axes, "no parameter was free in this fit")
    values = matrix[np.ix_(chosen, chosen)]
    image = axes.imshow(values, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    labels = [plain(n) for n in names]
    axes.set_xticks(range(count), labels, rotation=90, fontsize=9)
    axes.set_yticks(range(count), labels, fontsize=9)
    axes.tick_params(length=0)
    if count <= 25:
        for (row, column), value in np.ndenumerate(values):
            if abs(value) >= 0.005:
                colour = "white" if abs(value) > 0.6 else BLACK
                text = f"{100 * value:.0f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    note = "correlation" + (" (numbers in %)" if count <= 25 else "")
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, label=note)
    return figure


def _fitted(result: FitResult, name: str) -> str:
    return with_error(float(result.parameters[name]), float(result.uncertainties[name]))
