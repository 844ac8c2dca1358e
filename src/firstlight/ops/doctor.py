"""Executable checklists: before production, in production, and during an incident."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class CheckResult:
    name: str
    status: Status
    found: str
    remedy: str = ""


def examine(stage: Stage, targets: Targets, chosen: Iterable[Check] = CHECKS) -> list[CheckResult]:
    """Run all checks; a check that raises has failed."""
    results = []
    for check in chosen:
        try:
            finding = check.run(targets)
        except (FirstlightError, OSError) as error:
            finding = Finding(Status.FAILED, str(error))
        except Exception as error:  # a broken runtime may raise anything
            finding = Finding(Status.FAILED, f"{type(error).__name__}: {error}")
        status = finding.status
        if status is Status.NOT_CHECKED and stage in check.required_in:
            status = Status.FAILED
        results.append(CheckResult(check.name, status, finding.found, finding.remedy))
    return results


def exit_code(results: Iterable[CheckResult]) -> int:
    return 1 if any(result.status is Status.FAILED for result in results) else 0


def as_json(stage: Stage, results: Iterable[CheckResult]) -> str:
    plain = [asdict(result) | {"status": result.status.value} for result in results]
    return json.dumps({"stage": stage.value, "checks": plain}, indent=1) + "\n"


def as_text(results: Iterable[CheckResult]) -> str:
    lines = []
    for result in results:
        lines.append(f"{result.status.value:12} {result.name}: {result.found}")
        if result.remedy and result.status is not Status.OK:
            lines.append(f"{'':12} → {result.remedy}")
    return "\n".join(lines) + "\n"
