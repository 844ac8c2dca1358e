"""Reader processes; their answers are tested in test_app.py."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fake_serving import ReaderInMemory, SeenExchange, fake_loaded
from serving_process import Running

from firstlight.serve.app import App
from firstlight.serve.engine import Engine
from firstlight.serve.models import Models
from firstlight.serve.reading import ReaderSetup
from firstlight.serve.rehearsal import rehearse_reading
from firstlight.telemetry.values import Values

APP = """
import jax.numpy as jnp
from firstlight import serve

@serve.model(inputs={"x": serve.Input("float32", ("n",))}, axes={"n": (4, 64)},
             buckets=(1, 4), version="VERSION")
def running(x):
    return {"sums": jnp.cumsum(x), "factor": FACTOR * x[0]}
"""


def exchange(numbers: list[float]) -> SeenExchange:
    body = json.dumps({"x": numbers}).encode()
    return SeenExchange("/models/fake", body, arrived=time.perf_counter())


def with_reader(claim: Callable[[ReaderInMemory, Models], Awaitable[None]]) -> None:
    async def run() -> None:
        values = Values()
        engine = Engine(values)
        models = Models(engine, values, lambda: 0.5)
        app = App(models, values)
        app.ready = True
        models.put(fake_loaded(lambda x: 2 * x, {1: 1e-5}))
        pair = ReaderInMemory(app, None, lambda: 0.5)
        await pair.set_up()
        await claim(pair, models)

    asyncio.run(run())


def test_a_request_parsed_for_a_retired_version_is_parsed_again() -> None:
    async def claim(pair: ReaderInMemory, models: Models) -> None:
        models.put(fake_loaded(lambda x: 3 * x, {1: 1e-5}, version="2"))
        # The reader is notified after it has sent rows for the old one.
        sent = exchange([5])
        numbers, pair.readers._versions = pair.readers._versions, {}
        held: list[Any] = []
        deliver, pair.process.link.send = pair.process.link.send, held.append  # type: ignore[method-assign]
        pair.reader.handle(sent)
        assert [type(message).__name__ for message in held] == ["Again"] and numbers
        pair.process.link.send = deliver  # type: ignore[method-assign]
        await pair.set_up()
        deliver(held[0])
        while sent.status is None:
            await asyncio.sleep(0)
        assert json.loads(sent.answered) == {"y": [15.0]}

    with_reader(claim)


def test_rows_of_a_client_that_left_are_not_computed() -> None:
    async def claim(pair: ReaderInMemory, models: Models) -> None:
        sent = exchange([5])
        pair.reader.handle(sent)
        sent.is_gone = lambda: True  # type: ignore[method-assign]
        pair.reader.report_departures()
        while not models.engine.idle:
            await asyncio.sleep(0)
        (lane,) = models.names["fake"].current.lanes.values()
        assert sent.status is None and lane.cancelled.value == 1 and lane.rows_total.value == 0
        assert not pair.process.waiting and not pair.reader._waiting  # no state is left

    with_reader(claim)


def test_a_reader_that_ends_leaves_no_rows_to_compute() -> None:
    async def claim(pair: ReaderInMemory, models: Models) -> None:
        pair.readers._ending = True  # so that no process is started
        pair.reader.handle(exchange([5]))
        pair.process.link.connection_lost(None)
        while not models.engine.idle:
            await asyncio.sleep(0)
        (lane,) = models.names["fake"].current.lanes.values()
        assert lane.cancelled.value == 1 and lane.rows_total.value == 0
        assert pair.readers.alive == []

    with_reader(claim)


def test_a_rehearsal_of_a_reader_prints_nothing_and_is_not_counted(capsys: Any) -> None:
    async def claim(pair: ReaderInMemory, models: Models) -> None:
        setup = ReaderSetup(b"token", pair.readers.described())
        rehearse_reading(setup)
        (served,) = models.all_served()
        assert served.succeeded.value == 0
        assert capsys.readouterr() == ("", "")

    with_reader(claim)


# --- as processes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("readers")
    write(folder, "1", 1)
    running = Running(folder, "app.py", "--readers", "2")
    running.until("ready after")
    yield running
    running.stop()


def write(folder: Path, version: str, factor: int) -> None:
    text = APP.replace("VERSION", version).replace("FACTOR", str(factor))
    (folder / "app.py").write_text(text)


def readers_of(server: Running) -> list[int]:
    children = psutil.Process(server.process.pid).children()
    return [c.pid for c in children if "firstlight.serve.reader_process" in c.cmdline()]


class Asking(threading.Thread):
    """A client that sends one request after the other, and reconnects if necessary."""

    def __init__(self, server: Running, seed: int) -> None:
        super().__init__()
        self.server, self.draw = server, np.random.default_rng(seed)
        self.done = threading.Event()
        self.factors: list[float] = []
        self.wrong: list[Any] = []
        self.ended = 0  # connections
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        while not self.done.is_set():
            x = self.draw.integers(1, 100, size=(2, int(self.draw.integers(1, 65))))
            try:
                connection.request("POST", "/models/running", json.dumps({"x": x.tolist()}))
                answer = connection.getresponse()
                body = json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                self.ended += 1
                connection.close()
                continue
            # Sums of whole numbers are exact.
            if answer.status != 200 or body["sums"] != np.cumsum(x, axis=-1).tolist():
                self.wrong.append((answer.status, body))
            else:
                self.factors.append(body["factor"][1] / x[1, 0])
        connection.close()


@pytest.mark.slow
def test_a_killed_reader_ends_its_own_connections_and_is_replaced(server: Running) -> None:
    before = readers_of(server)
    assert len(before) == 2
    clients = [Asking(server, seed) for seed in range(4)]
    while min(len(client.factors) for client in clients) < 10:
        time.sleep(0.01)
    os.kill(before[0], signal.SIGKILL)
    server.until("another one is started")
    while len(readers_of(server)) < 2:
        time.sleep(0.01)
    seen = [len(client.factors) for client in clients]
    while any(len(c.factors) < n + 10 for c, n in zip(clients, seen, strict=True)):
        time.sleep(0.01)
    for client in clients:
        client.done.set()
        client.join()
    assert [client.wrong for client in clients] == [[]] * 4
    # Connections are assigned in turn: half of them belonged to the other reader.
    assert sorted(client.ended > 0 for client in clients) == [False, False, True, True]
    assert before[1] in readers_of(server)


@pytest.mark.slow
def test_a_reload_under_load_loses_no_request(server: Running) -> None:
    clients = [Asking(server, seed) for seed in range(2)]
    write(server.folder, "2", 7)
    server.process.send_signal(signal.SIGHUP)
    server.until("running 2: ")
    while not all(client.factors[-1:] == [7.0] for client in clients):
        time.sleep(0.01)
    for client in clients:
        client.done.set()
        client.join()
    for client in clients:
        assert not client.wrong and not client.ended
        assert client.factors == sorted(client.factors)  # no client falls back to the old version
    text = server.ask("GET", "/metrics")[1]
    assert "\nfirstlight_request_path_compiles_total 0.0\n" in text


@pytest.mark.slow
def test_sigterm_ends_the_readers_too_and_exits_with_0(server: Running) -> None:
    """The last test of this server, which it ends."""
    readers = readers_of(server)
    idle = http.client.HTTPConnection(server.address, timeout=60)
    idle.request("GET", "/v2/health/live")
    assert idle.getresponse().status == 200
    os.killpg(server.process.pid, signal.SIGTERM)  # as a terminal or systemd would
    assert server.stop() == 0
    idle.close()
    assert not any(psutil.pid_exists(pid) for pid in readers)
