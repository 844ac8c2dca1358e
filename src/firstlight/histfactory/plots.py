"""Figures of results: each function takes a result and returns a matplotlib `Figure`, unsaved.

Nothing global is changed: no pyplot, no style. The colours (Okabe and Ito) can be distinguished by
colour-blind readers, and a line style, fill or position repeats what a colour says. Parameter names
are shown in full; if there are too many, the title says how many are shown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from firstlight.histfactory.evaluation import expected_data
from firstlight.histfactory.exclusion import CLs
from firstlight.histfactory.fitting import FitResult
from firstlight.histfactory.internal_order import prepared, to_internal
from firstlight.histfactory.intervals import interval
from firstlight.histfactory.likelihood import yields as cell_yields
from firstlight.histfactory.limits import UpperLimit
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.precision import in_float64
from firstlight.histfactory.scans import Impacts, Scan
from firstlight.histfactory.scans import constraint_widths as constraint_terms

BLUE, VERMILLION, GREY, BLACK = "#0072B2", "#D55E00", "#8A8A8A", "#1A1A1A"
#: The traditional colours of exclusion plots, in tones that also differ in greyscale.
ONE_SIGMA, TWO_SIGMA = "#6CC071", "#F9E27D"
#: For stacked samples, the largest first; Okabe and Ito without black, then their light tones.
SAMPLE_COLOURS = (
    "#56B4E9",
    "#E69F00",
    "#009E73",
    "#F0E442",
    "#CC79A7",
    "#0072B2",
    "#D55E00",
    "#B9DDF3",
    "#F3D08A",
    "#D9D9D9",
)
_INNER, _OUTER = "#DCDCDC", "#EFEFEF"  # ± 1 and ± 2 standard deviations of a pull
_ROW_INCHES = 0.27
_LETTER_INCHES = 0.085


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of its suffix (.png, .svg), under a temporary name at first."""
    from matplotlib import rc_context

    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    # Text stays text in an SVG, so it can be searched and the file is the same in every run.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "firstlight"}
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    try:
        with rc_context(settings):
            figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# --- profile scan ---------------------------------------------------------------------------------


def profile_scan(scan: Scan) -> Figure:
    """2ΔNLL along a parameter, with the 1σ and 2σ intervals of a single parameter."""
    figure, axes = _single(7.0, 5.0)
    order = np.argsort(scan.values)
    values, heights = scan.values[order], scan.twice_delta_nll[order]
    good = scan.status_code[order] == 0
    marker = "o" if len(values) <= 60 else ""
    axes.plot(
        values[good], heights[good], color=BLUE, marker=marker, markersize=3.5, label="profile"
    )
    if not good.all():
        axes.plot(
            values[~good],
            heights[~good],
            color=VERMILLION,
            marker="x",
            linestyle="",
            label=f"not converged ({int(np.sum(~good))})",
        )
    best, sigma = _best_of(scan.best, scan.parameter)
    label = f"best fit {_pm(best, sigma)}"
    axes.axvline(best, color=BLACK, linestyle=":", linewidth=1.2, label=label)
    finite = heights[good & np.isfinite(heights)]
    top = max(float(np.max(finite, initial=0.0)), 1.0) * 1.08
    for number, height, style in ((1, 1.0, "--"), (2, 4.0, "-.")):
        ends = interval(scan, height)
        if height > top and ends == (None, None):
            continue
        axes.axhline(height, color=GREY, linestyle=style, linewidth=1.0, label=_ends(number, ends))
        for end in ends:
            if end is not None:
                axes.plot([end, end], [0, height], color=GREY, linestyle=style, linewidth=1.0)
    if len(values) > 1:
        axes.set_xlim(float(values[0]), float(values[-1]))
    axes.set_ylim(0.0, top)
    axes.set_xlabel(_shown(scan.parameter))
    axes.set_ylabel("2 ΔNLL, all other parameters fitted")
    _legend_above(figure, axes, columns=2)
    return figure


