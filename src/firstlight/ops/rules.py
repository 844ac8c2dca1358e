"""Prometheus and Alertmanager configuration: recorded ratios, burn rates, alerts, and routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.ops.alerts import ALERTS, Alert, Severity
from firstlight.ops.objectives import OBJECTIVES, WINDOW, Objective, Scope
from firstlight.telemetry import metrics as m
from firstlight.telemetry.watch.resources import DCGM

Plain = dict[str, Any]
#: (long window, short window, how many times the budget), in seconds: Google's SRE workbook, ch. 5.
BURN_RATES = {
    Severity.PAGE: ((3600, 300, 14.4), (21_600, 1800, 6.0)),
    Severity.TICKET: ((86_400, 7200, 3.0), (259_200, 21_600, 1.0)),
}
#: Alerts stay silent this long after a deploy: until its errors have left the short window.
AFTER_DEPLOY_SECONDS = 600
EVALUATION_SECONDS = 30
SCRAPE_SECONDS = 15
#: The window of recorded rates, which are summed over longer windows.
RATE_SECONDS = 300


@dataclass(frozen=True)
class Settings:
    """Options of `firstlight ops build`."""

    objectives: tuple[Objective, ...] = OBJECTIVES
    runbooks: str = "runbooks"  # address of the folder
    page_burn: float | None = None  # page at this burn rate over an hour, instead of BURN_RATES
    speed: int = 1  # divides all times, to try out alerts

    def time(self, seconds: int) -> str:
        """A duration in Prometheus's notation, divided by the speed."""
        return duration(max(1, seconds // self.speed))

    def shortened(self, condition: str) -> str:
        return re.sub(
            r"(\[|offset )(\d+)s\b", lambda found: found[1] + self.time(int(found[2])), condition
        )


def duration(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds // unit}{name}"
    return f"{seconds}s"


def groups(settings: Settings) -> Plain:
    """The rule file: one group per objective, one of other alerts, one for NVIDIA's exporter."""
    by_group = {
        objective.name: [
            *_recorded(objective, settings),
            *(_burn_alert(objective, severity, settings) for severity in Severity),
        ]
        for objective in settings.objectives
    }
    by_group |= {"alerts": [_alert(alert, settings) for alert in ALERTS], "dcgm": _from_dcgm()}
    every = settings.time(EVALUATION_SECONDS)
    return {
        "groups": [
            {"name": f"firstlight-{name}", "interval": every, "rules": rules}
            for name, rules in by_group.items()
        ]
    }


def _from_dcgm() -> list[Plain]:
    """The metrics of NVIDIA's DCGM exporter under our names and in our units."""
    return [
        {
            "record": name,
            "expr": f'label_replace({theirs} * {factor}, "device", "gpu:$1", "gpu", "(.+)")',
        }
        for name, (theirs, factor) in DCGM.items()
    ]


def burn_name(objective: Objective, severity: Severity) -> str:
    words = objective.name.title().replace("_", "")
    return f"Firstlight{words}{'Burning' if severity is Severity.PAGE else 'Eroding'}"


def burn_rates(severity: Severity, settings: Settings) -> Sequence[tuple[int, int, float]]:
    if severity is Severity.PAGE and settings.page_burn is not None:
        return ((3600, 300, settings.page_burn),)
    return BURN_RATES[severity]


def _recorded(objective: Objective, settings: Settings) -> list[Plain]:
    """Rates of bad and all events outside deploys, and the ratio over each window."""
    total = objective.total.replace(WINDOW, settings.time(RATE_SECONDS))
    bad = objective.bad.replace(WINDOW, settings.time(RATE_SECONDS))
    rules = [
        {
            "record": objective.recorded(what),
            "expr": outside_deploys(rate, objective.scope, settings),
        }
        for what, rate in (("bad", f"{bad} or 0 * {total}"), ("all", total))
    ]
    pairs = [rate[:2] for severity in Severity for rate in burn_rates(severity, settings)]
    for seconds in sorted({seconds for pair in pairs for seconds in pair}):
        window = settings.time(seconds)
        share = " / ".join(
            f"sum_over_time({objective.recorded(what)}[{window}])" for what in ("bad", "all")
        )
        rules.append({"record": objective.recorded(f"ratio_{duration(seconds)}"), "expr": share})
    return rules


def _burn_alert(objective: Objective, severity: Severity, settings: Settings) -> Plain:
    parts = []
    for long, short, factor in burn_rates(severity, settings):
        limit = f"{factor * objective.budget:.6g}"
        both = " and ".join(
            f"{objective.recorded(f'ratio_{duration(seconds)}')} > {limit}"
            for seconds in (long, short)
        )
        if objective.min_events:
            rates = f"sum_over_time({objective.recorded('all')}[{settings.time(long)}])"
            step = max(1, EVALUATION_SECONDS // settings.speed)
            both += f" and {rates} * {step} >= {objective.min_events}"
        parts.append(f"({both})")
    subject = f"{{{{ $labels.{objective.scope.value[-1]} }}}}"
    return {
        "alert": burn_name(objective, severity),
        "expr": outside_deploys(" or ".join(parts), objective.scope, settings),
        "labels": {
            "severity": severity.value,
            "runbook": objective.runbook,
            "slo": objective.name,
        },
        "annotations": {
            "summary": f"{subject}: the error budget of {objective.percent:g} % "
            f"({objective.about}) burns too fast.",
            "runbook_url": _runbook(objective.runbook, settings),
        },
    }


def _alert(alert: Alert, settings: Settings) -> Plain:
    condition = settings.shortened(alert.condition)
    if alert.silent_in_deploys:
        condition = outside_deploys(condition, alert.scope, settings)
    rule: Plain = {"alert": alert.name, "expr": condition}
    if alert.for_seconds:
        rule["for"] = settings.time(alert.for_seconds)
    return rule | {
        "labels": {"severity": alert.severity.value, "runbook": alert.runbook},
        "annotations": {
            "summary": alert.summary,
            "runbook_url": _runbook(alert.runbook, settings),
        },
    }


def outside_deploys(condition: str, scope: Scope, settings: Settings) -> str:
    """`condition`, except for a model or process that is being deployed, or just was."""
    if scope is Scope.FUNCTION:
        scope = Scope.PROCESS
    recent = f"max_over_time({m.DEPLOY_IN_PROGRESS.name}[{settings.time(AFTER_DEPLOY_SECONDS)}])"
    return f"({condition}) unless on ({scope.by}) (max by ({scope.by}) ({recent}) == 1)"


def _runbook(name: str, settings: Settings) -> str:
    return f"{settings.runbooks.rstrip('/')}/{name}.md"


def prometheus(settings: Settings) -> Plain:
    """The configuration for one machine: a model server, watched programs, and the rules."""
    every = settings.time(SCRAPE_SECONDS)
    ports = (8000, *range(9464, 9472))
    return {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": ["rules.yml"],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}],
        },
        "scrape_configs": [
            {
                "job_name": "firstlight",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
        ],
    }


#: One message per alert and model; pages go out before tickets, and a page silences its ticket.
ALERTMANAGER: Plain = {
    "route": {
        "receiver": "tickets",
        "group_by": ["alertname", "job", "model"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "4h",
        "routes": [
            {
                "receiver": "pages",
                "matchers": ['severity="page"'],
                "group_wait": "10s",
                "repeat_interval": "1h",
            }
        ],
    },
    "inhibit_rules": [
        {
            "source_matchers": ['severity="page"'],
            "target_matchers": ['severity="ticket"'],
            "equal": ["runbook", "model", "job", "instance"],
        }
    ],
    "receivers": [
        {"name": name, "webhook_configs": [{"url": f"http://127.0.0.1:9095/{name}"}]}
        for name in ("pages", "tickets")
    ],
}
