"""Claims about published workspaces: what pyhf loads is loaded, with the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstlight import histfactory as hf
from firstlight.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),
]

Plain = dict[str, Any]


def background_only(make: Any) -> Plain:
    """A signal and a validation region without a signal, whose POI no sample has yet."""
    channels = [
        make.channel(name, make.sample("background", [50.0, 60.0], make.normsys("norm", 0.9, 1.1)))
        for name in ("SR", "VR")
    ]
    return make.workspace(channels, [[53.0, 66.0], [48.0, 61.0]], poi="mu_SIG")


#: As in published patchsets: the signal is added, the validation region removed; its data stay.
PATCH = [
    {"op": "remove", "path": "/channels/1"},
    {
        "op": "add",
        "path": "/channels/0/samples/0",
        "value": {
            "name": "signal",
            "data": [5.0, 9.0],
            "modifiers": [{"name": "mu_SIG", "type": "normfactor", "data": None}],
        },
    },
]


def test_observations_of_removed_channels_are_ignored_with_a_warning_and_pyhf_agrees(
    make: Any, judge: Callable[..., Any]
) -> None:
    workspace = background_only(make)
    with pytest.warns(hf.WorkspaceWarning, match="observations of 'VR' are ignored"):
        model = hf.load(workspace, patches=[PATCH])
    patched = json.loads(json.dumps(workspace))
    patched["channels"] = patched["channels"][:1]
    patched["channels"][0]["samples"].insert(0, PATCH[1]["value"])
    theirs, data = judge(patched)
    point = np.array(theirs.config.suggested_init()) * 0.9 + 0.05
    assert model.parameter_names == tuple(theirs.config.par_names)
    assert hf.nll(model, point) == pytest.approx(-theirs.logpdf(point, data)[0], rel=1e-12)


@pytest.mark.parametrize("poi", [None, "norm"])
def test_a_poi_that_the_model_does_not_have_is_replaced(
    make: Any, judge: Callable[..., Any], poi: str | None
) -> None:
    workspace = background_only(make)
    with pytest.raises(hf.WorkspaceError, match=r"'mu_SIG' is not in the model.*poi=None"):
        hf.load(workspace)
    model = hf.load(workspace, poi=poi)
    assert model.poi == poi
    parsed = json.loads(json.dumps(workspace))
    parsed["measurements"][0]["config"]["poi"] = poi or ""
    theirs, data = judge(parsed)
    found = hf.fit(model)
    assert found.converged
    assert -theirs.logpdf(found.values, data)[0] == pytest.approx(found.nll, rel=1e-12)
    with pytest.raises(hf.WorkspaceError, match=r"'nrom' is not in .* Did you mean 'norm'"):
        hf.load(workspace, poi="nrom")


def test_backgrounds_alone_are_fitted_on_the_command_line(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = background_only(make)
    workspace["observations"].append({"name": "CR_gone", "data": [1.0]})
    path = tmp_path / "background.json"
    path.write_text(json.dumps(workspace))
    assert main(["hf", "fit", str(path), "--json"]) == 2
    assert "--no-poi" in capsys.readouterr().err
    assert main(["hf", "fit", str(path), "--json", "--no-poi"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["poi"] is None
    assert "the observations of 'CR_gone' are ignored" in err
    assert main(["hf", "toys", str(path), "-n", "3", "--json", "--no-poi"]) == 0
    assert json.loads(capsys.readouterr().out)["branches"] == [1, 1, 1]
    assert main(["hf", "significance", str(path), "--no-poi"]) == 2
    assert "no parameter of interest" in capsys.readouterr().err
    assert main(["hf", "inspect", str(path), "--poi", "norm", "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert inspected["poi"] == "norm"
    assert any("'CR_gone'" in warning for warning in inspected["warnings"])


def test_equal_bounds_hold_a_parameter_there_as_in_pyhf(
    make: Any, judge: Callable[..., Any]
) -> None:
    setting = {"name": "norm", "inits": [0.3], "bounds": [[0.5, 0.5]]}
    systematic = make.normsys("norm", 0.9, 1.1)
    workspace = make.counting([5.0], [50.0], [60.0], systematic, parameters=[setting])
    model = hf.load(workspace)
    found = hf.fit(model)
    assert found.parameters["norm"] == 0.5 and found.uncertainties["norm"] == 0.0
    theirs, data = judge(workspace)
    assert -theirs.logpdf(found.values, data)[0] == pytest.approx(found.nll, rel=1e-12)
    # 50 · 1.1^0.5 by code 4, and the signal fills the rest.
    background = hf.expected_data(model, {"norm": 0.5, "mu": 0.0})[0]
    assert found.parameters["mu"] == pytest.approx((60 - background) / 5, rel=1e-9)


def test_a_parameter_held_outside_its_bounds_is_accepted_as_in_pyhf(make: Any) -> None:
    setting = {"name": "norm", "inits": [6.0], "fixed": True}
    systematic = make.normsys("norm", 0.9, 1.1)
    workspace = make.counting([5.0], [50.0], [90.0], systematic, parameters=[setting])
    assert hf.fit(hf.load(workspace)).parameters["norm"] == 6.0


# --- models without observations ------------------------------------------------------------------


def test_given_data_are_enough_for_a_model_without_observations(make: Any) -> None:
    workspace = make.counting([5.0, 9.0], [50.0, 60.0], [53.0, 70.0], make.normsys("n", 0.9, 1.1))
    whole = hf.load(workspace)
    bare = hf.load({k: v for k, v in workspace.items() if k != "observations"})
    data = np.asarray(whole.observed)
    point = {"mu": 1.3, "n": 0.2}
    assert hf.nll(bare, point, data) == hf.nll(whole, point)
    np.testing.assert_array_equal(hf.gradient(bare, point, data), hf.gradient(whole, point))
    np.testing.assert_array_equal(hf.hessian(bare, point, data), hf.hessian(whole, point))
    ours, theirs = (hf.toys(m, 4, key=1, parameters=point) for m in (bare, whole))
    np.testing.assert_array_equal(ours.values, theirs.values)
    with pytest.raises(hf.ModelError, match="has no observations"):
        hf.nll(bare, point)


# --- bounds, impossible hypotheses, names ---------------------------------------------------------


def test_significance_is_not_cut_at_the_upper_bound_of_the_signal_strength(make: Any) -> None:
    """n = 120 over b = 50 with s = 1: μ̂ = 70, far above pyhf's default bound of 10."""
    found = hf.discovery(hf.load(make.counting([1.0], [50.0], [120.0])))
    assert found.muhat == pytest.approx(70.0, rel=1e-9)
    assert found.q0 == pytest.approx(2 * (120 * np.log(120 / 50) - 70), rel=1e-11)
    assert not found.free.at_bound.any() and found.converged


