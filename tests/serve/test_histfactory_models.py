"""`--hf`: the models of a workspace give pyhf's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyhf
import pytest

from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.compiled_models import Loaded, example_rows, load
from firstlight.serve.histfactory_models import models_of
from firstlight.serve.tensors import arrange

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def path(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    systematic = make.normsys("scale", 0.9, 1.1)
    spec = make.counting([5, 10], [50, 60], [57, 72], systematic)
    path: Path = tmp_path_factory.mktemp("workspace") / "workspace.json"
    path.write_text(json.dumps(spec))
    return path


@pytest.fixture(scope="module")
def oracle(path: Path) -> tuple[Any, Any]:
    workspace = pyhf.Workspace(json.loads(path.read_text()))
    model = workspace.model()
    return model, workspace.data(model)


def loaded(path: Path, name: str, watch: CompileWatch) -> Loaded:
    from dataclasses import replace

    (model,) = [model for model in models_of(str(path)) if model.name == name]
    return load(replace(model, buckets=(2,)), watch)


def run(model: Loaded, given: list[Any]) -> dict[str, Any]:
    outputs = model.run(model.buckets[0], arrange(model, given).arrays)
    return {t.name: o for t, o in zip(model.signature.outputs, outputs, strict=True)}


def test_the_four_models_have_the_names_that_clients_use(path: Path) -> None:
    models = models_of(str(path))
    assert [model.name for model in models] == ["nll", "fit", "significance", "cls"]
    assert models[0].inputs["parameters"].dtype == "float64"


def test_nll_of_rows_of_parameters_is_pyhfs(path: Path, oracle: Any, watch: CompileWatch) -> None:
    model, data = oracle
    points = np.array([[1.2, -0.5], [0.3, 0.8]])
    served = loaded(path, "nll", watch)
    assert served.signature.inputs[0].wire_shape == [-1, 2]
    assert [(t.name, t.datatype) for t in served.signature.outputs] == [("nll", "FP64")]
    found = run(served, [points])["nll"]
    # The served models have pyhf's order of parameters.
    assert list(model.config.par_names) == ["mu", "scale"]
    wanted = [-model.logpdf(point, data)[0] for point in points]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    assert watch.request_path.value == 0


def test_significance_of_observed_and_of_given_data_is_pyhfs(
    path: Path, oracle: Any, watch: CompileWatch
) -> None:
    model, data = oracle
    served = loaded(path, "significance", watch)
    more = [*(1.2 * np.array(data[:2])), *data[2:]]
    found = run(served, [np.array([data, more])])
    for row, sample in enumerate((data, more)):
        p0 = pyhf.infer.hypotest(0.0, sample, model, test_stat="q0")
        assert found["p0"][row] == pytest.approx(float(p0), rel=1e-5)
    observed = run(served, example_rows(served.signature, 2, ()))
    assert observed["significance"][0] == found["significance"][0]
    assert found["converged"].all()


def test_fit_and_cls_are_pyhfs(path: Path, oracle: Any) -> None:
    """Not compiled; compiled models are tested with significance."""
    from firstlight import histfactory as hf
    from firstlight.serve.histfactory_models import _cls, _fit

    model, data = oracle
    workspace = hf.load(path)
    fit = _fit(workspace, np.array(data))
    best = pyhf.infer.mle.fit(data, model)
    np.testing.assert_allclose(fit["parameters"], best, atol=2e-3)
    assert fit["uncertainties"].shape == (2,) and fit["converged"]
    cls = _cls(workspace, 1.0, np.array(data))
    wanted = pyhf.infer.hypotest(1.0, data, model, return_expected_set=True)
    assert float(cls["cls"]) == pytest.approx(float(wanted[0]), rel=1e-3)
    np.testing.assert_allclose(cls["expected"], np.ravel(wanted[1]), rtol=2e-3)


def test_the_command_limits_factorisations_of_fits_to_one_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from firstlight.cli import main
    from firstlight.serve import running

    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    seen: list[Any] = []

    def instead(declare: Any, settings: Any, begin: float) -> int:
        seen.extend([os.environ["OPENBLAS_NUM_THREADS"], settings.port, len(declare())])
        return 0

    monkeypatch.setattr(running, "run", instead)
    assert main(["serve", "--hf", str(path), "--port", "8999"]) == 0
    assert seen == ["1", 8999, 4]
