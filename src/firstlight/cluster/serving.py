"""`firstlight serve --on ray`: replicas of the server in Ray Serve, more of them as queues grow."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from firstlight.cluster.serving_replica import BOARD, NAMESPACE, Board, Replica, Replicated
from firstlight.errors import FirstlightError
from firstlight.serve.declaration import Model
from firstlight.serve.running import AddressError
from firstlight.serve.targets import declared

_NAME = "firstlight"
_LOOK_SECONDS = 1.0
_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: Of the server's own process that replicas need too.
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
    """A signal before anything was served."""


class ReplicaError(FirstlightError):
    """Replicas that do not start."""


@dataclass(frozen=True)
class Scale:
    """How many replicas, and what each gets of the cluster."""

    min_replicas: int = 1
    max_replicas: int = 4
    cpus: float = 1.0
    gpus: float = 0.0


def serve_on(on: str, what: Replicated, scale: Scale, say: Say) -> int:
    """Serve on a cluster until SIGTERM or SIGINT; returns an exit code.

    Args:
        on: `ray` for a cluster on this machine, `ray://HOST:PORT` for another.

    Raises:
        FirstlightError: Models that cannot be imported or loaded, an address in use, no cluster.
    """
    begin = time.time()
    models = declared(what.targets, what.workspace)  # what is wrong with a file is said here
    host, port = what.settings.host, what.settings.port or _free_port(what.settings.host)
    is_local = on == "ray"
    if is_local:
        _require_free(host, port)
    try:
        with ExitStack() as stack:
            with _apart_from_signals():
                ray = stack.enter_context(connected(on))
            _on_signal(_interrupt)
            _serve(ray, stack, what, models, scale, (host, port), is_local, say, begin)
    except _StoppedError:
        say("stopped before it was ready")
    else:
        say("stopped")
    return 0


def _serve(
    ray: Any,
    stack: ExitStack,
    what: Replicated,
    models: Sequence[Model],
    scale: Scale,
    address: tuple[str, int],
    is_local: bool,
    say: Say,
    begin: float,
) -> None:
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    board = _board(ray)
    stack.callback(ray.kill, board)
    host, port = address
    serve.start(http_options={"host": host, "port": port})
    stack.callback(serve.delete, _NAME)
    _run(serve, what, models, scale, is_local)
    stop = threading.Event()
    _on_signal(lambda *_: stop.set())
    say(f"listening on http://{host}:{port}, by Ray Serve")
    say(f"ready after {time.time() - begin:.2f} s")
    _watch(ray, board, stop, say)
    say("draining: requests that have arrived are answered, new ones are not taken")


def _run(
    serve: Any, what: Replicated, models: Sequence[Model], scale: Scale, is_local: bool
) -> None:
    deployment = serve.deployment(**options(what, models, scale, is_local))(Replica)
    try:
        serve.run(deployment.bind(what), name=_NAME, route_prefix="/")
    except RuntimeError as error:
        status = serve.status().applications.get(_NAME)
        deployments = status.deployments.values() if status else ()
        said = [one.message for one in deployments if one.message] or [str(error)]
        raise ReplicaError(f"replicas do not start: {_last_line(said[0])}") from None


def options(
    what: Replicated, models: Sequence[Model], scale: Scale, is_local: bool
) -> dict[str, Any]:
    """Of the deployment. What limits is our queue: Ray's proxy hands over all that fits into it."""
    batch = max(model.buckets[-1] for model in models)
    queue = max(model.queue_rows for model in models) + batch
    environment: dict[str, Any] = {
        "env_vars": {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    }
    if not is_local:
        environment["working_dir"] = os.getcwd()  # other machines get the files from here
    return {
        "name": "models",
        "ray_actor_options": {
            "num_cpus": scale.cpus,
            "num_gpus": scale.gpus,
            "runtime_env": environment,
        },
        "autoscaling_config": {
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            # One batch is computed while another waits: more requests than that need company.
            "target_ongoing_requests": 2 * batch,
            "upscale_delay_s": 3.0,
            "downscale_delay_s": 60.0,
            "look_back_period_s": 12.0,  # Ray tells its controller every ten seconds
        },
        "max_ongoing_requests": queue,
        "max_queued_requests": queue,
        "graceful_shutdown_timeout_s": what.settings.drain_seconds,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 2.0,
        "max_constructor_retry_count": 2,
    }


def _board(ray: Any) -> Any:
    options = {"name": BOARD, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0}
    return ray.remote(Board).options(**options, lifetime="detached").remote()


def _watch(ray: Any, board: Any, stop: threading.Event, say: Say) -> None:
    """Tell of replicas that have come and gone, until it is time to stop."""
    known: set[str] = set()
    while not stop.wait(_LOOK_SECONDS):
        reports = {report.name: report for report in ray.get(board.reports.remote())}
        for name in sorted(reports.keys() - known):
            one = reports[name]
            say(
                f"replica {name} on {one.host}, process {one.process}: "
                f"{one.compiled} executables compiled, {one.from_cache} from the cache, "
                f"ready after {one.startup_seconds:.2f} s"
            )
        for name in sorted(known - reports.keys()):
            say(f"replica {name} is gone")
        known = set(reports)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _require_free(host: str, port: int) -> None:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise AddressError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}. Choose another "
            "--port, or 0 for any that is free."
        ) from None


def _on_signal(action: Callable[..., None]) -> None:
    for number in _STOPPING:
        signal.signal(number, action)


def _interrupt(*_: Any) -> None:
    raise _StoppedError


@contextmanager
def _apart_from_signals() -> Iterator[None]:
    """Keep signals that end us from processes that are started meanwhile.

    A terminal, `timeout` or systemd send them to all processes of a group: a local cluster would
    be gone before it has answered what has arrived.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def connected(on: str) -> Iterator[Any]:
    import ray

    ray.init(
        address="local" if on == "ray" else on,
        logging_level=logging.ERROR,
        log_to_driver=False,
        **({"include_dashboard": False} if on == "ray" else {}),
    )
    try:
        yield ray
    finally:
        ray.shutdown()
