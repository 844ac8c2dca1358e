"""What a process exports, as somebody else's parser reads it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from firstlight.telemetry.watch.process import ProcessWatch

Scrape = Callable[..., float]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """By name and labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def everything(watch: ProcessWatch) -> Samples:
    return samples(watch.text().decode())
