"""Claims about synthetic workspaces: pyhf finds the requested dimensions, and can fit them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyhf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.errors import FirstlightError
from firstlight.histfactory.synthetic import (
    PRESETS,
    Dimensions,
    DimensionsError,
    preset,
    scaled,
    scaled_dimensions,
    workspace,
)

# pyhf 0.7.6 validates with a part of jsonschema that is deprecated.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),
]


def modifiers(spec: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for channel in spec["channels"]:
        for sample in channel["samples"]:
            for modifier in sample["modifiers"]:
                yield channel["name"], sample["name"], modifier


def names_of(spec: dict[str, Any], kind: str) -> set[str]:
    return {m["name"] for _, _, m in modifiers(spec) if m["type"] == kind}


def counted(spec: dict[str, Any]) -> dict[str, Any]:
    """The dimensions, counted from the JSON alone."""
    kinds = Counter(m["type"] for _, _, m in modifiers(spec))
    normsys, histosys = names_of(spec, "normsys"), names_of(spec, "histosys")
    return {
        "bins_per_channel": tuple(len(o["data"]) for o in spec["observations"]),
        "sample_channels": sum(len(channel["samples"]) for channel in spec["channels"]),
        "samples": len({s["name"] for c in spec["channels"] for s in c["samples"]}),
        "normfactors": len(names_of(spec, "normfactor")),
        "normsys": kinds["normsys"],
        "histosys": kinds["histosys"],
        "normsys_names": len(normsys),
        "histosys_names": len(histosys),
        "shared_names": len(normsys & histosys),
        "alphas": len(normsys | histosys),
    }


def asked(dimensions: Dimensions, keys: Any) -> dict[str, Any]:
    return {key: getattr(dimensions, key) for key in keys}


@cache
def preset_and_model(name: str, seed: int = 0) -> tuple[dict[str, Any], Any, list[float]]:
    spec = preset(name, seed)
    return spec, *model_of(spec)


def model_of(spec: dict[str, Any]) -> tuple[Any, list[float]]:
    """pyhf's model and data; the schema is checked on the way."""
    pyhf.set_backend("numpy")
    parsed = pyhf.Workspace(spec)
    model = parsed.model(
        modifier_settings={"normsys": {"interpcode": "code4"}, "histosys": {"interpcode": "code4p"}}
    )
    return model, parsed.data(model)


def assert_is_as_asked(
    spec: dict[str, Any], dimensions: Dimensions, judged: tuple[Any, list[float]] | None = None
) -> None:
    """judged: the `model_of` the workspace, if it is there already."""
    found = counted(spec)
    assert found == asked(dimensions, found)
    model, data = judged or model_of(spec)
    assert model.config.npars == dimensions.parameters
    assert model.config.nmaindata == dimensions.bins
    assert len(model.config.channels) == dimensions.channels
    assert len(model.config.samples) == dimensions.samples
    assert math.isfinite(float(model.logpdf(model.config.suggested_init(), data)[0]))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset_has_its_dimensions_in_the_json_and_in_pyhf(name: str, seed: int) -> None:
    spec, *judged = preset_and_model(name, seed)
    assert_is_as_asked(spec, PRESETS[name], tuple(judged))


def test_thu_preset_has_the_published_dimensions() -> None:
    spec, model, _ = preset_and_model("thu-184p")
    assert counted(spec) == {
        "bins_per_channel": (4, 4, 1, 1, 3, 6, 6, 3, 3, 5, 5),
        "sample_channels": 121,
        "samples": 12,
        "normfactors": 6,
        "normsys": 2090,
        "histosys": 1629,
        "normsys_names": 109,
        "histosys_names": 118,
        "shared_names": 91,
        "alphas": 136,
    }
    kinds = Counter(m["type"] for _, _, m in modifiers(spec))
    assert (kinds["normfactor"], kinds["lumi"], kinds["staterror"]) == (73, 121, 121)
    assert (model.config.npars, model.config.nmaindata) == (184, 41)
    assert [
        n for n, f in zip(model.config.par_names, model.config.suggested_fixed(), strict=True) if f
    ] == ["lumi"]
    assert tuple(model.config.suggested_bounds()[model.config.poi_index]) == (-100.0, 100.0)
    scaled_by_poi = {s for _, s, m in modifiers(spec) if m["name"] == model.config.poi_name}
    assert scaled_by_poi == {"signal1", "signal2"}


