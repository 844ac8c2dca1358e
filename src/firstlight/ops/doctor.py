"""Checklists that run: what has to be true before production, in production, in an incident."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import Enum

from firstlight.errors import FirstlightError
from firstlight.ops import checks
from firstlight.ops.checks import Finding, Given, Status


class Stage(Enum):
    """When a checklist is gone through; a check that it requires may not be left out."""

    ANY = "any"
    PRE_PRODUCTION = "pre-production"
    PRODUCTION = "production"
    INCIDENT = "incident"


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Given], Finding]
    required_in: frozenset[Stage] = frozenset()


_BEFORE, _LIVE = frozenset({Stage.PRE_PRODUCTION}), frozenset({Stage.PRODUCTION})
_BOTH = _BEFORE | _LIVE
CHECKS = (
    Check("pinned versions", checks.pinned_versions, _BOTH),
    Check("device and driver", checks.device, _BOTH),
    Check("cache hits on representative inputs", checks.cache_hits, _BOTH),
    Check("cache permissions", checks.cache_permissions, _BOTH),
    Check("checkpoint permissions", checks.checkpoint_permissions),
    Check("gradient on this device", checks.gradient, _BEFORE),
    Check("equal inputs, equal outputs", checks.determinism, _BEFORE),
    Check("memory headroom", checks.memory, _BOTH),
    Check("metrics reachable", checks.metrics_reachable, _LIVE),
    Check("Prometheus reachable", checks.prometheus_reachable, _LIVE),
    Check("Alertmanager reachable", checks.alertmanager_reachable),
    Check("alerts", checks.alerts, _LIVE | {Stage.INCIDENT}),
)


@dataclass(frozen=True)
class Examined:
    """A check and what it found."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def examine(stage: Stage, given: Given, chosen: Iterable[Check] = CHECKS) -> list[Examined]:
    """Run all checks; one that fails to run has failed."""
    examined = []
    for check in chosen:
        try:
            finding = check.run(given)
        except (FirstlightError, OSError) as error:
            finding = Finding(Status.FAILED, str(error))
        except Exception as error:  # a broken runtime may raise anything
            finding = Finding(Status.FAILED, f"{type(error).__name__}: {error}")
        status = finding.status
        if status is Status.NOT_CHECKED and stage in check.required_in:
            status = Status.FAILED
        examined.append(Examined(check.name, status, finding.found, finding.remedy))
    return examined


def exit_code(examined: Iterable[Examined]) -> int:
    return 1 if any(one.status is Status.FAILED for one in examined) else 0


def as_json(stage: Stage, examined: Iterable[Examined]) -> str:
    found = [asdict(one) | {"status": one.status.value} for one in examined]
    return json.dumps({"stage": stage.value, "checks": found}, indent=1) + "\n"


def as_text(examined: Iterable[Examined]) -> str:
    lines = []
    for one in examined:
        lines.append(f"{one.status.value:12} {one.name}: {one.found}")
        if one.remedy and one.status is not Status.OK:
            lines.append(f"{'':12} → {one.remedy}")
    return "\n".join(lines) + "\n"