def test_cls_without_a_possible_background_only_hypothesis_is_nan(make: Any) -> None:
    """Events in a bin where only the signal has any: there is no CLb to divide by."""
    model = hf.load(make.counting([5.0, 5.0], [50.0, 0.0], [53.0, 3.0]))
    found = hf.cls(model, 1.0)
    assert np.isnan(found.observed) and np.all(np.isnan(found.expected))
    assert not found.converged
    assert not hf.upper_limit(model).converged


def test_a_name_that_is_also_that_of_a_bin_keeps_both_parameters(make: Any) -> None:
    factor = make.modifier("normfactor", "u[0]")
    bins = make.modifier("shapesys", "u", [4.0, 5.0])
    workspace = make.counting([5.0, 9.0], [50.0, 60.0], [53.0, 70.0], bins, factor)
    model = hf.load(workspace)
    found = hf.fit(model, fixed={"u[0] (normfactor)": 1.0})
    assert len(found.parameters) == len(model.parameter_names) == 4
    assert found.parameters["u[0] (normfactor)"] == 1.0 != found.parameters["u[0]"]
    assert hf.load(workspace, poi="u[0]").poi == "u[0] (normfactor)"


def test_a_lone_surrogate_in_a_name_is_printed_and_written_as_json(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make.counting([5.0], [50.0], [53.0], make.normsys("n\ud801", 0.9, 1.1))
    workspace["measurements"][0]["name"] = "m\ud800"
    path = tmp_path / "workspace.json"
    path.write_text(json.dumps(workspace))
    assert main(["hf", "fit", str(path)]) == 0
    capsys.readouterr().out.encode("utf-8")
    assert main(["hf", "fit", str(path), "--json"]) == 0
    text = capsys.readouterr().out
    text.encode("utf-8")
    assert "n\ud801" in json.loads(text)["parameters"]


def test_inspect_names_a_negative_shapesys_uncertainty(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bins = make.modifier("shapesys", "u", [4.0, -5.0])
    path = tmp_path / "workspace.json"
    path.write_text(json.dumps(make.counting([5.0, 9.0], [50.0, 60.0], [53.0, 70.0], bins)))
    assert main(["hf", "inspect", str(path), "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("negative" in text and "u (SR/background[1])" in text for text in warnings)


def test_several_minima_are_reported_in_json_and_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bimodal import COUPLED, COUPLED_DATA

    workspace = COUPLED.workspace
    workspace["observations"][0]["data"] = COUPLED_DATA.tolist()
    path = tmp_path / "workspace.json"
    path.write_text(json.dumps(workspace))
    few, tested = ["toys", "-n", "4"], ["toys", "-n", "4", "--cls", "1"]
    scan = ["scan", "--points", "5"]
    for command in (["limit"], ["cls"], ["significance"], scan, ["impacts"], few, tested):
        assert main(["hf", *command, str(path), "--json"]) == 0
        out, err = capsys.readouterr()
        assert '"branches": ' in out
        assert command is few or "has at least 2 minima" in err