def test_complex_preset_has_the_published_structure() -> None:
    spec = preset("complex-8p", seed=3)
    kinds = [
        [(s["name"], [m["type"] for m in s["modifiers"]]) for s in channel["samples"]]
        for channel in spec["channels"]
    ]
    assert kinds == [
        [
            ("signal", ["normfactor", "lumi", "normsys"]),
            ("background", ["lumi", "histosys", "staterror"]),
        ],
        [("background", ["lumi", "shapefactor"])],
    ]
    model, _ = model_of(spec)
    assert (model.config.npars, model.config.nmaindata) == (8, 4)


def test_thu_preset_is_as_sparse_and_as_uncertain_as_an_analysis() -> None:
    spec = preset("thu-184p")
    for kind, low, middle, high in (("normsys", 2, (13, 19), 30), ("histosys", 0, (8, 14), 40)):
        counts = [
            sum(m["type"] == kind for m in s["modifiers"])
            for c in spec["channels"]
            for s in c["samples"]
        ]
        assert min(counts) >= low
        assert middle[0] <= np.median(counts) <= middle[1]
        assert max(counts) >= high
    data = [m["data"] for _, _, m in modifiers(spec) if m["type"] == "normsys"]
    sizes = np.array([abs(d["hi"] - 1.0) for d in data])
    assert 0.008 < np.median(sizes) < 0.016
    assert sizes.max() >= 0.29
    assert min(min(d["hi"], d["lo"]) for d in data) > 0.0
    assert any((d["hi"] - 1.0) * (d["lo"] - 1.0) >= 0.0 for d in data)  # one-sided
    yields = np.array([y for c in spec["channels"] for s in c["samples"] for y in s["data"]])
    assert yields.min() < 0.01
    assert 2.0 < np.median(yields) < 10.0


@pytest.mark.parametrize("seed", range(4))
def test_pyhf_fits_the_complex_preset_away_from_every_bound(seed: int) -> None:
    model, data = model_of(preset("complex-8p", seed))
    fitted, twice_nll = pyhf.infer.mle.fit(data, model, return_fitted_val=True)
    assert math.isfinite(float(twice_nll))
    bounds = np.array(model.config.suggested_bounds())
    assert np.all(fitted - bounds[:, 0] > 1e-3)
    assert np.all(bounds[:, 1] - fitted > 1e-3)
    at_start = -2.0 * float(model.logpdf(model.config.suggested_init(), data)[0])
    assert float(twice_nll) < at_start


def test_observed_counts_are_integers_near_but_not_at_nominal() -> None:
    spec = preset("thu-184p")
    nominal = np.concatenate(
        [np.sum([s["data"] for s in c["samples"]], 0) for c in spec["channels"]]
    )
    observed = np.concatenate([o["data"] for o in spec["observations"]])
    assert np.array_equal(observed, np.round(observed))
    assert 0.02 < np.mean(np.abs(observed / nominal - 1.0)) < 0.4


