"""Test cases for `promtool test rules`: every alert fires when it should, and only then.

Time is simulated in minutes. The series come from the tables; promtool evaluates the rules on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.ops.alerts import ALERTS, Alert, Severity
from firstlight.ops.objectives import Events, Objective, Scope
from firstlight.ops.rules import Settings, burn_name, groups
from firstlight.telemetry import metrics as m

Plain = dict[str, Any]
#: Events per minute: a tenth of a budget of 0.01 % is still a whole number.
_EVENTS = 1_000_000
_LABELS = {
    Scope.MODEL: {"model": "demo"},
    Scope.PROCESS: {"job": "jax", "instance": "a"},
    Scope.FUNCTION: {"job": "jax", "instance": "a", "function": "step"},
    Scope.FLEET: {"job": "jax"},
}
_DEPLOY = f'{m.DEPLOY_IN_PROGRESS.name}{{job="jax",instance="a",model="demo"}}'
_MINUTES = 20
_SILENT_DEPLOY = {_DEPLOY: f"1+0x{_MINUTES}"}


def cases(settings: Settings, rule_file: str) -> Plain:
    """A test file for the rules in `rule_file`."""
    rules = {
        rule["alert"]: rule
        for group in groups(settings)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    found = [case for objective in settings.objectives for case in _of_objective(objective, rules)]
    found += [case for alert in ALERTS for case in _of_alert(alert, rules)]
    tests = [_healthy_hour(settings, rules), *_merged(found)]
    return {"rule_files": [rule_file], "evaluation_interval": "1m", "tests": tests}


@dataclass(frozen=True)
class _Case:
    """Series, and the alerts that they should cause; an empty list means silence."""

    title: str
    series: dict[str, str]
    expected: dict[str, list[Plain]]


def _of_objective(objective: Objective, rules: dict[str, Plain]) -> Iterator[_Case]:
    labels = _LABELS[objective.scope]
    names = {severity: burn_name(objective, severity) for severity in Severity}
    for title, share, firing in (
        ("every event is bad", 1.0, set(Severity)),
        ("twice the budget: a ticket, no page", 2 * objective.budget, {Severity.TICKET}),
        ("half of the budget", objective.budget / 2, set()),
    ):
        expected = {
            name: _fired(rules[name], labels) if severity in firing else []
            for severity, name in names.items()
        }
        yield _Case(title, _events(objective, [(_MINUTES, share)]), expected)
    burning = _events(objective, [(_MINUTES, 1.0)]) | _SILENT_DEPLOY
    yield _Case("every event is bad, in a deploy", burning, {name: [] for name in names.values()})


def _of_alert(alert: Alert, rules: dict[str, Plain]) -> Iterator[_Case]:
    fired = _fired(rules[alert.name], _LABELS[alert.scope])
    fires = {name: f"{values}{_MINUTES}" for name, values in alert.fires}
    silent = {name: f"{values}{_MINUTES}" for name, values in alert.silent}
    yield _Case("fires", fires, {alert.name: fired})
    yield _Case("healthy", silent, {alert.name: []})
    in_deploy = [] if alert.silent_in_deploys else fired
    yield _Case("would fire, in a deploy", fires | _SILENT_DEPLOY, {alert.name: in_deploy})


def _merged(found: Iterable[_Case]) -> list[Plain]:
    """Cases of one title in one test, unless their series conflict: promtool is slow per test."""
    tests: list[_Case] = []
    for case in found:
        for test in tests:
            if test.title == case.title and all(
                test.series.get(name, values) == values for name, values in case.series.items()
            ):
                test.series.update(case.series)
                test.expected.update(case.expected)
                break
        else:
            tests.append(case)
    return [
        _test(
            case.title,
            case.series,
            [
                {"eval_time": f"{_MINUTES - 1}m", "alertname": name, "exp_alerts": alerts}
                for name, alerts in case.expected.items()
            ],
        )
        for case in tests
    ]


def _healthy_hour(settings: Settings, rules: Iterable[str]) -> Plain:
    """Half of every budget is used; during a five-minute deploy everything fails."""
    before, deploy, after = 30, 5, 60
    minutes = before + deploy + after
    series = {_DEPLOY: f"0+0x{before} 1+0x{deploy} 0+0x{after}"}
    for objective in settings.objectives:
        usual = objective.budget / 2
        series |= _events(objective, [(before, usual), (deploy, 1.0), (after, usual)])
    for alert in ALERTS:
        # The series of the objectives take precedence.
        series = {name: f"{values}{minutes}" for name, values in alert.silent} | series
    checks = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for minute in range(5, minutes + 1, 5)
        for name in rules
    ]
    return _test("an hour of a healthy server, and a deploy", series, checks)


def _events(objective: Objective, course: Sequence[tuple[int, float]]) -> dict[str, str]:
    """Counters of an objective; `course` lists (minutes, share of bad events)."""
    made = {}
    for name, counts in objective.series:
        value, parts = 0, []
        for minutes, share in course:
            bad = round(_EVENTS * share)
            step = {Events.BAD: bad, Events.GOOD: _EVENTS - bad, Events.ALL: _EVENTS}[counts]
            parts.append(f"{value}+{step}x{minutes - 1}")
            value += step * minutes
        made[name] = " ".join(parts)
    return made


def _fired(rule: Plain, labels: dict[str, str]) -> list[Plain]:
    summary = rule["annotations"]["summary"]
    for name, value in labels.items():
        summary = summary.replace(f"{{{{ $labels.{name} }}}}", value)
    return [
        {
            "exp_labels": rule["labels"] | labels,
            "exp_annotations": rule["annotations"] | {"summary": summary},
        }
    ]


def _test(title: str, series: dict[str, str], checks: list[Plain]) -> Plain:
    return {
        "name": title,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": checks,
    }
