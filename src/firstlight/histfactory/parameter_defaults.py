"""Parameter defaults implied by modifiers, before the settings of a measurement (pyhf 0.7.6).

Each function here restates the `required_parset` of a module in `pyhf.modifiers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from firstlight.histfactory.channels import Channel, Floats, Modifier, Sample
from firstlight.histfactory.workspace_file import ContentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: pyhf's bounds for factors that multiply one bin.
_GAMMA_BOUNDS = (1e-10, 10.0)

#: The parts of a set, by the names of the settings that replace them. `None`: no default.
Parts: TypeAlias = dict[str, "Floats | NDArray[np.bool_] | None"]


class Use(NamedTuple):
    """One modifier that uses a parameter, and where it is."""

    channel: Channel
    sample: Sample
    modifier: Modifier

    @property
    def place(self) -> str:
        return f"channel {self.channel.name!r}, sample {self.sample.name!r}"


def implied(kind: str, uses: list[Use]) -> Parts:
    """The implied defaults; settings that the type does not have are missing."""
    if kind in ("histosys", "normsys"):
        return _same(1, 0.0, (-5.0, 5.0)) | {"auxdata": np.zeros(1)}
    if kind == "lumi":
        unset: Parts = dict.fromkeys(("inits", "bounds", "auxdata", "sigmas"))
        return unset | {"fixed": np.zeros(1, bool)}
    if kind == "normfactor":
        return _same(1, 1.0, (0.0, 10.0))
    if kind == "shapefactor":
        return _same(_shapefactor_bins(uses), 1.0, (0.0, 10.0))
    return _shapesys(uses) if kind == "shapesys" else _staterror(uses)


def _same(size: int, init: float, bounds: tuple[float, float]) -> Parts:
    return {
        "inits": np.full(size, init),
        "bounds": np.tile(bounds, (size, 1)),
        "fixed": np.zeros(size, bool),
    }


def _shapefactor_bins(uses: list[Use]) -> int:
    """One value per bin of the first channel; a later, smaller channel uses the first ones."""
    bins = uses[0].channel.bins
    for use in uses:
        if use.channel.bins > bins:
            # pyhf multiplies the extra bins by whatever parameter comes first in the model.
            raise ContentError(
                f"has one value for each of the {bins} bins of channel {uses[0].channel.name!r}, "
                f"the first that uses it; channel {use.channel.name!r} has {use.channel.bins}. "
                "Give the shapefactor of the larger channel another name."
            )
    return bins


def _shapesys(uses: list[Use]) -> Parts:
    """τ = (nominal / uncertainty)²; bins that lack either are fixed with τ = 1."""
    if len(uses) > 1:
        raise ContentError(
            f"is a shapesys of {uses[0].place} and of {uses[1].place}. A shapesys belongs to one "
            "sample of one channel; give each its own name."
        )
    nominal, uncertainty = uses[0].sample.nominal, uses[0].modifier.uncertainty
    assert uncertainty is not None
    valid = (nominal > 0) & (uncertainty > 0)
    with np.errstate(all="ignore"):
        tau = np.where(valid, nominal**2 / uncertainty**2, 1.0)
    for index in np.flatnonzero(~(np.isfinite(tau) & (tau > 0))):
        raise ContentError(
            f"bin {index} of {uses[0].place} has yield {nominal[index]} and uncertainty "
            f"{uncertainty[index]}: the square of their ratio does not fit a double. Correct them."
        )
    parts = _same(len(tau), 1.0, _GAMMA_BOUNDS)
    return parts | {"fixed": ~valid, "auxdata": tau, "factors": tau}


def _staterror(uses: list[Use]) -> Parts:
    """σ = √Σ(uncertainty / Σ nominal)² over the samples that carry it; fixed where σ is 0."""
    _require_same_channels(uses)
    channels = list({use.channel.name: use for use in uses})
    with np.errstate(all="ignore"):
        sigma = np.concatenate(
            [_relative([use for use in uses if use.channel.name == name]) for name in channels]
        )
    if not np.isfinite(sigma).all():
        index = int(np.flatnonzero(~np.isfinite(sigma))[0])
        raise ContentError(f"the relative uncertainty of bin {index} is too large for a double.")
    fixed = sigma == 0
    sigma[fixed] = 1.0
    parts = _same(len(sigma), 1.0, _GAMMA_BOUNDS)
    return parts | {"fixed": fixed, "auxdata": np.ones(len(sigma)), "sigmas": sigma}


def _relative(uses: list[Use]) -> Floats:
    nominal = np.sum([use.sample.nominal for use in uses], axis=0)
    total = np.where(nominal > 0, nominal, np.inf)
    ratios = np.array([use.modifier.uncertainty for use in uses]) / total
    return np.asarray(np.sqrt(np.sum(ratios**2, axis=0)), dtype=np.float64)


def _require_same_channels(uses: list[Use]) -> None:
    """pyhf requires a staterror that spans channels to be on the same samples in each of them."""
    carriers: dict[str, list[str]] = {}
    for use in uses:
        carriers.setdefault(use.sample.name, []).append(use.channel.name)
    (first, channels), *others = carriers.items()
    for sample, found in others:
        if found != channels:
            raise ContentError(
                f"sample {first!r} has it in channel {', '.join(map(repr, channels))}, sample "
                f"{sample!r} in {', '.join(map(repr, found))}. Give each channel a staterror "
                "with its own name."
            )
