"""`firstlight serve` as a process, with Triton's own client; one server for most claims."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_process

from real_browser import browse, seen_in

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import serve_process
import serve_trials

pytestmark = pytest.mark.slow

APP = """
import jax
import jax.numpy as jnp
import numpy as np
from firstlight import serve

WEIGHTS = np.random.default_rng(5).normal(size=(16, 4)).astype(np.float32)

@serve.model(inputs={"x": serve.Input("float32", (16,))}, parameters=WEIGHTS, version="VERSION")
def scores(weights, x):
    return {"scores": jnp.tanh(x @ weights)}

@serve.model(inputs={"steps": serve.Input("int32", ())}, buckets=(1,))
def count(steps):
    return {"steps": jax.lax.fori_loop(0, steps, lambda i, s: s + 1, 0)}
"""


class Running(serving_process.Running):
    """A server of models in a file that tests write."""

    def __init__(self, folder: Path, *arguments: str, first: str = "") -> None:
        self.file = folder / "app.py"
        self.write("1", first)
        super().__init__(folder, "app.py", *arguments)

    def write(self, version: str, first: str = "") -> None:
        self.file.write_text(first + APP.replace("VERSION", version))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("serve"), "--drain-seconds", "60")
    running.until("ready after")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def triton(server: Running) -> Iterator[Any]:
    from tritonclient.http import InferenceServerClient

    client = InferenceServerClient(server.address)
    yield client
    client.close()


def expected(x: Any) -> Any:
    weights = np.random.default_rng(5).normal(size=(16, 4)).astype(np.float32)
    return np.tanh(x.astype(np.float64) @ weights.astype(np.float64))


def test_tritons_client_finds_the_server_and_its_models(triton: Any) -> None:
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("scores")
    assert triton.get_server_metadata()["name"] == "firstlight"
    about = triton.get_model_metadata("scores")
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert triton.get_model_config("scores")["max_batch_size"] == 32


@pytest.mark.parametrize("binary", [True, False], ids=["bytes", "json"])
@pytest.mark.parametrize("rows", [1, 3, 32])
def test_tritons_client_gets_the_right_numbers(triton: Any, binary: bool, rows: int) -> None:
    from tritonclient.http import InferInput, InferRequestedOutput

    x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    sent = InferInput("x", list(x.shape), "FP32")
    sent.set_data_from_numpy(x, binary_data=binary)
    wanted = InferRequestedOutput("scores", binary_data=binary)
    result = triton.infer("scores", [sent], outputs=[wanted], request_id="7", timeout=5_000_000)
    assert result.get_response()["id"] == "7"
    np.testing.assert_allclose(result.as_numpy("scores"), expected(x), rtol=1e-5, atol=1e-6)


def test_tritons_client_gets_an_error_for_a_wrong_shape(triton: Any) -> None:
    from tritonclient.http import InferInput
    from tritonclient.utils import InferenceServerException

    sent = InferInput("x", [1, 17], "FP32")
    sent.set_data_from_numpy(np.ones((1, 17), np.float32))
    with pytest.raises(InferenceServerException, match=r"takes \[rows, 16\]"):
        triton.infer("scores", [sent])


def test_results_do_not_depend_on_the_other_requests_of_a_batch(server: Running) -> None:
    """Many clients at once, with requests of all sizes."""
    import asyncio

    rng = np.random.default_rng(2)
    inputs = [rng.normal(size=(rng.integers(1, 33), 16)).astype(np.float32) for _ in range(400)]
    host, _, port = server.address.rpartition(":")

    async def client(numbers: list[int]) -> list[tuple[int, Any]]:
        reader, writer = await asyncio.open_connection(host, int(port))
        answers = []
        for i in numbers:
            body = json.dumps({"x": inputs[i].tolist()}).encode()
            writer.write(b"POST /models/scores HTTP/1.1\r\nhost: h\r\ncontent-length: "
                         b"%d\r\n\r\n%s" % (len(body), body))  # fmt: skip
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            answers.append((i, json.loads(await reader.readexactly(size))))
        writer.close()
        return answers

    async def all_clients() -> list[Any]:
        return await asyncio.gather(*(client(list(range(c, 400, 16))) for c in range(16)))

    for i, answer in (pair for answers in asyncio.run(all_clients()) for pair in answers):
        np.testing.assert_allclose(answer["scores"], expected(inputs[i]), rtol=1e-5, atol=1e-6)


def test_no_request_compiled_anything(server: Running) -> None:
    for rows in range(1, 34):
        server.ask("POST", "/models/scores", {"x": [[0.5] * 16] * rows})
    _, text = server.ask("GET", "/metrics")
    assert "\nfirstlight_request_path_compiles_total 0.0\n" in text
    assert 'firstlight_requests_total{code="400",model="scores",version="1"}' in text
    assert "\nfirstlight_ready 1.0\n" in text
    started = text.split("\nfirstlight_startup_duration_seconds ")[1].split("\n")[0]
    assert float(started) > 0


def test_a_body_that_never_arrives_does_not_delay_other_requests(server: Running) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /models/scores HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n{")
        assert server.ask("GET", "/v2/health/ready")[0] == 200


class _Injecting(http.server.BaseHTTPRequestHandler):
    """A proxy that adds a script to the page, which uses it as a person would."""

    server_address: str
    script: str

    def _pass_on(self, body: bytes | None) -> None:
        connection = http.client.HTTPConnection(self.server_address, timeout=60)
        connection.request(self.command, self.path, body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if self.path == "/":
            without_policy = re.sub(rb'<meta http-equiv="Content-Security[^>]*>', b"", data)
            data = without_policy.replace(b"</body>", self.script.encode() + b"</body>")
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers["content-length"])))

    def log_message(self, *_: Any) -> None:
        pass


def test_the_page_shows_models_and_tries_a_request_in_a_browser(
    server: Running, chromium: str, tmp_path: Path
) -> None:
    as_served = browse(chromium, tmp_path / "a", "--dump-dom", f"http://{server.address}/").stdout
    assert "No compiles during requests" in as_served and "<h2>count 1</h2>" in as_served
    script = """<script>
      document.getElementById("send").click();
      const seen = document.getElementById("answer");
      new MutationObserver(() => {
        const request = document.getElementById("request").value;
        const shown = { answer: seen.textContent, request };
        document.body.dataset.seen = JSON.stringify(shown);
      }).observe(seen, { childList: true });
    </script>"""
    handler = type("Handler", (_Injecting,), {"server_address": server.address, "script": script})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as between:
        threading.Thread(target=between.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{between.server_port}/"
        seen = seen_in(browse(chromium, tmp_path / "b", "--dump-dom", url).stdout)
        between.shutdown()
    assert json.loads(seen["request"]) == {"x": [[1.0] * 16]}
    status, _, body = seen["answer"].partition("\n")
    assert status.startswith("200 after")
    np.testing.assert_allclose(json.loads(body)["scores"], expected(np.ones((1, 16))), rtol=1e-5)


def test_reload_takes_a_new_version_and_keeps_the_old_one_on_failure(server: Running) -> None:
    server.write("2")
    server.process.send_signal(signal.SIGHUP)
    server.until("scores 2: 6 executables")
    server.until("ready after")
    assert server.ask("GET", "/v2/models/scores")[1]["versions"] == ["2"]
    server.file.write_text("import nothing_of_that_name")
    server.process.send_signal(signal.SIGHUP)
    assert "nothing_of_that_name" in server.until("reload failed")
    assert server.ask("POST", "/models/scores", {"x": [[0.5] * 16]})[0] == 200
    _, text = server.ask("GET", "/metrics")
    assert "\nfirstlight_request_path_compiles_total 0.0\n" in text


def test_sigterm_answers_pending_requests_and_exits_with_0(server: Running) -> None:
    """The last test of this server, which it ends."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        body = b'{"steps": [300000000]}'
        client.sendall(b"POST /models/count HTTP/1.1\r\nhost: h\r\ncontent-length: "
                       b"%d\r\n\r\n%s" % (len(body), body))  # fmt: skip
        while (
            '\nfirstlight_queue_duration_seconds_count{model="count"} 1.0\n'
            not in (server.ask("GET", "/metrics")[1])
        ):
            pass  # until it is being computed
        server.process.send_signal(signal.SIGTERM)
        server.until("draining")
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert b" 200 OK" in answer and answer.endswith(b'{"steps":[300000000]}')
    server.until("stopped")
    assert server.stop() == 0


