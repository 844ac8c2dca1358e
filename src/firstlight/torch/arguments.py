"""Loss arguments: tensors, or mappings from templates to tensors, checked against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from firstlight.histfactory import templates
from firstlight.histfactory.model import Model
from firstlight.losses.binning import LossError, checked_choice

DEVICES = ("auto", "cpu", "cuda")
Keys: TypeAlias = "str | Sequence[templates.Key]"  # one sample or several
Histograms: TypeAlias = "torch.Tensor | Mapping[templates.Key, torch.Tensor]"


class Templates(NamedTuple):
    """The checked arguments of one call."""

    keys: tuple[templates.Key, ...]
    tensors: tuple[torch.Tensor, ...]
    rows: int | None  # None: no leading axis


class Arguments:
    """Checks the arguments of the losses of one model."""

    def __init__(self, model: Model, signal: Keys, device: str) -> None:
        self.model = model
        self.signal = _as_keys(signal)
        self.device = checked_choice("device", device, DEVICES)
        self._places: dict[templates.Key, templates.Position] = {}
        self._sizes = [self._place(key).size for key in self.signal]

    def named(self, histograms: Histograms) -> Templates:
        """Check templates and return them by name: one set, or rows of them."""
        if isinstance(histograms, Mapping):
            given = dict(histograms)
        else:
            given = self._named_signal(histograms)
        if not given:
            raise LossError("signal_histogram is empty: give at least one template.")
        tensors = tuple(given.values())
        rows: int | None = None
        for key, tensor in given.items():
            self._require_usable(key, tensor, tensors[0])
            axes = tensor.ndim - self._place(key).axes
            shape = tuple(tensor.shape)
            templates.require_size(self.model, key, self._place(key), shape[max(axes, 0) :])
            if axes > 1 or (axes == 1 and rows not in (None, shape[0])):
                raise LossError(
                    f"{label(key)} has shape {shape}: too many axes, or another number of rows."
                )
            rows = shape[0] if axes == 1 else rows
        return Templates(tuple(given), tensors, rows)

    @property
    def n_bins(self) -> int:
        """Number of bins of the signal."""
        return sum(self._sizes)

    def are_yields(self, keys: tuple[templates.Key, ...]) -> bool:
        """Whether all of these are nominal yields, which must not be negative."""
        return all(self._place(key).array == "nominal" for key in keys)

    def axes(self, key: templates.Key) -> int:
        """Axes of one template: one for yields, none for a factor."""
        return self._place(key).axes

    def _place(self, key: templates.Key) -> templates.Position:
        if key not in self._places:
            self._places[key] = templates.place_of(self.model, key)
        return self._places[key]

    def _named_signal(self, histogram: object) -> dict[templates.Key, torch.Tensor]:
        if not isinstance(histogram, torch.Tensor):
            raise LossError(
                f"signal_histogram is {type(histogram).__name__}; give a tensor (see "
                "firstlight.torch.as_tensor), or a mapping from templates to tensors."
            )
        if histogram.ndim == 0 or histogram.shape[-1] != self.n_bins:
            raise LossError(
                f"signal_histogram has shape {tuple(histogram.shape)}; "
                f"{' + '.join(map(repr, self.signal))} has {self.n_bins} bins."
            )
        if len(self.signal) == 1:
            return {self.signal[0]: histogram}
        parts = torch.split(histogram, self._sizes, dim=-1)
        return dict(zip(self.signal, parts, strict=True))

    def _require_usable(self, key: templates.Key, tensor: object, first: torch.Tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise LossError(f"{label(key)} is {type(tensor).__name__}, not a tensor.")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise LossError(
                f"{label(key)} is {tensor.dtype}; yields must be float32 or float64. Convert "
                "them: .double()."
            )
        if tensor.device != first.device:
            raise LossError(
                f"{label(key)} is on {tensor.device}, another on {first.device}. Use one device."
            )
        if self.device != "auto" and tensor.device.type != self.device:
            raise LossError(
                f'{label(key)} is on {tensor.device}, but device="{self.device}". Move it there, '
                'or use device="auto".'
            )


def _as_keys(signal: Keys) -> tuple[templates.Key, ...]:
    if isinstance(signal, str):
        return (signal,)
    keys = tuple(signal)
    if not keys or len(set(keys)) != len(keys):
        raise LossError(f"signal_sample_name is {signal!r}; name each sample once.")
    return keys


def impossible_message(key: templates.Key) -> str:
    """The error message for impossible yields."""
    return (
        f"{label(key)} has NaN, infinite or negative yields (or is a factor at or below zero). "
        "On a GPU a soft histogram is NaN if no score lies within its edges."
    )


def label(key: templates.Key) -> str:
    """A template as messages of the losses call it."""
    return f"signal_histogram: the template {templates.name_of(key)}"
