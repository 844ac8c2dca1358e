"""Models whose likelihood has several minima, with an independent likelihood in NumPy.

Variations of the yields that go to the same side up and down are what makes the minima: either
direction of the parameter then mends a yield that is too low. The likelihood here shares nothing
with the engine: code 4p and Poisson terms in plain NumPy, on a grid over all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage, optimize

Plain = dict[str, Any]


@dataclass(frozen=True)
class Folded:
    """Bins with a signal, and a background with variations up and down for every α."""

    signal: np.ndarray  # [bin]
    background: np.ndarray
    up: np.ndarray  # [α, bin], added at α = 1
    down: np.ndarray  # added at α = -1

    @property
    def workspace(self) -> Plain:
        """As pyhf has it; data are given to each fit."""
        factor = {"name": "mu", "type": "normfactor", "data": None}
        variations = [
            {
                "name": f"a{k}",
                "type": "histosys",
                "data": {
                    "hi_data": (self.background + up).tolist(),
                    "lo_data": (self.background + down).tolist(),
                },
            }
            for k, (up, down) in enumerate(zip(self.up, self.down, strict=True))
        ]
        samples = [
            {"name": "signal", "data": self.signal.tolist(), "modifiers": [factor]},
            {"name": "background", "data": self.background.tolist(), "modifiers": variations},
        ]
        return {
            "version": "1.0.0",
            "channels": [{"name": "SR", "samples": samples}],
            "observations": [{"name": "SR", "data": self.background.round().tolist()}],
            "measurements": [{"name": "m", "config": {"poi": "mu", "parameters": []}}],
        }

    def expected(self, mu: Any, alphas: Any) -> np.ndarray:
        """Yields [..., bin] at α [..., α]."""
        return self._without_signal(alphas) + np.asarray(mu)[..., None] * self.signal

    def _without_signal(self, alphas: Any) -> np.ndarray:
        shifts = _code4p(np.asarray(alphas, float)[..., None], self.up, -self.down)
        return self.background + shifts.sum(axis=-2)

    def nll(self, mu: Any, alphas: Any, data: np.ndarray, aux: Any) -> Any:
        """Above that of yields equal to the data; [...] at μ [...] and α [..., α]."""
        nu = self.expected(mu, alphas)
        safe = np.maximum(nu, 1e-6)
        terms = safe - data - data * np.log(np.where(data > 0, safe / np.maximum(data, 1e-9), 1.0))
        # Impossible yields cost more the further they are from zero, so that scipy finds back.
        terms += 1e3 * (safe - nu)
        pulls = np.asarray(alphas) - aux
        return terms.sum(-1) + 0.5 * (pulls**2).sum(-1)

    def lowest(self, data: np.ndarray, aux: Any, mu: float | None = None) -> tuple[float, Any]:
        """The lowest value and its α by brute force: all minima of a grid, each polished by scipy.

        mu: held there, or the best one from zero on for every α.
        """
        n = len(self.up)
        axis = np.linspace(-4.5, 4.5, {1: 601, 2: 91, 3: 31}[n])
        alphas = np.stack(np.meshgrid(*[axis] * n, indexing="ij"), axis=-1)
        heights = self._over_mu(alphas, data, aux, mu, halvings=12)
        local = alphas[heights == ndimage.minimum_filter(heights, size=3)]
        order = np.argsort(self._over_mu(local, data, aux, mu))[:5]
        ends = [self._polished(start, data, aux, mu) for start in local[order]]
        best = min(ends, key=lambda end: end.fun)
        return float(best.fun), best.x[-n:]

    def _polished(self, alphas: np.ndarray, data: np.ndarray, aux: Any, mu: float | None) -> Any:
        """The minimum near a point of the grid, in α and, unless it is held, μ."""
        start, bounds = alphas, [(-5.0, 5.0)] * len(alphas)
        if mu is None:
            start = np.append(self.best_mu(alphas, data), alphas)
            bounds = [(0.0, 10.0), *bounds]
        n = len(alphas)

        def height(x: np.ndarray) -> float:
            return float(self.nll(x[0] if mu is None else mu, x[-n:], data, aux))

        options = {"ftol": 1e-16, "gtol": 1e-10, "maxls": 60}
        for _ in range(2):  # restarted, because a line search may end at rounding
            end = optimize.minimize(
                height, start, method="L-BFGS-B", jac="3-point", bounds=bounds, options=options
            )
            start = end.x
        return end

    def _over_mu(
        self, alphas: Any, data: np.ndarray, aux: Any, mu: float | None, halvings: int = 45
    ) -> Any:
        at = self.best_mu(alphas, data, halvings) if mu is None else mu
        return self.nll(at, alphas, data, aux)

    def best_mu(self, alphas: Any, data: np.ndarray, halvings: int = 45) -> Any:
        """The μ from 0 to 10 of the lowest value at every α, where the slope changes its sign."""
        low, high = np.zeros(np.shape(alphas)[:-1]), np.full(np.shape(alphas)[:-1], 10.0)
        others = self._without_signal(alphas)
        for _ in range(halvings):
            middle = 0.5 * (low + high)
            nu = np.maximum(others + middle[..., None] * self.signal, 1e-12)
            falls = (self.signal * (1 - data / nu)).sum(-1) < 0
            low, high = np.where(falls, middle, low), np.where(falls, high, middle)
        return np.where(low > 0, 0.5 * (low + high), 0.0)


def _code4p(alpha: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """The piecewise interpolation of the HistFactory paper, with up = hi - nom, down = nom - lo."""
    half, scaled, square = (up + down) / 2, (up - down) / 16, alpha * alpha
    inside = alpha * half + scaled * square * (15 - square * (10 - 3 * square))
    return np.where(np.abs(alpha) < 1, inside, alpha * np.where(alpha > 0, up, down))


def family(
    seed: int, count: int, alphas: int, bins: int = 4, strength: float = 0.12
) -> list[Folded]:
    """Random models, in which three variations of five go to one side."""
    rng = np.random.default_rng(seed)
    models = []
    for _ in range(count):
        background = 10 ** rng.uniform(1.3, 3) * rng.uniform(0.3, 1.0, bins)
        up = strength * rng.normal(size=(alphas, bins)) * background
        same = np.where(rng.uniform(size=(alphas, 1)) < 0.6, 1.0, -1.0)
        down = up * same * rng.uniform(0.3, 1.3, (alphas, bins))
        floor = -0.9 * background / max(alphas, 2)
        models.append(
            Folded(
                signal=background * rng.uniform(0.05, 0.4, bins),
                background=background,
                up=np.maximum(up, floor),
                down=np.maximum(down, floor),
            )
        )
    return models


#: The shape of pyhf's validation model with two minima: either direction of one parameter mends the
#: second bin, and only one of them the others.
COUPLED = Folded(
    signal=np.array([0.0, 0.0, 28.0, 36.0]),
    background=np.array([104.0, 101.0, 152.0, 224.0]),
    up=np.array([[6.0, 14.0, 16.0, -55.0]]),
    down=np.array([[-9.0, -11.0, -14.0, -83.0]]),
)
COUPLED_DATA = np.array([109.0, 107.0, 172.0, 221.0])
