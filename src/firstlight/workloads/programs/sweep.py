"""An analysis sweep whose shapes change: compilation inside the loop.

For each of `points` settings a ridge regression is fitted to the first n_k rows, every n_k
different and every penalty too, and scored by its mean squared error on held-out rows. The fit is
what the user compiles, so a compiler that specialises on shapes compiles it once per setting. With
`padded` the rows are padded to one size and a mask selects those that count: the same results with
one compilation.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    Step = Callable[..., Any]
    Built = tuple[Step, tuple[Any, ...]]
FIRST_ROWS, ROW_STEP, HELD_OUT_ROWS = 200, 25, 256


def make_inputs(seed: int, points: int, features: int, padded: bool) -> tuple[NDArray[Any], ...]:
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


def _settings(x: Any, y: Any, penalties: Any, padded: bool) -> Any:
    """Rows, targets, mask and penalty of each setting, cut and padded on the host by NumPy."""
    import numpy as np

    for index, penalty in enumerate(penalties):
        count = _row_count(index)
        spare = len(x) - count if padded else 0
        rows = np.pad(x[:count], ((0, spare), (0, 0)))
        targets = np.pad(y[:count], (0, spare))
        yield rows, targets, np.pad(np.ones(count, x.dtype), (0, spare)), penalty


def build_numpy(
    compile: Callable[[Step], Step], seed: int, points: int, features: int, padded: bool
) -> Built:
    """The sweep by normal equations; results are all the scores, then all the coefficients."""
    import numpy as np

    def fit(x: Any, y: Any, mask: Any, penalty: Any, x_held: Any, y_held: Any) -> Any:
        kept = x * mask[:, None]
        gram = kept.T @ x / mask.sum() + penalty * np.eye(x.shape[1], dtype=x.dtype)
        coefficients = np.linalg.solve(gram, kept.T @ y / mask.sum())
        return np.mean((x_held @ coefficients - y_held) ** 2), coefficients

    compiled_fit = compile(fit)

    def step(x: Any, y: Any, x_held: Any, y_held: Any, penalties: Any) -> tuple[Any, ...]:
        fits = [compiled_fit(*s, x_held, y_held) for s in _settings(x, y, penalties, padded)]
        return *(score for score, _ in fits), *(coefficients for _, coefficients in fits)

    return step, make_inputs(seed, points, features, padded)


def build_jax(
    compile: Callable[[Step], Step], seed: int, points: int, features: int, padded: bool
) -> Built:
    """The sweep with JAX; only `fit` is compiled, because settings are cut on the host."""
    import jax
    import jax.numpy as jnp

    def fit(x: Any, y: Any, mask: Any, penalty: Any, x_held: Any, y_held: Any) -> Any:
        kept = x * mask[:, None]
        gram = kept.T @ x / mask.sum() + penalty * jnp.eye(x.shape[1])
        coefficients = jnp.linalg.solve(gram, kept.T @ y / mask.sum())
        return jnp.mean((x_held @ coefficients - y_held) ** 2), coefficients

    compiled_fit = compile(fit)

    def step(x: Any, y: Any, x_held: Any, y_held: Any, penalties: Any) -> tuple[Any, ...]:
        # Placed by device_put: slicing a device array would compile one program per shape.
        settings = (jax.device_put(s) for s in _settings(x, y, penalties, padded))
        fits = [compiled_fit(*s, x_held, y_held) for s in settings]
        return *(score for score, _ in fits), *(coefficients for _, coefficients in fits)

    x, y, x_held, y_held, penalties = make_inputs(seed, points, features, padded)
    return step, (x, y, *jax.device_put((x_held, y_held)), penalties)


def build_torch(
    compile: Callable[[Step], Step], seed: int, points: int, features: int, padded: bool
) -> Built:
    """The sweep with PyTorch, whose compiler uses dynamic shapes once it sees a second one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    pad = torch.nn.functional.pad

    def fit(x: Any, y: Any, mask: Any, penalty: Any, x_held: Any, y_held: Any) -> Any:
        kept = x * mask[:, None]
        gram = kept.T @ x / mask.sum() + penalty * torch.eye(x.shape[1], device=x.device)
        # Not `solve`: its error check is a side effect, which keeps torch.compile from caching.
        coefficients, _ = torch.linalg.solve_ex(gram, kept.T @ y / mask.sum())
        return torch.mean((x_held @ coefficients - y_held) ** 2), coefficients

    compiled_fit = compile(fit)

    def step(x: Any, y: Any, x_held: Any, y_held: Any, penalties: Any) -> tuple[Any, ...]:
        fits = []
        for index in range(points):
            count = _row_count(index)
            spare = len(x) - count if padded else 0
            rows, targets = pad(x[:count], (0, 0, 0, spare)), pad(y[:count], (0, spare))
            mask = pad(torch.ones_like(y[:count]), (0, spare))
            fits.append(compiled_fit(rows, targets, mask, penalties[index], x_held, y_held))
        return *(score for score, _ in fits), *(coefficients for _, coefficients in fits)

    inputs = make_inputs(seed, points, features, padded)
    return step, tuple(torch.from_numpy(a).to(device) for a in inputs)


def reference(seed: int, points: int, features: int, padded: bool) -> tuple[NDArray[Any], ...]:
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
