"""Price and sensitivities of an arithmetic Asian call by Monte Carlo.

The stock follows geometric Brownian motion; the option pays the excess of its average over `dates`
equidistant dates above the strike. Delta, vega and rho come from differentiating the simulated
price path by path. The normals are an input, so that every framework prices the same paths.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, in_float64, tensors

SPOT, VOLATILITY, RATE = 100.0, 0.2, 0.05
STRIKE, MATURITY_YEARS = 100.0, 1.0


def make_inputs(seed: int, paths: int, dates: int) -> Arrays:
    """Spot, volatility and rate as 0-d arrays, then the normals, one path per row."""
    import numpy as np

    rng = np.random.default_rng(seed)
    market = (np.array(value, np.float32) for value in (SPOT, VOLATILITY, RATE))
    return *market, rng.standard_normal((paths, dates), dtype=np.float32)


def _price_and_greeks(
    spot: Array, volatility: Array, rate: Array, normals: Array
) -> tuple[Array, ...]:
    """Price, delta, vega and rho by the pathwise formulae (Broadie and Glasserman, 1996)."""
    import numpy as np

    dates = normals.shape[1]
    times = (np.arange(1, dates + 1) * (MATURITY_YEARS / dates)).astype(normals.dtype)
    motion = np.cumsum(normals, axis=1) * (MATURITY_YEARS / dates) ** 0.5
    stock = spot * np.exp((rate - 0.5 * volatility**2) * times + volatility * motion)
    average = stock.mean(1)
    discount = np.exp(-rate * MATURITY_YEARS)
    paid = discount * (average > STRIKE)
    price = np.mean(paid * (average - STRIKE))
    delta = np.mean(paid * average) / spot
    vega = np.mean(paid * (stock * (motion - volatility * times)).mean(1))
    rho = np.mean(paid * (stock * times).mean(1)) - MATURITY_YEARS * price
    return price, delta, vega, rho


def _price(xp: Array, spot: Array, volatility: Array, rate: Array, normals: Array) -> Array:
    """The simulated price in JAX or PyTorch: `xp` is `jax.numpy` or `torch`."""
    interval = MATURITY_YEARS / normals.shape[1]
    drift = (rate - 0.5 * volatility**2) * interval
    moves = drift + volatility * interval**0.5 * normals
    average = xp.mean(spot * xp.exp(xp.cumsum(moves, 1)), 1)
    payoff = xp.clip(average - STRIKE, 0.0)
    return xp.exp(-rate * MATURITY_YEARS) * xp.mean(payoff)


def build_numpy(compile: Compile, seed: int, paths: int, dates: int) -> Built:
    """Price and sensitivities by the pathwise formulae."""
    return compile(_price_and_greeks), make_inputs(seed, paths, dates)


def build_jax(compile: Compile, seed: int, paths: int, dates: int) -> Built:
    """Price and sensitivities by `jax.value_and_grad`."""
    import jax
    import jax.numpy as jnp

    def step(*market: Array) -> tuple[Array, ...]:
        price, greeks = jax.value_and_grad(lambda *m: _price(jnp, *m), (0, 1, 2))(*market)
        return price, *greeks

    return compile(step), jax.device_put(make_inputs(seed, paths, dates))


def build_torch(compile: Compile, seed: int, paths: int, dates: int) -> Built:
    """Price and sensitivities by `torch.func.grad_and_value`."""
    import torch

    def step(*market: Array) -> tuple[Array, ...]:
        greeks, price = torch.func.grad_and_value(lambda *m: _price(torch, *m), (0, 1, 2))(*market)
        return price, *greeks

    return compile(step), tensors(make_inputs(seed, paths, dates))


def reference(seed: int, paths: int, dates: int) -> Arrays:
    """Price and sensitivities in float64, by the pathwise formulae."""
    return in_float64(_price_and_greeks, make_inputs(seed, paths, dates))
