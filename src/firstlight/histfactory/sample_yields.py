"""Samples that a fit expects below zero, and the parameters that take them there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from firstlight.histfactory.array_types import Array
from firstlight.histfactory.interpolation import additive_basis, code4
from firstlight.histfactory.likelihood import Prepared, shape_and_rate_alphas, yields
from firstlight.histfactory.model import Description

#: Yields below zero by less than this share of their size are rounding.
ROUNDING = 1e-9


class SampleYield(NamedTuple):
    """A yield below zero whose nominal value is not, and the parameter behind it."""

    channel: str
    sample: str
    bin: int  # from 0
    expected: float
    parameter: str

    def __str__(self) -> str:
        return (
            f"channel {self.channel!r}, sample {self.sample!r}, bin {self.bin} "
            f"({self.expected:.4g} expected, because of {self.parameter!r})"
        )


def sizes(model: Prepared) -> Array:
    """The scale of every yield: its nominal value and its largest variation [slot, bin]."""
    half_sum, scaled = np.abs(model.shifts).max(axis=1, initial=0.0)
    size: Array = np.abs(model.nominal) + half_sum + 8 * scaled
    return size


def below_zero(model: Prepared, cells: Array) -> Array:
    """True for the yields below zero whose nominal value is not [slot, bin]."""
    below: Array = (model.nominal >= 0) & (cells < -ROUNDING * sizes(model))
    return below


def negative_samples(about: Description, model: Prepared, theta: Array) -> list[SampleYield]:
    """The yields below zero whose nominal value is not, sample by sample."""
    cells = yields(model, theta, np)
    below = below_zero(model, cells)
    if not np.any(below):
        return []
    names = dict(zip(about.structure.positions.tolist(), about.parameters, strict=True))
    ends = np.cumsum([bins for _, bins in about.channels]).tolist()
    places = {
        name: (end - bins, end) for (name, bins), end in zip(about.channels, ends, strict=True)
    }
    return [
        SampleYield(
            channel,
            sample,
            here - places[channel][0],
            float(cells[slot, here]),
            names[_responsible(model, theta, slot, here)],
        )
        for channel, sample, slot in about.slots
        for here in range(*places[channel])
        if below[slot, here]
    ]


def _responsible(model: Prepared, theta: Array, slot: int, here: int) -> int:
    """The parameter that makes a yield negative, by its internal position.

    For a template below zero, the one that shifts it down most; otherwise the lowest factor.
    """
    begin, begin_gamma = model.blocks
    shape_alpha, rate_alpha = shape_and_rate_alphas(model, theta[:begin])
    basis = additive_basis(model.codes[1], shape_alpha, np)
    shifts = basis.g * model.shifts[0, :, slot, here] + basis.f * model.shifts[1, :, slot, here]
    if model.nominal[slot, here] + shifts.sum() < 0:
        return int(np.argmin(shifts))
    factors = np.ones(len(theta))
    row = slot * (model.logs.shape[-1] // len(model.nominal)) + model.channels[here]
    inside = np.abs(rate_alpha) < (1.0 if model.codes[0] == "code4" else 0.0)
    rates, _, _ = code4(model.deviations[:, :, [row]], model.logs[:, :, [row]], rate_alpha, np)
    factors[begin - len(rate_alpha) : begin] = np.where(inside, rates[:, 0], 1.0)
    scaled = model.factor_mask[:, slot, here] > 0
    factors[begin:begin_gamma] = np.where(scaled, theta[begin:begin_gamma], 1.0)
    if model.carries_gamma[slot, here] > 0:
        factors[begin_gamma + here] = theta[begin_gamma + here]
    return int(np.argmin(factors))
