"""The state of the system during an incident, filled into the postmortem template."""

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
from firstlight.ops.checks import Targets
from firstlight.ops.doctor import Stage
from firstlight.ops.prometheus_api import FIRING, Prometheus, TimeSeries
from firstlight.telemetry import metrics as m

_PACKAGES = ("firstlight", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy")
_HOURS, _STEP_SECONDS = 24, 60
_PROGRAMS = 20
_UNKNOWN = "Not known: {why}"


def collect(folder: Path, targets: Targets, now: float) -> list[Path]:
    """Write postmortem.md and doctor.json; what cannot be determined is marked as not known."""
    results = doctor.examine(Stage.INCIDENT, targets)
    texts = {
        "collected": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        "versions": _versions(),
        "doctor": f"```\n{doctor.as_text(results)}```",
        "alerts": _queried(targets, lambda p: _alerts(p, now)),
        "cache_hits": _queried(targets, _cache_hits),
        "recompiles": _queried(targets, _recompiles),
        "programs": _programs(targets),
    }
    template = runbooks.texts()["postmortem"]
    filled = re.sub(r"\{\{(\w+)\}\}", lambda found: texts[found[1]], template)
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        folder / "postmortem.md": filled,
        folder / "doctor.json": doctor.as_json(Stage.INCIDENT, results),
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


def _queried(targets: Targets, query: Callable[[Prometheus], str]) -> str:
    if targets.prometheus_url is None:
        return _UNKNOWN.format(why="no --prometheus was given.")
    try:
        return query(Prometheus(targets.prometheus_url))
    except FirstlightError as error:
        return _UNKNOWN.format(why=error)


def _alerts(prometheus: Prometheus, now: float) -> str:
    """The alerts of the last day: when each first fired, and when last."""
    found = prometheus.range(FIRING, now - 3600 * _HOURS, now, _STEP_SECONDS)
    rows = [
        [_clock(c.points[0][0]), _clock(c.points[-1][0]), c.labels["alertname"], _labels(c)]
        for c in sorted(found, key=lambda c: c.points[0][0])
    ]
    return _table(["first", "last", "alert", "of"], rows)


def _cache_hits(prometheus: Prometheus) -> str:
    hits, requests = (
        f"sum by (instance) (increase({m.COMPILE_CACHE_REQUESTS.name}{labels}[1h]))"
        for labels in ('{result="hit"}', "")
    )
    found = prometheus.query(f"({hits} or 0 * {requests}) / {requests}")
    rows = [[_labels(c), f"{100 * c.points[0][1]:.1f} %"] for c in found if c.points]
    return _table(["process", "from the cache"], rows)


def _recompiles(prometheus: Prometheus) -> str:
    recompiles = f"sum by (instance, function) (increase({m.RECOMPILES.name}[1h]))"
    found = prometheus.query(f"topk(20, {recompiles} > 0)")
    rows = [[_labels(c), f"{c.points[0][1]:.0f}"] for c in found if c.points]
    return _table(["function", "times"], rows)


def _programs(targets: Targets) -> str:
    from firstlight.warmstart.caches import cache_at, default_cache

    try:
        entries = cache_at(targets.cache or default_cache()).entries()
    except FirstlightError as error:
        return _UNKNOWN.format(why=error)
    rows = []
    for entry in sorted(entries, key=lambda entry: -entry.used)[:_PROGRAMS]:
        parts = entry.about.get("parts")
        computation = parts.get("computation", "") if isinstance(parts, dict) else ""
        rows.append([entry.function, str(computation)[:16], entry.kind])
    return _table(["function", "HLO", "for"], rows)


def _labels(series: TimeSeries) -> str:
    shown = ("model", "function", "instance", "severity")
    return ", ".join(f"{k} {series.labels[k]}" for k in shown if series.labels.get(k))


def _clock(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M", time.gmtime(seconds))
