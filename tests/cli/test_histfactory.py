"""`firstlight hf …` prints the results of the library, and explains what it cannot do."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstlight.cli import build_parser, main
from firstlight.cli.histfactory.options import CODES
from firstlight.histfactory import programs
from firstlight.histfactory.exclusion import cls
from firstlight.histfactory.fitting import fit
from firstlight.histfactory.inference import asimov, discovery
from firstlight.histfactory.interpolation import HISTOSYS_CODES, NORMSYS_CODES
from firstlight.histfactory.limits import upper_limit
from firstlight.histfactory.loading import load
from firstlight.histfactory.patches import digest
from firstlight.histfactory.scans import impacts, scan
from firstlight.histfactory.synthetic import preset
from firstlight.histfactory.toy_fits import toy_cls, toys

pytestmark = pytest.mark.slow

Plain = dict[str, Any]
Answer = Callable[..., Plain]


@pytest.fixture(autouse=True)
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of a comparison are computed by NumPy, so all their digits agree."""
    monkeypatch.setattr(programs, "PATIENCE", math.inf)


@pytest.fixture(scope="module")
def plain() -> Plain:
    return dict(preset("complex-8p"))


@pytest.fixture(scope="module")
def workspace(plain: Plain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf") / "workspace.json"
    path.write_text(json.dumps(plain))
    return path


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str], workspace: Path) -> Answer:
    """Return the JSON output of a command that succeeds."""

    def ask(command: str, *arguments: object, path: Path = workspace) -> Plain:
        assert main(["hf", command, str(path), *map(str, arguments), "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        given: Plain = json.loads(out, parse_constant=pytest.fail)
        assert given["command"] == command
        return given

    return ask


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what a command that fails prints on stderr."""

    def ask(*arguments: object) -> str:
        try:
            code = main(["hf", *map(str, arguments)])
        except SystemExit as usage:  # argparse
            code = int(usage.code or 0)
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        return err

    return ask


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def rewritten(plain: Plain, path: Path, **config: Any) -> Path:
    """The workspace with another measurement config."""
    changed = copy.deepcopy(plain)
    changed["measurements"][0]["config"].update(config)
    return write(path, changed)


# --- answers --------------------------------------------------------------------------------------


def test_fit_gives_the_numbers_of_the_library(answer: Answer, workspace: Path) -> None:
    model = load(workspace)
    expected = fit(model)
    given = answer("fit", "--correlation")
    assert given["nll"] == expected.nll and given["converged"] is True
    assert {n: row["value"] for n, row in given["parameters"].items()} == expected.parameters
    errors = {n: row["uncertainty"] for n, row in given["parameters"].items()}
    assert errors == expected.uncertainties
    assert given["correlation"]["matrix"] == expected.correlation.tolist()
    assert given["parameters"]["mu"]["pull"] is None  # it has no constraint: not NaN in JSON
    lumi = given["parameters"]["lumi"]
    (setting,) = [
        p
        for p in json.loads(workspace.read_text())["measurements"][0]["config"]["parameters"]
        if p["name"] == "lumi"
    ]
    pull = (expected.parameters["lumi"] - setting["auxdata"][0]) / setting["sigmas"][0]
    assert lumi["pull"] == pytest.approx(pull, rel=1e-12)


def test_parameters_are_fixed_freed_and_replaced_as_poi(
    answer: Answer, plain: Plain, tmp_path: Path
) -> None:
    given = answer("fit", "--fix", "mu=0.5", "--fix", "lumi")
    assert given["parameters"]["mu"]["value"] == 0.5 and not given["parameters"]["mu"]["free"]
    assert given["parameters"]["lumi"]["uncertainty"] == 0
    settings = copy.deepcopy(plain["measurements"][0]["config"]["parameters"])
    for one in settings:
        one["fixed"] = one["name"] == "lumi"
    path = rewritten(plain, tmp_path / "held.json", parameters=settings)
    assert not answer("fit", path=path)["parameters"]["lumi"]["free"]
    given = answer("fit", "--free", "lumi", "--poi", "lumi", path=path)
    assert given["parameters"]["lumi"]["free"] and given["poi"] == "lumi"


def test_the_name_of_a_parameter_set_fixes_all_its_bins(answer: Answer, plain: Plain) -> None:
    names = [n for n in answer("fit")["parameters"] if n.startswith("staterror")]
    assert len(names) == 2
    given = answer("fit", "--fix", names[0].partition("[")[0])
    assert [given["parameters"][n]["free"] for n in names] == [False, False]


def test_significance_observed_and_of_asimov_data(answer: Answer, workspace: Path) -> None:
    model = load(workspace)
    given = answer("significance", "--asimov", 1)
    observed = discovery(model)
    assert (given["observed"]["z0"], given["observed"]["p0"]) == (observed.z0, observed.p0)
    expected = discovery(model, asimov(model, mu=1.0))
    assert given["expected"]["z0"] == expected.z0
    blind = answer("significance", "--asimov", 1, "--blind")
    assert "observed" not in blind
    nominal = discovery(model, asimov(model, parameters={"mu": 1.0}))
    assert blind["expected"]["z0"] == nominal.z0 != expected.z0


def test_a_blind_result_does_not_depend_on_the_observed_data(
    answer: Answer, plain: Plain, tmp_path: Path
) -> None:
    other = copy.deepcopy(plain)
    other["observations"][0]["data"] = [2 * n for n in other["observations"][0]["data"]]
    path = write(tmp_path / "other.json", other)
    given = [
        answer("cls", "--asimov", 0, "--blind", **kw)["results"] for kw in ({}, {"path": path})
    ]
    assert given[0] == given[1]
    assert answer("cls", path=path)["results"] != answer("cls")["results"]


def test_cls_and_limit_agree_with_the_library(
    answer: Answer, workspace: Path, tmp_path: Path
) -> None:
    model = load(workspace)
    given = answer("cls", "--mu", 0.5, 2)["results"]
    for row, mu in zip(given, (0.5, 2.0), strict=True):
        expected = cls(model, mu)
        assert row["mu"] == mu and row["observed"] == expected.observed
        assert row["expected"] == expected.expected.tolist()
    picture = tmp_path / "limit.svg"
    limit = upper_limit(model, 0.1)
    row = answer("limit", "--level", 0.1, "--plot", picture)
    assert row["observed"] == limit.observed and row["expected"] == limit.expected.tolist()
    curve = row["curve"]
    assert curve["mu"][-1] > max(row["observed"], *row["expected"])
    assert np.interp(row["observed"], curve["mu"], curve["observed"]) == pytest.approx(
        0.1, abs=3e-3
    )
    assert "mu" in picture.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["limit.svg"]  # no temporary file stays


def test_scan_gives_the_profile_and_its_intervals(answer: Answer, workspace: Path) -> None:
    model, values = load(workspace), [0.125 * i for i in range(33)]
    given = answer("scan", "--from", 0, "--to", 4, "--points", 33)
    assert given["values"] == values
    assert given["twice_delta_nll"] == scan(model, "mu", values).twice_delta_nll.tolist()
    low, high = given["intervals"]["1σ"]
    assert low is None  # the best fit is nearer than that to the lower bound, where the scan ends
    assert scan(model, "mu", [high]).twice_delta_nll == pytest.approx([1.0], abs=2e-3)


def test_toys_are_those_of_the_library(answer: Answer, workspace: Path) -> None:
    model = load(workspace)
    given = answer("toys", "-n", 6, "--seed", 3, "--mu", 1)
    expected = toys(model, 6, 3, mu=1.0)
    assert given["poi_values"] == expected.values[:, model.poi_index].tolist()
    assert given["parameters"]["mu"]["mean"] == pytest.approx(np.mean(given["poi_values"]))
    assert given["not_converged"] == 0
    row = answer("toys", "-n", 8, "--cls", 2)
    assert row["observed"] == toy_cls(model, 2.0, 8).observed and row["toys_per_hypothesis"] == 8


def test_impacts_come_ranked(answer: Answer, workspace: Path) -> None:
    expected = impacts(load(workspace))
    given = answer("impacts")
    assert [row["name"] for row in given["impacts"]] == list(expected.names)
    assert [row["post_up"] for row in given["impacts"]] == expected.post_up.tolist()
    free = [row for row in given["impacts"] if row["pull"] is None]
    assert free and all(row["pre_up"] is None for row in free)


def test_patches_and_patchsets_are_applied_in_order(
    answer: Answer, plain: Plain, tmp_path: Path
) -> None:
    def operation(value: float) -> list[Plain]:
        return [{"op": "replace", "path": "/observations/0/data/0", "value": value}]

    patch = write(tmp_path / "patch.json", operation(17.0))
    entry = {"metadata": {"name": "high", "values": [1]}, "patch": operation(99.0)}
    content = {
        "metadata": {"digests": {"sha256": digest(plain, "sha256")}, "labels": ["x"]},
        "patches": [entry],
        "version": "1.0.0",
    }
    patchset = write(tmp_path / "patchset.json", content)
    name = plain["observations"][0]["name"]

    def first_count(*arguments: object) -> float:
        channels = answer("inspect", *arguments)["channels"]
        return next(float(c["observed"][0]) for c in channels if c["name"] == name)

    assert first_count("--patch", patch) == 17
    assert first_count("--patch", patch, "--patchset", patchset, "high") == 99
    assert first_count("--patchset", patchset, "high", "--patch", patch) == 17


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "--bins", "--all"),
        ("fit", "--correlation", "--top", "3"),
        ("significance", "--asimov", "1"),
        ("cls", "--mu", "1", "2"),
        ("limit",),
        ("scan", "--points", "5"),
        ("toys", "-n", "3"),
        ("toys", "-n", "3", "--cls", "1"),
        ("impacts", "--top", "2"),
    ],
    ids=" ".join,
)
def test_tables_name_the_poi_and_are_quiet_on_stderr(
    arguments: tuple[str, ...], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    assert main(["hf", command, str(workspace), *options]) == 0
    out, err = capsys.readouterr()
    assert "mu" in out and "nan" not in out.lower() and err == ""


def test_top_says_how_many_are_not_shown(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["hf", "fit", str(workspace), "--top", "3"])
    out = capsys.readouterr().out
    assert "mu (POI)" in out and "5 more" in out


def test_a_fit_that_does_not_converge_says_so_and_exits_with_1(
    plain: Plain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bin has events, but no sample contributes to it."""
    broken = copy.deepcopy(plain)
    for channel in broken["channels"]:
        for sample in channel["samples"]:
            sample["data"] = [0.0] * len(sample["data"])
            sample["modifiers"] = [m for m in sample["modifiers"] if m["type"] != "histosys"]
    path = write(tmp_path / "broken.json", broken)
    assert main(["hf", "fit", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert "DID NOT CONVERGE" in err and "a bin with events expects none" in err
    given = json.loads(out, parse_constant=pytest.fail)
    assert given["converged"] is False and given["nll"] is None
    assert main(["hf", "fit", str(path)]) == 1
    assert "NOT CONVERGED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "results"),
    [
        (("cls", "--mu", "1", "2"), lambda given: given["results"]),
        (("limit",), lambda given: [given]),
        (("toys", "--cls", "1", "-n", "4"), lambda given: [given]),
    ],
    ids=["cls", "limit", "toys"],
)
def test_an_impossible_null_says_why_and_names_the_bins(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Any, results: Any
) -> None:
    path = write(tmp_path / "w.json", make.counting([5.0, 1.0, 2.0], [0, 50, 0], [3, 51, 1]))
    command = ["hf", arguments[0], str(path), *arguments[1:]]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert "nan" not in out.lower()
    assert err.count("without signal the data are impossible") == 1
    for line in ("channel 'SR', bin 0 (3 observed, 0 expected)", "channel 'SR', bin 2 (1 obs"):
        assert err.count(line) == 1
    assert main([*command, "--json"]) == 1
    for result in results(json.loads(capsys.readouterr().out, parse_constant=pytest.fail)):
        assert result["observed"] is None and "expects no background" in result["status"]
        assert [b["bin"] for b in result["bins_without_background"]] == [0, 2]


def test_a_negative_expectation_names_the_bin(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The slope 5 of the first bin wins: μ = 12/(5 + 2) - 20/5, where bin 1 expects 3 + 2μ."""
    bounds = {"name": "mu", "inits": [0.0], "bounds": [[-9.0, 9.0]]}
    plain = make.counting([5.0, 2.0], [20.0, 3.0], [12, 0], parameters=[bounds])
    path = write(tmp_path / "w.json", plain)
    assert main(["hf", "fit", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    expected = 3 + 2 * (12 / 7 - 4)
    assert f"channel 'SR', bin 1 (0 observed, {expected:.4g} expected)" in err
    (one,) = json.loads(out)["negative_bins"]
    assert one["expected"] == pytest.approx(expected, rel=1e-8)


def test_a_negative_sample_is_named_and_can_be_forbidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shift = {"hi_data": [133.0], "lo_data": [277.0]}
    modifiers = [
        {"name": "mu", "type": "normfactor", "data": None},
        {"name": "sys0", "type": "histosys", "data": shift},
        {"name": "stat", "type": "staterror", "data": [4.51]},
    ]
    samples = [
        {"name": "signal", "data": [211.0], "modifiers": modifiers},
        {"name": "background", "data": [162.0], "modifiers": []},
    ]
    plain = {
        "version": "1.0.0",
        "channels": [{"name": "c", "samples": samples}],
        "observations": [{"name": "c", "data": [126.0]}],
        "measurements": [{"name": "m", "config": {"poi": "mu", "parameters": []}}],
    }
    path = write(tmp_path / "w.json", plain)
    assert main(["hf", "fit", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    (one,) = json.loads(out)["negative_samples"]
    assert (one["sample"], one["parameter"]) == ("signal", "sys0") and one["expected"] < 0
    assert err.count("note: the fit expects a sample below zero") == 1
    assert "channel 'c', sample 'signal', bin 0 (-35.5" in err and "because of 'sys0'" in err
    scan = ["scan", "--from", "0", "--to", "0.1", "--points", "2"]
    for command in (["fit"], ["significance"], ["cls", "--mu", "0.1"], scan):
        arguments = [command[0], str(path), *command[1:], "--require-positive", "--json"]
        assert main(["hf", *arguments]) == 0
        out, err = capsys.readouterr()
        assert "below zero" not in err
        given = json.loads(out)
        if command == ["fit"]:
            assert given["nll"] == pytest.approx(5.664439, abs=1e-6)
            assert given["negative_samples"] == [] and given["status_name"] == "CONVERGED"
        if command == ["significance"]:
            statuses = {"free": "CONVERGED", "conditional": "CONVERGED"}
            assert given["observed"]["statuses"] == statuses
        if command[0] == "cls":
            assert given["results"][0]["status_name"] == "CONVERGED"
        if command[0] == "scan":
            assert given["statuses"] == ["CONVERGED"] * 2
            assert given["best"]["value"] == 0.0


def test_a_flat_direction_is_not_determined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the sum of both samples is known."""
    samples = [
        {"name": s, "data": [n], "modifiers": [{"name": f, "type": "normfactor", "data": None}]}
        for s, n, f in (("signal", 5.0, "mu"), ("background", 10.0, "k"))
    ]
    plain = {
        "version": "1.0.0",
        "channels": [{"name": "c", "samples": samples}],
        "observations": [{"name": "c", "data": [18.0]}],
        "measurements": [{"name": "m", "config": {"poi": "mu", "parameters": []}}],
    }
    path = write(tmp_path / "w.json", plain)
    assert main(["hf", "fit", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out.count("not determined") == 2 and "NOT DETERMINED" in out
    assert "the fit is NOT DETERMINED: " in err and "DID NOT CONVERGE" not in err
    assert main(["hf", "fit", str(path), "--json"]) == 1
    given = json.loads(capsys.readouterr().out)
    assert given["status_name"] == "NOT_DETERMINED"
    assert sorted(given["undetermined"]) == ["k", "mu"]


# --- inspect --------------------------------------------------------------------------------------


def test_inspect_loads_no_jax(workspace: Path) -> None:
    code = (
        "import sys; from firstlight.cli import main\n"
        f"code = main(['hf', 'inspect', {str(workspace)!r}])\n"
        "print(code, sorted({'jax', 'jaxlib', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_inspect_counts_channels_samples_and_modifiers(answer: Answer, plain: Plain) -> None:
    given = answer("inspect")
    assert given["parameters"] == 8 and given["poi"] == "mu"
    assert {c["name"] for c in given["channels"]} == {c["name"] for c in plain["channels"]}
    for channel in plain["channels"]:
        (row,) = [c for c in given["channels"] if c["name"] == channel["name"]]
        total = np.sum([sample["data"] for sample in channel["samples"]], axis=0)
        assert row["nominal"] == pytest.approx(total.tolist())
    used = [m["type"] for c in plain["channels"] for s in c["samples"] for m in s["modifiers"]]
    assert {k: n["modifiers"] for k, n in given["modifiers"].items()} == {
        kind: used.count(kind) for kind in set(used)
    }


def test_inspect_warns_about_surprises(answer: Answer, tmp_path: Path) -> None:
    def histosys(name: str, low: list[float], high: list[float]) -> Plain:
        return {"name": name, "type": "histosys", "data": {"lo_data": low, "hi_data": high}}

    modifiers = [
        {"name": "mu", "type": "normfactor", "data": None},
        {"name": "lumi", "type": "lumi", "data": None},
        {"name": "idle", "type": "normsys", "data": {"lo": 1.0, "hi": 1.0}},
        histosys("both_up", [5.5, 0.0, 0.0], [5.6, 0.0, 0.0]),
        histosys("fair", [4.0, 0.0, 0.0], [6.0, 0.0, 0.0]),
    ]
    lumi = {"name": "lumi", "inits": [1.0], "bounds": [[0.5, 1.5]], "auxdata": [1.0]}
    config = {"poi": "", "parameters": [{**lumi, "sigmas": [0.1], "fixed": True}]}
    sample = {"name": "S", "data": [5.0, 0.0, 0.0], "modifiers": modifiers}
    odd = {
        "channels": [{"name": "SR", "samples": [sample]}],
        "observations": [{"name": "SR", "data": [5.5, 2.0, 0.0]}],
        "measurements": [{"name": "m", "config": config}, {"name": "n", "config": {"poi": "mu"}}],
        "version": "1.0.0",
    }
    given = answer("inspect", path=write(tmp_path / "odd.json", odd))
    text = "\n".join(given["warnings"])
    assert "no parameter of interest" in text
    assert "luminosity 'lumi' is fixed" in text
    assert "1 bin has events but no expected yield at nominal: SR[1]" in text
    assert "1 bin expects nothing: SR[2]" in text
    assert "1 parameter has no effect: idle" in text
    assert "both_up (SR/S)" in text and "fair" not in text
    assert "not whole numbers" in text
    assert given["measurements"] == ["m", "n"]


# --- refusals -------------------------------------------------------------------------------------


def test_bad_input_is_named(
    refusal: Callable[..., str], workspace: Path, plain: Plain, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"channels": [')
    assert "no such file" in refusal("fit", tmp_path / "absent.json")
    assert "is not JSON" in refusal("fit", broken)
    assert "no measurement 'other'" in refusal("limit", workspace, "--measurement", "other")
    assert "Did you mean lumi?" in refusal("fit", workspace, "--fix", "lumy=1")
    assert "no parameter 'nu'" in refusal("scan", workspace, "--parameter", "nu")
    assert "'nu' is not in the model" in refusal("inspect", workspace, "--poi", "nu")
    assert "outside its bounds [0, 10]" in refusal("fit", workspace, "--fix", "mu=-1")
    assert "given twice" in refusal("fit", workspace, "--fix", "mu", "--free", "mu")
    assert "code4,code9" in refusal("fit", workspace, "--interpolation", "code4,code9")
    assert "go together" in refusal("scan", workspace, "--from", "1")
    assert "--from must be below --to" in refusal("scan", workspace, "--from", "1", "--to", "0")
    assert "lumi" in refusal("scan", workspace, "--parameter", "lumi", "--fix", "lumi")
    assert "needs --asimov MU" in refusal("fit", workspace, "--blind")
    for level in ("5", "95", "x"):
        assert "such as 0.05 for the 95%" in refusal("limit", workspace, "--level", level)
    assert "finite" in refusal("cls", workspace, "--mu", "nan")
    poiless = rewritten(plain, tmp_path / "poiless.json", poi="")
    for command in ("significance", "cls", "limit", "scan", "impacts"):
        assert "Name one with --poi" in refusal(command, poiless)
    assert "Name one with --poi" in refusal("toys", poiless, "--mu", "1")
    assert "'mu' is fixed by --fix" in refusal("significance", workspace, "--fix", "mu")


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_read(
    refusal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent.json"
    assert ".png or .svg" in refusal("limit", absent, "--plot", tmp_path / "limit.pdf")
    assert "does not exist" in refusal("fit", absent, "--plot-yields", tmp_path / "no" / "f.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "'firstlight[plots]'" in refusal("impacts", absent, "--plot", tmp_path / "f.svg")


def test_every_command_works_without_jax_installed(workspace: Path, answer: Answer) -> None:
    program = """
import sys
sys.modules["jax"] = None
from firstlight.cli import main
sys.exit(main(sys.argv[1:]))
"""
    arguments = ["hf", "limit", str(workspace), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["expected"] == pytest.approx(
        answer("limit")["expected"], rel=1e-9
    )


def test_commands_use_neither_all_cores_nor_a_whole_gpu_unless_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"OPENBLAS_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    monkeypatch.delitem(sys.modules, "numpy")  # as at the start of a command
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    build_parser("hf")
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    build_parser("hf")
    assert settings.items() <= os.environ.items()


def test_the_interpolation_codes_are_those_of_the_engine() -> None:
    assert tuple(map(set, CODES)) == (set(NORMSYS_CODES), set(HISTOSYS_CODES))


def test_progress_is_drawn_on_a_terminal_only() -> None:
    from io import StringIO

    from firstlight.cli.histfactory.output import Working

    class Screen(StringIO):
        def isatty(self) -> bool:
            return True

    for stream, drawn in ((StringIO(), False), (Screen(), True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("CI", raising=False)
            with Working("toys", stream) as progress:
                progress(3, 3)
        assert ("3/3" in stream.getvalue()) is drawn
        assert stream.getvalue().endswith("\r\x1b[2K") is drawn


@pytest.mark.parametrize(
    ("value", "sigma", "text"),
    [
        (0.86415, 1.27375, ("0.9", "1.3")),
        (-1234.6, 87.0, ("−1235", "87")),
        (1.00412, 0.0488, ("1.004", "0.049")),
        (2.5, 0.0, ("2.5", "")),
        (2.5, math.nan, ("2.5", "")),
    ],
)
def test_values_are_printed_to_two_digits_of_their_uncertainty(
    value: float, sigma: float, text: tuple[str, str]
) -> None:
    from firstlight.cli.histfactory.output import measured

    assert measured(value, sigma) == text
