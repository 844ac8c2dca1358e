"""Reader processes, which parse requests and format answers when that limits the throughput.

This process accepts connections, hands them to the readers in turn, receives rows and returns
results. A request that is not valid inference arrives whole, and the app answers it.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from firstlight.serve.app import JSON, App, Exchange, ExchangeJob, fail, refuse
from firstlight.serve.compiled_models import Arrays, rows_for_xla
from firstlight.serve.http_server import Limits
from firstlight.serve.jobs import Refusal, Result
from firstlight.serve.models import Served
from firstlight.serve.reader_messages import (
    Again,
    Answered,
    Computed,
    Drain,
    Gone,
    Infer,
    Link,
    Message,
    Pass,
    Ready,
    Setup,
    bytes_of,
)
from firstlight.serve.reading import Described, ReaderSetup
from firstlight.serve.tensors import Rows

#: Before replacing a reader that ended, or accepting again after an error.
_PAUSE_SECONDS = 0.5
_ACCEPTED_AT_ONCE = 64
Say = Callable[[str], None]


class _Remote(Exchange):
    """A request that a reader has received."""

    __slots__ = ("gone", "number", "reader")

    def __init__(self, reader: ReaderProcess, number: int, arrived: float) -> None:
        self.reader, self.number, self.arrived = reader, number, arrived
        self.method, self.path, self.headers, self.body = b"POST", b"", {}, b""
        self.gone = False

    def is_gone(self) -> bool:
        return self.gone

    def send(self, message: Message) -> None:
        self.reader.waiting.pop(self.number, None)
        self.reader.link.send(message)

    def answer(
        self, status: int, parts: list[Any], content_type: bytes = JSON, more: bytes = b""
    ) -> None:
        self.send(Answered(self.number, status, b"".join(parts), content_type, more))


class _RemoteRows(ExchangeJob):
    """Rows whose results are sent to a reader."""

    __slots__ = ()
    exchange: _Remote

    def finish(self, outcome: Result | Refusal) -> None:
        if isinstance(outcome, Refusal):
            refuse(self.exchange, self.served, outcome)
            return
        batch, start, stop = outcome
        outputs = [bytes_of(output[start:stop]) for output in batch.outputs]
        self.exchange.send(Computed(self.exchange.number, outputs))
        self.served.answered(batch.cold, self.arrived)


class ReaderProcess:
    """One reader, seen from this process."""

    process: subprocess.Popen[bytes]
    connections: socket.socket | None = None  # for sending it connections

    def __init__(self, readers: Readers) -> None:
        self.waiting: dict[int, _Remote] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.link = Link(lambda message: readers.received(self, message), self._lost)
        self._readers = readers

    async def start(self, limits: Limits) -> None:
        ours, theirs = socket.socketpair()
        self.connections, given = socket.socketpair()
        self.connections.setblocking(False)
        fds = theirs.fileno(), given.fileno()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "firstlight.serve.reader_process", *map(str, fds),
             json.dumps(asdict(limits))],
            pass_fds=fds,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        theirs.close()
        given.close()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.link, sock=ours)

    def _lost(self) -> None:
        if self.connections is not None:
            self.connections.close()
        for exchange in self.waiting.values():
            exchange.gone = True
        self._readers.lost(self)


class Readers:
    """All readers, and the listening sockets."""

    def __init__(self, app: App, count: int, token: bytes | None, limits: Limits, say: Say) -> None:
        self._app, self._models = app, app.models
        self._count, self._token, self._say = count, token, say
        self._limits = replace(
            limits,
            connections=max(1, limits.connections // count),
            all_bodies_bytes=max(limits.body_bytes, limits.all_bodies_bytes // count),
        )
        self.alive: list[ReaderProcess] = []
        self._processes: list[subprocess.Popen[bytes]] = []  # to be killed in `end`
        self._next = 0
        self._numbers: dict[Served, int] = {}
        self._versions: dict[int, Served] = {}
        self.sockets: list[socket.socket] = []
        self._ending = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """Listen, and start the readers."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in dict.fromkeys(found):
            listening = socket.create_server(address[:2], family=family, backlog=backlog)
            listening.setblocking(False)
            self.sockets.append(listening)
        for _ in range(self._count):
            await self._add()

    async def _add(self) -> None:
        reader = ReaderProcess(self)
        await reader.start(self._limits)
        if self._versions:
            reader.link.send(self._setup())
        self.alive.append(reader)
        self._processes.append(reader.process)
        self._listen()

    async def show(self) -> None:
        """Send all readers the versions being served; returns when they are ready."""
        served = self._models.all_served()
        for one in served:
            self._numbers.setdefault(one, len(self._numbers))
        self._versions = {self._numbers[one]: one for one in served}
        setup = self._setup()
        for reader in self.alive:
            reader.link.send(setup)
        await asyncio.gather(*(reader.ready for reader in self.alive))

    def described(self) -> list[Described]:
        """The versions being served, for readers."""
        return [
            Described(
                self._numbers[served],
                served.loaded.description(),
                None if role == "current" else deployment.share,
            )
            for deployment in self._models.names.values()
            for role, served in deployment.versions()
        ]

    def _setup(self) -> Setup:
        return Setup(pickle.dumps(ReaderSetup(self._token, self.described())))

    # --- connections ------------------------------------------------------------------------------

    def _listen(self, listening: bool = True) -> None:
        loop = asyncio.get_running_loop()
        for one in self.sockets:
            if listening and self.alive:
                loop.add_reader(one.fileno(), self._accept, one)
            else:
                loop.remove_reader(one.fileno())

    def _accept(self, listening: socket.socket) -> None:
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                accepted, _ = listening.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with accepted:
                    self._hand_over(accepted)
        except BlockingIOError:
            pass
        except OSError as error:  # out of file descriptors, until clients leave
            self._say(f"accepting no connections for {_PAUSE_SECONDS:g} s: {error}")
            self._listen(False)
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._listen)

    def _hand_over(self, accepted: socket.socket) -> None:
        for _ in self.alive:
            self._next = (self._next + 1) % len(self.alive)
            to = self.alive[self._next].connections
            assert to is not None  # since it was started
            try:
                socket.send_fds(to, [b"c"], [accepted.fileno()])
                return
            except OSError:  # its buffer is full: try the next reader
                continue

    # --- messages ---------------------------------------------------------------------------------

    def received(self, reader: ReaderProcess, message: Message) -> None:
        match message:
            case Infer():
                self._infer(reader, message)
            case Pass(number, method, path, headers, body, arrived):
                exchange = _Remote(reader, number, arrived)
                exchange.method, exchange.path, exchange.headers = method, path, headers
                exchange.body = bytes(body)
                reader.waiting[number] = exchange
                self._app.handle(exchange)
            case Gone(numbers):
                for number in numbers:
                    if (left := reader.waiting.pop(number, None)) is not None:
                        left.gone = True
            case Ready():
                reader.ready.set_result(None)

    def _infer(self, reader: ReaderProcess, sent: Infer) -> None:
        exchange = _Remote(reader, sent.number, sent.arrived)
        served = self._versions.get(sent.version)
        if served is None:
            reader.link.send(Again(sent.number))
            return
        if not (self._app.ready or self._app.draining):
            fail(exchange, 503, "the server is not ready.", more=b"retry-after: 1\r\n")
            return
        reader.waiting[sent.number] = exchange
        exchange.headers = sent.trace_headers
        rows = Rows(_arrays(served, sent), sent.rows, sent.sizes)
        job = _RemoteRows(rows, sent.deadline, exchange, served)
        refusal = self._models.engine.submit(served.lanes[sent.sizes], job)
        if refusal is not None:
            refuse(exchange, served, refusal)

    # --- the end ----------------------------------------------------------------------------------

    def lost(self, reader: ReaderProcess) -> None:
        """A reader has ended; replace it, unless the server is stopping."""
        if reader in self.alive:
            self.alive.remove(reader)
        if not reader.ready.done():
            reader.ready.set_result(None)
        if not self._ending:
            self._listen()
            task = asyncio.get_running_loop().create_task(self._replace(reader))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _replace(self, reader: ReaderProcess) -> None:
        loop = asyncio.get_running_loop()
        code = await loop.run_in_executor(None, reader.process.wait)
        self._processes.remove(reader.process)
        self._say(f"a reader process ended with exit code {code}; another one is started")
        await asyncio.sleep(_PAUSE_SECONDS)
        if not self._ending:
            await self._add()

    def drain(self) -> None:
        """Have all readers answer pending requests, and end."""
        self._ending = True
        for reader in self.alive:
            reader.link.send(Drain())

    def close(self) -> None:
        """Stop accepting connections."""
        self._listen(False)
        for one in self.sockets:
            one.close()
        self.sockets = []

    def end(self) -> None:
        """Kill all readers."""
        self._ending = True
        for process in self._processes:
            process.kill()
            process.wait()


def _arrays(served: Served, sent: Infer) -> Arrays:
    """Copy the rows to memory that XLA can use; in a message they are not aligned."""
    signature = served.loaded.signature
    sizes = dict(zip(signature.axes, sent.sizes, strict=True))
    arrays = []
    for tensor, data in zip(signature.inputs, sent.arrays, strict=True):
        array = rows_for_xla((sent.rows, *tensor.sized(sizes)), tensor.dtype)
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        arrays.append(array)
    return arrays
