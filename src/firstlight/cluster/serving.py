"""`firstlight serve --on ray`: replicas of the server in Ray Serve, scaled by their queues."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from firstlight.cluster.connection import connected
from firstlight.cluster.errors import ClusterError
from firstlight.cluster.serving_front import Front
from firstlight.cluster.serving_replica import BOARD, NAMESPACE, Board, Replica, Replicated
from firstlight.serve.http_server import AddressError, Server, address
from firstlight.serve.running import BACKLOG, DRAINING, Settings, while_any
from firstlight.serve.targets import declared

_NAME = "firstlight"
_LOOK_SECONDS = 0.5
_POLICY = "firstlight.cluster.serving_scale:replicas_for_queues"
_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: Environment variables of this process that replicas need too.
_VARIABLES = (
    "FIRSTLIGHT_CACHE",
    "FIRSTLIGHT_CACHE_DIR",
    "FIRSTLIGHT_SIGNING_KEY",
    "JAX_PLATFORMS",
    "OPENBLAS_NUM_THREADS",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
Say = Callable[[str], None]


class _StoppedError(Exception):
    """A signal arrived before anything was served."""


class ReplicaError(ClusterError):
    """Replicas did not start."""


@dataclass(frozen=True)
class Scale:
    """How many replicas, and what each one reserves of the cluster."""

    min_replicas: int = 1
    max_replicas: int = 4
    cpus: float = 1.0
    gpus: float = 0.0


def serve_on(on: str, what: Replicated, scale: Scale, say: Say) -> int:
    """Serve on a cluster until SIGTERM or SIGINT; returns an exit code.

    Raises:
        FirstlightError: Models cannot be imported or loaded, the address is in use, or no
            cluster answers.
    """
    import uvloop

    begin = time.time()
    declared(what.targets, what.workspace)  # reports a faulty file at once
    listening = _listening(what.settings)
    try:
        with ExitStack() as stack:
            stack.callback(listening.close)
            with _apart_from_signals():
                # Other machines receive the files from here.
                files = None if what.is_local else os.getcwd()
                ray = stack.enter_context(connected(on, files))
            for number in _STOPPING:
                signal.signal(number, _interrupt)
            board = _started(ray, stack, what, scale)
            uvloop.run(_front(ray, board, listening, what.settings, say, begin))
    except _StoppedError:
        say("stopped before it was ready")
    else:
        say("stopped")
    return 0


def _started(ray: Any, stack: ExitStack, what: Replicated, scale: Scale) -> Any:
    """Start replicas and wait until they are ready; returns the board to which they report."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    named = {"name": BOARD, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0}
    board = ray.remote(Board).options(**named, lifetime="detached").remote()
    stack.callback(ray.kill, board)
    serve.start(proxy_location="Disabled")  # requests come to `serving_front`
    stack.callback(serve.delete, _NAME)
    deployment = serve.deployment(**options(what, scale))(Replica)
    try:
        serve.run(deployment.bind(what), name=_NAME, route_prefix=None)
    except RuntimeError as error:
        raise ReplicaError(f"replicas did not start: {_reason(serve, error)}") from None
    return board


def _reason(serve: Any, error: RuntimeError) -> str:
    """The last line of Ray's message about a deployment, or else of the error."""
    messages = [str(error)]
    with suppress(Exception):
        application = serve.status().applications[_NAME]
        messages = [one.message for one in application.deployments.values()] + messages
    lines = [line.strip() for line in next(filter(None, messages), "").splitlines()]
    return next(filter(None, reversed(lines)), "no reason was given")


def options(what: Replicated, scale: Scale) -> dict[str, Any]:
    """The options of the Ray Serve deployment."""
    environment = {n: v for n, v in os.environ.items() if n in _VARIABLES or n.startswith("OTEL_")}
    return {
        "name": "models",
        "ray_actor_options": {
            "num_cpus": scale.cpus,
            "num_gpus": scale.gpus,
            "runtime_env": {"env_vars": environment},
        },
        "autoscaling_config": {
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "policy": {"policy_function": _POLICY},
            "look_back_period_s": 12.0,  # Ray reports to its controller every ten seconds
            "upscale_delay_s": 3.0,
            "downscale_delay_s": 60.0,
        },
        "graceful_shutdown_timeout_s": what.settings.drain_seconds + 5.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": 2.0,
        "max_constructor_retry_count": 2,
    }


async def _front(
    ray: Any, board: Any, listening: socket.socket, settings: Settings, say: Say, begin: float
) -> None:
    """Forward requests until a signal arrives, then answer those that have arrived."""
    loop, stop, front = asyncio.get_running_loop(), asyncio.Event(), Front()
    server = Server(front, settings.limits)
    for number in _STOPPING:
        loop.add_signal_handler(number, stop.set)
    listener = await loop.create_server(server.connection, sock=listening, backlog=BACKLOG)
    host, port = listening.getsockname()[:2]
    say(f"listening on http://{address(host, port)}, replicas by Ray Serve")
    watching = [
        loop.create_task(_watch(ray, board, front, say)),
        loop.create_task(front.drop_abandoned()),
    ]
    while not front.replicas and not stop.is_set():
        await asyncio.sleep(0.05)
    say(f"ready after {time.time() - begin:.2f} s")
    await stop.wait()
    say(DRAINING)
    listener.close()
    server.drain()
    await while_any(lambda: len(server.connections), settings.drain_seconds)
    for task in watching:
        task.cancel()
    front.update([])
    server.close()


async def _watch(ray: Any, board: Any, front: Front, say: Say) -> None:
    """Report replicas that come and go, and use the current ones."""
    loop = asyncio.get_running_loop()
    while True:
        reports = await loop.run_in_executor(None, lambda: ray.get(board.reports.remote()))
        new, gone = front.update(reports)
        for one in new:
            say(
                f"replica {one.name} at {one.host}:{one.port}, process {one.process}: "
                f"{one.compiled} executables compiled, {one.from_cache} from the cache, "
                f"ready after {one.startup_seconds:.2f} s"
            )
        for one in gone:
            say(f"replica {one.name} is gone")
        await asyncio.sleep(_LOOK_SECONDS)


def _listening(settings: Settings) -> socket.socket:
    try:
        return socket.create_server((settings.host, settings.port), backlog=BACKLOG)
    except OSError as error:
        raise AddressError(address(settings.host, settings.port), error=error) from None


def _interrupt(*_: Any) -> None:
    raise _StoppedError


@contextmanager
def _apart_from_signals() -> Iterator[None]:
    """Shield processes started meanwhile from the signals that stop this one.

    A terminal, `timeout` and systemd signal the whole process group: a local cluster would be gone
    before it had answered the requests that had arrived.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
