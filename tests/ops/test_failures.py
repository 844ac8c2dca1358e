"""`make ops-test`: deliberate failures, detected by a real Prometheus, named, fixed, resolved."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from real_monitoring import Monitoring, answers_at, free_port, post, serve_command, until
from runbook_steps import Block, Shell, Where, blocks

from firstlight.cli import main
from firstlight.ops import runbooks
from firstlight.ops.chaos import FOLDER, MODES, Mode, Variant, program
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


@dataclass(frozen=True)
class Server:
    """A model server that is scraped and under light load throughout."""

    port: int
    pid: int
    app: Path

    def post(self, content: Any) -> int:
        return post(f"http://127.0.0.1:{self.port}/models/demo", content)


@pytest.fixture(scope="module")
def server(monitoring: Monitoring) -> Server:
    port, app = free_port(), monitoring.folder / "app.py"
    app.write_text((PROGRAMS / "may_fail.py").read_text())
    pid = monitoring.start("serve", serve_command(str(app), port))
    monitoring.always_watched = (port,)
    monitoring.watch()
    url = f"http://127.0.0.1:{port}"
    until(lambda: answers_at(f"{url}/v2/health/ready"), "ready")
    load = ["load", f"{url}/models/demo", "-c", "2", "--rate", "20", "--rounds", "1"]
    monitoring.start("load", [sys.executable, "-m", "firstlight", *load, "--seconds", "3600"])
    return Server(port, pid, app)


@dataclass(frozen=True)
class Runbook:
    """A runbook, to be executed."""

    name: str
    shell: Shell

    def blocks(self, section: str) -> list[Block]:
        found = blocks(runbooks.texts()[self.name])
        return [b for b in found if b.section == section and b.where is Where.HERE]

    def look(self) -> str:
        """The output of its lines under *Look*, which may find a failure but must not crash."""
        printed = []
        for block in self.blocks("Look"):
            for line in block.lines:
                status, output = self.shell.run(line)
                assert status in (0, 1) and "Traceback" not in output, (line, status, output)
                printed.append(output)
        assert printed
        return "\n".join(printed)

    def fix(self, monitoring: Monitoring, is_over: Callable[[], bool]) -> None:
        """Execute *Fix*, whose last line may keep running until the failure is over; *Verify*."""
        (block,) = self.blocks("Fix")
        name = f"{self.name}-fix"
        monitoring.start(name, self.shell.script(block), **self.shell.variables)

        def resolves() -> bool:
            assert not monitoring.has_failed(name), monitoring.log(name)[-3000:]
            return is_over()

        until(resolves, f"{self.name} resolves")
        for verify in self.blocks("Verify"):
            for line in verify.lines:
                status, output = self.shell.run(line)
                assert status == 0, (line, output)
        monitoring.stop(name)


def placeholders(monitoring: Monitoring, server: Server) -> dict[str, str]:
    return {
        "URL": monitoring.prometheus.url,
        "HOST:8000": f"127.0.0.1:{server.port}",
        "HOST": "127.0.0.1",
        "MODEL": "demo",
        "PID": str(server.pid),
    }


def test_a_server_that_burns_its_budget_pages_and_is_fixed_by_the_runbook(
    monitoring: Monitoring, server: Server
) -> None:
    page = "FirstlightAvailabilityBurning"

    def healthy() -> bool:
        assert server.post(GOOD) == 200
        return bool(monitoring.prometheus.query("model:firstlight_availability:ratio_5m == 0"))

    until(healthy, "the budget is counted")
    assert not monitoring.prometheus.firing()

    def burns() -> bool:
        assert server.post(BAD) == 500
        return monitoring.webhook.has(page, "firing")

    until(burns, "the page arrives")
    shell = Shell(monitoring.folder, placeholders(monitoring, server), {})
    looked = Runbook("availability", shell).look()
    assert page in looked and 'code="500"' in looked and "availability.md" in looked
    before = server.app.read_text().replace("(x < 0)", "(x < -99)").replace('"2"', '"1"')
    server.app.write_text(before)

    def recovers() -> bool:
        return server.post(BAD) == 200 and monitoring.webhook.has(page, "resolved")

    Runbook("availability", shell).fix(monitoring, recovers)
    for other in ("overload", "warm-latency"):  # fixing these needs a cluster
        assert "2xx answers" in Runbook(other, shell).look()


def test_the_commands_of_the_playbook_leave_a_server_running(
    monitoring: Monitoring, server: Server, tmp_path: Path
) -> None:
    filled = placeholders(monitoring, server) | {"DIR": str(tmp_path / "cache")}
    shell = Shell(tmp_path, filled, {})
    for block in blocks(runbooks.texts()["playbook"]):
        for line in block.lines:
            status, output = shell.run(line)
            assert status == 0, (line, output)
    assert "| jax | " in (tmp_path / "incident/postmortem.md").read_text()
    profiles = monitoring.folder / "firstlight-profiles"
    until(lambda: list(profiles.rglob("perfetto_trace.json.gz")), "a profile")
    assert server.post(GOOD) == 200


def test_a_program_stops_at_its_first_nan_as_the_runbook_says(tmp_path: Path) -> None:
    (tmp_path / "nan.py").write_text("import jax; print(jax.jit(lambda x: 0 * x / x)(0.0))")
    shell = Shell(tmp_path, {"SHORT": "nan.py"}, {})
    ((line,),) = [block.lines for block in blocks(runbooks.texts()["nan-results"])]
    assert shell.run("python nan.py") == (0, "nan\n")
    status, output = shell.run(line)
    assert status == 1 and "Invalid nan value" in output


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_failure_fires_its_alert_is_named_and_is_fixed_by_its_runbook(
    mode: Mode, monitoring: Monitoring, server: Server, tmp_path: Path
) -> None:
    first = free_port()
    ports = range(first, first + mode.ports)
    address = f"127.0.0.1:{first}-{ports[-1]}"
    chaos = [sys.executable, "-m", "firstlight", "chaos", mode.name, "--folder", str(tmp_path)]
    monitoring.watch(*ports)
    pid = monitoring.start(mode.name, [*chaos, "--metrics", address])
    try:
        until(lambda: monitoring.webhook.has(mode.alert, "firing", ports), f"{mode.alert} arrives")
    except AssertionError:
        raise AssertionError(monitoring.log(mode.name)[-3000:]) from None

    def words(variant: Variant, *more: str) -> str:
        return shlex.join([*program(mode, variant, str(tmp_path)), *more])

    filled = placeholders(monitoring, server) | {
        "PID": str(pid),
        "ADDRESS": address,
        "PROGRAM": words(mode.broken),
        "SHORT": words(mode.broken, *mode.short),
        "FIXED": words(mode.mended),
        "FIXED_SHORT": words(mode.mended, *mode.short),
        "DIR": mode.broken.cache.replace(FOLDER, str(tmp_path)),
        "KEPT": mode.mended.cache.replace(FOLDER, str(tmp_path)),
        "FUNCTION": "predict",
    }
    runbook = Runbook(mode.name, Shell(tmp_path, filled, dict(mode.broken.environment)))
    looked = runbook.look()
    if mode.trace_finding:
        assert mode.trace_finding in findings_of(tmp_path)
    else:
        assert re.search(rf"FAILED +{mode.doctor_check}: ", looked), looked
    if mode.doctor_check == "alerts":
        assert mode.alert in looked and f"{mode.name}.md" in looked, looked
    if "kill -USR2 PID" in runbooks.texts()[mode.name]:
        profiles = monitoring.folder / "firstlight-profiles"
        until(lambda: list(profiles.rglob("perfetto_trace.json.gz")), "a profile")
    runbook.fix(monitoring, lambda: monitoring.webhook.has(mode.alert, "resolved", ports))
    monitoring.stop(mode.name)


def findings_of(folder: Path) -> set[str]:
    """The kinds of findings of the last trace in a folder."""
    (log,) = {report.parent for report in folder.rglob("report.html")}
    report = folder / "trace.json"
    assert main(["trace", "report", str(log), "--json", str(report)]) == 0
    return {finding["kind"] for finding in json.loads(report.read_text())["findings"]}


def test_every_panel_had_data(monitoring: Monitoring) -> None:
    """From everything that ran above: a server, and watched programs."""
    end = time.time()
    empty = [
        (board.name, panel.title)
        for board in DASHBOARDS
        for panel in board.panels
        if not any(
            series.points
            for _, query in panel.queries
            for series in monitoring.prometheus.range(resolved(query), end - 1800, end, 5)
        )
    ]
    assert not empty
    if folder := os.environ.get("FIRSTLIGHT_PICTURES"):
        for board in DASHBOARDS:
            out = str(Path(folder) / f"{board.name}.html")
            minutes = str(1 + int((end - monitoring.began) / 60))
            arguments = ["--prometheus", monitoring.prometheus.url, "--minutes", minutes]
            arguments += ["--out", out]
            assert main(["ops", "show", board.name, *arguments]) == 0
