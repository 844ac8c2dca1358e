"""Imports of a process, summed by top-level package.

Compiling and waiting during an import are not part of its time: without the import they would
happen elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firstlight.trace.read import timeline
from firstlight.trace.read.log_events import ProcessLog, place_of
from firstlight.trace.read.model import ImportedPackage, SourceLine

#: JAX and what it imports: not a cost of the package that imports it first, since the program needs
#: it. Not SciPy, which JAX requires but imports only where it is needed.
JAX_ITSELF = frozenset({"jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "firstlight"})
#: Modules that the recorder itself brings into the process.
_RECORDER = ("firstlight.trace", "firstlight.telemetry")
_Module = tuple[str, int, int, int]  # name, begin, time, time without other modules
_Nested = tuple[str, int, int, int, list[str]]


@dataclass
class _Package:
    """Sums over the modules of a package."""

    begin_ns: int
    imported_by: str | None
    own_ns: int = 0
    whole_ns: int = 0
    jax_ns: int = 0  # the part of whole_ns for JAX and what it imports
    modules: int = 0
    site: SourceLine | None = None


def packages(log: ProcessLog) -> tuple[ImportedPackage, ...]:
    """All imported packages, the most expensive first."""
    found: dict[str, _Package] = {}
    others, main = _others(log), timeline.main_thread(log)
    for event in log.of("imports"):
        modules = _without(event["modules"], others.get(event.get("thread") or main, []))
        for name, begin, total, own, around in modules:
            package = name.partition(".")[0]
            one = found.setdefault(package, _Package(begin, around[-1] if around else None))
            one.own_ns += own
            one.modules += 1
            if package not in around:
                one.whole_ns += total  # otherwise the module around it has counted it
                one.site = one.site or place_of(event.get("sites", {}).get(name))
            if package in JAX_ITSELF and JAX_ITSELF.isdisjoint(around):
                for other in dict.fromkeys(around):
                    found[other].jax_ns += total
    summed = (
        ImportedPackage(
            name=name,
            seconds=one.own_ns / 1e9,
            with_others_seconds=one.whole_ns / 1e9,
            modules=one.modules,
            begin_seconds=log.seconds_at(one.begin_ns),
            imported_by=one.imported_by,
            site=one.site,
            beyond_jax_seconds=(one.whole_ns - one.jax_ns) / 1e9,
        )
        for name, one in found.items()
    )
    return tuple(sorted(summed, key=lambda p: -p.seconds))


def _others(log: ProcessLog) -> dict[int, list[tuple[int, int]]]:
    """By thread, the periods in which it did something other than importing, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for thread, intervals in timeline.intervals_by_thread(log, log.last_ns).items():
        merged = found.setdefault(thread, [])
        others = (i for i in intervals if i.kind not in ("import", "interpreter", "exit"))
        for one in sorted(others, key=lambda i: i.begin_ns):
            if merged and one.begin_ns <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], one.end_ns))
            else:
                merged.append((one.begin_ns, one.end_ns))
    return found


def _without(modules: list[_Module], others: list[tuple[int, int]]) -> Iterator[_Nested]:
    """Modules by their begin with the packages around them, without the time of other work."""
    for name, begin, total, own, around in _nested(modules):
        end = begin + total
        inside = [(max(begin, a), min(end, b)) for a, b in others if a < end and b > begin]
        # Its own time loses only what was not within another module.
        within = (m for m in (modules if inside else ()) if begin < m[1] and m[2] < total)
        deeper = [(m[1], m[1] + m[2]) for m in within]
        alone = [(a, b) for a, b in inside if not any(c <= a and b <= d for c, d in deeper)]
        less, own_less = (sum(b - a for a, b in some) for some in (inside, alone))
        yield name, begin, total - less, max(own - own_less, 0), around


def _nested(modules: list[_Module]) -> Iterator[_Nested]:
    """Modules by their begin, each with the packages that were being imported around it."""
    around: list[tuple[str, int]] = []  # with their end
    for name, begin, total, own in sorted(modules, key=lambda m: (m[1], -m[2])):
        if name.startswith(_RECORDER):
            continue
        while around and around[-1][1] <= begin:
            around.pop()
        yield name, begin, total, own, [package for package, _ in around]
        around.append((name.partition(".")[0], begin + total))
