"""Reads and checks the channels, samples and modifiers of a workspace.

Everything is sorted by name, as in pyhf: the order in a file has no meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from firstlight.histfactory.workspace_file import (
    ContentError,
    Json,
    described,
    listed,
    require_list,
    require_name,
    require_object,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"

#: In the order in which pyhf collects their parameters (`pyhf.modifiers.histfactory_set`).
MODIFIER_TYPES = (
    "histosys",
    "lumi",
    "normfactor",
    "normsys",
    "shapefactor",
    "shapesys",
    "staterror",
)

_PLAIN_NUMBERS = frozenset((int, float))
_MODIFIER_KEYS = frozenset(("name", "type", "data"))


class Modifier(NamedTuple):
    """One modifier of one sample. Its type determines which fields are set."""

    name: str
    type: str  # one of MODIFIER_TYPES
    lo: float | Floats | None = None  # normsys: a factor; histosys: one yield per bin
    hi: float | Floats | None = None
    uncertainty: Floats | None = None  # shapesys, staterror: absolute, one per bin


class Sample(NamedTuple):
    """One sample of one channel; modifiers are sorted by name, then type."""

    name: str
    nominal: Floats
    modifiers: tuple[Modifier, ...]


class Channel(NamedTuple):
    """One channel; samples are sorted by name."""

    name: str
    bins: int
    samples: tuple[Sample, ...]


def placed(channels: Sequence[Channel]) -> Iterator[tuple[Channel, Sample, Modifier]]:
    """Every modifier with its sample and its channel."""
    for channel in channels:
        for sample in channel.samples:
            for modifier in sample.modifiers:
                yield channel, sample, modifier


def number(value: Json, what: str) -> float:
    """`value` as a finite double, else a `ContentError`."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContentError(f"{what} must be a number, not {described(value)}.")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        shown = value if isinstance(value, float) else "a number too large for a double"
        raise ContentError(f"{what} is {shown}. Give a finite number.")
    return result


def number_array(values: Json, what: str) -> Floats:
    """`values` as a read-only array of finite doubles, else an error naming the bad entry."""
    if type(values) is not list:
        values = values.tolist() if isinstance(values, np.ndarray) else values
        values = require_list(values, what)
    if not values:
        raise ContentError(f"{what} is empty; at least 1 entry is needed.")
    try:
        # Two passes in C over a short list; `np.isfinite` alone takes longer than both.
        suspect = not _PLAIN_NUMBERS.issuperset(map(type, values)) or not math.isfinite(sum(values))
    except OverflowError:
        suspect = True
    if suspect:
        values = [number(value, f"{what}[{index}]") for index, value in enumerate(values)]
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def read_channels(plain: object) -> tuple[Channel, ...]:
    """All channels, sorted by name; fails with a `ContentError` at the first error."""
    channels: dict[str, Channel] = {}
    for index, entry in enumerate(require_list(plain, "channels", min_length=1)):
        try:
            channel = _read_channel(entry)
        except ContentError as fault:
            raise fault.inside(_place("channel", entry, index)) from None
        if channel.name in channels:
            raise ContentError(
                "there are two channels with this name. Rename one.", f"channel {channel.name!r}"
            )
        channels[channel.name] = channel
    return tuple(channels[name] for name in sorted(channels))


def bin_values(values: Json, what: str, bins: int) -> Floats:
    """`values` as an array with one finite number per bin, else a `ContentError`."""
    array = number_array(values, what)
    if len(array) != bins:
        raise ContentError(
            f"{what} has {len(array)} bins, the channel has {bins}. Give every template "
            "one value per bin."
        )
    return array


def _place(kind: str, plain: object, index: int) -> str:
    name = plain.get("name") if isinstance(plain, dict) else None
    return f"{kind} {name!r}" if isinstance(name, str) else f"{kind} number {index}"


def _read_channel(plain: object) -> Channel:
    plain = require_object(plain, ("name", "samples"), ("name", "samples"))
    name = require_name(plain)
    samples: dict[str, Sample] = {}
    bins = 0
    for index, entry in enumerate(require_list(plain["samples"], "samples", min_length=1)):
        try:
            sample = _read_sample(entry, bins)
        except ContentError as fault:
            raise fault.inside(_place("sample", entry, index)) from None
        if sample.name in samples:
            raise ContentError(
                "the channel has two samples with this name. Rename one.", f"sample {sample.name!r}"
            )
        samples[sample.name] = sample
        bins = bins or len(sample.nominal)
    return Channel(name, bins, tuple(samples[name] for name in sorted(samples)))


