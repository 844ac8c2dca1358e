"""The figure of expected and observed counts, by sample, before and after a fit."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from firstlight.histfactory.array_types import DataSet, Parameters
from firstlight.histfactory.evaluation import expected_data
from firstlight.histfactory.figure_style import BLACK, BLUE, GREY, Look, new_figure, plain
from firstlight.histfactory.fitting import FitResult
from firstlight.histfactory.internal_order import prepared, to_internal
from firstlight.histfactory.likelihood import yields as cell_yields
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.precision import in_float64

#: For stacked samples, the largest first; Okabe and Ito without black, then their light tones.
SAMPLE_COLOURS = (
    *("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7"),
    *("#0072B2", "#D55E00", "#B9DDF3", "#F3D08A", "#D9D9D9"),
)


def yields(
    model: Model, result: FitResult, data: DataSet = None, data_label: str = "data"
) -> Figure:
    """Expected counts after the fit (by sample, with uncertainty) and before it, and the data.

    data: main counts, or main and auxiliary data; default: the observed data.
    """
    counts = np.asarray(model.observed if data is None else data)[: model.n_bins]
    before = expected_data(model, include_auxdata=False)
    after = expected_data(model, result.values, include_auxdata=False)
    error = post_fit_uncertainty(model, result)
    edges = np.arange(model.n_bins + 1, dtype=np.float64) - 0.5
    figure = new_figure(min(max(7.5, 0.24 * model.n_bins + 3.5), 40.0), 6.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _stack(upper, edges, _largest(sample_yields(model, result.values)))
    for axes, scale in ((upper, np.ones_like(after)), (lower, np.where(after > 0, after, np.nan))):
        _band(axes, edges, after / scale, error / scale)
        line: Look = {"color": BLUE, "linestyle": "--", "linewidth": 1.4, "label": "before the fit"}
        axes.stairs(before / scale, edges, baseline=None, **line)
        points: Look = {"color": BLACK, "fmt": "o", "markersize": 3.5, "linewidth": 1.1}
        error_bars = np.sqrt(counts) / scale
        x = np.arange(model.n_bins)
        axes.errorbar(x, counts / scale, yerr=error_bars, label=data_label, **points)
    ratios = np.concatenate([counts, before, after + error]) / np.tile(scale, 3)
    _yield_axes(upper, lower, model, np.concatenate([counts, before, after]), ratios)
    handles, labels = upper.get_legend_handles_labels()
    # In stacking order: data first, then the largest sample.
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
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
def sample_yields(model: Model, parameters: Parameters = None) -> dict[str, Floats]:
    """Expected counts of every sample, one per bin, channel by channel."""
    theta = to_internal(model, model.vector(parameters))
    cells = cell_yields(prepared(model), theta, np)
    result = {name: np.zeros(model.n_bins) for name in model.sample_names}
    for channel, sample, slot in model.about.slots:
        here = model.bins_of(channel)
        result[sample][here] += cells[slot, here]
    return result


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
        look: Look = {"facecolor": colours[name], "edgecolor": "#5A5A5A", "linewidth": 0.4}
        axes.stairs(top, edges, baseline=base, fill=True, label=plain(name), **look)
        base = top


def _band(axes: Axes, edges: Floats, middle: Floats, error: Floats) -> None:
    look: Look = {"facecolor": "none", "edgecolor": "#4A4A4A", "hatch": "//////", "linewidth": 0.0}
    label = "after the fit ± 1σ"
    axes.stairs(middle + error, edges, baseline=middle - error, fill=True, label=label, **look)


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
    about = f"{plain(model.about.measurement)}: " if model.about.measurement else ""
    upper.set_title(f"{about}yields after the fit", loc="left", fontsize=11)
    lower.axhline(1.0, color=GREY, linewidth=0.8)
    off = np.abs(ratio[np.isfinite(ratio)] - 1)
    reach = min(max(0.15, 1.15 * float(np.max(off, initial=0.0))), 1.0)
    lower.set_ylim(1 - reach, 1 + reach)
    lower.set_ylabel("ratio to\nafter the fit")
    channels = [model.bins_of(name) for name in model.channel_names]
    for here in channels[1:]:
        for axes in (upper, lower):
            axes.axvline(here.start - 0.5, color=BLACK, linewidth=0.7, linestyle=(0, (2, 2)))
    lower.set_xlim(-0.5, model.n_bins - 0.5)
    names = [plain(name) for name in model.channel_names]
    narrowest = min(bins for _, bins in model.about.channels)
    turned = len(names) > 2 and max(map(len, names)) * 0.09 > 0.24 * narrowest + 0.1
    middles = [(here.start + here.stop - 1) / 2 for here in channels]
    lower.set_xticks(middles, names, rotation=55 if turned else 0, fontsize=9)
    if turned:
        for label in lower.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    lower.tick_params(axis="x", length=0)
