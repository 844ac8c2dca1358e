"""Claims about NextStat's names for the ranking of parameters.

The oracles are NextStat, for names and arguments, and refits with a parameter fixed, for values.
"""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from firstlight import histfactory as hf
from firstlight import interpret
from firstlight.histfactory import synthetic
from firstlight.interpret import plot_rank_impact, rank_impact, rank_impact_df


@pytest.fixture(autouse=True)
def numpy_only(computing: Any) -> None:
    computing.by_numpy()


@pytest.fixture(scope="module")
def model(make: Any) -> hf.Model:
    scale = make.modifier("normfactor", "scale")
    systematics = make.normsys("xs", 0.9, 1.1), make.histosys("jes", [47.0, 38.0], [54.0, 41.0])
    stat = make.modifier("staterror", "stat", [3.0, 3.0])
    workspace = make.counting([6.0, 9.0], [50.0, 40.0], [62.0, 57.0], *systematics, stat, scale)
    control = make.channel("CR", make.sample("background", [400.0], scale))
    workspace["channels"].append(control)
    workspace["observations"].append({"name": "CR", "data": [410.0]})
    return hf.load(workspace)


def test_names_arguments_and_keys_are_those_of_nextstat(model: hf.Model) -> None:
    import nextstat.interpret as theirs

    for name in interpret.__all__:
        their = inspect.signature(getattr(theirs, name)).parameters.values()
        mine = inspect.signature(getattr(interpret, name)).parameters.values()
        assert [(p.name, p.default, p.kind) for p in mine] == [
            (p.name, p.default, p.kind) for p in their
        ]
    keys = "name delta_mu_up delta_mu_down total_impact pull constraint rank"
    assert [" ".join(row) for row in rank_impact(model, top_n=1)] == [keys]


def test_impacts_are_those_of_refits_with_the_parameter_moved_by_its_width(model: hf.Model) -> None:
    best, rows = hf.fit(model), rank_impact(model)
    widths = {"xs": 1.0, "jes": 1.0, "stat[0]": 3.0 / 50.0, "stat[1]": 3.0 / 40.0}
    centres = {"xs": 0.0, "jes": 0.0, "stat[0]": 1.0, "stat[1]": 1.0}
    assert {row["name"] for row in rows} == {*widths}  # the scale has no constraint
    for row in rows:
        name, width = row["name"], widths[row["name"]]
        at = best.parameters[name]
        up, down = (
            hf.fit(model, fixed={name: at + s * width}).parameters["mu"] - best.parameters["mu"]
            for s in (1, -1)
        )
        assert row["delta_mu_up"] == pytest.approx(up, rel=1e-6)
        assert row["delta_mu_down"] == pytest.approx(down, rel=1e-6)
        assert row["total_impact"] == pytest.approx(abs(up) + abs(down), rel=1e-6)
        assert row["pull"] == pytest.approx((at - centres[name]) / width, abs=1e-9)
        assert row["constraint"] == pytest.approx(best.uncertainties[name] / width, rel=1e-9)


def test_rows_are_ordered_cut_and_numbered_as_asked(model: hf.Model) -> None:
    quantity = {
        "total": lambda row: row["total_impact"],
        "up": lambda row: abs(row["delta_mu_up"]),
        "down": lambda row: abs(row["delta_mu_down"]),
        "pull": lambda row: abs(row["pull"]),
        "name": lambda row: row["name"],
    }
    for sort_by, of in quantity.items():
        for ascending in (False, True):
            rows = rank_impact(model, sort_by=sort_by, ascending=ascending)
            assert [*map(of, rows)] == sorted(map(of, rows), reverse=not ascending)
            assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    assert rank_impact(model, top_n=2) == rank_impact(model)[:2]
    assert rank_impact(model, top_n=0) == []


def test_wrong_arguments_are_named(model: hf.Model) -> None:
    with pytest.raises(hf.ModelError, match="sort_by is 'size', not one of 'total', 'up'"):
        rank_impact(model, sort_by="size")
    with pytest.raises(hf.ModelError, match="top_n is -1"):
        rank_impact(model, top_n=-1)
    with pytest.raises(hf.ModelError, match=r"model is builtins.dict.*histfactory.load"):
        rank_impact(synthetic.preset("complex-8p"))  # type: ignore[arg-type]
    with pytest.raises(hf.ModelError, match=r"no GPU.*leave gpu out"):
        rank_impact(model, gpu=True)


def test_plot_has_a_bar_for_each_side_and_draws_into_given_axes(model: hf.Model) -> None:
    figure = plot_rank_impact(model, top_n=3, figsize=(5, 4), title="Ranking")
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == [row["name"] for row in rank_impact(model, top_n=3)]
    bars = sorted(bar.get_width() for bar in axes.patches)
    rows = rank_impact(model, top_n=3)
    assert bars == sorted(row[f"delta_mu_{side}"] for row in rows for side in ("up", "down"))
    assert axes.get_title() == "Ranking" and tuple(figure.get_size_inches()) == (5, 4)
    own = Figure().add_subplot()
    assert plot_rank_impact(model, ax=own, sort_by="name") is own.figure


def test_table_is_a_pandas_frame_of_the_rows_or_says_what_is_missing(
    model: hf.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: ("df", rows)))
    assert rank_impact_df(model, top_n=2) == ("df", rank_impact(model, top_n=2))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        rank_impact_df(model)
