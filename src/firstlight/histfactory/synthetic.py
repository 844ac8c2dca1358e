"""Synthetic pyhf workspaces of given dimensions: anyone can reproduce figures without data.

The time of a HistFactory fit depends on the numbers of channels, bins, samples, modifiers and
parameters, and on how they are distributed. `Dimensions` specifies these, and `workspace` fills
them with plausible values: falling spectra, a signal of a few standard deviations, many small
systematics, a few large or one-sided ones. The observed counts are drawn from the model away from
nominal, so a fit has pulls of order one and no parameter at a bound.

Values are rounded to six digits, so the text is the same for every version of NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from firstlight.histfactory.channels import Floats
from firstlight.histfactory.dimensions import (
    PRESETS,
    Dimensions,
    DimensionsError,
    scaled_dimensions,
)
from firstlight.histfactory.synthetic_values import (
    Draws,
    Layout,
    Place,
    Variations,
    histosys_variations,
    lay_out,
    nominal_yields,
    normsys_variations,
    true_yields,
)

Json: TypeAlias = dict[str, Any]
Workspace = Json  # pyhf's, workspace schema 1.0.0

POI = "mu"
SIGNIFICANT_DIGITS = 6


def preset(name: str, seed: int = 0) -> Workspace:
    """The workspace of a named preset; the error for an unknown name lists the known ones."""
    if name not in PRESETS:
        raise DimensionsError(f"No preset '{name}'. The presets are: {', '.join(sorted(PRESETS))}.")
    return workspace(PRESETS[name], seed)


def scaled(
    parameters: int,
    bins: int = 100,
    channels: int = 10,
    *,
    samples: int = 6,
    staterror: bool = False,
    seed: int = 0,
) -> Workspace:
    """A workspace with `parameters` in pyhf's count (see `scaled_dimensions`)."""
    dimensions = scaled_dimensions(parameters, bins, channels, samples=samples, staterror=staterror)
    return workspace(dimensions, seed)


def workspace(dimensions: Dimensions, seed: int = 0) -> Workspace:
    """A pyhf workspace (schema 1.0.0) with exactly these dimensions; equal for equal seeds."""
    d, draws = dimensions, Draws(seed)
    layout = lay_out(d, draws)
    nominal = nominal_yields(d, layout.places, draws)
    normsys = normsys_variations(d, layout, draws)
    histosys = histosys_variations(d, layout, draws)
    mc_weight = 0.05 + 0.45 * draws.uniform(len(layout.places))
    truth = true_yields(d, layout, nominal, normsys, histosys, mc_weight, draws)
    names = [_channel_name(d, channel) for channel in range(d.channels)]
    samples: list[list[Json]] = [[] for _ in names]
    for index, place in enumerate(layout.places):
        modifiers = [
            *_factors(d, place),
            *_systematics(index, layout, nominal[index], normsys, histosys),
            *_bin_uncertainties(d, place, np.sqrt(mc_weight[index] * nominal[index])),
        ]
        name, data = _sample_name(d, place.sample), _rounded(nominal[index])
        samples[place.channel].append({"name": name, "data": data, "modifiers": modifiers})
    counts = [[float(draws.poisson(float(mean))) for mean in means] for means in truth]
    return {
        "channels": [{"name": n, "samples": s} for n, s in zip(names, samples, strict=True)],
        "observations": [{"name": n, "data": c} for n, c in zip(names, counts, strict=True)],
        "measurements": [_measurement(d)],
        "version": "1.0.0",
    }


def _rounded(values: Floats | Sequence[float]) -> list[float]:
    return [float(f"{float(value):.{SIGNIFICANT_DIGITS}g}") for value in values]


def _channel_name(d: Dimensions, channel: int) -> str:
    rich = (d.channels + 1) // 2
    kind, number, count = (
        ("SR", channel, rich) if channel < rich else ("CR", channel - rich, d.channels - rich)
    )
    return kind if count == 1 else f"{kind}{number + 1}"


