"""The dimensions of a synthetic workspace: validity checks and presets.

FirstlightError
└── DimensionsError (also a ValueError)    no workspace can have these dimensions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from firstlight.errors import FirstlightError

#: The signal strength at which the observed counts are drawn.
TRUE_POI = 1.0


class DimensionsError(FirstlightError, ValueError):
    """No workspace can have these dimensions; the message says why."""


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of a workspace, all exact.

    Samples are counted signals first. A signal is in the first channels, a background in channels
    chosen by the seed. Systematics avoid shapefactor channels; histosys also avoid single-bin
    channels, where a shape is a normalisation.
    """

    bins_per_channel: tuple[int, ...]
    channels_per_sample: tuple[int, ...]  # number of channels of each sample
    signals: int = 1  # samples that the parameter of interest scales
    normfactors: int = 1  # the parameter of interest, then one per background, in order
    normsys: int = 0  # modifiers, over all sample-channels
    histosys: int = 0
    normsys_names: int = 0  # distinct names: parameters
    histosys_names: int = 0
    shared_names: int = 0  # names that are both a normsys and a histosys
    lumi: Literal["none", "constrained", "fixed"] = "none"
    staterror: Literal["none", "backgrounds", "all"] = "none"
    shapesys_channels: int = 0  # with a shapesys on the main background, not a staterror
    shapefactor_channels: int = 0  # the last ones: data-driven, with no systematics
    poi_bounds: tuple[float, float] = (0.0, 10.0)

    def __post_init__(self) -> None:
        for impossible, reason in _impossibilities(self):
            if impossible:
                raise DimensionsError(f"No workspace has these dimensions: {reason}.")

    @property
    def channels(self) -> int:
        return len(self.bins_per_channel)

    @property
    def bins(self) -> int:
        return sum(self.bins_per_channel)

    @property
    def samples(self) -> int:
        return len(self.channels_per_sample)

    @property
    def sample_channels(self) -> int:
        return sum(self.channels_per_sample)

    @property
    def main_background(self) -> int:
        """The last sample present in every channel, which carries shapesys and shapefactor."""
        backgrounds = range(self.signals, self.samples)
        return max(s for s in backgrounds if self.channels_per_sample[s] == self.channels)

    @property
    def alphas(self) -> int:
        """Parameters with a unit Gaussian constraint: names of a normsys, a histosys or both."""
        return self.normsys_names + self.histosys_names - self.shared_names

    @property
    def parameters(self) -> int:
        """Number of parameters as pyhf counts them, including fixed ones."""
        plain = self.channels - self.shapesys_channels - self.shapefactor_channels
        first = 0 if self.staterror != "none" else plain
        per_bin = sum(self.bins_per_channel[first:])
        return (self.lumi != "none") + self.normfactors + self.alphas + per_bin


def _impossibilities(d: Dimensions) -> list[tuple[bool, str]]:
    """Whether each impossibility applies, and its message."""
    counts = {name: value for name, value in vars(d).items() if isinstance(value, int)}
    negative = [name for name, value in counts.items() if value < 0]
    channels, backgrounds = d.channels, d.channels_per_sample[max(d.signals, 0) :]
    special = d.shapesys_channels + d.shapefactor_channels
    ordinary_bins = sum(d.bins_per_channel[: channels - d.shapefactor_channels])
    conditions = [
        (bool(negative), f"{', '.join(negative)} below zero"),
        (not d.bins_per_channel or min(d.bins_per_channel) < 1, "a channel without bins"),
        (not 0 < d.signals < d.samples, f"{d.signals} signals among {d.samples} samples"),
        (
            any(not 1 <= n <= channels for n in d.channels_per_sample),
            f"channels_per_sample {d.channels_per_sample} with {channels} channels",
        ),
        (
            channels not in backgrounds,
            f"no background is in all {channels} channels, so one could be left empty",
        ),
        (special > channels, f"{special} shapesys and shapefactor channels of {channels}"),
        (d.shapefactor_channels >= channels, "every channel has a shapefactor, so none measures"),
        (
            not 1 <= d.normfactors <= 1 + len(backgrounds),
            f"{d.normfactors} normfactors: the parameter of interest, at most one per background",
        ),
        (
            d.normfactors > ordinary_bins,
            f"{d.normfactors} free normfactors cannot be measured in {ordinary_bins} bins",
        ),
        (
            d.shared_names > min(d.normsys_names, d.histosys_names),
            f"{d.shared_names} shared of {d.normsys_names} normsys and {d.histosys_names} histosys",
        ),
        (not d.poi_bounds[0] < TRUE_POI < d.poi_bounds[1], f"poi_bounds without {TRUE_POI:g}"),
    ]
    if any(impossible for impossible, _ in conditions):
        return conditions  # the places of modifiers cannot be counted then
    return [
        *conditions,
        _crowding("normsys", d.normsys, d.normsys_names, *_fewest_places(d, 1)),
        _crowding("histosys", d.histosys, d.histosys_names, *_fewest_places(d, 2)),
    ]


