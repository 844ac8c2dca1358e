"""The main program of a reader process, started by `readers`.

It receives connections and descriptions of models from the process that owns the device, and ends
when that process ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from firstlight.serve.http_server import Limits, Server, keep_freed_memory
from firstlight.serve.reader_messages import (
    Again,
    Answered,
    Computed,
    Drain,
    Link,
    Message,
    Ready,
    Setup,
)
from firstlight.serve.reading import Reader, ReaderSetup
from firstlight.serve.rehearsal import rehearse_reading

_POLL_SECONDS = 0.1


async def _read(link_fd: int, connections_fd: int, limits: Limits) -> None:
    loop = asyncio.get_running_loop()
    np.seterr(over="raise")  # see `as_array`
    draining = asyncio.Event()

    def received(message: Message) -> None:
        match message:
            case Drain():
                draining.set()
            case Setup(pickled):
                setup: ReaderSetup = pickle.loads(pickled)
                if not reader.is_set_up:
                    rehearse_reading(setup)
                    link.send(Ready())
                reader.set_up(setup)
            case Computed() | Answered() | Again():
                reader.received(message)

    # Without the other process, no request can be answered.
    link = Link(received, lambda: os._exit(0))
    reader = Reader(link.send)
    server = Server(reader, limits)
    await loop.create_unix_connection(lambda: link, sock=socket.socket(fileno=link_fd))
    given = socket.socket(fileno=connections_fd)
    given.setblocking(False)

    def take() -> None:
        """Serve the connections that were sent to this process."""
        try:
            while fds := socket.recv_fds(given, 1, 1)[1]:
                accepted = socket.socket(fileno=fds[0])
                made = loop.connect_accepted_socket(server.connection, accepted)
                task = loop.create_task(made)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except BlockingIOError:
            pass

    tasks: set[asyncio.Task[Any]] = set()
    loop.add_reader(connections_fd, take)
    while not draining.is_set():
        await asyncio.sleep(_POLL_SECONDS)
        reader.report_departures()
    take()
    loop.remove_reader(connections_fd)
    await asyncio.gather(*tasks, return_exceptions=True)
    server.drain()
    while server.connections:
        await asyncio.sleep(_POLL_SECONDS / 5)
    link.close()
    await asyncio.Event().wait()  # the process exits when the link is closed


def main(arguments: Sequence[str]) -> None:
    """arguments: File descriptors of the link and the connections, and limits as JSON."""
    import uvloop

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to its whole group
    keep_freed_memory()
    link, connections, limits = arguments
    uvloop.run(_read(int(link), int(connections), Limits(**json.loads(limits))))


if __name__ == "__main__":
    main(sys.argv[1:])