def _read_sample(plain: object, bins: int) -> Sample:
    """A sample; the first of a channel (`bins` is 0) defines its number of bins."""
    keys = ("name", "data", "modifiers")
    plain = require_object(plain, keys, keys)
    name = require_name(plain)
    if bins:
        nominal = bin_values(plain["data"], "data", bins)
    else:
        nominal = number_array(plain["data"], "data")
        bins = len(nominal)
    modifiers: dict[tuple[str, str], Modifier] = {}
    for index, entry in enumerate(require_list(plain["modifiers"], "modifiers")):
        try:
            modifier = _read_modifier(entry, bins)
            key = modifier.name, modifier.type
            if key in modifiers:
                raise ContentError("the sample has this modifier twice. Remove or rename one.")
        except ContentError as fault:
            raise fault.inside(_modifier_place(entry, index)) from None
        modifiers[key] = modifier
    return Sample(name, nominal, tuple(modifiers[key] for key in sorted(modifiers)))


def _modifier_place(plain: object, index: int) -> str:
    kind = plain.get("type") if isinstance(plain, dict) else None
    return _place("modifier", plain, index) + (f" ({kind})" if isinstance(kind, str) else "")


def _read_modifier(plain: object, bins: int) -> Modifier:
    # Written out instead of `require_object`: this runs for each of thousands of modifiers.
    if not isinstance(plain, dict) or not plain.keys() <= _MODIFIER_KEYS:
        plain = require_object(plain, _MODIFIER_KEYS, ())
    name, kind = require_name(plain), plain.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise ContentError(f"type is {described(kind)}. The types are {', '.join(MODIFIER_TYPES)}.")
    return reader(name, kind, plain.get("data"), bins)  # type: ignore[arg-type]


def _two(data: Json, low: str, high: str) -> tuple[Json, Json]:
    if isinstance(data, dict) and len(data) == 2 and low in data and high in data:
        return data[low], data[high]
    try:
        require_object(data, (low, high), (low, high))
    except ContentError as fault:
        raise ContentError(f"data {fault.message}") from None
    raise AssertionError("unreachable: an object with exactly these keys has been accepted")


def _read_normsys(name: str, kind: str, data: Json, bins: int) -> Modifier:
    lo, hi = _two(data, "lo", "hi")
    lo, hi = number(lo, "lo"), number(hi, "hi")
    if lo <= 0 or hi <= 0:
        what, factor = ("lo", lo) if lo <= 0 else ("hi", hi)
        raise ContentError(
            f"{what} is {factor}. This factor is raised to the power of the parameter, so at or "
            "below zero the likelihood is NaN. Give a positive factor, or write the variation as "
            "a histosys."
        )
    return Modifier(name, kind, lo, hi)


def _read_histosys(name: str, kind: str, data: Json, bins: int) -> Modifier:
    lo, hi = _two(data, "lo_data", "hi_data")
    return Modifier(name, kind, bin_values(lo, "lo_data", bins), bin_values(hi, "hi_data", bins))


def _read_uncertainty(name: str, kind: str, data: Json, bins: int) -> Modifier:
    return Modifier(name, kind, uncertainty=bin_values(data, "data", bins))


def _read_factor(name: str, kind: str, data: Json, bins: int) -> Modifier:
    if data is not None:
        raise ContentError(
            f"data must be null, not {described(data)}: the factor is the parameter itself."
        )
    if kind == "lumi" and name != "lumi":
        raise ContentError("a modifier of type lumi must be named 'lumi'. Rename it.")
    return Modifier(name, kind)


_READERS: dict[str, Callable[[str, str, Json, int], Modifier]] = {
    "histosys": _read_histosys,
    "lumi": _read_factor,
    "normfactor": _read_factor,
    "normsys": _read_normsys,
    "shapefactor": _read_factor,
    "shapesys": _read_uncertainty,
    "staterror": _read_uncertainty,
}


def read_observations(plain: object, channels: Sequence[Channel]) -> tuple[Floats, tuple[str, ...]]:
    """The observed yields of all channels, concatenated, and the names of unused entries.

    Published likelihoods have such entries: a patch removes a channel but leaves its data.
    """
    bins = {channel.name: channel.bins for channel in channels}
    observed: dict[str, Floats] = {}
    for index, entry in enumerate(require_list(plain, "observations")):
        try:
            name, values = _read_observation(entry, bins)
            if name in observed:
                raise ContentError("there are two with this name. Remove one.")
        except ContentError as fault:
            raise fault.inside(_place("observation", entry, index)) from None
        observed[name] = values
    missing = [channel.name for channel in channels if channel.name not in observed]
    if missing:
        raise ContentError(
            f"no observation for channel {listed(missing)}. Add its data.", "observations"
        )
    unused = tuple(sorted(observed.keys() - bins.keys()))
    return np.concatenate([observed[channel.name] for channel in channels]), unused


def _read_observation(plain: object, bins: dict[str, int]) -> tuple[str, Floats]:
    plain = require_object(plain, ("name", "data"), ("name", "data"))
    name = require_name(plain)
    if name not in bins:
        return name, np.zeros(0)
    values = bin_values(plain["data"], "data", bins[name])
    for index, value in enumerate(values.tolist()):
        if value < 0:
            raise ContentError(f"data[{index}] is {value}. An observed count cannot be negative.")
    return name, values
