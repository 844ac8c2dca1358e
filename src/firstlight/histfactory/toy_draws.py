"""Draws pseudo-data. A toy depends only on the key and its number.

So toys can be drawn where they are fitted, in any order, and a larger set begins with the same
toys as a smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstlight.forks import require_threads
from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.array_types import Array, RandomKey
from firstlight.histfactory.engine import Eager, cores
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.precision import is_traced

#: Toys per random generator: creating one takes as long as drawing a few toys.
_BLOCK = 128
#: With fewer blocks per thread (16 000 toys for two), one thread is as fast as several.
_BLOCKS_PER_THREAD = 64
#: The entropy of a key, for NumPy's `SeedSequence`.
Entropy = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ToySource:
    """The toys of a model at some parameters, drawn by number."""

    main: Array  # expectations [bin]
    aux: Array  # centres of the auxiliary data [parameter]
    theta: Array
    sigma: Array  # widths of normal constraints, else 0
    is_poisson: Array  # where auxiliary data are counts
    entropy: Entropy
    stream: int  # distinguishes sources with the same key

    def draw(self, begin: int, end: int) -> Data:
        """The toys from `begin` to before `end`, on a leading axis."""
        first = begin // _BLOCK
        numbers = range(first, -(-end // _BLOCK))
        threads = min(cores(), len(numbers) // _BLOCKS_PER_THREAD)
        if threads > 1:
            from concurrent.futures import ThreadPoolExecutor

            # An accelerator fits toys faster than one core draws them.
            with ThreadPoolExecutor(threads) as pool:
                blocks = list(pool.map(self._block, numbers))
        else:
            blocks = [self._block(number) for number in numbers]
        main, aux = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        rows = slice(begin - first * _BLOCK, end - first * _BLOCK)
        return Data(main[rows], aux[rows])

    def _block(self, number: int) -> tuple[Array, Array]:
        seeds = np.random.SeedSequence(self.entropy, spawn_key=(self.stream, number))
        rng = np.random.default_rng(seeds)
        main = rng.poisson(self.main, (_BLOCK, len(self.main))).astype(np.float64)
        normal = self.theta + self.sigma * rng.standard_normal((_BLOCK, len(self.theta)))
        counts = np.where(self.is_poisson, np.maximum(self.aux, 0.0), 0.0)
        poisson = rng.poisson(counts, (_BLOCK, len(counts)))
        aux = np.where(self.is_poisson, poisson, np.where(self.sigma > 0, normal, self.aux))
        return main, aux


def toys_at(engine: Eager, theta: Array, entropy: Entropy, stream: int = 0) -> ToySource:
    """Toys of the model at `theta`; fails if a bin expects a negative count."""
    centre, prepared = engine.asimov(theta), engine.prepared
    if np.any(centre.main < 0):
        about, worst = engine.model.about, int(centre.main.argmin())
        channel, index = about.bins[worst]
        raise ModelError(
            f"{about.source}: channel {channel!r}, bin {index} expects {centre.main[worst]:g} "
            "events at the parameters of the toys. Counts cannot be drawn from a negative "
            "expectation. Fix or bound parameters, or merge the bin with others."
        )
    weight = np.asarray(prepared.weight)
    sigma = np.where(weight > 0, 1 / np.sqrt(np.where(weight > 0, weight, 1.0)), 0.0)
    return ToySource(
        main=np.asarray(centre.main),
        aux=np.asarray(centre.aux),
        theta=np.asarray(theta),
        sigma=sigma,
        is_poisson=np.asarray(prepared.tau) > 0,
        entropy=entropy,
        stream=stream,
    )


def entropy_of(key: RandomKey) -> Entropy:
    """The bits of an integer or a JAX key; NumPy draws the toys on every device."""
    if is_traced(key):
        raise ModelError(
            "toys are drawn outside jit. Draw the data first, then vmap fit over them."
        )
    if isinstance(key, (int, np.integer)) and key >= 0:
        return (int(key),)
    if not hasattr(key, "dtype"):
        raise ModelError(f"key is {key!r}; it must be a non-negative integer or a JAX key.")
    import jax

    bits = key
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        require_threads()
        bits = jax.random.key_data(key)
    return tuple(int(x) for x in np.asarray(bits).ravel())
