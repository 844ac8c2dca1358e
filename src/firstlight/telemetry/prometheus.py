"""The text that a Prometheus server reads, made with the standard library.

A process that belongs to somebody else is asked for it every few seconds: what stays the same of a
series, its name and labels, is written once and kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from firstlight.telemetry.metrics import CATALOGUE, Metric
from firstlight.telemetry.process_values import process_samples
from firstlight.telemetry.values import Histogram, Labels, Sample, Values

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class Exporter:
    """`text()` of values, and of this process's memory and processor time."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._beginnings: dict[tuple[str, Labels], list[str]] = {}

    def text(self) -> bytes:
        """Every metric of the catalogue, in its order, also where nothing was counted yet."""
        by_metric: dict[str, list[Sample]] = {metric.name: [] for metric in CATALOGUE}
        for sample in (*self._values, *process_samples()):
            by_metric.get(sample.metric.name, []).append(sample)  # or it is not in the catalogue
        lines = []
        for metric in CATALOGUE:
            lines.append(f"# HELP {metric.name} {metric.about}")
            lines.append(f"# TYPE {metric.name} {metric.kind.value}")
            for sample in by_metric[metric.name]:
                lines.extend(self._lines(sample))
        lines.append("")
        return "\n".join(lines).encode()

    def _lines(self, sample: Sample) -> Iterator[str]:
        key = (sample.metric.name, sample.labels)
        beginnings = self._beginnings.get(key)
        if beginnings is None:
            beginnings = self._beginnings[key] = list(_beginnings(sample.metric, sample.labels))
        value = sample.value
        if isinstance(value, Histogram):
            counts = list(accumulate(value.counts))
            numbers = [*map("{}.0".format, counts), _number(value.total), f"{counts[-1]}.0"]
        else:
            numbers = [_number(value)]
        return map(str.__add__, beginnings, numbers)


def _beginnings(metric: Metric, labels: Labels) -> Iterator[str]:
    """Of each line of a series all but the number."""
    pairs = [f'{n}="{v.translate(_ESCAPES)}"' for n, v in zip(metric.labels, labels, strict=True)]
    if metric.bounds:
        for bound in (*map(repr, metric.bounds), "+Inf"):
            within = ",".join(sorted([*pairs, f'le="{bound}"']))
            yield f"{metric.name}_bucket{{{within}}} "
    within = f"{{{','.join(sorted(pairs))}}} " if pairs else " "
    for ending in ("_sum", "_count") if metric.bounds else ("",):
        yield f"{metric.name}{ending}{within}"


def _number(value: float) -> str:
    text = repr(float(value))
    return _SPECIAL.get(text, text)
