"""The values of a synthetic workspace: where each systematic acts, and all sizes.

Only uniform PCG64 doubles are drawn, one stream per seed, so the values are the same for every
version of NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from firstlight.histfactory.channels import Floats
from firstlight.histfactory.dimensions import TRUE_POI, Dimensions

#: A sample-channel with more systematics than this gets smaller ones, to keep the total plausible.
USUAL_SYSTEMATICS = 20.0
#: The yield that real workspaces have, instead of zero, in templates that lost all their events.
EMPTY_YIELD = 1e-6


class Draws:
    """Random numbers derived from uniform PCG64 doubles only, which are stable across NumPy."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def uniform(self, *shape: int) -> Floats:
        return self._generator.random(shape)

    def normal(self, *shape: int) -> Floats:
        """Standard normals (Box and Muller)."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(*shape)))
        turned: Floats = radius * np.cos(2.0 * math.pi * self.uniform(*shape))
        return turned

    def permutation(self, n: int) -> list[int]:
        return [int(index) for index in np.argsort(self.uniform(n), kind="stable")]

    def poisson(self, mean: float) -> int:
        """A Poisson count by inversion; above 500, where exp(-mean) nears zero, a rounded normal.

        Both draw the same number of uniforms.
        """
        u, z = float(self.uniform(1)[0]), float(self.normal(1)[0])
        if mean > 500.0:
            return max(0, round(mean + math.sqrt(mean) * z))
        count, term = 0, math.exp(-mean)
        cumulative = term
        while cumulative < u and term > 0.0:
            count += 1
            term *= mean / count
            cumulative += term
        return count


class Place(NamedTuple):
    """One sample in one channel."""

    channel: int
    sample: int


class Layout(NamedTuple):
    """The channels of each sample, and the alphas that act there."""

    places: tuple[Place, ...]  # channel by channel
    normsys: NDArray[np.bool_]  # (places, alphas)
    histosys: NDArray[np.bool_]


def lay_out(d: Dimensions, draws: Draws) -> Layout:
    presence = [_channels_of(d, sample, draws) for sample in range(d.samples)]
    places = tuple(
        Place(channel, sample)
        for channel in range(d.channels)
        for sample in range(d.samples)
        if channel in presence[sample]
    )
    ordinary = np.array([p.channel < d.channels - d.shapefactor_channels for p in places])
    shaped = np.array([d.bins_per_channel[p.channel] > 1 for p in places])
    # Shared names first, then normsys only, then histosys only; the numbering is shuffled.
    order = np.array(draws.permutation(d.alphas), dtype=int)
    by_place, by_name = 0.5 * draws.normal(len(places)), 1.4 * draws.normal(d.alphas)
    weights = np.exp(by_place[:, None] + by_name)
    normsys = _choose(weights, ordinary, order[: d.normsys_names], d.normsys, draws)
    # A systematic that changes a sample's shape usually changes its normalisation too.
    weights *= np.exp(0.55 * draws.normal(len(places)))[:, None] * (1.0 + 2.0 * normsys)
    histosys_only = order[d.normsys_names :]
    named = np.concatenate([order[: d.shared_names], histosys_only])
    histosys = _choose(weights, (ordinary & shaped)[::-1], named, d.histosys, draws, backwards=True)
    return Layout(places, normsys, histosys)


def _channels_of(d: Dimensions, sample: int, draws: Draws) -> frozenset[int]:
    shuffled = draws.permutation(d.channels)
    chosen = range(d.channels) if sample < d.signals else shuffled
    return frozenset(chosen[: d.channels_per_sample[sample]])


def _choose(
    weights: Floats,
    usable: NDArray[np.bool_],
    names: NDArray[np.int_],
    count: int,
    draws: Draws,
    backwards: bool = False,
) -> NDArray[np.bool_]:
    """`count` weighted pairs of a usable place and a name, with every name at least once.

    Weighted sampling without replacement by exponential keys (Efraimidis and Spirakis 2006). The
    guaranteed places of the names go round robin, from the first place or, `backwards`, the last.
    """
    chosen = np.zeros(weights.shape, dtype=bool)
    rows = np.flatnonzero(usable)
    if backwards:
        rows = (weights.shape[0] - 1) - rows
    keys = -np.log1p(-draws.uniform(len(rows), len(names))) / weights[np.ix_(rows, names)]
    sure = np.arange(len(names)) % max(1, len(rows))
    keys[sure, np.arange(len(names))] = -1.0
    best = np.argsort(keys, axis=None, kind="stable")[:count]
    row, column = np.unravel_index(best, keys.shape)
    chosen[rows[row], names[column]] = True
    return chosen


def nominal_yields(d: Dimensions, places: Sequence[Place], draws: Draws) -> list[Floats]:
    """Expected events of every place, one value per bin."""
    level = np.clip(130.0 * np.exp(0.8 * draws.normal(d.channels)), 40.0, 450.0)
    fall = 0.3 + 0.6 * draws.uniform(d.channels)
    popularity = 0.9 * draws.normal(d.samples)
    share = np.exp(popularity[[p.sample for p in places]] + 0.9 * draws.normal(len(places)))
    tilt = 0.6 * draws.normal(len(places))
    ripple = [0.08 * draws.normal(d.bins_per_channel[p.channel]) for p in places]
    empty = draws.uniform(len(places))

    for sample, channel in _control_regions(d, places).items():
        here = [i for i, p in enumerate(places) if p.channel == channel and p.sample >= d.signals]
        own = next(i for i in here if places[i].sample == sample)
        share[own] = 1.5 * max(share[own], sum(share[i] for i in here if i != own))
    totals = np.zeros((2, d.channels))  # of the backgrounds, of the signals
    for index, place in enumerate(places):
        totals[int(place.sample < d.signals), place.channel] += share[index]
    signal_share = _signal_share(d)
    yields = []
    for index, place in enumerate(places):
        part = share[index] / totals[int(place.sample < d.signals), place.channel]
        x = _bin_centres(d.bins_per_channel[place.channel])
        if place.sample < d.signals:
            rich = place.channel < (d.channels + 1) // 2
            part *= signal_share if rich else 0.1 * signal_share
            slope = 0.5  # a signal is searched for in the tail
        else:
            slope = -fall[place.channel] + tilt[index] * 0.5
        shape = np.exp(slope * x + ripple[index])
        values = level[place.channel] * part * shape / shape.mean()
        if empty[index] < 0.03 and part < 0.05:
            values[-1] = EMPTY_YIELD
        yields.append(values)
    return yields


def _control_regions(d: Dimensions, places: Sequence[Place]) -> dict[int, int]:
    """The channel that each freely scaled background dominates, so that its factor can be measured.

    Starts at the last channel, and uses each channel once as long as there are enough.
    """
    regions: dict[int, int] = {}
    for sample in range(d.signals, d.signals + d.normfactors - 1):
        present = [p.channel for p in reversed(places) if p.sample == sample]
        unused = [channel for channel in present if channel not in regions.values()]
        regions[sample] = (unused or present)[0]
    return regions


def _signal_share(d: Dimensions) -> float:
    """Signal over background in the signal-rich channels, for a total of about four σ."""
    rich_bins = sum(d.bins_per_channel[: (d.channels + 1) // 2])
    return min(0.3, 0.06 * math.sqrt(20.0 / rich_bins))


def _bin_centres(bins: int) -> Floats:
    return np.linspace(-1.0, 1.0, bins) if bins > 1 else np.zeros(1)


def _size(modifiers: int, places: int) -> float:
    """Scale of individual systematics that keeps the total of a sample-channel plausible."""
    mean = max(modifiers, 1) / max(places, 1)
    return min(3.0, math.sqrt(USUAL_SYSTEMATICS / mean)) if mean < 8.0 or mean > 20.0 else 1.0


class Variation(NamedTuple):
    """Relative change of a place by one alpha, up and down: one value, or one per bin."""

    up: Floats
    down: Floats


#: By the indices of the place and of the alpha.
Variations: TypeAlias = Mapping[tuple[int, int], Variation]


def normsys_variations(d: Dimensions, layout: Layout, draws: Draws) -> Variations:
    """Mostly about 1 %, one in a hundred about 30 %, a few one-sided."""
    pairs = np.argwhere(layout.normsys)
    size = _size(d.normsys, len(layout.places))
    by_name, sign = draws.normal(d.alphas), np.where(draws.uniform(d.alphas) < 0.5, -1.0, 1.0)
    noise, kind, flip, skew = draws.normal(len(pairs)), *draws.uniform(3, len(pairs))
    variations = {}
    for index, (place, alpha) in enumerate(pairs):
        z = 0.7 * by_name[alpha] + 0.7 * noise[index]
        up = min(0.4, size * (0.005 + 0.006 * math.exp(1.2 * z)))
        up = 0.3 * min(1.0, size) if kind[index] < 0.01 else up
        up *= sign[alpha] * (1.0 if flip[index] < 0.8 else -1.0)
        down = -up * (1.0 + 0.02 * (skew[index] - 0.5))
        if kind[index] > 0.99:
            up, down = (up * 5.0, 0.0) if skew[index] < 0.5 else (up, 0.3 * up)
        limits = (-0.4, 0.4)
        variations[int(place), int(alpha)] = Variation(
            np.clip([up], *limits), np.clip([down], *limits)
        )
    return variations


def histosys_variations(d: Dimensions, layout: Layout, draws: Draws) -> Variations:
    """Mostly about half a percent, with a long tail; slopes along the bins, and noise."""
    pairs = np.argwhere(layout.histosys)
    size = _size(d.histosys, len(layout.places))
    by_name = draws.normal(d.alphas)
    tall = 2.0 * draws.uniform(d.alphas) - 1.0
    noise, kind = draws.normal(len(pairs)), draws.uniform(len(pairs))
    variations = {}
    for index, (place, alpha) in enumerate(pairs):
        bins = d.bins_per_channel[layout.places[place].channel]
        amplitude = size * 0.009 * math.exp(0.8 * by_name[alpha] + 0.9 * noise[index])
        slope = _bin_centres(bins) + 0.5 * tall[alpha]
        up = amplitude * (slope + 0.5 * draws.normal(bins))
        skew = 0.1 if kind[index] < 0.8 else 1.0
        down = -up * (1.0 + skew * (draws.uniform(bins) - 0.5))
        if kind[index] > 0.99:
            down = 0.3 * up
        variations[int(place), int(alpha)] = Variation(
            np.clip(up, -0.9, 0.9), np.clip(down, -0.9, 0.9)
        )
    return variations


def true_yields(
    d: Dimensions,
    layout: Layout,
    nominal: Sequence[Floats],
    normsys: Variations,
    histosys: Variations,
    mc_weight: Floats,
    draws: Draws,
) -> list[Floats]:
    """Expected events of every channel at the parameters that the data are drawn from.

    Interpolated linearly and exponentially (codes 0 and 1): the truth need not be as smooth as the
    model.
    """
    alphas = 0.8 * draws.normal(d.alphas)
    factors = 1.0 + 0.15 * draws.normal(d.samples)
    totals = [np.zeros(bins) for bins in d.bins_per_channel]
    variances = [np.zeros(bins) for bins in d.bins_per_channel]
    relative = [np.ones(len(values)) for values in nominal]
    scale = np.ones(len(nominal))
    for (row, alpha), v in histosys.items():
        relative[row] += abs(alphas[alpha]) * (v.up if alphas[alpha] > 0 else v.down)
    for (row, alpha), v in normsys.items():
        side = v.up if alphas[alpha] > 0 else v.down
        scale[row] *= float(1.0 + side[0]) ** abs(alphas[alpha])
    for index, place in enumerate(layout.places):
        factor = place.sample - d.signals + 1
        free = 0 < factor < d.normfactors
        scale[index] *= factors[place.sample] if free else 1.0
        scale[index] *= TRUE_POI if place.sample < d.signals else 1.0
        totals[place.channel] += scale[index] * nominal[index] * np.maximum(relative[index], 0.05)
        variances[place.channel] += mc_weight[index] * nominal[index]
    return [
        total * np.maximum(0.5, 1.0 + np.sqrt(variance) / total * draws.normal(len(total)))
        for total, variance in zip(totals, variances, strict=True)
    ]
