"""`make ops-test`: docs/operate.md, executed to the letter, and a healthy server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from real_monitoring import Monitoring, answers_at, free_port, post, serve_command, until

from firstlight.ops import runbooks
from firstlight.ops.objectives import WARM_SECONDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "FIRSTLIGHT_OPS_TEST" not in os.environ, reason="takes minutes: run make ops-test"
    ),
]
PROGRAMS = Path(__file__).parent / "programs"
GUIDE = (runbooks.folder().parent / "operate.md").read_text()
WALK = GUIDE.partition("## From a server to an alert, and back")[2].partition("\n## ")[0]
MARK = "the-shell-is-done"
ROW = {"x": [[1, 2, 3, 4]]}


class Session:
    """One shell that keeps its variables and jobs."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        self._shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PATH": path},
            start_new_session=True,
        )

    def run(self, lines: str) -> str:
        """Run lines and return their output."""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(f"{lines}\necho; echo {MARK}\n")
        self._shell.stdin.flush()
        printed: list[str] = []
        for line in self._shell.stdout:
            if line.strip() == MARK:
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"the shell has ended: {''.join(printed)}")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.communicate()


def shows(printed: str, promised: str) -> bool:
    """Whether the promised lines were printed; an ellipsis matches anything."""
    pattern = ".*".join(re.escape(part.strip(" ")) for part in promised.strip().split("…"))
    return re.search(pattern, printed, re.S) is not None


def test_the_guide_leads_from_a_server_to_an_alert_and_back(
    tmp_path: Path, prometheus: str
) -> None:
    for port in (8000, 9090):
        if answers_at(f"http://127.0.0.1:{port}/metrics"):
            pytest.skip(f"port {port}, which the guide uses, is taken")
    session = Session(tmp_path)
    try:
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```", WALK, re.S | re.M):
            if language == "sh":
                session.run(text)
                continue
            for asked in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, promised = asked.partition("\n")
                until(lambda c=command, p=promised: shows(session.run(c), p), asked, 90)  # type: ignore[misc]
        assert "a negative energy" not in session.run("tail -n 1 answers.txt")
        assert "FirstlightAvailability" in (tmp_path / "on-call.html").read_text()
    finally:
        session.close()


def test_a_healthy_server_fires_no_alert_even_during_a_deploy(
    tmp_path: Path, prometheus: str, alertmanager: str
) -> None:
    """With the real rules, and with those in which an hour lasts a minute."""
    seconds = 60 * float(os.environ.get("FIRSTLIGHT_OPS_MINUTES", "1"))
    folders = [tmp_path / name for name in ("rules", "fast-rules")]
    for folder in folders:
        folder.mkdir()
    watching = [
        Monitoring(folder, prometheus, alertmanager, speed)
        for folder, speed in zip(folders, (1, 60), strict=True)
    ]
    app, port = tmp_path / "app.py", free_port()
    app.write_text((PROGRAMS / "may_fail.py").read_text())
    serve = serve_command(str(app), port)
    server = watching[0].start("serve", serve, FIRSTLIGHT_DEPLOY_SECONDS="5")
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers_at(f"{url}/v2/health/ready"), "ready")
        for one in watching:
            one.watch(port)
        begin, is_deployed = time.monotonic(), False
        took: list[float] = []
        while time.monotonic() < begin + seconds:
            sent = time.monotonic()
            assert post(f"{url}/models/demo", ROW) == 200
            took.append(time.monotonic() - sent)
            time.sleep(0.05)
            if not is_deployed and time.monotonic() > begin + seconds / 2:
                app.write_text(app.read_text().replace('"2"', '"3"'))
                os.kill(server, signal.SIGHUP)
                is_deployed = True
        assert "demo 3: " in watching[0].log("serve")
        for one in watching:
            window = f"[{int(seconds) + 60}s]"
            query = f'count_over_time(ALERTS{{alertstate="firing"}}{window})'
            fired = {found.labels["alertname"] for found in one.prometheus.query(query)}
            slow = sum(seconds > WARM_SECONDS for seconds in took) / len(took)
            if slow > 0.005 and fired and all("WarmLatency" in name for name in fired):
                pytest.skip(f"the machine is too busy: {slow:.1%} of the answers came late")
            assert not fired and not one.webhook.received
            assert one.prometheus.query("sum(firstlight_requests_total) > 0")
    finally:
        for one in watching:
            one.close()