def _ends(number: int, ends: tuple[float | None, float | None]) -> str:
    low, high = ("…" if end is None else f"{end:#.4g}" for end in ends)
    return f"{number}σ: [{low}, {high}]"


# --- upper limit ----------------------------------------------------------------------------------


def limit_band(results: CLs, limit: UpperLimit, poi: str = "μ") -> Figure:
    """CLs against the signal strength with its expected bands, and where they fall to the level.

    results: `cls` of several signal strengths, with arrays as fields.
    """
    figure, axes = _single(7.0, 5.0)
    mu, expected = np.asarray(results.mu), np.asarray(results.expected)
    low, median, high = (float(limit.expected[i]) for i in (1, 2, 3))
    axes.fill_between(mu, expected[:, 0], expected[:, 4], color=TWO_SIGMA, label="expected ± 2σ")
    axes.fill_between(mu, expected[:, 1], expected[:, 3], color=ONE_SIGMA, label="expected ± 1σ")
    axes.plot(
        mu,
        expected[:, 2],
        color=BLACK,
        linestyle="--",
        label=f"expected < {median:#.4g}  (+{high - median:.2g} −{median - low:.2g})",
    )
    observed = np.asarray(results.observed)
    axes.plot(mu, observed, color=BLACK, label=f"observed < {float(limit.observed):#.4g}")
    level = float(limit.level)
    axes.axhline(level, color=VERMILLION, linewidth=1.2, label=f"CLs = {level:g}")
    for value, face in ((median, "white"), (float(limit.observed), BLACK)):
        axes.plot([value, value], [0, level], color=BLACK, linewidth=0.8, linestyle=":")
        axes.plot(
            value, level, "o", markersize=6, markerfacecolor=face, markeredgecolor=BLACK, zorder=5
        )
    axes.set_xlim(float(mu.min()), float(mu.max()))
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel(_shown(poi))
    axes.set_ylabel("CLs")
    axes.set_title(f"Upper limit at {100 * (1 - level):.4g}% confidence level", loc="left")
    _legend_above(figure, axes, columns=2)
    return figure


# --- pulls and impacts ----------------------------------------------------------------------------


def pulls(model: Model, result: FitResult, top: int = 30) -> Figure:
    """Constrained parameters in units of their constraints: (best fit - centre) / width."""
    width, centre = constraint_terms(model)
    pull = (np.asarray(result.values) - centre) / width
    error = np.array(list(result.uncertainties.values())) / width
    moved = np.flatnonzero(np.isfinite(pull) & (np.asarray(result.is_free) > 0))
    chosen = np.sort(moved[np.argsort(-np.abs(pull[moved]), kind="stable")][:top])
    names = [result.names[i] for i in chosen]
    title = "Pulls" + _of(len(names), len(moved), "constrained parameters", "largest pulls")
    figure, axes = _rows(names, title)
    if not names:
        return _empty(figure, axes, "no constrained parameter was free in this fit")
    _pull_panel(axes, pull[chosen], error[chosen])
    return figure