def test_sigterm_while_models_are_prepared_ends_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    running = Running(tmp_path, first="open('gate').read()")  # blocks, as nobody writes to it
    assert running.ask("GET", "/v2/health/live")[0] == 200
    assert running.ask("GET", "/v2/health/ready")[0] == 503
    assert running.stop() == 0


def test_after_kill_9_under_load_clients_that_retry_get_every_answer_and_all_are_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark compares every answer with NumPy's."""
    serve_process.write_programs(tmp_path)
    serve_trials.kill(tmp_path, rounds=1)
    assert "2000 of 2000 requests answered, 0 wrongly" in capsys.readouterr().out


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path, capsys: Any) -> None:
    from firstlight.cli import main

    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o640)
    assert main(["serve", "app.py", "--token-file", str(path)]) == 2
    assert f"chmod 600 {path}" in capsys.readouterr().err
    path.chmod(0o600)
    from firstlight.token_file import TokenError, read_token

    assert read_token(str(path)) == b"0123456789abcdef"
    path.write_text("short")
    with pytest.raises(TokenError, match="token_urlsafe"):
        read_token(str(path))


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("1/0", "a.py:m", "ZeroDivisionError"),
        ("import sys; sys.exit(3)", "a.py:m", "SystemExit: 3"),
        ("x = 1", "a.py:m", "has no 'm'"),
        ("m = 1", "a.py:m", "is int, not a model"),
        ("m = 1", "a.py", "declares no model"),
        ("", "b.py", "no such file"),
    ],
)
def test_errors_of_files_name_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, target: str, message: str
) -> None:
    from firstlight.serve.targets import TargetError, models_in

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("a.py").write_text(text)
    with pytest.raises(TargetError, match=message):
        models_in(target)
    sys.modules.pop("a", None)