def _sample_name(d: Dimensions, sample: int) -> str:
    kind, number, count = (
        ("signal", sample, d.signals)
        if sample < d.signals
        else ("background", sample - d.signals, d.samples - d.signals)
    )
    return kind if count == 1 else f"{kind}{number + 1}"


def _normfactor_name(d: Dimensions, sample: int) -> str | None:
    if sample < d.signals:
        return POI
    return f"norm_{_sample_name(d, sample)}" if sample - d.signals + 1 < d.normfactors else None


def _factors(d: Dimensions, place: Place) -> list[Json]:
    """The normfactor, lumi and shapefactor of a place."""
    normfactor = _normfactor_name(d, place.sample)
    found = [{"name": normfactor, "type": "normfactor", "data": None}] if normfactor else []
    if d.lumi != "none":
        found.append({"name": "lumi", "type": "lumi", "data": None})
    if place.channel >= d.channels - d.shapefactor_channels and place.sample == d.main_background:
        name = f"shapefactor_{_channel_name(d, place.channel)}"
        found.append({"name": name, "type": "shapefactor", "data": None})
    return found


def _systematics(
    index: int, layout: Layout, nominal: Floats, normsys: Variations, histosys: Variations
) -> list[Json]:
    found = []
    for alpha in np.flatnonzero(layout.normsys[index]):
        v = normsys[index, int(alpha)]
        (hi,), (lo,) = _rounded(1.0 + v.up), _rounded(1.0 + v.down)
        data: Json = {"hi": hi, "lo": lo}
        found.append({"name": f"alpha{alpha + 1:03d}", "type": "normsys", "data": data})
    for alpha in np.flatnonzero(layout.histosys[index]):
        v = histosys[index, int(alpha)]
        up, down = _rounded(nominal * (1.0 + v.up)), _rounded(nominal * (1.0 + v.down))
        data = {"hi_data": up, "lo_data": down}
        found.append({"name": f"alpha{alpha + 1:03d}", "type": "histosys", "data": data})
    return found


def _bin_uncertainties(d: Dimensions, place: Place, sigma: Floats) -> list[Json]:
    """The staterror or shapesys of a place; sigma in events."""
    name = _channel_name(d, place.channel)
    shapefactor_from = d.channels - d.shapefactor_channels
    if place.channel >= shapefactor_from:
        return []
    if place.channel >= shapefactor_from - d.shapesys_channels:
        if place.sample != d.main_background:
            return []
        return [{"name": f"shapesys_{name}", "type": "shapesys", "data": _rounded(sigma)}]
    if d.staterror == "all" or (d.staterror == "backgrounds" and place.sample >= d.signals):
        return [{"name": f"staterror_{name}", "type": "staterror", "data": _rounded(sigma)}]
    return []


def _measurement(d: Dimensions) -> Json:
    parameters: list[Json] = [{"name": POI, "inits": [1.0], "bounds": [list(d.poi_bounds)]}]
    for sample in range(d.signals, d.signals + d.normfactors - 1):
        name = _normfactor_name(d, sample)
        parameters.append({"name": name, "inits": [1.0], "bounds": [[0.0, 10.0]]})
    if d.lumi != "none":
        lumi: Json = {
            "name": "lumi",
            "inits": [1.0],
            "bounds": [[0.9, 1.1]],
            "auxdata": [1.0],
            "sigmas": [0.02],
        }
        parameters.append(lumi | ({"fixed": True} if d.lumi == "fixed" else {}))
    return {"name": "measurement", "config": {"poi": POI, "parameters": parameters}}


def main() -> None:
    """Print a workspace: `python -m firstlight.histfactory.synthetic [PRESET [SEED]]`."""
    import json
    import sys

    given = dict(enumerate(sys.argv))
    name, seed = given.get(1, "complex-8p"), given.get(2, "0")
    try:
        print(json.dumps(preset(name, int(seed)), indent=1))
    except (DimensionsError, ValueError) as error:
        raise SystemExit(f"synthetic: {error}") from None


if __name__ == "__main__":
    main()
