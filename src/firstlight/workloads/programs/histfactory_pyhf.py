"""The HistFactory workload with pyhf, on NumPy and on JAX, with its default minimiser (SLSQP).

On JAX, pyhf itself compiles the objective of its fits. Its log-likelihood runs operation by
operation there, a hundred times slower than compiled, so it is compiled here, as users would. On
NumPy it has no derivatives: fits use numerical ones.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyhf

from firstlight.workloads.programs import Array, Built, Compile
from firstlight.workloads.programs.histfactory import side_by_side, toy_counts, vector, workspace


def build_nll_numpy(compile: Compile, seed: int, preset: str) -> Built:
    """-ln L."""
    model, data = _load("numpy", workspace(seed, preset))
    theta = vector(seed, model.config.par_names)
    return (lambda theta: -model.logpdf(theta, data)[0]), (theta,)


def _on_jax(gradient: bool, compile: Compile, seed: int, preset: str) -> Built:
    """-ln L, with its gradient by automatic differentiation if asked for, compiled."""
    import jax

    model, data = _load("jax", workspace(seed, preset))

    def nll(theta: Array) -> Array:
        return -model.logpdf(theta, data)[0]

    theta = jax.device_put(vector(seed, model.config.par_names))
    return compile(jax.value_and_grad(nll) if gradient else nll), (theta,)


def _fit(backend: str, compile: Compile, seed: int, preset: str) -> Built:
    """The minimum of -ln L."""
    model, data = _load(backend, workspace(seed, preset))
    return (lambda data: _minimum(model, data)), (data,)


def _q0(backend: str, compile: Compile, seed: int, preset: str) -> Built:
    """q0 by a free and a conditional fit."""
    model, data = _load(backend, workspace(seed, preset))
    config = model.config
    settings = (config.suggested_init(), config.suggested_bounds(), config.suggested_fixed())

    def step(data: Array) -> float:
        return float(pyhf.infer.test_statistics.q0(0.0, data, model, *settings))

    return step, (data,)


def _toys(backend: str, compile: Compile, seed: int, preset: str, toys: int) -> Built:
    """The minimum of every toy, sequentially."""
    content = workspace(seed, preset)
    model, data = _load(backend, content)
    main = side_by_side(toy_counts(seed, content, toys), model.config.channels)
    auxiliary = np.tile(data[main.shape[1] :], (toys, 1))

    def step(rows: Array) -> Array:
        return np.array([_minimum(model, row) for row in rows])

    return step, (np.concatenate([main, auxiliary], axis=1),)


build_nll_jax, build_nll_grad_jax = partial(_on_jax, False), partial(_on_jax, True)
build_fit_numpy, build_fit_jax = partial(_fit, "numpy"), partial(_fit, "jax")
build_q0_numpy, build_q0_jax = partial(_q0, "numpy"), partial(_q0, "jax")
build_toys_numpy, build_toys_jax = partial(_toys, "numpy"), partial(_toys, "jax")


def _load(backend: str, content: dict[str, Array]) -> tuple[Array, Array]:
    """The model and its observed main and auxiliary data."""
    pyhf.set_backend(backend, "scipy", precision="64b")
    parsed = pyhf.Workspace(content)
    model = parsed.model()
    return model, np.array(parsed.data(model), dtype=np.float64)


def _minimum(model: Array, data: Array) -> float:
    _, twice_nll = pyhf.infer.mle.fit(data, model, return_fitted_val=True)
    return float(twice_nll) / 2.0
