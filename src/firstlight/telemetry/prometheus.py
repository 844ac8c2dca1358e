"""Prometheus's text format, written with the standard library.

A user's program is scraped every few seconds, so the constant part of each series, its name and
labels, is formatted once and kept.
"""

from __future__ import annotations

from itertools import accumulate, chain

from firstlight.telemetry.metrics import CATALOGUE, Metric
from firstlight.telemetry.process_values import process_samples
from firstlight.telemetry.values import Counter, Histogram, Labels, Values
from firstlight.telemetry.warning_line import say_unknown

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "%": "%%"})
_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class Exporter:
    """Exports values, and the memory and processor time of this process."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._written: dict[Counter | Histogram, _Written] = {}

    def text(self) -> bytes:
        """All metrics in the order of the catalogue, including those without any series."""
        by_metric: dict[str, list[bytes]] = {
            metric.name: [
                f"# HELP {metric.name} {metric.about}".encode(),
                f"# TYPE {metric.name} {metric.kind.value}".encode(),
            ]
            for metric in CATALOGUE
        }
        written, present = self._written, self._values.series
        if len(written) > len(present):  # some were dropped
            self._written = written = {one[2]: written[one[2]] for one in present
                                       if one[2] in written}  # fmt: skip
        for metric, labels, series in present:
            known = written.get(series)
            if known is None:
                if metric.name not in by_metric:
                    say_unknown(metric)
                    continue
                known = written[series] = _Written(_pattern(metric, labels).encode())
            if (state := _state(series)) != known.state:
                known.state, known.text = state, known.pattern % _numbers(series)
            by_metric[metric.name].append(known.text)
        for metric, labels, value in (*self._values.gauges(), *process_samples()):
            assert not isinstance(value, Histogram)
            by_metric[metric.name].append(_pattern(metric, labels).encode() % _number(value))
        return b"\n".join([*chain.from_iterable(by_metric.values()), b""])


class _Written:
    """The last text of a series, which is reused while nothing is counted."""

    __slots__ = ("pattern", "state", "text")

    def __init__(self, pattern: bytes) -> None:
        self.pattern, self.text = pattern, b""
        self.state: tuple[float, float] | None = None  # when the text was written


def _state(series: Counter | Histogram) -> tuple[float, float]:
    """A value that changes whenever something is counted, even after a reset in a fork."""
    if isinstance(series, Counter):
        return series.value, 0.0
    return sum(series.counts), series.total


def _numbers(series: Counter | Histogram) -> tuple[int | bytes, ...]:
    if isinstance(series, Counter):
        return (_number(series.value),)
    counts = tuple(accumulate(series.counts))
    return (*counts, _number(series.total), counts[-1])


def _pattern(metric: Metric, labels: Labels) -> str:
    """The lines of a series, with placeholders for its numbers."""
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


def _number(value: float) -> bytes:
    text = repr(float(value))
    return _SPECIAL.get(text, text).encode()
