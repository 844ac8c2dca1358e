"""Arranges the numbers of a specification in arrays: the padded grid.

A *cell* is one bin of one sample of one channel. Cells form a grid `[slot, bin]`: bins of all
channels side by side, and for each bin the samples of its channel in the slots. Parameters are
arranged in three blocks, because the likelihood treats each differently:

    α  `normsys`, `histosys`             interpolated, one value for any set of cells
    φ  `normfactor`, `lumi`, and every bin-wise factor that is shared between bins
    γ  `staterror`, `shapesys`, `shapefactor` of one bin: at most one per bin, at its position

Among the α, those with a `histosys` come first and those with a `normsys` last, so the arrays of
either kind have few unused rows. The γ block of the Hessian is diagonal, and the fit eliminates it
before it factorises.

Every dimension is padded to one of a few sizes, so one executable serves many models. A padding
parameter is fixed, a padding cell is empty, a padding bin expects and observes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from firstlight.histfactory.channels import Channel, Floats, Modifier
from firstlight.histfactory.parameter_sets import ParameterSet
from firstlight.histfactory.spec import Specification

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINWISE = ("staterror", "shapesys", "shapefactor")


class Sizes(NamedTuple):
    """Padded dimensions; models of equal sizes share their executables."""

    slots: int
    bins: int
    channels: int
    alphas: int
    factors: int
    shapes: int  # this many α, from the first, may have a `histosys`
    rates: int  # this many α, up to the last, may have a `normsys`

    @property
    def parameters(self) -> int:
        """Length of an internal parameter vector: α, φ, and one γ per bin."""
        return self.alphas + self.factors + self.bins


class Grid(NamedTuple):
    """A workspace as NumPy arrays: floats that may be differentiated, and the fixed structure."""

    sizes: Sizes
    floats: dict[str, Floats]  # the fields of `model.Arrays`
    structure: dict[str, Any]  # the fields of `model.Structure`
    slots: dict[tuple[str, str], int]  # (channel, sample): slot


def padded_size(n: int) -> int:
    """The smallest permitted size that holds n: all sizes below 16, then eight per octave."""
    if n <= 16:
        return n
    step: int = 1 << ((n - 1).bit_length() - 4)
    return -(-n // step) * step


def natural_sizes(spec: Specification) -> Sizes:
    """Dimensions without padding."""
    blocks = [role.block for role in _roles(spec)]
    shape, both, rate = (blocks.count(block) for block in ALPHAS)
    alphas = max(1, shape + both + rate)
    return Sizes(
        slots=max(len(c.samples) for c in spec.channels),
        bins=sum(c.bins for c in spec.channels),
        channels=len(spec.channels),
        alphas=alphas,
        factors=max(1, blocks.count("factor")),
        shapes=shape + both,
        rates=alphas - shape,
    )


def padded_sizes(spec: Specification) -> Sizes:
    """Dimensions padded to the permitted sizes."""
    natural = natural_sizes(spec)
    padded = Sizes(*(padded_size(n) for n in natural))
    # The α with both kinds are where the two ranges overlap.
    rates = max(natural.rates, padded.alphas - padded.shapes + _shared(natural))
    return padded._replace(rates=min(padded.alphas, padded_size(rates)))


def shortages(sizes: Sizes, spec: Specification) -> list[str]:
    """Messages about the dimensions that are too small for a specification."""
    needed = natural_sizes(spec)
    pairs = zip(Sizes._fields, sizes, needed, strict=True)
    found = [f"{name}: {have} < {want}" for name, have, want in pairs if have < want]
    found += [
        f"{name}: {getattr(sizes, name)} > alphas: {sizes.alphas}"
        for name in ("shapes", "rates")
        if getattr(sizes, name) > sizes.alphas
    ]
    if not found and _shared(sizes) < _shared(needed):
        found = [f"shapes + rates - alphas: {_shared(sizes)} < {_shared(needed)}"]
    return found


def _shared(sizes: Sizes) -> int:
    """How many α may have both a `histosys` and a `normsys`: the overlap of the two ranges."""
    return sizes.shapes + sizes.rates - sizes.alphas


class _Role(NamedTuple):
    """The block of a parameter and its position in the block."""

    block: str  # one of ALPHAS, "factor" or "gamma"
    place: int  # for a gamma: its bin


#: Kinds of α, in the order of their block: with a `histosys`, with both, with a `normsys`.
ALPHAS = ("shape", "both", "rate")


def lay_out(spec: Specification, sizes: Sizes) -> Grid:
    """Fill the grid of a specification."""
    n_slots, n_bins, n_channels, _, n_factors, n_shapes, n_rates = sizes
    roles = _roles(spec)
    positions = _internal_positions(roles, sizes)
    rows = positions.tolist()
    structure = {
        "histosys_used": np.zeros((n_shapes, n_slots, n_bins)),
        "normsys_used": np.zeros((n_rates, n_slots, n_channels)),
        "factor_mask": np.zeros((n_factors, n_slots, n_bins)),
        "carries_gamma": np.zeros((n_slots, n_bins)),
        "channel_of_bin": np.zeros(n_bins),
    }
    floats = {
        "nominal": np.zeros((n_slots, n_bins)),
        "normsys_lo": np.ones((n_rates, n_slots, n_channels)),
        "normsys_hi": np.ones((n_rates, n_slots, n_channels)),
        "histosys_lo": np.zeros((n_shapes, n_slots, n_bins)),
        "histosys_hi": np.zeros((n_shapes, n_slots, n_bins)),
        "observed": np.zeros(n_bins),
    }
    first, offsets = _first_index(spec.parameter_sets), _component_offsets(spec)
    begin = 0
    for c, channel in enumerate(spec.channels):
        here = slice(begin, begin + channel.bins)
        begin += channel.bins
        structure["channel_of_bin"][here] = c
        for k, sample in enumerate(channel.samples):
            floats["nominal"][k, here] = sample.nominal
            for modifier in sample.modifiers:
                index = first[modifier.name]
                if modifier.type in BINWISE:
                    index += offsets[modifier.name, channel.name]
                    _place_factors(structure, roles[index : index + channel.bins], k, here)
                else:
                    place = (k, c, here)
                    _place_modifier(structure, floats, sizes, modifier, rows[index], place)
    if spec.observed is not None:
        floats["observed"][: len(spec.observed)] = spec.observed
    settings, constraints = _parameter_arrays(spec, sizes, positions)
    return Grid(
        sizes=sizes,
        floats=floats | settings,
        structure={**structure, **constraints, "positions": positions},
        slots={(c.name, s.name): k for c in spec.channels for k, s in enumerate(c.samples)},
    )


def _place_modifier(
    structure: dict[str, Floats],
    floats: dict[str, Floats],
    sizes: Sizes,
    modifier: Modifier,
    row: int,
    place: tuple[int, int, slice],
) -> None:
    """Enter a modifier with one parameter, at `row`, of the sample at (slot, channel, bins)."""
    slot, channel, bins = place
    if modifier.type == "normsys":
        where: tuple[int | slice, ...] = (row - (sizes.alphas - sizes.rates), slot, channel)
    elif modifier.type == "histosys":
        where = (row, slot, bins)
    else:
        structure["factor_mask"][row - sizes.alphas, slot, bins] = 1
        return
    structure[f"{modifier.type}_used"][where] = 1
    floats[f"{modifier.type}_lo"][where] = modifier.lo
    floats[f"{modifier.type}_hi"][where] = modifier.hi


def _place_factors(
    structure: dict[str, Floats], roles: list[_Role], slot: int, bins: slice
) -> None:
    """Enter one factor per bin of a sample."""
    for bin_, role in zip(range(bins.start, bins.stop), roles, strict=True):
        if role.block == "gamma":
            structure["carries_gamma"][slot, bin_] = 1
        else:
            structure["factor_mask"][role.place, slot, bin_] = 1


def _component_offsets(spec: Specification) -> dict[tuple[str, str], int]:
    """First component of a bin-wise parameter set in a channel: (modifier, channel) to offset.

    A staterror that spans channels has separate components in each; a shapefactor that spans
    channels starts again in each, so that bins share it.
    """
    offsets: dict[tuple[str, str], int] = {}
    used: dict[str, int] = {}
    for channel, modifier in _binwise(spec):
        key = (modifier.name, channel.name)
        if key not in offsets:
            offsets[key] = used.get(modifier.name, 0)
            if modifier.type == "staterror":
                used[modifier.name] = offsets[key] + channel.bins
    return offsets


def _first_index(sets: tuple[ParameterSet, ...]) -> dict[str, int]:
    first, begin = {}, 0
    for parameter_set in sets:
        first[parameter_set.name] = begin
        begin += parameter_set.size
    return first


def _roles(spec: Specification) -> list[_Role]:
    """Block and position of every parameter, in the public order."""
    bins = _bins_touched(spec)
    roles: list[_Role] = []
    taken: set[int] = set()
    count = dict.fromkeys((*ALPHAS, "factor"), 0)

    def next_of(block: str) -> _Role:
        count[block] += 1
        return _Role(block, count[block] - 1)

    for parameter_set in spec.parameter_sets:
        kinds = {"normsys", "histosys"} & set(parameter_set.types)
        interpolated = "both" if len(kinds) == 2 else "rate" if "normsys" in kinds else "shape"
        for component in range(parameter_set.size):
            touched = bins.get((parameter_set.name, component), set())
            if kinds:
                roles.append(next_of(interpolated))
            elif not parameter_set.scalar and len(touched) == 1 and not touched & taken:
                taken |= touched
                roles.append(_Role("gamma", min(touched)))
            else:
                roles.append(next_of("factor"))
    return roles


def _bins_touched(spec: Specification) -> dict[tuple[str, int], set[int]]:
    """The bins that each component of a bin-wise parameter acts on."""
    touched: dict[tuple[str, int], set[int]] = {}
    offsets = _component_offsets(spec)
    ends = np.cumsum([channel.bins for channel in spec.channels]).tolist()
    begins = {c.name: end - c.bins for c, end in zip(spec.channels, ends, strict=True)}
    for channel, modifier in _binwise(spec):
        offset = offsets[modifier.name, channel.name]
        for bin_ in range(channel.bins):
            key = (modifier.name, offset + bin_)
            touched.setdefault(key, set()).add(begins[channel.name] + bin_)
    return touched


def _binwise(spec: Specification) -> list[tuple[Channel, Modifier]]:
    """The modifiers with one factor per bin, which are few among all."""
    return [
        (channel, modifier)
        for channel in spec.channels
        for sample in channel.samples
        for modifier in sample.modifiers
        if modifier.type in BINWISE
    ]


def _internal_positions(roles: list[_Role], sizes: Sizes) -> NDArray[np.int64]:
    """Internal position of every public parameter."""
    blocks = [role.block for role in roles]
    both = max(blocks.count("shape"), sizes.alphas - sizes.rates)
    offset = {
        "shape": 0,
        "both": both,
        "rate": both + blocks.count("both"),
        "factor": sizes.alphas,
        "gamma": sizes.alphas + sizes.factors,
    }
    return np.array([offset[r.block] + r.place for r in roles], dtype=np.int64)


def _parameter_arrays(
    spec: Specification, sizes: Sizes, positions: NDArray[np.int64]
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Settings and kinds of constraints in internal order; padding is fixed and unconstrained."""
    n = sizes.parameters
    neutral = np.concatenate([np.zeros(sizes.alphas), np.ones(sizes.factors + sizes.bins)])
    settings = {
        "init": neutral.copy(),
        "lower": np.full(n, -np.inf),
        "upper": np.full(n, np.inf),
        "auxdata": neutral,
        "sigma": np.ones(n),
        "tau": np.ones(n),
    }
    constraints = {"normal": np.zeros(n), "poisson": np.zeros(n), "fixed": np.ones(n)}
    begin = 0
    for s in spec.parameter_sets:
        where = positions[begin : begin + s.size]
        begin += s.size
        constraints["fixed"][where] = s.fixed
        entries = {"init": s.init, "lower": s.lower, "upper": s.upper, "auxdata": s.auxdata}
        for name, values in {**entries, "sigma": s.sigma, "tau": s.factor}.items():
            if values is not None:
                settings[name][where] = values
        if s.constraint is not None:
            constraints[s.constraint][where] = 1
    return settings, constraints
