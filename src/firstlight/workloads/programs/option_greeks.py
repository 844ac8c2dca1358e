"""Price and sensitivities of an arithmetic Asian call by Monte Carlo.

The stock follows geometric Brownian motion; the option pays the excess of its average over `dates`
equidistant dates above the strike. Delta, vega and rho come from differentiating the simulated
price path by path. The normals are an input, so that every framework prices the same paths.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    Step = Callable[..., Any]
    Built = tuple[Step, tuple[Any, ...]]
SPOT, VOLATILITY, RATE = 100.0, 0.2, 0.05
STRIKE, MATURITY_YEARS = 100.0, 1.0


def make_inputs(seed: int, paths: int, dates: int) -> tuple[NDArray[Any], ...]:
    """Spot, volatility and rate as 0-d arrays, then the normals, one path per row."""
    import numpy as np

    rng = np.random.default_rng(seed)
    market = (np.array(value, np.float32) for value in (SPOT, VOLATILITY, RATE))
    return *market, rng.standard_normal((paths, dates), dtype=np.float32)


def _price_and_greeks(spot: Any, volatility: Any, rate: Any, normals: Any) -> tuple[Any, ...]:
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


def build_numpy(compile: Callable[[Step], Step], seed: int, paths: int, dates: int) -> Built:
    """Price and sensitivities by the pathwise formulae."""
    return compile(_price_and_greeks), make_inputs(seed, paths, dates)


def build_jax(compile: Callable[[Step], Step], seed: int, paths: int, dates: int) -> Built:
    """Price and sensitivities by `jax.value_and_grad`."""
    import jax
    import jax.numpy as jnp

    interval = MATURITY_YEARS / dates

    def price_of(spot: Any, volatility: Any, rate: Any, normals: Any) -> Any:
        drift = (rate - 0.5 * volatility**2) * interval
        moves = drift + volatility * interval**0.5 * normals
        average = jnp.mean(spot * jnp.exp(jnp.cumsum(moves, axis=1)), axis=1)
        payoff = jnp.maximum(average - STRIKE, 0.0)
        return jnp.exp(-rate * MATURITY_YEARS) * jnp.mean(payoff)

    def step(*args: Any) -> tuple[Any, ...]:
        price, greeks = jax.value_and_grad(price_of, argnums=(0, 1, 2))(*args)
        return price, *greeks

    return compile(step), jax.device_put(make_inputs(seed, paths, dates))


def build_torch(compile: Callable[[Step], Step], seed: int, paths: int, dates: int) -> Built:
    """Price and sensitivities by `torch.func.grad_and_value`."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    interval = MATURITY_YEARS / dates

    def price_of(spot: Any, volatility: Any, rate: Any, normals: Any) -> Any:
        drift = (rate - 0.5 * volatility**2) * interval
        moves = drift + volatility * interval**0.5 * normals
        average = torch.mean(spot * torch.exp(torch.cumsum(moves, dim=1)), dim=1)
        payoff = torch.relu(average - STRIKE)
        return torch.exp(-rate * MATURITY_YEARS) * torch.mean(payoff)

    def step(*args: Any) -> tuple[Any, ...]:
        greeks, price = torch.func.grad_and_value(price_of, argnums=(0, 1, 2))(*args)
        return price, *greeks

    inputs = make_inputs(seed, paths, dates)
    return compile(step), tuple(torch.from_numpy(a).to(device) for a in inputs)


def reference(seed: int, paths: int, dates: int) -> tuple[NDArray[Any], ...]:
    """Price and sensitivities in float64, by the pathwise formulae."""
    import numpy as np

    inputs = (a.astype(np.float64) for a in make_inputs(seed, paths, dates))
    return tuple(np.asarray(out) for out in _price_and_greeks(*inputs))
