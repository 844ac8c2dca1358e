"""Claims about wrong arguments: a ModelError that says what, why, and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mutations import attempt

from firstlight import histfactory as hf
from firstlight.histfactory import branches, newton
from firstlight.histfactory.layout import Sizes
from firstlight.histfactory.templates import with_arrays

pytestmark = pytest.mark.slow

SIZES = Sizes(slots=2, bins=2, channels=1, alphas=1, factors=1, shapes=1, rates=1)
NAN = float("nan")


@pytest.fixture(scope="module")
def workspace(make: Any) -> dict[str, Any]:
    systematics = [make.normsys("n", 0.93, 1.08), make.modifier("shapesys", "g", [4.0, 5.0])]
    return make.counting([9.0, 4.0], [50.0, 52.0], [62, 55], *systematics)


@pytest.fixture(scope="module")
def model(workspace: dict[str, Any]) -> hf.Model:
    return hf.load(workspace, sizes=SIZES)


NO_NAMES = [["mu"], ["mu", "lumi"], ("mu",), 5, 0, 0.0, NAN, True, False, {}, {"mu"}, b"mu", str]


@pytest.mark.parametrize("poi", NO_NAMES, ids=str)
def test_a_parameter_of_interest_that_is_no_name_is_refused(
    workspace: dict[str, Any], poi: Any
) -> None:
    with pytest.raises(hf.WorkspaceError, match=r"^workspace: poi must be the name of one param"):
        hf.load(workspace, poi=poi)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"interpolation": ("code4", "code4")}, "code4p"),
        ({"interpolation": "code4"}, "interpolation"),
        ({"poi": "nu"}, "'nu' is not in the model"),
        ({"sizes": Sizes(1, 2, 1, 1, 1, 1, 1)}, "slots: 1 < 2"),
        ({"sizes": (2, 2)}, "sizes"),
        ({"measurement": "other"}, "no measurement 'other'"),
    ],
    ids=str,
)
def test_load_reports_which_option_is_wrong(
    workspace: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises((hf.ModelError, hf.WorkspaceError), match=text):
        hf.load(workspace, **options)


CALLS: dict[str, tuple[Callable[[hf.Model], Any], str]] = {
    "too few data": (lambda m: hf.fit(m, data=[1.0]), "2 main counts"),
    "too many data": (lambda m: hf.nll(m, data=[1.0] * 9), "2 main counts"),
    "no data": (lambda m: hf.fit(m, data=3.0), "shape"),
    "negative data": (lambda m: hf.fit(m, data=[-1.0, 2.0]), "negative"),
    "NaN data": (lambda m: hf.fit(m, data=[NAN, 2.0]), "finite"),
    "NaN auxiliary data": (lambda m: hf.fit(m, data=[1, 2, NAN, 1, 1]), "finite"),
    "negative auxiliary count": (lambda m: hf.fit(m, data=[1, 2, 0, -1, 1]), "negative"),
    "batch of data for one fit": (lambda m: hf.fit(m, data=np.ones((3, 2))), "shape"),
    "too few parameters": (lambda m: hf.nll(m, [1.0, 2.0]), "4 parameters"),
    "unknown parameter": (lambda m: hf.nll(m, {"nn": 1.0}), "Did you mean n"),
    "unknown fixed": (lambda m: hf.fit(m, fixed=["gg"]), "no parameter 'gg'"),
    "fixed by number": (lambda m: hf.fit(m, fixed=[3]), "by name"),
    "fixed without names": (lambda m: hf.fit(m, fixed=3), "names"),
    "tested and fixed": (lambda m: hf.discovery(m, fixed={"mu": 1.0}), "Free it"),
    "fixed at NaN": (lambda m: hf.fit(m, fixed={"mu": NAN}), "nan"),
    "fixed at a word": (lambda m: hf.fit(m, fixed={"mu": "one"}), "mu"),
    "fixed at None": (lambda m: hf.fit(m, fixed={"mu": None}), "mu"),
    "NaN init": (lambda m: hf.fit(m, init={"mu": NAN}), "nan|finite"),
    "batch of inits": (lambda m: hf.fit(m, init=np.ones((3, 4))), "shape"),
    "unknown statistic": (lambda m: hf.cls(m, 1.0, test_statistic="q0"), "qtilde"),
    "NaN mu": (lambda m: hf.cls(m, NAN), "nan|finite"),
    "NaN mu of qmu": (lambda m: hf.qmu(m, NAN), "nan|finite"),
    "level of two": (lambda m: hf.upper_limit(m, level=2.0), "probability"),
    "level of a word": (lambda m: hf.upper_limit(m, level="low"), "level"),
    "no toys": (lambda m: hf.toys(m, 0), "positive integer"),
    "half a toy": (lambda m: hf.toys(m, 2.5), "number of toys"),
    "negative key": (lambda m: hf.toys(m, 2, key=-1), "key"),
    "word as key": (lambda m: hf.toys(m, 2, key="abc"), "key"),
    "toys at NaN": (lambda m: hf.toys(m, 2, parameters={"mu": NAN}), "nan|finite"),
    "toys of fewer than no events": (
        lambda m: hf.toys(m, 2, parameters={"mu": -20.0}),
        "channel 'SR', bin 0 expects -130 events",
    ),
    "asimov of nothing": (hf.asimov, "mu=|parameters="),
    "asimov of NaN": (lambda m: hf.asimov(m, mu=NAN), "nan|finite"),
    "scan of nothing": (lambda m: hf.scan(m, values=[]), "finite numbers"),
    "scan of NaN": (lambda m: hf.scan(m, values=[0.0, NAN]), "finite numbers"),
    "scan of an unknown": (lambda m: hf.scan(m, "x"), "no parameter 'x'"),
    "scan of no points": (lambda m: hf.scan(m, points=0), "points|list of finite"),
    "impact of an unknown": (lambda m: hf.impacts(m, parameters=["x"]), "no parameter 'x'"),
    "unknown channel": (lambda m: m.with_nominal({("CR", "signal"): [1, 2]}), "no channel 'CR'"),
    "unknown sample": (lambda m: m.with_nominal({("SR", "x"): [1, 2]}), "no sample 'x'"),
    "yields of a wrong length": (lambda m: m.with_nominal({("SR", "signal"): [1]}), "2 bins"),
    "unknown array": (lambda m: with_arrays(m, nominals=np.zeros((2, 2))), "nominals"),
    "array of a wrong shape": (lambda m: with_arrays(m, nominal=np.zeros((3, 3))), "shape"),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_wrong_arguments_raise_errors_that_explain_them(model: hf.Model, name: str) -> None:
    call, text = CALLS[name]
    with pytest.raises(hf.ModelError, match=text):
        call(model)


def test_of_mutated_workspaces_nothing_comes_but_statuses_and_errors_that_explain(
    monkeypatch: pytest.MonkeyPatch, computing: Any
) -> None:
    """`python tests/histfactory/mutations.py 10000` tries more."""
    computing.by_numpy()
    # Where no search converges, all steps of all searches are made.
    monkeypatch.setattr(newton, "ITERATION_LIMIT", 20)
    monkeypatch.setattr(branches, "MAX_STARTS", 2)
    outcomes = [attempt(seed)[1] for seed in range(200)]
    assert not [outcome for outcome in outcomes if outcome.startswith("FAILED")]
    assert {"refused", "CONVERGED, CONVERGED", "CONVERGED, IMPOSSIBLE_NULL"} <= set(outcomes)
    assert any(outcome.startswith("NEGATIVE_EXPECTATION") for outcome in outcomes)


def test_model_without_a_parameter_of_interest_says_so(make: Any) -> None:
    background = make.sample("b", [50.0, 52.0], make.normsys("n", 0.9, 1.1))
    plain = make.workspace([make.channel("SR", background)], [[50, 49]], poi="")
    model = hf.load(plain, sizes=SIZES)
    assert hf.fit(model).converged
    for call in (hf.discovery, hf.upper_limit, hf.impacts, hf.scan, lambda m: hf.cls(m, 1.0)):
        with pytest.raises(hf.ModelError, match="no parameter of interest"):
            call(model)


@pytest.mark.parametrize("first", ["discovery", "scan", "toy_cls", "cls", "impacts"])
def test_public_names_are_functions_in_any_order_of_first_use(first: str) -> None:
    """`hf.fit` and `hf.toys` are functions and submodules of one name; users mean the function."""
    program = f"from firstlight import histfactory as hf; hf.{first}; hf.fit.__call__; "
    program += "assert callable(hf.fit) and callable(hf.toys) and callable(hf.load)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
