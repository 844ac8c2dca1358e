"""The table of service level objectives: alerts, dashboards and rule tests are made from it.

An objective is a share of good events; WINDOW in an expression is replaced by a range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from firstlight.errors import FirstlightError
from firstlight.telemetry import metrics as m

WINDOW = "WINDOW"


class ObjectiveError(FirstlightError):
    """An unknown objective, or a percentage that no service can have."""


class Scope(Enum):
    """What an alert is about; the value lists the labels that its series keep."""

    MODEL = ("model",)
    PROCESS = ("job", "instance")
    FUNCTION = ("job", "instance", "function")
    FLEET = ("job",)

    @property
    def by(self) -> str:
        return ", ".join(self.value)


class Events(Enum):
    """What a series counts."""

    GOOD = "good"
    BAD = "bad"
    ALL = "all"


@dataclass(frozen=True)
class Objective:
    """At least `percent` of all events are good."""

    name: str  # part of the names of recorded series and alerts
    about: str
    percent: float
    scope: Scope
    bad: str  # events per second, by the labels of the scope
    total: str
    runbook: str
    series: tuple[tuple[str, Events], ...]  # of a promtool test, with the events they count
    min_events: int = 0  # in the long window of an alert, below which it does not fire

    @property
    def budget(self) -> float:
        """The share of events that may be bad."""
        return round(1 - self.percent / 100, 6)

    def recorded(self, what: str) -> str:
        """The name of a recorded series: `bad`, `all` (events per second), or `ratio_1h`."""
        return f"{self.scope.name.lower()}:firstlight_{self.name}:{what}"


def _rate(scope: Scope, selector: str) -> str:
    return f"sum by ({scope.by}) (rate({selector}[{WINDOW}]))"


def _slower(scope: Scope, histogram: m.Metric, labels: str, seconds: float) -> tuple[str, str]:
    """Events that took longer than `seconds`, and all events."""
    assert seconds in histogram.bounds, "a share is exact only at a bucket's bound"
    total = _rate(scope, f"{histogram.name}_count{{{labels}}}")
    good = _rate(scope, f'{histogram.name}_bucket{{{labels},le="{seconds!r}"}}')
    return f"({total} - {good})", total


def _timed(histogram: m.Metric, labels: str, seconds: float) -> tuple[tuple[str, Events], ...]:
    return (
        (f"{histogram.name}_count{{{labels}}}", Events.ALL),
        (f'{histogram.name}_bucket{{{labels},le="{seconds!r}"}}', Events.GOOD),
    )


WARM_SECONDS, COLD_SECONDS, COMPILE_SECONDS = 0.1, 1.0, 10.0
_REQUESTS, _ROWS, _NAN = m.REQUESTS.name, m.ROWS.name, m.NAN_ROWS.name
_CACHE = m.COMPILE_CACHE_REQUESTS.name
_WARM = _slower(Scope.MODEL, m.REQUEST_DURATION, 'phase="warm"', WARM_SECONDS)
_COLD = _slower(Scope.MODEL, m.REQUEST_DURATION, 'phase="cold"', COLD_SECONDS)
_COMPILE = _slower(Scope.PROCESS, m.COMPILE_DURATION, 'stage="compile"', COMPILE_SECONDS)
_SEEN = 'model="demo",version="1"'
#: Labels of the process in rule tests.
TEST_PROCESS = 'job="jax",instance="a"'

OBJECTIVES = (
    Objective(
        "availability",
        "requests are answered without a server error",
        99.9,
        Scope.MODEL,
        _rate(Scope.MODEL, f'{_REQUESTS}{{code=~"5.."}}'),
        _rate(Scope.MODEL, _REQUESTS),
        "availability",
        (
            (f'{_REQUESTS}{{{_SEEN},code="500"}}', Events.BAD),
            (f'{_REQUESTS}{{{_SEEN},code="200"}}', Events.GOOD),
        ),
    ),
    Objective(
        "warm_latency",
        f"warm requests are answered within {WARM_SECONDS:g} s",
        99.0,
        Scope.MODEL,
        *_WARM,
        "warm-latency",
        _timed(m.REQUEST_DURATION, 'model="demo",phase="warm"', WARM_SECONDS),
    ),
    Objective(
        "cold_start",
        f"cold requests are answered within {COLD_SECONDS:g} s",
        95.0,
        Scope.MODEL,
        *_COLD,
        "cold-compile",
        _timed(m.REQUEST_DURATION, 'model="demo",phase="cold"', COLD_SECONDS),
        min_events=5,
    ),
    Objective(
        "compile_time",
        f"programs are compiled or loaded within {COMPILE_SECONDS:g} s",
        95.0,
        Scope.PROCESS,
        *_COMPILE,
        "cold-compile",
        _timed(m.COMPILE_DURATION, f'{TEST_PROCESS},stage="compile"', COMPILE_SECONDS),
        min_events=5,
    ),
    Objective(
        "cache_hits",
        "programs come from the compilation cache",
        90.0,
        Scope.PROCESS,
        _rate(Scope.PROCESS, f'{_CACHE}{{result="miss"}}'),
        _rate(Scope.PROCESS, _CACHE),
        "cold-compile",
        (
            (f'{_CACHE}{{{TEST_PROCESS},result="miss"}}', Events.BAD),
            (f'{_CACHE}{{{TEST_PROCESS},result="hit"}}', Events.GOOD),
        ),
        min_events=10,
    ),
    Objective(
        "numbers",
        "rows of results contain no NaN",
        99.9,
        Scope.MODEL,
        _rate(Scope.MODEL, _NAN),
        _rate(Scope.MODEL, _ROWS),
        "nan-results",
        ((f"{_NAN}{{{_SEEN}}}", Events.BAD), (f"{_ROWS}{{{_SEEN}}}", Events.ALL)),
    ),
)


def with_percentages(percentages: dict[str, float]) -> tuple[Objective, ...]:
    """The objectives, with these percentages of good events in place of the defaults."""
    known = [objective.name for objective in OBJECTIVES]
    if unknown := sorted(set(percentages) - set(known)):
        raise ObjectiveError(f"no objective {', '.join(unknown)}. There are: {', '.join(known)}.")
    for name, percent in percentages.items():
        if not 0 < percent < 100:
            raise ObjectiveError(f"{name}={percent:g}: give a percentage between 0 and 100.")
    return tuple(
        replace(objective, percent=percentages.get(objective.name, objective.percent))
        for objective in OBJECTIVES
    )
