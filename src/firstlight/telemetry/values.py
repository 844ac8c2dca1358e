"""Current values of the catalogue's metrics, cheap enough to update on every request.

A series is created once and kept by its user: counting is one addition, observing one bisection.
Only one thread writes to a series; any thread may read it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from firstlight.telemetry.metrics import Kind, Metric

Labels = tuple[str, ...]


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Histogram:
    """Counts by bucket; the last bucket is for values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Sample(NamedTuple):
    """The current value of a series."""

    metric: Metric
    labels: Labels
    value: float | Histogram


class Values:
    """All series of one process."""

    def __init__(self) -> None:
        self._series: dict[tuple[Metric, Labels], Counter | Histogram] = {}
        #: The same as a list, which may be read meanwhile: it only grows, or is replaced.
        self.series: list[tuple[Metric, Labels, Counter | Histogram]] = []
        self._gauges: dict[tuple[Metric, Labels], Callable[[], float]] = {}

    def counter(self, metric: Metric, *labels: str) -> Counter:
        key = _key(metric, Kind.COUNTER, labels)
        made = self._series.get(key) or self._made(key, Counter())
        assert isinstance(made, Counter)
        return made

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        key = _key(metric, Kind.HISTOGRAM, labels)
        made = self._series.get(key) or self._made(key, Histogram(metric.bounds))
        assert isinstance(made, Histogram)
        return made

    def gauge(self, metric: Metric, read: Callable[[], float], *labels: str) -> None:
        """`read` returns the current value; it is called at every export."""
        self._gauges[_key(metric, Kind.GAUGE, labels)] = read

    def drop_gauge(self, metric: Metric, *labels: str) -> None:
        self._gauges.pop((metric, labels), None)

    def drop(self, **labels: str) -> None:
        """Forget all counters and histograms with these labels; their owners may still count."""

        def is_meant(metric: Metric, found: Labels) -> bool:
            return labels.items() <= dict(zip(metric.labels, found, strict=True)).items()

        kept = [one for one in self.series if not is_meant(one[0], one[1])]
        self._series = {(metric, found): series for metric, found, series in kept}
        self.series = kept

    def _made(self, key: tuple[Metric, Labels], series: Counter | Histogram) -> Counter | Histogram:
        kept = self._series.setdefault(key, series)  # another thread may have been faster
        if kept is series:
            self.series.append((*key, series))
        return kept

    def zero(self) -> None:
        """Reset all series, as in a forked process."""
        for _, _, series in self.series:
            if isinstance(series, Histogram):
                series.counts, series.total = [0] * len(series.counts), 0.0
            else:
                series.value = 0

    def gauges(self) -> Iterator[Sample]:
        """The current values of all gauges."""
        for (metric, labels), read in list(self._gauges.items()):
            yield Sample(metric, labels, read())

    def __iter__(self) -> Iterator[Sample]:
        for metric, labels, series in self.series:
            yield Sample(metric, labels, series if isinstance(series, Histogram) else series.value)
        yield from self.gauges()


def _key(metric: Metric, kind: Kind, labels: Labels) -> tuple[Metric, Labels]:
    if metric.kind is not kind or len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} is a {metric.kind.value} with labels {metric.labels}")
    return metric, labels