def ranking(impacts: Impacts, top: int = 20) -> Figure:
    """Nuisance parameters by their impact on the parameter of interest, largest at the top.

    Left: pulls, with the constraint as error bar. Right: change of the POI when the parameter moves
    by its uncertainty before (hollow) and after the fit (filled).
    """
    shown = min(top, len(impacts.names))
    names = impacts.names[:shown]
    title = "Impacts" + _of(shown, len(impacts.names), "parameters", "largest impacts")
    best, sigma = _best_of(impacts.best, impacts.poi)
    title += f"\n{_shown(impacts.poi)} = {_pm(best, sigma)}"
    figure, left = _rows(names, title, panels=2)
    if not names:
        return _empty(figure, left, "no nuisance parameter was free in this fit")
    right = figure.add_subplot(1, 2, 2, sharey=left)
    right.tick_params(axis="y", length=0, labelleft=False)
    _pull_panel(left, impacts.pulls[:shown], impacts.constraints[:shown])
    for row in np.flatnonzero(np.isnan(impacts.pulls[:shown])).tolist():
        text = _pm(impacts.values[row], impacts.uncertainties[row])
        box = {"facecolor": _INNER, "edgecolor": "none", "pad": 1.0}
        left.text(0.0, row, text, ha="center", va="center", fontsize=8.5, color=BLACK, bbox=box)
    _impact_panel(right, impacts, shown)
    right.set_xlabel(f"impact on {_shown(impacts.poi)}")
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
    sides = (("up", BLUE), ("down", VERMILLION))
    for side, colour in sides:
        post, pre = (getattr(impacts, f"{when}_{side}")[:shown] for when in ("post", "pre"))
        axes.barh(rows, post, height=0.5, color=colour, alpha=0.85, label=f"post {side}")
        known = np.isfinite(pre)
        axes.barh(
            rows[known],
            pre[known],
            height=0.78,
            fill=False,
            edgecolor=colour,
            linewidth=1.1,
            label=f"pre {side}",
        )
    columns = [
        getattr(impacts, f"{w}_{s}")[:shown] for w in ("post", "pre") for s in ("up", "down")
    ]
    reach = float(np.nanmax(np.abs(columns), initial=0.0)) or 1.0
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
    known = np.isfinite(pull)
    rows = np.arange(len(pull))
    axes.errorbar(
        pull[known],
        rows[known],
        xerr=error[known],
        color=BLACK,
        fmt="o",
        markersize=4,
        linewidth=1.3,
        capsize=2,
    )
    axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set_xlabel("(θ̂ − θ₀) / Δθ")


# --- correlations ---------------------------------------------------------------------------------


def correlations(result: FitResult, top: int = 20) -> Figure:
    """Correlation matrix of the parameters with the largest correlations."""
    matrix, free = np.asarray(result.correlation), np.flatnonzero(np.asarray(result.is_free) > 0)
    strength = np.abs(matrix[np.ix_(free, free)] - np.eye(len(free))).max(axis=1, initial=0.0)
    chosen = np.sort(free[np.argsort(-strength, kind="stable")][:top])
    names = [result.names[i] for i in chosen]
    count = len(names)
    letters = _LETTER_INCHES * max((len(n) for n in names), default=0)
    cell = 0.40 if count <= 25 else 0.20
    size = (max(5.0, cell * count + letters + 1.8), max(4.0, cell * count + letters + 1.0))
    figure = _figure(*size, compress=True)
    axes = figure.add_subplot()
    title = "Correlations" + _of(count, len(free), "parameters", "largest correlations")
    axes.set_title(title, loc="left", fontsize=11)
    if not names:
        return _empty(figure, axes, "no parameter was free in this fit")
    values = matrix[np.ix_(chosen, chosen)]
    image = axes.imshow(values, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    labels = [_shown(n) for n in names]
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


# --- yields ---------------------------------------------------------------------------------------


def yields(model: Model, result: FitResult, data: Any = None, data_label: str = "data") -> Figure:
    """Expected counts after the fit, by sample, with their uncertainty; before it; and the data.

    data: main counts, or main and auxiliary data; default: the observed data.
    """
    counts = np.asarray(model.observed if data is None else data)[: model.n_bins]
    before = expected_data(model, include_auxdata=False)
    after = expected_data(model, result.values, include_auxdata=False)
    error = post_fit_uncertainty(model, result)
    edges = np.arange(model.n_bins + 1, dtype=np.float64) - 0.5
    figure = _figure(min(max(7.5, 0.24 * model.n_bins + 3.5), 40.0), 6.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _stack(upper, edges, _largest(sample_yields(model, result.values)))
    for axes, scale in ((upper, np.ones_like(after)), (lower, np.where(after > 0, after, np.nan))):
        _band(axes, edges, after / scale, error / scale)
        axes.stairs(
            before / scale,
            edges,
            baseline=None,
            color=BLUE,
            linestyle="--",
            linewidth=1.4,
            label="before the fit",
        )
        axes.errorbar(
            np.arange(model.n_bins),
            counts / scale,
            yerr=np.sqrt(counts) / scale,
            color=BLACK,
            fmt="o",
            markersize=3.5,
            linewidth=1.1,
            label=data_label,
        )
    ratios = np.concatenate([counts, before, after + error]) / np.tile(scale, 3)
    _yield_axes(upper, lower, model, np.concatenate([counts, before, after]), ratios)
    figure.legend(*_reversed(upper), loc="outside right upper", frameon=False)
    return figure


def post_fit_uncertainty(model: Model, result: FitResult) -> Floats:
    """Standard deviation of every bin's expected count, from the covariance of the parameters.

    Linearised in each parameter over ± one standard deviation.
    """
    best = np.asarray(result.values, np.float64)
    sigma = np.array(list(result.uncertainties.values()))
    moved = np.flatnonzero(sigma > 0)
    slopes = np.zeros((len(moved), model.n_bins))
    for row, index in enumerate(moved):
        step = np.zeros_like(best)
        step[index] = sigma[index]
        up, down = (
            np.asarray(expected_data(model, best + sign * step, include_auxdata=False))
            for sign in (1, -1)
        )
        slopes[row] = (up - down) / 2
    correlation = np.asarray(result.correlation)[np.ix_(moved, moved)]
    variance = np.einsum("ib,ij,jb->b", slopes, correlation, slopes)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)), np.float64)


