"""The text that a Prometheus server reads, made with the standard library.

A process that belongs to somebody else is asked for it every few seconds: what stays the same of a
series, its name and labels, is written once and kept.
"""

from __future__ import annotations

from itertools import accumulate, chain

from firstlight.telemetry.metrics import CATALOGUE, Metric
from firstlight.telemetry.process_values import process_samples
from firstlight.telemetry.values import Histogram, Labels, Values

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "%": "%%"})
_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class Exporter:
    """`text()` of values, and of this process's memory and processor time."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._patterns: dict[tuple[str, Labels], str] = {}
        self._written: dict[tuple[str, Labels], tuple[float, str]] = {}

    def text(self) -> bytes:
        """Every metric of the catalogue, in its order, also where nothing was counted yet."""
        by_metric: dict[str, list[str]] = {
            metric.name: [
                f"# HELP {metric.name} {metric.about}",
                f"# TYPE {metric.name} {metric.kind.value}",
            ]
            for metric in CATALOGUE
        }
        for metric, labels, value in (*self._values, *process_samples()):
            if metric.name in by_metric:
                by_metric[metric.name].append(self._lines(metric, labels, value))
        return "\n".join([*chain.from_iterable(by_metric.values()), ""]).encode()

    def _lines(self, metric: Metric, labels: Labels, value: float | Histogram) -> str:
        """As they were written last, if nothing was counted since."""
        key = (metric.name, labels)
        state = sum(value.counts) if isinstance(value, Histogram) else value
        known = self._written.get(key)
        if known is not None and known[0] == state:
            return known[1]
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = _pattern(metric, labels)
        if isinstance(value, Histogram):
            counts = list(accumulate(value.counts))
            text = pattern % (*counts, _number(value.total), counts[-1])
        else:
            text = pattern % _number(value)
        self._written[key] = state, text
        return text


def _pattern(metric: Metric, labels: Labels) -> str:
    """The lines of a series without its numbers."""
    pairs = [f'{n}="{v.translate(_ESCAPES)}"' for n, v in zip(metric.labels, labels, strict=True)]
    if not metric.bounds:
        return f"{metric.name}{_braces(pairs)} %s"
    bounds = (*map(repr, metric.bounds), "+Inf")
    within = [_braces([*pairs, f'le="{bound}"']) for bound in bounds]
    lines = [f"{metric.name}_bucket{braces} %d.0" for braces in within]
    lines.append(f"{metric.name}_sum{_braces(pairs)} %s")
    lines.append(f"{metric.name}_count{_braces(pairs)} %d.0")
    return "\n".join(lines)


def _braces(pairs: list[str]) -> str:
    return f"{{{','.join(sorted(pairs))}}}" if pairs else ""


def _number(value: float) -> str:
    text = repr(float(value))
    return _SPECIAL.get(text, text)
