"""What is known at the time of an incident, put into the template of a postmortem."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from firstlight import whole_files
from firstlight.errors import FirstlightError
from firstlight.ops import doctor, runbooks
from firstlight.ops.checks import Given
from firstlight.ops.doctor import Stage
from firstlight.ops.prometheus_api import FIRING, Course, Prometheus
from firstlight.telemetry import metrics as m

_PACKAGES = ("firstlight", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy")
_HOURS, _STEP_SECONDS = 24, 60
_PROGRAMS = 20
UNKNOWN = "Not known: {why}"


def collect(folder: Path, given: Given, now: float) -> list[Path]:
    """Write postmortem.md and doctor.json; what cannot be had is said in its place."""
    examined = doctor.examine(Stage.INCIDENT, given)
    texts = {
        "collected": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        "versions": _versions(),
        "doctor": f"```\n{doctor.as_text(examined)}```",
        "alerts": _asked(given, lambda p: _alerts(p, now)),
        "cache_hits": _asked(given, _cache_hits),
        "recompiles": _asked(given, _recompiles),
        "programs": _programs(given),
    }
    template = runbooks.texts()["postmortem"]
    filled = re.sub(r"\{\{(\w+)\}\}", lambda found: texts[found[1]], template)
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        folder / "postmortem.md": filled,
        folder / "doctor.json": doctor.as_json(Stage.INCIDENT, examined),
    }
    for path, text in written.items():
        whole_files.write_text(path, text)
    return list(written)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "None."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _versions() -> str:
    rows = [["python", platform.python_version()], ["system", platform.platform()]]
    for name in _PACKAGES:
        try:
            rows.append([name, version(name)])
        except PackageNotFoundError:
            continue
    return _table(["what", "version"], rows)


def _asked(given: Given, question: Callable[[Prometheus], str]) -> str:
    if given.prometheus_url is None:
        return UNKNOWN.format(why="no --prometheus was given.")
    try:
        return question(Prometheus(given.prometheus_url))
    except FirstlightError as error:
        return UNKNOWN.format(why=error)


def _alerts(prometheus: Prometheus, now: float) -> str:
    """Those of the last day, with when each began to fire and when it last did."""
    found = prometheus.range(FIRING, now - 3600 * _HOURS, now, _STEP_SECONDS)
    rows = [
        [_clock(c.points[0][0]), _clock(c.points[-1][0]), c.labels["alertname"], _labels(c)]
        for c in sorted(found, key=lambda c: c.points[0][0])
    ]
    return _table(["first", "last", "alert", "of"], rows)


def _cache_hits(prometheus: Prometheus) -> str:
    asked = f"sum by (instance) (increase({m.COMPILE_CACHE_REQUESTS.name}[1h]))"
    hits = asked.replace("_total[", '_total{result="hit"}[')
    found = prometheus.query(f"({hits} or 0 * {asked}) / {asked}")
    rows = [[_labels(c), f"{100 * c.points[0][1]:.1f} %"] for c in found if c.points]
    return _table(["process", "from the cache"], rows)


def _recompiles(prometheus: Prometheus) -> str:
    risen = f"sum by (instance, function) (increase({m.RECOMPILES.name}[1h]))"
    found = prometheus.query(f"topk(20, {risen} > 0)")
    rows = [[_labels(c), f"{c.points[0][1]:.0f}"] for c in found if c.points]
    return _table(["function", "times"], rows)


def _programs(given: Given) -> str:
    from firstlight.warmstart.caches import cache_at, default_cache

    try:
        entries = cache_at(given.cache or default_cache()).entries()
    except FirstlightError as error:
        return UNKNOWN.format(why=error)
    rows = []
    for one in sorted(entries, key=lambda entry: -entry.used)[:_PROGRAMS]:
        parts = one.about.get("parts")
        computation = parts.get("computation", "") if isinstance(parts, dict) else ""
        rows.append([one.function, str(computation)[:16], one.kind])
    return _table(["function", "HLO", "for"], rows)


def _labels(course: Course) -> str:
    shown = ("model", "function", "instance", "severity")
    return ", ".join(f"{k} {course.labels[k]}" for k in shown if course.labels.get(k))


def _clock(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M", time.gmtime(seconds))