def test_equal_seeds_give_equal_text_and_others_differ() -> None:
    texts = [json.dumps(preset("thu-184p", seed)) for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_the_text_for_a_seed_does_not_change_between_versions() -> None:
    # Published figures name a preset and a seed: change this only with their protocol.
    signal = preset("complex-8p")["channels"][0]["samples"][0]
    assert (signal["data"], signal["modifiers"][2]["data"]) == (
        [4.49272, 12.2413],
        {"hi": 1.02313, "lo": 0.976655},
    )


def test_shapesys_replaces_the_staterror_and_is_counted() -> None:
    dimensions = Dimensions(
        (3, 2, 4), (3, 3), staterror="all", shapesys_channels=1, shapefactor_channels=1
    )
    spec = workspace(dimensions)
    assert [len(names_of(spec, k)) for k in ("staterror", "shapesys", "shapefactor")] == [1, 1, 1]
    assert dimensions.parameters == 1 + 9
    assert_is_as_asked(spec, dimensions)


@pytest.mark.parametrize(
    ("parameters", "bins", "channels", "staterror"),
    [(2, 5, 1, False), (60, 40, 6, True), (40, 7, 7, False), (150, 100, 50, False)],
)
def test_scaled_has_the_parameters_that_were_asked_for(
    parameters: int, bins: int, channels: int, staterror: bool
) -> None:
    dimensions = scaled_dimensions(parameters, bins, channels, staterror=staterror)
    assert dimensions.parameters == parameters
    assert_is_as_asked(scaled(parameters, bins, channels, staterror=staterror), dimensions)


def test_scaled_reaches_a_thousand_parameters_in_three_hundred_channels() -> None:
    dimensions = scaled_dimensions(1000, 2000, 300)
    found = counted(workspace(dimensions))
    assert found == asked(dimensions, found)
    assert (dimensions.parameters, dimensions.bins, dimensions.channels) == (1000, 2000, 300)


@st.composite
def dimension_sets(draw: st.DrawFn) -> Dimensions:
    bins = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    channels = len(bins)
    shapefactors = draw(st.integers(0, channels - 1))
    signals = draw(st.integers(1, 2))
    backgrounds = [channels, *draw(st.lists(st.integers(1, channels), max_size=3))]
    usable = bins[: channels - shapefactors]
    shaped_channels = sum(n > 1 for n in usable)
    # At the worst, a background is in every channel that cannot carry the modifier.
    places = signals * len(usable) + sum(max(0, n - shapefactors) for n in backgrounds)
    unshaped = channels - shaped_channels
    shaped = signals * shaped_channels + sum(max(0, n - unshaped) for n in backgrounds)
    normsys_names = draw(st.integers(0, 5))
    histosys_names = draw(st.integers(0, 5)) if shaped else 0
    return Dimensions(
        bins_per_channel=bins,
        channels_per_sample=(channels,) * signals + tuple(backgrounds),
        signals=signals,
        normfactors=draw(st.integers(1, min(1 + len(backgrounds), sum(usable)))),
        normsys=draw(st.integers(normsys_names, normsys_names * places)),
        normsys_names=normsys_names,
        histosys=draw(st.integers(histosys_names, histosys_names * shaped)),
        histosys_names=histosys_names,
        shared_names=draw(st.integers(0, min(normsys_names, histosys_names))),
        lumi=draw(st.sampled_from(["none", "constrained", "fixed"])),
        staterror=draw(st.sampled_from(["none", "backgrounds", "all"])),
        shapefactor_channels=shapefactors,
        shapesys_channels=draw(st.integers(0, channels - shapefactors)),
    )


@settings(max_examples=30, deadline=None)
@given(dimension_sets(), st.integers(0, 2**32))
def test_any_possible_dimensions_give_a_model_of_pyhf(dimensions: Dimensions, seed: int) -> None:
    assert_is_as_asked(workspace(dimensions, seed), dimensions)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"bins_per_channel": (2, 0)}, "a channel without bins"),
    ({"bins_per_channel": ()}, "a channel without bins"),
    ({"signals": 2}, "2 signals among 2 samples"),
    ({"channels_per_sample": (3, 2)}, "with 2 channels"),
    ({"channels_per_sample": (2, 1)}, "no background is in all 2 channels"),
    ({"normfactors": 3}, "3 normfactors"),
    ({"bins_per_channel": (1,), "channels_per_sample": (1, 1), "normfactors": 2}, "in 1 bins"),
    ({"normsys": 3}, "3 normsys modifiers with 0 names"),
    ({"normsys": 1, "normsys_names": 2}, "at least one per name"),
    ({"normsys": 9, "normsys_names": 2}, "at most one per name and sample-channel"),
    ({"bins_per_channel": (1, 1), "histosys": 1, "histosys_names": 1}, "of two bins or more"),
    ({"normsys": 1, "normsys_names": 1, "shared_names": 1}, "shared"),
    ({"shapefactor_channels": 2}, "none measures"),
    ({"shapesys_channels": 3}, "3 shapesys and shapefactor channels of 2"),
    ({"histosys": -1}, "histosys below zero"),
    ({"poi_bounds": (2.0, 3.0)}, "poi_bounds"),
]


@pytest.mark.parametrize(("change", "reason"), IMPOSSIBLE)
def test_impossible_dimensions_are_refused_with_the_reason(
    change: dict[str, Any], reason: str
) -> None:
    possible: dict[str, Any] = {"bins_per_channel": (2, 2), "channels_per_sample": (2, 2)}
    Dimensions(**possible)
    with pytest.raises(DimensionsError, match=reason):
        Dimensions(**{**possible, **change})


def test_scaled_refuses_fewer_parameters_than_gammas() -> None:
    with pytest.raises(DimensionsError, match="100 gammas"):
        scaled_dimensions(50, bins=100, staterror=True)
    with pytest.raises(DimensionsError, match="0 channels"):
        scaled(10, channels=0)


def test_unknown_preset_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(FirstlightError, match="complex-8p, thu-184p"):
        preset("nothing")
    assert issubclass(DimensionsError, ValueError)


def test_a_workspace_can_be_printed_from_the_command_line() -> None:
    command = [sys.executable, "-m", "firstlight.histfactory.synthetic"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == preset("complex-8p")
    refused = subprocess.run([*command, "huge"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "thu-184p" in refused.stderr