@in_float64
def sample_yields(model: Model, parameters: Any = None) -> dict[str, Floats]:
    """Expected counts of every sample, one per bin, channel by channel."""
    theta = to_internal(model, model.vector(parameters))
    cells = cell_yields(prepared(model), theta, np)
    begins = dict(zip(model.channel_names, _begins(model), strict=True))
    bins = dict(model.about.channels)
    result = {name: np.zeros(model.n_bins) for name in model.sample_names}
    for channel, sample, slot in model.about.slots:
        here = slice(begins[channel], begins[channel] + bins[channel])
        result[sample][here] += cells[slot, here]
    return result


def _begins(model: Model) -> list[int]:
    """The first bin of every channel."""
    sizes = [bins for _, bins in model.about.channels]
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _largest(samples: dict[str, Floats]) -> dict[str, Floats]:
    """The samples by their total, largest first; the smallest are merged if there are many."""
    ordered = sorted(samples, key=lambda name: -float(np.sum(samples[name])))
    most = len(SAMPLE_COLOURS)
    kept = ordered if len(ordered) <= most else ordered[: most - 1]
    result = {name: samples[name] for name in kept}
    rest = ordered[len(kept) :]
    if rest:
        result[f"{len(rest)} smaller samples"] = np.sum([samples[n] for n in rest], axis=0)
    return result


def _stack(axes: Axes, edges: Floats, samples: dict[str, Floats]) -> None:
    """Stacked histograms, the smallest sample at the bottom."""
    base = np.zeros(len(edges) - 1)
    colours = dict(zip(samples, SAMPLE_COLOURS, strict=False))
    for name in reversed(samples):
        top = base + samples[name]
        axes.stairs(
            top,
            edges,
            baseline=base,
            fill=True,
            facecolor=colours[name],
            edgecolor="#5A5A5A",
            linewidth=0.4,
            label=_shown(name),
        )
        base = top


def _band(axes: Axes, edges: Floats, middle: Floats, error: Floats) -> None:
    axes.stairs(
        middle + error,
        edges,
        baseline=middle - error,
        fill=True,
        facecolor="none",
        edgecolor="#4A4A4A",
        hatch="//////",
        linewidth=0.0,
        label="after the fit ± 1σ",
    )


