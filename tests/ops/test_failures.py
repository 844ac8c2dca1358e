"""`make ops-test`: failures on purpose, seen by a real Prometheus, named, mended, resolved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_monitoring import Monitoring, answers_at, free_port, post, serve_command, until

from firstlight.cli import main
from firstlight.ops.chaos import MODES, Mode
from firstlight.ops.dashboards import DASHBOARDS, resolved

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "FIRSTLIGHT_OPS_TEST" not in os.environ, reason="takes minutes: run make ops-test"
    ),
]
PROGRAMS = Path(__file__).parent / "programs"
GOOD, BAD = {"x": [[1, 2, 3, 4]]}, {"x": [[-1, 2, 3, 4]]}


@pytest.fixture(scope="module")
def monitoring(
    tmp_path_factory: pytest.TempPathFactory, prometheus: str, alertmanager: str
) -> Iterator[Monitoring]:
    made = Monitoring(tmp_path_factory.mktemp("monitoring"), prometheus, alertmanager)
    yield made
    made.close()


def examined(monitoring: Monitoring, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    main(["doctor", "--incident", "--json", "--prometheus", monitoring.prometheus.url])
    checks = json.loads(capsys.readouterr().out)["checks"]
    return {check["name"]: check for check in checks}


def test_a_server_that_burns_its_budget_pages_and_recovers(
    monitoring: Monitoring, capsys: pytest.CaptureFixture[str]
) -> None:
    port, page = free_port(), "FirstlightAvailabilityBurning"
    monitoring.start("serve", serve_command(str(PROGRAMS / "may_fail.py"), port))
    url = f"http://127.0.0.1:{port}"
    monitoring.watch(port)
    until(lambda: answers_at(f"{url}/v2/health/ready"), "ready")

    def healthy() -> bool:
        assert post(f"{url}/models/demo", GOOD) == 200
        return bool(monitoring.prometheus.query("model:firstlight_availability:ratio_5m == 0"))

    until(healthy, "the budget is counted")
    assert not monitoring.prometheus.firing()

    def burns() -> bool:
        assert post(f"{url}/models/demo", BAD) == 500
        return monitoring.webhook.has(page, "firing")

    until(burns, "the page arrives")
    assert page in examined(monitoring, capsys)["alerts"]["found"]

    def recovers() -> bool:
        assert post(f"{url}/models/demo", GOOD) == 200
        return monitoring.webhook.has(page, "resolved")

    until(recovers, "the alert resolves")
    monitoring.stop("serve")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_failure_fires_is_named_is_mended_and_resolves(
    mode: Mode,
    monitoring: Monitoring,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = free_port()
    ports = range(first, first + mode.ports)
    chaos = [sys.executable, "-m", "firstlight", "chaos", mode.name, "--folder", str(tmp_path)]
    exported = ["--metrics", f"127.0.0.1:{first}-{ports[-1]}"]
    monitoring.watch(*ports)
    monitoring.start(mode.name, [*chaos, *exported])
    try:
        until(lambda: monitoring.webhook.has(mode.alert, "firing"), f"{mode.alert} arrives")
    except AssertionError:
        raise AssertionError(monitoring.log(mode.name)[-3000:]) from None
    for name, value in mode.broken.environment:  # doctor is asked where the process runs
        monkeypatch.setenv(name, value)

    def named() -> bool:
        checks = examined(monitoring, capsys)
        alerts = checks["alerts"]
        is_seen = mode.trace_finding or checks[mode.doctor_check]["status"] == "FAILED"
        return bool(
            is_seen and mode.alert in alerts["found"] and f"{mode.name}.md" in alerts["remedy"]
        )

    until(named, "doctor names it", 60)
    if mode.trace_finding:
        assert mode.trace_finding in findings_of(mode, chaos, tmp_path)
    monitoring.stop(mode.name)
    monitoring.start(mode.name, [*chaos, *exported, "--mended"])
    until(lambda: monitoring.webhook.has(mode.alert, "resolved"), f"{mode.alert} resolves")
    monitoring.stop(mode.name)


def findings_of(mode: Mode, chaos: list[str], folder: Path) -> set[str]:
    report = folder / "trace.json"
    subprocess.run([*chaos, "--trace"], check=True, capture_output=True, timeout=300)
    arguments = ["trace", "report", str(folder / "trace"), "--json", str(report)]
    command = [sys.executable, "-m", "firstlight", *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return {finding["kind"] for finding in json.loads(report.read_text())["findings"]}


def test_every_panel_had_data(monitoring: Monitoring) -> None:
    """Over all that ran above: a server, and programs that are watched."""
    end = time.time()
    empty = [
        (board.name, panel.title)
        for board in DASHBOARDS
        for panel in board.panels
        if not any(
            course.points
            for _, query in panel.queries
            for course in monitoring.prometheus.range(resolved(query), end - 1800, end, 5)
        )
    ]
    assert not empty
    if folder := os.environ.get("FIRSTLIGHT_PICTURES"):
        for board in DASHBOARDS:
            out = str(Path(folder) / f"{board.name}.html")
            arguments = ["--prometheus", monitoring.prometheus.url, "--minutes", "15", "--out", out]
            assert main(["ops", "show", board.name, *arguments]) == 0
