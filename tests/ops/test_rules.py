"""Alert rules, evaluated by the real promtool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from firstlight.cli import main
from firstlight.ops.alerts import ALERTS
from firstlight.ops.building import yaml_text
from firstlight.ops.rules import Settings, groups
from firstlight.telemetry import metrics
from firstlight.telemetry.metrics import CATALOGUE, Kind
from firstlight.telemetry.prometheus import Exporter
from firstlight.telemetry.values import Values

SUFFIXES = {Kind.COUNTER: ("",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_count", "_sum")}
EXPORTED = {m.name + suffix for m in CATALOGUE for suffix in SUFFIXES[m.kind]}


def rules() -> list[dict[str, Any]]:
    return [rule for group in groups(Settings())["groups"] for rule in group["rules"]]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    assert main(["ops", "build", "--out", str(tmp_path)]) == 0
    return tmp_path / "prometheus"


@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_only_then(promtool: str, built: Path) -> None:
    """The cases are built with the rules; one is an hour of a healthy server with a deploy."""
    done = subprocess.run(
        [promtool, "test", "rules", "rules_test.yml"],
        cwd=built,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tests = yaml.safe_load((built / "rules_test.yml").read_text())["tests"]
    tested = {c["alertname"] for t in tests for c in t["alert_rule_test"] if c["exp_alerts"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert tested == alerts
    (healthy,) = [test for test in tests if "a healthy server" in test["name"]]
    asked = {(check["alertname"], check["eval_time"]) for check in healthy["alert_rule_test"]}
    assert asked == {(alert, f"{minute}m") for alert in alerts for minute in range(5, 96, 5)}
    assert not any(check["exp_alerts"] for check in healthy["alert_rule_test"])
    given = {series["series"].partition("{")[0] for series in healthy["input_series"]}
    words = {word for rule in rules() for word in re.findall(r"\w+", rule["expr"])}
    assert words & EXPORTED <= given


def test_promtool_accepts_configuration_and_rules_at_any_speed(
    promtool: str, tmp_path: Path
) -> None:
    for speed in (1, 60):
        out = tmp_path / str(speed)
        main(["ops", "build", "--out", str(out), "--speed", str(speed), "--page-burn", "3"])
        subprocess.run([promtool, "check", "config", out / "prometheus/prometheus.yml"], check=True)


def test_dcgm_metrics_are_recorded_under_our_names(promtool: str, built: Path) -> None:
    ours = "firstlight_gpu_utilization_ratio"
    said = {"series": 'DCGM_FI_DEV_GPU_UTIL{gpu="1",device="nvidia1"}', "values": "75x4"}
    expected = {"labels": ours + '{gpu="1",device="gpu:1"}', "value": 0.75}
    question = {"expr": ours, "eval_time": "1m", "exp_samples": [expected]}
    test = {"interval": "30s", "input_series": [said], "promql_expr_test": [question]}
    case = {"rule_files": ["rules.yml"], "tests": [test]}
    (built / "dcgm_test.yml").write_text(yaml.safe_dump(case))
    subprocess.run([promtool, "test", "rules", "dcgm_test.yml"], cwd=built, check=True)


def test_rules_use_only_metrics_of_the_catalogue_and_recorded_series() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        named = set(re.findall(r"[a-z:]*firstlight_[a-z_:0-9]+", rule["expr"]))
        assert named <= EXPORTED | recorded, named - EXPORTED - recorded


def test_a_page_burns_a_month_of_budget_in_two_days() -> None:
    """14.4 times the budget for an hour is 2 % of 30 days of it."""
    burning = next(r for r in rules() if r.get("alert") == "FirstlightAvailabilityBurning")
    limit = float(re.findall(r"ratio_1h > ([0-9.]+)", burning["expr"])[0])
    assert limit / 0.001 * 1 / (30 * 24) == pytest.approx(0.02)


def test_an_unknown_objective_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["ops", "build", "--out", str(tmp_path), "--objective", "speed=99"]) == 2
    assert "no objective speed. There are: availability, " in capsys.readouterr().err


def test_every_alert_has_a_runbook() -> None:
    assert all(rule["annotations"]["runbook_url"] for rule in rules() if "alert" in rule)
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_yaml_reads_back_as_the_same_values() -> None:
    values = {
        "on": True,
        "a": "no",
        "b": [1, 2.5, None, "x: y", {"c": [], "d": {}}],
        "e": [[1], []],
    }
    assert yaml.safe_load(yaml_text(values, "a comment")) == values


def test_rules_spell_bucket_bounds_as_processes_export_them() -> None:
    values = Values()
    values.histogram(metrics.REQUEST_DURATION, "demo", "warm").observe(0.05)
    values.histogram(metrics.COMPILE_DURATION, "compile").observe(0.05)
    exported = set(re.findall(r'(le="[^"]+")', Exporter(values).text().decode()))
    asked = {le for rule in rules() for le in re.findall(r'le="[^"]+"', rule["expr"])}
    assert asked == {'le="0.1"', 'le="1.0"', 'le="10.0"'}
    assert asked <= exported
