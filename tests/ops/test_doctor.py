"""Executable checklists, and the postmortem that an incident starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from firstlight.cli import main
from firstlight.ops import checks
from firstlight.ops.checks import Finding, Status, Targets
from firstlight.ops.doctor import CHECKS, Check, Stage, examine, exit_code
from firstlight.telemetry.metrics import RUNTIME_INFO

LEAK = {"alertname": "FirstlightLeak", "runbook": "memory-leak", "function": "step"}
FIRING = [{"labels": {**LEAK, "instance": f"node{n}"}, "state": "firing"} for n in range(7)]
SERIES = {"metric": {"alertname": "FirstlightLeak", "function": "step"}, "values": [[1.0, "1"]]}
ANSWERS: dict[str, Any] = {
    "/api/v1/alerts": {"alerts": FIRING},
    "/api/v1/query": {"result": [{"metric": {"instance": "a"}, "value": [1.0, "0.5"]}]},
    "/api/v1/query_range": {"result": [SERIES]},
    "/api/v1/rules": {"groups": [{"rules": [{"name": "FirstlightLeak"}]}]},
}


@pytest.fixture
def url() -> Iterator[str]:
    """A process with known metrics, which also answers as a Prometheus."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = ANSWERS.get(self.path.partition("?")[0])
            text = json.dumps({"data": answer}) if answer else f"{RUNTIME_INFO.name}{{}} 1\n"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_violated_pin_is_reported_with_both_versions(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text(f"numpy=={version('numpy')}\nabsent-package==1.0\n# a comment\n")
    assert checks.pinned_versions(Targets(constraints=file)).status is Status.OK
    file.write_text("numpy==0.1\n")
    found = checks.pinned_versions(Targets(constraints=file))
    assert found.status is Status.FAILED
    assert found.found == f"numpy is {version('numpy')}, pinned to 0.1"


def test_a_missing_accelerator_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTLIGHT_EXPECT_PLATFORM", "cuda")
    monkeypatch.setattr(checks, "_driver", lambda: None)
    found = checks.device(Targets())
    assert found.status is Status.FAILED
    assert "JAX runs on cpu, expected gpu; no NVIDIA driver answers" in found.found
    monkeypatch.setenv("FIRSTLIGHT_EXPECT_PLATFORM", "cpu")
    assert checks.device(Targets()).status is Status.OK


def test_a_driver_that_is_too_old_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name != "jax-cuda13-plugin":
            raise PackageNotFoundError
        return "0.10.2"

    monkeypatch.setattr(checks, "version", installed)
    assert checks._too_old("580.65.06") is None
    assert checks._too_old("570.1") == (
        "driver 570.1 is older than 580, which jax-cuda13 0.10.2 needs"
    )


def test_a_cache_that_others_can_write_to_fails_with_the_command_that_fixes_it(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(0o700)
    targets, stage = Targets(cache=str(cache)), Stage.ANY
    chosen = [Check("cache", checks.cache_permissions)]
    assert examine(stage, targets, chosen)["cache"].status is Status.OK
    os.chmod(cache, 0o777)
    found = examine(stage, targets, chosen)["cache"]
    assert found.status is Status.FAILED
    assert f"chmod go-w {cache}" in found.found


def test_gradient_determinism_and_memory_pass_on_this_machine() -> None:
    assert checks.gradient(Targets()).status is Status.OK
    assert checks.determinism(Targets()).status is Status.OK
    assert checks.memory(Targets()).status is Status.OK


def test_a_required_check_that_was_not_run_has_failed() -> None:
    left_out = Check("x", lambda _: Finding(Status.NOT_CHECKED, ""), frozenset({Stage.PRODUCTION}))
    assert exit_code(examine(Stage.ANY, Targets(), [left_out])) == 0
    assert exit_code(examine(Stage.PRODUCTION, Targets(), [left_out])) == 1


def test_a_check_that_raises_has_failed() -> None:
    def broken(_: Targets) -> Finding:
        raise RuntimeError("no device")

    found = examine(Stage.ANY, Targets(), [Check("x", broken)])["x"]
    assert (found.status, found.found) == (Status.FAILED, "RuntimeError: no device")


def test_doctor_names_the_firing_alerts_and_their_runbooks(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prometheus", url, "--metrics", f"{url}/metrics", "--alertmanager", url]
    assert main(["doctor", "--incident", "--json", *arguments]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["stage"] == "incident"
    found = {check["name"]: check for check in answer["checks"]}
    assert set(found) == {check.name for check in CHECKS}
    first = ", ".join(f"step on node{n}" for n in range(5))
    assert found["alerts"]["found"] == f"FirstlightLeak ({first} and 2 more)"
    assert found["alerts"]["remedy"] == "Runbook: docs/runbooks/memory-leak.md"
    reachable = ("metrics reachable", "Prometheus reachable", "Alertmanager reachable")
    assert [found[name]["status"] for name in reachable] == ["ok"] * 3


def test_a_postmortem_starts_with_alerts_cache_hits_and_versions(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prometheus", url, "--cache", str(tmp_path / "none")]
    assert main(["incident", "collect", "--out", str(tmp_path / "out"), *arguments]) == 0
    text = (tmp_path / "out/postmortem.md").read_text()
    assert "{{" not in text
    assert f"| jax | {version('jax')} |" in text
    assert "| FirstlightLeak | function step |" in text
    assert "| instance a | 50.0 % |" in text
    assert "Not known: " in text  # the cache, which is not there
    assert json.loads((tmp_path / "out/doctor.json").read_text())["stage"] == "incident"
    assert "postmortem.md" in capsys.readouterr().out
