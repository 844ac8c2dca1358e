"""Series over time, with their steps: one per case, machine, protocol and data.

A run that was published in two snapshots is one point if its values agree, and two points if not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from firstlight.compare.environments import changed
from firstlight.site.snapshot_facts import TRENDS, Facts
from firstlight.statistics.effects import Effect, unpaired_effect
from firstlight.statistics.steps import find_steps


@dataclass(frozen=True)
class Point:
    """The median of one quantity of one case in one run."""

    snapshot: str
    moment: float  # seconds since 1970
    median: float
    low: float
    high: float
    processes: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class MarkedStep:
    """A change of level."""

    index: int  # of the first point of the new level
    effect: Effect  # medians of the runs after it over those before, up to the next steps
    changed: tuple[str, ...]  # versions that changed at this point


@dataclass(frozen=True)
class Curve:
    """One quantity of a series, in chronological order."""

    quantity: str
    points: tuple[Point, ...]
    steps: tuple[MarkedStep, ...]


@dataclass(frozen=True)
class Series:
    """All runs of a case under the same conditions."""

    key: str
    machine: str
    conditions: Facts
    curves: tuple[Curve, ...]

    @property
    def last_moment(self) -> float:
        return max(curve.points[-1].moment for curve in self.curves)

    @property
    def runs(self) -> int:
        return max(len(curve.points) for curve in self.curves)


#: By run and values: a point and its publisher (rank of the signature, id of the snapshot).
Claims = dict[str, tuple[tuple[int, str], Point]]
#: If several snapshots have a run, the best signed is linked; other signatures rank last.
_RANKS = {"trusted": 0, "valid": 1}


@dataclass
class TrendPoints:
    """Points, added snapshot by snapshot."""

    _points: dict[str, dict[str, dict[str, Claims]]] = field(default_factory=dict)
    _conditions: dict[str, Facts] = field(default_factory=dict)

    def add(self, facts: Facts, signature: str = "none") -> None:
        """Add the points of a snapshot; `facts` is the result of `facts_of`."""
        rank = _RANKS.get(signature, len(_RANKS))
        for run in facts["runs"]:
            for case, found in run["cases"].items():
                if found["series"] is not None:
                    self._add((rank, facts["id"]), run, case, found)

    def _add(self, publisher: tuple[int, str], run: Facts, case: str, found: Facts) -> None:
        key = found["series"]
        shared = {name: run[name] for name in ("machine", "settings", "environment")}
        self._conditions.setdefault(key, {**shared, **found["conditions"]})
        own = self._points.setdefault(case, {}).setdefault(key, {})
        for quantity, e in found["points"].items():
            point = Point(
                publisher[1], moment(run["created_at"]), e["median"], e["low"], e["high"], e["n"],
                run["versions"],
            )  # fmt: skip
            # Redaction may differ when a run is published twice, so hashes of samples may, too. But
            # the values must agree: nobody can replace somebody else's point.
            values = " ".join(f"{e[name]:.9g}" for name in ("median", "low", "high", "n"))
            same_run = f"{run['id']} {values}"
            claims = own.setdefault(quantity, {})
            if same_run not in claims or publisher < claims[same_run][0]:
                claims[same_run] = publisher, point

    def cases(self) -> list[str]:
        return sorted(self._points)

    def series(self, case: str) -> list[Series]:
        """The series of a case, the most recently measured first."""
        found = [
            Series(key, self._conditions[key]["machine"], self._conditions[key], tuple(_curves(by)))
            for key, by in self._points[case].items()
        ]
        return sorted(found, key=lambda s: (-s.last_moment, s.key))


def moment(text: str) -> float:
    """Seconds since 1970 from an ISO time; without a zone it is UTC."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _curves(by_quantity: Mapping[str, Claims]) -> Iterator[Curve]:
    for quantity in TRENDS:
        if quantity in by_quantity:
            found = (point for _, point in by_quantity[quantity].values())
            points = sorted(found, key=lambda p: (p.moment, p.snapshot))
            yield Curve(quantity, tuple(points), tuple(marked_steps(points)))


def marked_steps(points: Sequence[Point]) -> Iterator[MarkedStep]:
    """The steps of a series with their size, its interval, and the versions that changed there.

    The run is the unit, so the interval includes drift between jobs. It does not account for the
    fact that the place of the step was chosen from the same data.
    """
    values = [point.median for point in points]
    steps = find_steps(values)
    bounds = [0, *(step.index for step in steps), len(values)]
    for number, step in enumerate(steps):
        before = values[bounds[number] : step.index]
        after = values[step.index : bounds[number + 2]]
        versions = changed(points[step.index - 1].versions, points[step.index].versions)
        yield MarkedStep(step.index, unpaired_effect(before, after), tuple(versions))


def differing(one: object, other: object, where: str = "") -> Iterator[str]:
    """'protocol threads cpus: 8, not 2' for every leaf in which two conditions differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in [*one, *(n for n in other if n not in one)]:
            yield from differing(one.get(name), other.get(name), f"{where} {name}".strip())
    elif one != other:
        yield f"{where}: {other!r}, not {one!r}"