def _yield_axes(upper: Axes, lower: Axes, model: Model, heights: Floats, ratio: Floats) -> None:
    positive = heights[heights > 0]
    many_decades = len(positive) > 0 and positive.max() / positive.min() > 50
    top = float(positive.max()) if len(positive) else 1.0
    if many_decades:
        upper.set_yscale("log")
        bottom = max(float(positive.min()) / 3, top * 1e-7)
        upper.set_ylim(bottom, top * 2.5)
    else:
        upper.set_ylim(0.0, top * 1.2)
    upper.set_ylabel("events per bin")
    about = f"{_shown(model.about.measurement)}: " if model.about.measurement else ""
    upper.set_title(f"{about}yields after the fit", loc="left", fontsize=11)
    lower.axhline(1.0, color=GREY, linewidth=0.8)
    off = np.abs(ratio[np.isfinite(ratio)] - 1)
    reach = min(max(0.15, 1.15 * float(np.max(off, initial=0.0))), 1.0)
    lower.set_ylim(1 - reach, 1 + reach)
    lower.set_ylabel("ratio to\nafter the fit")
    begin, middles = 0, []
    for _, bins in model.about.channels:
        middles.append(begin + (bins - 1) / 2)
        begin += bins
        for axes in (upper, lower):
            if begin < model.n_bins:
                axes.axvline(begin - 0.5, color=BLACK, linewidth=0.7, linestyle=(0, (2, 2)))
    lower.set_xlim(-0.5, model.n_bins - 0.5)
    names = [_shown(name) for name in model.channel_names]
    crowded = max(map(len, names)) * 0.09 > 0.24 * min(b for _, b in model.about.channels) + 0.1
    several = len(names) > 2
    lower.set_xticks(middles, names, rotation=55 if crowded and several else 0, fontsize=9)
    if crowded and several:
        for label in lower.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    lower.tick_params(axis="x", length=0)


def _reversed(axes: Axes) -> tuple[Sequence[Any], Sequence[Any]]:
    """Legend entries in stacking order: data first, then the largest sample."""
    handles, labels = axes.get_legend_handles_labels()
    return handles[::-1], labels[::-1]


# --- small pieces ---------------------------------------------------------------------------------


def _single(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _figure(width, height)
    return figure, figure.add_subplot()


def _figure(width: float, height: float, compress: bool = False) -> Figure:
    engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, compress=compress)
    return Figure(figsize=(width, height), layout=engine)


def _rows(names: Sequence[str], title: str, panels: int = 1) -> tuple[Figure, Axes]:
    """A figure with one row per name, the first at the top, wide enough for the longest."""
    letters = _LETTER_INCHES * max((len(n) for n in names), default=0)
    size = (4.4 + 3.0 * (panels - 1) + letters, 1.6 + _ROW_INCHES * max(len(names), 4))
    figure = _figure(*size)
    figure.suptitle(title, x=0.02, ha="left", fontsize=11)
    axes = figure.add_subplot(1, panels, 1)
    axes.set_yticks(range(len(names)), [_shown(n) for n in names], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return figure, axes


def _empty(figure: Figure, axes: Axes, why: str) -> Figure:
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=GREY)
    return figure


def _legend_above(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def _of(shown: int, total: int, what: str, which: str) -> str:
    return f": {total} {what}" if shown == total else f": {shown} of {total} {what}, {which}"


def _best_of(result: FitResult, name: str) -> tuple[float, float]:
    return float(result.parameters[name]), float(result.uncertainties[name])


def _pm(value: float, sigma: float) -> str:
    """Value and uncertainty, rounded to two digits of the uncertainty."""
    if not (math.isfinite(sigma) and sigma > 0):
        return f"{value:.4g}"
    places = 1 - math.floor(math.log10(sigma))
    if not 0 <= places <= 6:
        return f"{value:.4g} ± {sigma:.2g}"
    return f"{value:.{places}f} ± {sigma:.{places}f}"


def _shown(name: str) -> str:
    """A name as plain text: `$` would begin a formula, and a lone surrogate has no glyph."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8").replace("$", r"\$")