def _fewest_places(d: Dimensions, min_bins: int) -> tuple[int, str]:
    """Number of sample-channels that can carry a modifier for any seed, and their description."""
    usable = [
        index < d.channels - d.shapefactor_channels and bins >= min_bins
        for index, bins in enumerate(d.bins_per_channel)
    ]
    avoided = d.channels - sum(usable)
    signal_places = sum(sum(usable[:n]) for n in d.channels_per_sample[: d.signals])
    backgrounds = d.channels_per_sample[d.signals :]
    places = signal_places + sum(max(0, n - avoided) for n in backgrounds)
    return places, f"{places} sample-channels" + (" of two bins or more" if min_bins > 1 else "")


def _crowding(
    kind: str, modifiers: int, names: int, places: int, description: str
) -> tuple[bool, str]:
    fits = names <= modifiers <= names * places
    return not fits, (
        f"{modifiers} {kind} modifiers with {names} names on {description}: there must be at least "
        f"one per name ({names}) and at most one per name and sample-channel ({names * places})"
    )


def spread(total: int, parts: int) -> tuple[int, ...]:
    """`total` split into `parts` whole numbers as equal as possible, the larger ones first."""
    if parts < 1:
        raise DimensionsError(f"No workspace has these dimensions: {parts} channels.")
    return tuple(total // parts + (index < total % parts) for index in range(parts))


PRESETS: Mapping[str, Dimensions] = {
    "complex-8p": Dimensions(
        bins_per_channel=(2, 2),
        channels_per_sample=(1, 2),
        normsys=1,
        normsys_names=1,
        histosys=1,
        histosys_names=1,
        lumi="constrained",
        staterror="backgrounds",
        shapefactor_channels=1,
    ),
    "thu-184p": Dimensions(
        bins_per_channel=(4, 4, 1, 1, 3, 6, 6, 3, 3, 5, 5),
        channels_per_sample=(11, 11, 11, 11, 11, 9, 9, 11, 11, 11, 4, 11),
        signals=2,
        normfactors=6,
        normsys=2090,
        normsys_names=109,
        histosys=1629,
        histosys_names=118,
        shared_names=91,
        lumi="fixed",
        staterror="all",
        poi_bounds=(-100.0, 100.0),
    ),
}

#: Modifiers of each alpha: the density of "thu-184p".
_NORMSYS_PER_ALPHA, _HISTOSYS_PER_ALPHA = 15, 12


def scaled_dimensions(
    parameters: int,
    bins: int = 100,
    channels: int = 10,
    *,
    samples: int = 6,
    staterror: bool = False,
) -> Dimensions:
    """Dimensions with `parameters` in pyhf's count, for scaling curves.

    Two are normfactors (one of them the parameter of interest); with `staterror`, one per bin is a
    gamma; the others are alphas, each with as many modifiers as there is room for, so the size
    grows linearly.
    """
    per_channel = spread(bins, channels)
    if samples < 2:
        raise DimensionsError(
            f"No workspace has these dimensions: {samples} samples. Give 2 or more."
        )
    alphas = parameters - 2 - (bins if staterror else 0)
    if alphas < 0:
        raise DimensionsError(
            f"No workspace has these dimensions: {parameters} parameters with 2 normfactors"
            + (f" and {bins} gammas, one per bin; give more parameters." if staterror else ".")
        )
    histosys_places = samples * sum(n > 1 for n in per_channel)
    histosys_names = round(0.87 * alphas) if histosys_places else 0
    normsys_names = max(round(0.8 * alphas), alphas - histosys_names) if histosys_places else alphas
    return Dimensions(
        bins_per_channel=per_channel,
        channels_per_sample=(channels,) * samples,
        normfactors=2,
        normsys=normsys_names * min(_NORMSYS_PER_ALPHA, samples * channels),
        normsys_names=normsys_names,
        histosys=histosys_names * min(_HISTOSYS_PER_ALPHA, histosys_places),
        histosys_names=histosys_names,
        shared_names=normsys_names + histosys_names - alphas,
        staterror="all" if staterror else "none",
    )