#: Positive numbers are never done; and a callback that waits for a file.
HANGS = """
import os
import jax
import jax.numpy as jnp
import numpy as np
from firstlight import serve

@serve.model(inputs={"n": serve.Input("int32", (), default=0)}, buckets=(1, 2))
def endless(n):
    return {"n": jax.lax.while_loop(lambda s: s > 0, lambda s: s % 7 + 1, n)}

def wait(x):
    if x > 0:
        with open("pipe") as file:
            file.read()
    return np.asarray(x)

@serve.model(inputs={"x": serve.Input("float32", (), default=0)}, buckets=(1, 2))
def waiting(x):
    return {"x": jax.pure_callback(wait, x, x, vmap_method="sequential")}

@serve.model(inputs={"x": serve.Input("float32", (4,))}, buckets=(1, 2))
def well(x):
    return {"x": 2 * x}
"""


def test_hung_models_cost_neither_the_others_nor_health_nor_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    os.mkfifo(tmp_path / "pipe")
    options = ("--drain-delay", "0.5", "--drain-seconds", "1", "--stuck-seconds", "0.001")
    server = serving_process.Running(tmp_path, "hangs.py", *options)
    server.until("ready after")
    soon = {"firstlight-timeout": "0.2"}
    assert server.ask("POST", "/models/endless", {"n": [3]}, soon)[0] == 504
    assert server.ask("POST", "/models/waiting", {"x": [3]}, soon)[0] == 504
    assert server.ask("POST", "/models/well", {"x": [[1, 2, 3, 4]]}) == (200, {"x": [[2, 4, 6, 8]]})
    assert server.ask("GET", "/v2/health/ready")[0] == 200  # for thirty seconds
    status, body = server.ask("GET", "/v2/health/live")
    assert status == 503 and "a batch of endless has run for" in body["error"]
    text = server.ask("GET", "/metrics")[1]
    overdue = re.findall(r'^firstlight_batch_overdue_seconds{model="(\w+)"} (\S+)$', text, re.M)
    assert {model for model, age in overdue if float(age) > 0.2} == {"endless", "waiting"}
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        body = b'{"n": [3]}'
        head = b"POST /models/endless HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n"
        client.sendall(head % len(body) + body)  # its deadline is after the end of the server
        server.process.send_signal(signal.SIGTERM)
        # The delay, its last calls and the drain are waited for, not cut off.
        server.until("with 1 connection still open")
        assert server.ended() == 0


RELOADED = """
import jax.numpy as jnp
from firstlight import serve

TABLE = jnp.arange(3.0) + 1  # computed at import

@serve.model(inputs={"x": serve.Input("float32", (WIDTH,))}, buckets=(1,), version="VERSION")
def kept(x):
    return {"y": FACTOR * x}

@serve.model(inputs={"x": serve.Input("float32", (3,))}, buckets=(1,))
def NAME(x):
    return {"y": x * TABLE}
"""


def test_reloads_take_nothing_silently(tmp_path: Path) -> None:
    def write(**changes: object) -> None:
        text = RELOADED
        given = {"WIDTH": 3, "VERSION": 1, "FACTOR": 2, "NAME": "other", **changes}
        for word, value in given.items():
            text = text.replace(word, str(value))
        (tmp_path / "app.py").write_text(text)

    def reload(*expected: str, **changes: object) -> None:
        write(**changes)
        server.process.send_signal(signal.SIGHUP)
        for text in expected:
            server.until(text)

    def ask(path: str, *x: float) -> Any:
        return server.ask("POST", f"/models/{path}", {"x": [x]})

    write()
    server = serving_process.Running(tmp_path, "app.py")
    server.until("ready after")
    text = server.ask("GET", "/metrics")[1]
    assert "\nfirstlight_request_path_compiles_total 0.0\n" in text  # that of TABLE is preparation
    reload("reloaded: no new version")
    reload("kept has changed but is still version 1, so what was loaded before", FACTOR=5)
    server.until("reloaded: no new version")
    assert ask("kept", 1, 2, 3) == (200, {"y": [[2, 4, 6]]})
    reload("kept 2 has other inputs: x float32 [4] instead of x float32 [3]",
           "kept 2 has other outputs: y float32 [4] instead of y float32 [3]",
           "ready after", WIDTH=4, VERSION=2, FACTOR=5)  # fmt: skip
    assert ask("kept", 1, 2, 3, 4) == (200, {"y": [[5, 10, 15, 20]]})
    reload("other is no longer declared and was removed", "ready after",
           WIDTH=4, VERSION=2, FACTOR=5, NAME="renamed")  # fmt: skip
    assert ask("other", 1, 2, 3)[0] == 404
    assert ask("renamed", 1, 2, 3) == (200, {"y": [[1, 4, 9]]})
    text = server.ask("GET", "/metrics")[1]
    assert "\nfirstlight_request_path_compiles_total 0.0\n" in text
    assert 'model="other"' not in text
    assert server.stop() == 0
