"""An analysis sweep whose shapes change: compilation inside the loop.

For each of `points` settings a ridge regression is fitted to the first n_k rows, every n_k
different and every penalty too, and scored by its mean squared error on held-out rows. The fit is
what the user compiles, so a compiler that specialises on shapes compiles it once per setting. With
`padded` the rows are padded to one size and a mask selects those that count: the same results with
one compilation.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, Step, tensors

FIRST_ROWS, ROW_STEP, HELD_OUT_ROWS = 200, 25, 256


def make_inputs(seed: int, points: int, features: int, padded: bool) -> Arrays:
    """Rows and targets, held-out rows and targets, the penalties, one per setting."""
    import numpy as np

    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(features)
    arrays = []
    for count in (_row_count(points - 1), HELD_OUT_ROWS):
        rows = rng.standard_normal((count, features))
        arrays += [rows, rows @ truth + 0.5 * rng.standard_normal(count)]
    return tuple(a.astype(np.float32) for a in (*arrays, np.geomspace(1e-3, 1.0, points)))


def _row_count(index: int) -> int:
    return FIRST_ROWS + ROW_STEP * index


def _settings(x: Array, y: Array, penalties: Array, padded: bool) -> Array:
    """Rows, targets, mask and penalty of each setting, cut and padded on the host by NumPy."""
    import numpy as np

    for index, penalty in enumerate(penalties):
        count = _row_count(index)
        spare = len(x) - count if padded else 0
        rows = np.pad(x[:count], ((0, spare), (0, 0)))
        targets = np.pad(y[:count], (0, spare))
        yield rows, targets, np.pad(np.ones(count, x.dtype), (0, spare)), penalty


def _fit(eye: Array, solve: Step, *arrays: Array) -> tuple[Array, Array]:
    """Score and coefficients by the normal equations, in the framework of the arrays."""
    x, y, mask, penalty, x_held, y_held = arrays
    kept = x * mask[:, None]
    gram = kept.T @ x / mask.sum() + penalty * eye
    coefficients = solve(gram, kept.T @ y / mask.sum())
    return ((x_held @ coefficients - y_held) ** 2).mean(), coefficients


def _results(fit: Step, settings: Array, *held: Array) -> tuple[Array, ...]:
    """All the scores, then all the coefficients."""
    fits = [fit(*setting, *held) for setting in settings]
    return *(score for score, _ in fits), *(coefficients for _, coefficients in fits)


def build_numpy(compile: Compile, seed: int, points: int, features: int, padded: bool) -> Built:
    """The sweep with NumPy."""
    import numpy as np

    eye = np.eye(features, dtype=np.float32)
    fit = compile(lambda *arrays: _fit(eye, np.linalg.solve, *arrays))

    def step(x: Array, y: Array, x_held: Array, y_held: Array, penalties: Array) -> Array:
        return _results(fit, _settings(x, y, penalties, padded), x_held, y_held)

    return step, make_inputs(seed, points, features, padded)


def build_jax(compile: Compile, seed: int, points: int, features: int, padded: bool) -> Built:
    """The sweep with JAX; only `fit` is compiled, because settings are cut on the host."""
    import jax
    import jax.numpy as jnp

    def fit(*arrays: Array) -> tuple[Array, Array]:
        return _fit(jnp.eye(features), jnp.linalg.solve, *arrays)

    compiled_fit = compile(fit)

    def step(x: Array, y: Array, x_held: Array, y_held: Array, penalties: Array) -> Array:
        # Placed by device_put: slicing a device array would compile one program per shape.
        settings = (jax.device_put(s) for s in _settings(x, y, penalties, padded))
        return _results(compiled_fit, settings, x_held, y_held)

    x, y, x_held, y_held, penalties = make_inputs(seed, points, features, padded)
    return step, (x, y, *jax.device_put((x_held, y_held)), penalties)


def build_torch(compile: Compile, seed: int, points: int, features: int, padded: bool) -> Built:
    """The sweep with PyTorch, whose compiler uses dynamic shapes once it sees a second one."""
    import torch

    pad = torch.nn.functional.pad

    def fit(x: Array, *others: Array) -> tuple[Array, Array]:
        # Not `solve`: its error check is a side effect, which keeps torch.compile from caching.
        eye = torch.eye(features, device=x.device)
        return _fit(eye, lambda a, b: torch.linalg.solve_ex(a, b)[0], x, *others)

    compiled_fit = compile(fit)

    def settings(x: Array, y: Array, penalties: Array) -> Array:
        for index in range(points):
            count = _row_count(index)
            spare = len(x) - count if padded else 0
            rows, targets = pad(x[:count], (0, 0, 0, spare)), pad(y[:count], (0, spare))
            yield rows, targets, pad(torch.ones_like(y[:count]), (0, spare)), penalties[index]

    def step(x: Array, y: Array, x_held: Array, y_held: Array, penalties: Array) -> Array:
        return _results(compiled_fit, settings(x, y, penalties), x_held, y_held)

    return step, tensors(make_inputs(seed, points, features, padded))


def reference(seed: int, points: int, features: int, padded: bool) -> Arrays:
    """The sweep in float64 by least squares on rows extended by the penalty, without a mask."""
    import numpy as np

    inputs = (a.astype(np.float64) for a in make_inputs(seed, points, features, padded))
    x, y, x_held, y_held, penalties = inputs
    scores, fitted = [], []
    for index, penalty in enumerate(penalties):
        count = _row_count(index)
        rows = np.vstack([x[:count], np.sqrt(count * penalty) * np.eye(features)])
        targets = np.concatenate([y[:count], np.zeros(features)])
        fitted.append(np.linalg.lstsq(rows, targets, rcond=None)[0])
        scores.append(np.asarray(np.mean((x_held @ fitted[-1] - y_held) ** 2)))
    return *scores, *fitted
