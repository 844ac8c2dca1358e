"""Figures show the numbers of their results, with every name legible and nothing global touched."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure

from firstlight.histfactory import plots, yield_plots
from firstlight.histfactory.evaluation import expected_data, gradient
from firstlight.histfactory.exclusion import cls
from firstlight.histfactory.figure_style import save
from firstlight.histfactory.fitting import FitResult, fit
from firstlight.histfactory.limits import upper_limit
from firstlight.histfactory.loading import load
from firstlight.histfactory.model import Model
from firstlight.histfactory.scans import Impacts, Scan, impacts, interval, scan
from firstlight.histfactory.synthetic import preset


@pytest.fixture(scope="module")
def model() -> Model:
    return load(preset("complex-8p"))


@pytest.fixture(scope="module")
def result(model: Model) -> FitResult:
    return fit(model)


@pytest.fixture(scope="module")
def scanned(model: Model) -> Scan:
    return scan(model, points=15)


@pytest.fixture(scope="module")
def ranked(model: Model) -> Impacts:
    return impacts(model)


def parabola(best: FitResult, at: float, sigma: float, values: Any, status: Any = None) -> Scan:
    values = np.asarray(values, float)
    height = ((values - at) / sigma) ** 2
    chosen = np.zeros(len(values)) if status is None else np.asarray(status)
    named = np.array(best.values)
    named[best.names.index("mu")] = at
    moved = replace(best, values=named)
    branches = np.ones(len(values))
    return Scan("mu", values, moved.nll + height / 2, height, chosen, branches, moved)


def texts(figure: Figure) -> str:
    figure.draw_without_rendering()
    found = [t.get_text() for a in figure.axes for t in [*a.get_yticklabels(), *a.texts, a.title]]
    return "\n".join([*found, figure.get_suptitle(), *(a.get_title("left") for a in figure.axes)])


def line(figure: Figure, label: str) -> Any:
    (found,) = [x for x in figure.axes[0].lines if str(x.get_label()).startswith(label)]
    return found


# --- scan -----------------------------------------------------------------------------------------


def test_the_interval_of_a_parabola_is_exact(result: FitResult) -> None:
    found = parabola(result, 1.0, 0.25, np.linspace(0, 2, 12))
    assert interval(found, 1.0) == pytest.approx((0.75, 1.25), rel=1e-12)
    assert interval(found, 4.0) == pytest.approx((0.5, 1.5), rel=1e-12)
    half = parabola(result, 1.0, 0.25, np.linspace(0.9, 2, 12))
    assert interval(half, 1.0) == (None, pytest.approx(1.25))


def test_a_scan_is_drawn_with_its_own_points(scanned: Scan) -> None:
    figure = plots.profile_scan(scanned)
    profile = line(figure, "profile")
    assert np.array_equal(profile.get_xdata(), scanned.values)
    assert np.array_equal(profile.get_ydata(), scanned.twice_delta_nll)
    assert list(line(figure, "1σ").get_ydata()) == [1, 1]
    assert list(line(figure, "2σ").get_ydata()) == [4, 4]
    assert figure.axes[0].get_xlabel() == "mu"


def test_points_that_did_not_converge_are_marked_and_not_connected(result: FitResult) -> None:
    status = [0, 0, 1, 0, 0]
    figure = plots.profile_scan(parabola(result, 1.0, 0.5, np.linspace(0, 2, 5), status))
    assert list(line(figure, "profile").get_xdata()) == [0, 0.5, 1.5, 2]
    assert list(line(figure, "not converged (1)").get_xdata()) == [1]


# --- limit ----------------------------------------------------------------------------------------


def test_the_band_shows_cls_and_marks_the_limits(model: Model) -> None:
    limit = upper_limit(model)
    found = cls(model, np.linspace(0, 1.2 * float(limit.expected[4]), 7))
    figure = plots.limit_band(found, limit, "mu")
    assert np.array_equal(line(figure, "observed").get_ydata(), found.observed)
    assert np.array_equal(line(figure, "expected").get_ydata(), found.expected[:, 2])
    assert list(line(figure, "CLs = 0.05").get_ydata()) == [0.05, 0.05]
    marks = {float(x.get_xdata()[0]) for x in figure.axes[0].lines if x.get_marker() == "o"}
    assert marks == {float(limit.observed), float(limit.expected[2])}


# --- pulls, impacts, correlations -----------------------------------------------------------------


def test_pulls_show_every_constrained_parameter(model: Model, result: FitResult) -> None:
    figure = plots.pulls(model, result)
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels == [n for n in result.names if n in model.auxdata_names]
    points = figure.axes[0].lines[1]
    drawn = dict(zip(labels, points.get_xdata(), strict=True))
    # Systematics with a unit constraint around zero are pulled by their own value.
    unit = [n for n in labels if not n.startswith(("lumi", "staterror"))]
    assert unit
    for name in unit:
        assert drawn[name] == pytest.approx(result.parameters[name], rel=1e-12)


def test_the_ranking_has_the_largest_impact_on_top(ranked: Impacts) -> None:
    figure = plots.ranking(ranked, top=3)
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == list(ranked.names[:3])
    assert left.get_ylim()[0] > left.get_ylim()[1]  # the first row is the upper one
    assert f"3 of {len(ranked.names)} parameters" in figure.get_suptitle()
    bars = {str(c.get_label()): c for c in right.containers}
    assert [b.get_width() for b in bars["post up"]] == ranked.post_up[:3].tolist()
    known = np.isfinite(ranked.pre_down[:3])
    assert [b.get_width() for b in bars["pre down"]] == ranked.pre_down[:3][known].tolist()
    assert all(not b.get_fill() for b in bars["pre down"])
    assert all(b.get_fill() for b in bars["post up"])


def test_parameters_without_a_constraint_show_their_value(ranked: Impacts) -> None:
    figure = plots.ranking(ranked)
    free = np.flatnonzero(np.isnan(ranked.pulls))
    assert len(free)
    shown = [t.get_text() for t in figure.axes[0].texts]
    assert len(shown) == len(free) and all(" ± " in text for text in shown)


def test_the_matrix_is_that_of_the_fit(result: FitResult) -> None:
    figure = plots.correlations(result)
    assert np.array_equal(figure.axes[0].images[0].get_array(), result.correlation)
    few = plots.correlations(result, top=2)
    off = np.abs(result.correlation - np.eye(len(result.names)))
    pair = {result.names[i] for i in np.unravel_index(off.argmax(), off.shape)}
    assert {t.get_text() for t in few.axes[0].get_yticklabels()} == pair
    assert f"2 of {len(result.names)}" in texts(few)


def test_a_figure_with_nothing_to_show_says_so(model: Model, ranked: Impacts) -> None:
    held = fit(model, fixed=[n for n in model.parameter_names if n != "mu"])
    assert "no constrained parameter" in texts(plots.pulls(model, held))
    empty = {n: np.zeros(0) for n in ("values", "uncertainties", "pulls", "constraints")}
    empty |= {f"{w}_{s}": np.zeros(0) for w in ("pre", "post") for s in ("up", "down")}
    assert "no nuisance parameter" in texts(plots.ranking(replace(ranked, names=(), **empty)))


# --- yields ---------------------------------------------------------------------------------------


def test_samples_add_up_to_what_is_expected(model: Model, result: FitResult) -> None:
    for parameters in (model.init, result.values):
        total = sum(yield_plots.sample_yields(model, parameters).values())
        assert total == pytest.approx(expected_data(model, parameters, include_auxdata=False))


def test_sample_yields_at_nominal_are_those_of_the_workspace(model: Model) -> None:
    found = yield_plots.sample_yields(model)
    begin = 0
    for channel, bins in model.about.channels:
        for name, sample, _ in model.about.slots:
            if name == channel:
                nominal = model.nominal(channel, sample)
                assert found[sample][begin : begin + bins] == pytest.approx(np.asarray(nominal))
        begin += bins


def test_the_uncertainty_of_saturated_bins_is_that_of_their_counts(
    model: Model, result: FitResult
) -> None:
    """Bins with a factor of their own fit their counts, so they know them to √n."""
    assert np.abs(gradient(model, result.values)).max() < 1e-6
    error = yield_plots.post_fit_uncertainty(model, result)
    free = [
        n
        for n, t in zip(model.parameter_names, model.about.types, strict=True)
        if "shapefactor" in t
    ]
    assert free
    after = expected_data(model, result.values, include_auxdata=False)
    saturated = np.isclose(after, model.observed, rtol=1e-9)
    assert saturated.sum() >= len(free)
    assert error[saturated] == pytest.approx(np.sqrt(model.observed[saturated]), rel=0.02)


def test_yields_show_data_and_both_expectations(model: Model, result: FitResult) -> None:
    figure = yield_plots.yields(model, result)
    upper, lower = figure.axes
    stairs = {str(p.get_label()): p for p in upper.patches}
    before = expected_data(model, include_auxdata=False)
    assert stairs["before the fit"].get_data().values == pytest.approx(before)
    assert set(model.sample_names) <= set(stairs)
    assert [t.get_text() for t in lower.get_xticklabels()] == list(model.channel_names)
    (points,) = [c for c in upper.containers if c.get_label() == "data"]
    assert points.lines[0].get_ydata() == pytest.approx(model.observed)  # type: ignore[attr-defined]


def test_many_samples_are_drawn_as_one() -> None:
    many = {f"s{i}": np.full(2, float(i)) for i in range(30)}
    kept = yield_plots._largest(many)
    assert len(kept) == len(yield_plots.SAMPLE_COLOURS) and next(iter(kept)) == "s29"
    assert sum(kept.values()) == pytest.approx(sum(many.values()))


# --- files ----------------------------------------------------------------------------------------


def test_files_are_written_whole_and_leave_no_temporary_file(
    model: Model, result: FitResult, tmp_path: Path
) -> None:
    settings = dict(rcParams)
    save(plots.correlations(result), tmp_path / "f.png")
    save(plots.correlations(result), tmp_path / "f.svg")
    content = (tmp_path / "f.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG") and width > 600 and height > 500
    svg = (tmp_path / "f.svg").read_text()
    assert all(f">{name}<" in svg for name in result.names)
    save(plots.correlations(result), tmp_path / "g.svg")
    assert (tmp_path / "g.svg").read_text() == svg
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.png", "f.svg", "g.svg"]
    assert dict(rcParams) == settings


def test_a_failed_write_leaves_nothing(result: FitResult, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not supported"):
        save(plots.correlations(result), tmp_path / "f.xyz")
    assert not list(tmp_path.iterdir())


def test_long_and_odd_names_stay_inside_the_figure(ranked: Impacts, tmp_path: Path) -> None:
    odd = [f"weight_{'very_' * 12}long_{i}" for i in range(len(ranked.names) - 2)]
    names = (r"a$\alpha$ & <b>", "half\ud800", *odd)
    figure = plots.ranking(replace(ranked, names=names))
    save(figure, tmp_path / "f.svg")
    svg = (tmp_path / "f.svg").read_text()
    assert r"a$\alpha$ &amp; &lt;b&gt;" in svg and r"half\ud800" in svg and odd[-1] in svg
    width = figure.get_figwidth() * figure.dpi
    for label in figure.axes[0].get_yticklabels():
        box = label.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= width
    assert not re.search(r"nan", svg)
