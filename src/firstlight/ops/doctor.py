"""Executable checklists: before production, in production, and during an incident."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum

from firstlight.errors import FirstlightError
from firstlight.ops import checks
from firstlight.ops.checks import Finding, Status, Targets


class Stage(Enum):
    """When a checklist is run; a required check that is not run counts as failed."""

    ANY = "any"
    PRE_PRODUCTION = "pre-production"
    PRODUCTION = "production"
    INCIDENT = "incident"


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Targets], Finding]
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


def examine(stage: Stage, targets: Targets, chosen: Iterable[Check] = CHECKS) -> dict[str, Finding]:
    """Run all checks, by name; a check that raises has failed."""
    results = {}
    for check in chosen:
        try:
            finding = check.run(targets)
        except (FirstlightError, OSError) as error:
            finding = Finding(Status.FAILED, str(error))
        except Exception as error:  # a broken runtime may raise anything
            finding = Finding(Status.FAILED, f"{type(error).__name__}: {error}")
        if finding.status is Status.NOT_CHECKED and stage in check.required_in:
            finding = replace(finding, status=Status.FAILED)
        results[check.name] = finding
    return results


def exit_code(results: dict[str, Finding]) -> int:
    return 1 if any(finding.status is Status.FAILED for finding in results.values()) else 0


def as_json(stage: Stage, results: dict[str, Finding]) -> str:
    plain = [
        {"name": name, **asdict(finding), "status": finding.status.value}
        for name, finding in results.items()
    ]
    return json.dumps({"stage": stage.value, "checks": plain}, indent=1) + "\n"


def as_text(results: dict[str, Finding]) -> str:
    lines = []
    for name, finding in results.items():
        lines.append(f"{finding.status.value:12} {name}: {finding.found}")
        if finding.remedy and finding.status is not Status.OK:
            lines.append(f"{'':12} → {finding.remedy}")
    return "\n".join(lines) + "\n"
