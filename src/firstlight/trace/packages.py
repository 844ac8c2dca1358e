"""Imports of a process, summed up by top-level package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from firstlight.trace.compiles import place_of
from firstlight.trace.log_events import ProcessLog
from firstlight.trace.model import ImportedPackage, Place

#: What comes with JAX. Who imports it first does not make it slower: the program needs it.
JAX_ITSELF = frozenset(
    {"jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "etils", "firstlight"}
)
#: Modules that the recorder itself brings into the process.
_RECORDER = ("firstlight.trace", "firstlight.telemetry")


@dataclass
class _Package:
    """What is summed up of a package."""

    begin_ns: int
    imported_by: str | None
    own_ns: int = 0
    whole_ns: int = 0
    jax_ns: int = 0  # of the whole: JAX and what comes with it
    modules: int = 0
    site: Place | None = None


def packages(log: ProcessLog) -> tuple[ImportedPackage, ...]:
    """All packages that were imported, the most expensive first."""
    found: dict[str, _Package] = {}
    for event in log.of("imports"):
        for name, begin, total, own, around in _nested(event["modules"]):
            package = name.partition(".")[0]
            one = found.setdefault(package, _Package(begin, around[-1] if around else None))
            one.own_ns += own
            one.modules += 1
            if package not in around:
                one.whole_ns += total  # else it is counted already, in the one around it
                one.site = one.site or place_of(event.get("sites", {}).get(name))
            if package in JAX_ITSELF and JAX_ITSELF.isdisjoint(around):
                for other in dict.fromkeys(around):
                    found[other].jax_ns += total
    told = [_told(name, one, log.start_ns) for name, one in found.items()]
    return tuple(sorted(told, key=lambda p: -p.seconds))


def _nested(modules: list[Any]) -> Iterator[tuple[str, int, int, int, list[str]]]:
    """Modules by their begin, each with the packages that were being imported around it."""
    around: list[tuple[str, int]] = []  # with their end
    for name, begin, total, own in sorted(modules, key=lambda m: (m[1], -m[2])):
        if name.startswith(_RECORDER):
            continue
        while around and around[-1][1] <= begin:
            around.pop()
        yield name, begin, total, own, [package for package, _ in around]
        around.append((name.partition(".")[0], begin + total))


def _told(name: str, one: _Package, start_ns: int) -> ImportedPackage:
    return ImportedPackage(
        name=name,
        seconds=one.own_ns / 1e9,
        with_others_seconds=one.whole_ns / 1e9,
        modules=one.modules,
        begin_seconds=(one.begin_ns - start_ns) / 1e9,
        imported_by=one.imported_by,
        site=one.site,
        beyond_jax_seconds=(one.whole_ns - one.jax_ns) / 1e9,
    )
