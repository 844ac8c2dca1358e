"""A real Prometheus and a real Alertmanager around real processes, at sixty times the speed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from firstlight.cli import main
from firstlight.ops.prometheus_api import Prometheus, PrometheusError

#: An hour of the rules is a minute here.
SPEED = 60
PATIENCE = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll `condition` until it is true; the limit catches what never happens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := condition():
            return answer
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds:g} s")


class Webhook:
    """The receiver of Alertmanager's messages."""

    def __init__(self) -> None:
        received: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.append({"path": self.path, **json.loads(body)})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.received = received
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def has(self, alertname: str, status: str, ports: Sequence[int] = ()) -> bool:
        """Whether a message reported it; of alerts about processes, for one of these ports."""
        places = [None, *(f"127.0.0.1:{port}" for port in ports)]
        return any(
            alert["labels"]["alertname"] == alertname
            and alert["status"] == status
            and (not ports or alert["labels"].get("instance") in places)
            for message in list(self.received)
            for alert in message["alerts"]
        )


class Monitoring:
    """Prometheus with our rules, Alertmanager with our routes, and watched processes."""

    def __init__(
        self, folder: Path, prometheus: str, alertmanager: str, speed: int = SPEED
    ) -> None:
        self.folder, self._programs = folder, (prometheus, alertmanager)
        self.webhook, self.began = Webhook(), time.time()
        self.targets = folder / "targets.json"
        self.targets.write_text("[]")
        self.always_watched: tuple[int, ...] = ()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        out = str(folder / "ops")
        assert main(["ops", "build", "--out", out, "--speed", str(speed)]) == 0
        self._start_alertmanager()
        self._start_prometheus()

    def watch(self, *ports: int, job: str = "firstlight") -> None:
        """Scrape only these ports of this machine from now on."""
        ports = (*self.always_watched, *ports)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps([{"targets": addresses, "labels": {"job": job}}]))
        new.replace(self.targets)

    def start(self, name: str, command: Sequence[str], **environment: str) -> int:
        """Start a process in its own process group; returns its pid."""
        with open(self.folder / f"{name}.log", "wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "FIRSTLIGHT_DEPLOY_SECONDS": "1", **environment},
                cwd=self.folder,
                start_new_session=True,
            )
        return self._running[name].pid

    def has_failed(self, name: str) -> bool:
        return self._running[name].poll() not in (None, 0)

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            try:
                process.wait(20)
                break
            except subprocess.TimeoutExpired:
                continue

    def close(self) -> None:
        for name in list(self._running):
            self.stop(name)
        self.webhook.server.shutdown()
        self.webhook.server.server_close()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def fires(self, alertname: str) -> bool:
        return any(labels["alertname"] == alertname for labels in self.prometheus.firing())

    def _start_alertmanager(self) -> None:
        import yaml

        path = self.folder / "ops/alertmanager/alertmanager.yml"
        routes = yaml.safe_load(path.read_text().replace("http://127.0.0.1:9095", self.webhook.url))
        for route in (routes["route"], *routes["route"]["routes"]):
            route |= {"group_wait": "1s", "group_interval": "1s"}
        path.write_text(json.dumps(routes))
        self.alertmanager_port = free_port()
        command = [
            self._programs[1],
            f"--config.file={path}",
            f"--storage.path={self.folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{self.alertmanager_port}",
            "--cluster.listen-address=",
        ]
        self.start("alertmanager", command)

    def _start_prometheus(self) -> None:
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self.folder / "ops/prometheus/rules.yml")],
            "alerting": {
                "alertmanagers": [
                    {"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager_port}"]}]}
                ]
            },
            "scrape_configs": [
                {
                    "job_name": "firstlight",
                    "file_sd_configs": [{"files": [str(self.targets)], "refresh_interval": "1s"}],
                }
            ],
        }
        path = self.folder / "prometheus.json"
        path.write_text(json.dumps(config))
        port = free_port()
        command = [
            self._programs[0],
            f"--config.file={path}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        self.prometheus = Prometheus(f"http://127.0.0.1:{port}")
        self.start("prometheus", command)

        def answers() -> bool:
            try:
                return bool(self.prometheus.query("vector(1)"))
            except PrometheusError:
                return False

        until(answers, "Prometheus answers")


def serve_command(target: str, port: int) -> list[str]:
    return [sys.executable, "-m", "firstlight", "serve", target, "--port", str(port)]


def answers_at(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def post(url: str, content: Any) -> int:
    """The HTTP status of the response."""
    request = urllib.request.Request(url, json.dumps(content).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
