"""Differences between two environments: versions, hardware, variables, installed packages."""

from __future__ import annotations

from collections.abc import Mapping

from firstlight.compare.conditions import machine_class, part
from firstlight.records import JsonObject, Run


def versions(host: JsonObject, harness: JsonObject) -> dict[str, str]:
    """Versions of the software that can affect a number but are not part of the machine class."""
    found = {
        "Python": part(host, "python").get("version"),
        "Firstlight": harness.get("version"),
        "commit": _commit(host.get("commit")),
        **part(host, "packages"),
        "kernel": part(host, "os").get("release"),
        "GPU driver": _driver(host),
    }
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def changed(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """'jax 0.6.0 → 0.6.1' for every version that differs."""
    return [
        f"{name} {one.get(name, 'absent')} → {other.get(name, 'absent')}"
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    ]


def environment_differences(base: Run, head: Run) -> dict[str, list[str]]:
    """The differences between the environments of two runs, by kind."""
    before, after = dict(base.host), dict(head.host)
    return {
        "versions": changed(versions(before, base.harness), versions(after, head.harness)),
        "hardware": _hardware(before, after),
        "variables": _changes(part(before, "environment"), part(after, "environment")),
        "settings": _changes(dict(base.settings), dict(head.settings)),
        "packages": changed(_lock(before), _lock(after)),
    }


def state(run: Run) -> JsonObject:
    """Load averages, CPU use by other programs and warnings of a run; None if not a number."""
    return {
        "load": _numbers(run.host.get("load")),
        "load_after": _numbers(run.host.get("load_after")),
        "cpu_busy_ratio": _number(run.host.get("cpu_busy_ratio")),
        "warnings": [str(warning) for warning in run.warnings],
    }


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e6 else None


def _numbers(values: object) -> list[float] | None:
    found = [_number(value) for value in values] if isinstance(values, (list, tuple)) else []
    return [value for value in found if value is not None] or None


def _hardware(base: JsonObject, head: JsonObject) -> list[str]:
    """Differences part by part if the classes have equally many parts, else as a whole."""
    one, other = (machine_class(host).split(" / ") for host in (base, head))
    if len(one) != len(other):
        return [f"{' / '.join(one)} → {' / '.join(other)}"]
    return [f"{a} → {b}" for a, b in zip(one, other, strict=True) if a != b]


def _changes(base: JsonObject, head: JsonObject) -> list[str]:
    shown = [{name: repr(value) for name, value in side.items()} for side in (base, head)]
    return [
        f"{name}: {shown[0].get(name, 'not set')} → {shown[1].get(name, 'not set')}"
        for name in {**base, **head}
        if base.get(name) != head.get(name)
    ]


def _lock(host: JsonObject) -> dict[str, str]:
    lock = host.get("lock")
    pairs = (str(line).partition("==") for line in lock) if isinstance(lock, list) else ()
    return {name: version for name, _, version in pairs}


def _commit(commit: object) -> str | None:
    if not isinstance(commit, Mapping) or not commit.get("id"):
        return None
    return str(commit["id"])[:12] + (" (changed)" if commit.get("changed") else "")


def _driver(host: JsonObject) -> str:
    listed = host.get("gpus")
    gpus = [g for g in listed if isinstance(g, Mapping)] if isinstance(listed, list) else []
    return ", ".join(sorted({str(g["driver_version"]) for g in gpus if g.get("driver_version")}))
