"""Properties of a workspace that a user should know before a fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from firstlight.histfactory.channels import Floats, Modifier, Sample, placed
from firstlight.histfactory.parameter_sets import ParameterSet
from firstlight.histfactory.spec import Specification, ignored_observations


def findings(spec: Specification) -> list[str]:
    """One sentence per thing that may surprise the user."""
    return [
        *_about_poi(spec),
        *_unused_settings(spec),
        *_unused_observations(spec),
        *_fixed_parameters(spec),
        *_bins(spec),
        *_without_effect(spec),
        *_negative_uncertainties(spec),
        *_one_sided(spec),
    ]


def _about_poi(spec: Specification) -> Iterator[str]:
    if spec.poi is None:
        yield "the measurement has no parameter of interest: name one with --poi"
        return
    if spec.poi in [name for one in spec.parameter_sets for name in _fixed_names(one)]:
        yield f"the parameter of interest {spec.poi!r} is fixed: free it with --free {spec.poi}"


def _unused_settings(spec: Specification) -> Iterator[str]:
    from difflib import get_close_matches

    names = [one.name for one in spec.parameter_sets]
    for unused in spec.unused_settings:
        close = get_close_matches(unused, names, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        yield f"the settings of {unused!r} have no effect: no modifier has this name{hint}"


def _unused_observations(spec: Specification) -> Iterator[str]:
    if spec.unused_observations:
        yield ignored_observations(spec)


def _fixed_parameters(spec: Specification) -> Iterator[str]:
    """Parameters fixed by the measurement, or by a bin without uncertainty."""
    names: list[str] = []
    for one in spec.parameter_sets:
        if "lumi" in one.types and one.fixed.any():
            yield (
                f"the luminosity {one.name!r} is fixed at {one.init[0]:g}: its uncertainty is not "
                "used (--free frees it)"
            )
        else:
            names += [name for name in _fixed_names(one) if name != spec.poi]
    if names:
        yield f"{_count(len(names), 'parameter is', 'parameters are')} fixed: {_some(names)}"


def _fixed_names(one: ParameterSet) -> list[str]:
    return [name for name, held in zip(one.names, one.fixed, strict=True) if held]


def _bins(spec: Specification) -> Iterator[str]:
    begin = 0
    empty: list[str] = []
    impossible: list[str] = []
    negative: list[str] = []
    for channel in spec.channels:
        total = np.sum([sample.nominal for sample in channel.samples], axis=0)
        for index in np.flatnonzero(total <= 0):
            place = f"{channel.name}[{index}]"
            seen = 0.0 if spec.observed is None else spec.observed[begin + index]
            (impossible if seen > 0 else empty).append(place)
        for sample in channel.samples:
            if (sample.nominal < 0).any():
                negative.append(f"{channel.name}/{sample.name}")
        begin += channel.bins
    if impossible:
        yield (
            f"{_count(len(impossible), 'bin has', 'bins have')} events but no expected yield at "
            f"nominal: {_some(impossible)}"
        )
    if empty:
        yield f"{_count(len(empty), 'bin expects', 'bins expect')} nothing: {_some(empty)}"
    if negative:
        yield (
            f"{_count(len(negative), 'sample has', 'samples have')} negative bins: "
            f"{_some(negative)}"
        )
    if spec.observed is None:
        yield "there are no observed data"
    elif not np.array_equal(spec.observed, np.round(spec.observed)):
        yield "observed counts are not whole numbers, so they may be Asimov data"


def _without_effect(spec: Specification) -> Iterator[str]:
    """Parameters that change no yield."""
    acting = {m.name for c, s, m in placed(spec.channels) if _has_effect(s, m)}
    names = [one.name for one in spec.parameter_sets if one.name not in acting]
    if names:
        yield f"{_count(len(names), 'parameter has', 'parameters have')} no effect: {_some(names)}"


def _has_effect(sample: Sample, modifier: Modifier) -> bool:
    if modifier.type == "histosys":
        up, down = _shifts(sample, modifier)
        return bool(up.any() or down.any())
    if not sample.nominal.any():
        return False
    if modifier.type == "normsys":
        return modifier.lo != 1 or modifier.hi != 1
    return modifier.uncertainty is None or bool(np.any(modifier.uncertainty))


def _negative_uncertainties(spec: Specification) -> Iterator[str]:
    """pyhf treats a negative uncertainty as no uncertainty: the bin's parameter is then fixed."""
    places = [
        f"{modifier.name} ({channel.name}/{sample.name}[{index}])"
        for channel, sample, modifier in placed(spec.channels)
        if modifier.type == "shapesys" and modifier.uncertainty is not None
        for index in np.flatnonzero(modifier.uncertainty < 0)
    ]
    if places:
        yield (
            f"{_count(len(places), 'shapesys uncertainty is', 'shapesys uncertainties are')} "
            f"negative and ignored, which fixes the parameter: {_some(places)}"
        )


def _one_sided(spec: Specification) -> Iterator[str]:
    """Variations that move yields the same way up and down, or on one side only."""
    for kind in ("histosys", "normsys"):
        places = [
            p for p in placed(spec.channels) if p[2].type == kind and _is_one_sided(p[1], p[2])
        ]
        if not places:
            continue
        names = list(dict.fromkeys(m.name for _, _, m in places))
        examples = [f"{m.name} ({c.name}/{s.name})" for c, s, m in places]
        yield (
            f"{_count(len(places), f'{kind} is', f'{kind} are')} one-sided (up and down move "
            f"a yield the same way, or only one moves it), on "
            f"{_count(len(names), 'parameter', 'parameters')}: {_some(examples, 3)}"
        )


def _is_one_sided(sample: Sample, modifier: Modifier) -> bool:
    up, down = _shifts(sample, modifier)
    if up.any() != down.any():
        return True
    return bool(np.any(up * down > 0))


def _shifts(sample: Sample, modifier: Modifier) -> tuple[Floats, Floats]:
    """Change of the yields up and down; for a normsys, of its factor."""
    assert modifier.lo is not None and modifier.hi is not None
    base = sample.nominal if modifier.type == "histosys" else np.ones(1)
    return np.asarray(modifier.hi - base), np.asarray(modifier.lo - base)


def uses(spec: Specification) -> dict[str, dict[str, int]]:
    """How often each type of modifier is used, and by how many parameters."""
    counts: dict[str, dict[str, int]] = {}
    for _, _, modifier in placed(spec.channels):
        entry = counts.setdefault(modifier.type, {"modifiers": 0, "names": 0, "parameters": 0})
        entry["modifiers"] += 1
    for one in spec.parameter_sets:
        for kind in one.types:
            counts[kind]["names"] += 1
            counts[kind]["parameters"] += one.size
    return dict(sorted(counts.items()))


def constraint_text(one: ParameterSet) -> str:
    """A constraint in words; with several components, the range of their widths."""
    if one.constraint is None or one.auxdata is None:
        return ""
    if one.constraint == "normal":
        assert one.sigma is not None
        return f"normal, σ {_range(one.sigma)}"
    assert one.factor is not None
    return f"Poisson, relative {_range(1 / np.sqrt(one.factor))}"


def _range(values: Floats) -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low}–{high}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _some(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
