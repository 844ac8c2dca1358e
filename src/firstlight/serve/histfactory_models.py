"""Models of a HistFactory workspace: likelihood, fit, significance and CLs.

The rows of a request are parameter points or data sets; by default the observed data are used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firstlight import histfactory as hf
from firstlight.histfactory.internal_order import data_vector
from firstlight.histfactory.programs import compiler_options
from firstlight.serve.declaration import Input, Model

#: A batch of fits takes as many steps as its slowest fit, so fits have few batch sizes, and run one
#: after another on a CPU.
NLL_BUCKETS, FIT_BUCKETS = (1, 8, 64, 512), (1, 16)


def models_of(path: str) -> list[Model]:
    """The models `nll` and `fit`; with a parameter of interest, also `significance` and `cls`."""
    workspace = hf.load(path)
    data = _data_input(workspace)
    # A changed workspace is a new version.
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    parameters = Input("float64", (workspace.n_parameters,))
    model = partial(_model, workspace, digest)
    made = [
        model("nll", hf.nll, {"parameters": parameters}, NLL_BUCKETS),
        model("fit", _fit, {"data": data}, FIT_BUCKETS),
    ]
    if workspace.poi is not None:
        tested = {"mu": Input("float64", ()), "data": data}
        made += [
            model("significance", _significance, {"data": data}, FIT_BUCKETS),
            model("cls", _cls, tested, FIT_BUCKETS),
        ]
    return made


def _data_input(workspace: hf.Model) -> Input:
    """Main counts followed by auxiliary data, as in pyhf."""
    size = workspace.n_bins + len(workspace.auxdata_names)
    observed = None
    if workspace.about.has_observations:
        observed = np.asarray(data_vector(workspace, workspace._observed_data))
    return Input("float64", (size,), default=observed)


def _model(
    workspace: hf.Model,
    digest: str,
    name: str,
    function: Callable[..., object],
    inputs: dict[str, Input],
    buckets: tuple[int, ...],
) -> Model:
    def named(model: hf.Model, **given: Any) -> Any:
        result = function(model, **given)
        return result if isinstance(result, dict) else {name: result}

    return Model(
        named,
        inputs,
        name,
        digest[:12],
        about=_ABOUT[name],
        parameters=workspace,
        buckets=buckets,
        deadline_seconds=30.0,
        x64=True,
        compiler_options=compiler_options(),
        program=f"{digest}-{_source_digest()}",
        in_turn=buckets == FIT_BUCKETS and jax.default_backend() == "cpu",
    )


@cache
def _source_digest() -> str:
    """A hash of all code that the programs are traced from."""
    found = hashlib.sha256()
    for folder in (Path(hf.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


_ABOUT = {
    "nll": "Negative log-likelihood of the observed data at given parameters.",
    "fit": "Best-fit parameters with their uncertainties.",
    "significance": "Discovery significance: z0, p0 and the best-fit signal strength.",
    "cls": "Asymptotic CLs of a signal strength, observed and expected.",
}


def _fit(model: hf.Model, data: object) -> dict[str, object]:
    found = hf.fit(model, data)
    sigma = jnp.sqrt(jnp.diagonal(found.covariance, axis1=-2, axis2=-1))
    return {
        "parameters": found.values,
        "uncertainties": sigma,
        "nll": found.nll,
        "converged": found.converged,
    }


def _significance(model: hf.Model, data: object) -> dict[str, object]:
    found = hf.discovery(model, data)
    return {
        "significance": found.z0,
        "p0": found.p0,
        "q0": found.q0,
        "muhat": found.muhat,
        "converged": found.converged,
    }


def _cls(model: hf.Model, mu: object, data: object) -> dict[str, object]:
    found = hf.cls(model, mu, data)
    return {
        "cls": found.observed,
        "expected": found.expected,
        "muhat": found.muhat,
        "converged": found.converged,
    }
