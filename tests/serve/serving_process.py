"""`firstlight serve` as a process."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Running:
    """A server process, its address and its output."""

    report = grpc_address = ""
    replicas: list[str]

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "firstlight", "serve", "--port", "0", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that tests can signal its whole group
        )
        self.address = self.until("listening on http://").split("http://")[1].split(",")[0]

    def until(self, text: str) -> str:
        """Wait for the next line with this text."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not printed, but:\n{''.join(seen)}")

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request(
            method, path, None if body is None else json.dumps(body), headers=headers or {}
        )
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        is_json = answer.headers["content-type"] == "application/json" and data
        return answer.status, json.loads(data) if is_json else data.decode()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end, which has been asked for; returns the exit code."""
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
