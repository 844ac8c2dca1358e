"""The HistFactory workload with pyhf, on NumPy and on JAX, with its default minimiser (SLSQP).

On JAX, pyhf itself compiles the objective of its fits. Its log-likelihood runs operation by
operation there, a hundred times slower than compiled, so it is compiled here, as users would.
"""

from __future__ import annotations

import numpy as np
import pyhf

from firstlight.workloads.programs.histfactory import point, side_by_side, toy_counts, workspace

TYPE_CHECKING = False  # not from typing: imports are timed
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Step = Callable[..., Any]
    Built = tuple[Step, tuple[Any, ...]]


def build_nll_numpy(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """-ln L."""
    model, data = _load("numpy", workspace(seed, preset))
    return (lambda theta: -model.logpdf(theta, data)[0]), (_theta(seed, model),)


def build_nll_jax(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """-ln L, compiled."""
    import jax

    model, data = _load("jax", workspace(seed, preset))
    step = compile(lambda theta: -model.logpdf(theta, data)[0])
    return step, (jax.device_put(_theta(seed, model)),)


def build_nll_grad_jax(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """-ln L and its gradient by automatic differentiation, compiled."""
    import jax

    model, data = _load("jax", workspace(seed, preset))
    step = compile(jax.value_and_grad(lambda theta: -model.logpdf(theta, data)[0]))
    return step, (jax.device_put(_theta(seed, model)),)


def build_fit_numpy(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """The minimum of -ln L, with numerical derivatives."""
    return _fit("numpy", seed, preset)


def build_fit_jax(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """The minimum of -ln L."""
    return _fit("jax", seed, preset)


def build_q0_numpy(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """q0 by a free and a conditional fit, with numerical derivatives."""
    return _q0("numpy", seed, preset)


def build_q0_jax(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """q0 by a free and a conditional fit."""
    return _q0("jax", seed, preset)


def build_toys_numpy(compile: Callable[[Step], Step], seed: int, preset: str, toys: int) -> Built:
    """The minimum of every toy, sequentially, with numerical derivatives."""
    return _toys("numpy", seed, preset, toys)


def build_toys_jax(compile: Callable[[Step], Step], seed: int, preset: str, toys: int) -> Built:
    """The minimum of every toy, sequentially."""
    return _toys("jax", seed, preset, toys)


def _load(backend: str, content: dict[str, Any]) -> tuple[Any, Any]:
    """The model and its observed main and auxiliary data."""
    pyhf.set_backend(backend, "scipy", precision="64b")
    parsed = pyhf.Workspace(content)
    model = parsed.model()
    return model, np.array(parsed.data(model), dtype=np.float64)


def _theta(seed: int, model: Any) -> Any:
    values = point(seed, model.config.par_names)
    return np.array([values[name] for name in model.config.par_names])


def _minimum(model: Any, data: Any) -> float:
    _, twice_nll = pyhf.infer.mle.fit(data, model, return_fitted_val=True)
    return float(twice_nll) / 2.0


def _fit(backend: str, seed: int, preset: str) -> Built:
    model, data = _load(backend, workspace(seed, preset))
    return (lambda data: _minimum(model, data)), (data,)


def _q0(backend: str, seed: int, preset: str) -> Built:
    model, data = _load(backend, workspace(seed, preset))
    config = model.config
    settings = (config.suggested_init(), config.suggested_bounds(), config.suggested_fixed())

    def step(data: Any) -> float:
        return float(pyhf.infer.test_statistics.q0(0.0, data, model, *settings))

    return step, (data,)


def _toys(backend: str, seed: int, preset: str, toys: int) -> Built:
    content = workspace(seed, preset)
    model, data = _load(backend, content)
    main = side_by_side(toy_counts(seed, content, toys), model.config.channels)
    auxiliary = np.tile(data[main.shape[1] :], (toys, 1))

    def step(rows: Any) -> Any:
        return np.array([_minimum(model, row) for row in rows])

    return step, (np.concatenate([main, auxiliary], axis=1),)
