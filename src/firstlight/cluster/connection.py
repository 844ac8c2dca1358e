"""Connect to a cluster named `ray`, `ray://host:port` or `ray:host:port`, or start one.

with connected("ray://head:10001"):
    ...                                # ray.put, ray.wait and so on
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from firstlight.cluster.errors import ClusterError, RayMissingError, UnreachableError

#: Time for an address to answer; Ray itself would try for minutes.
_ANSWER_SECONDS = 5.0
#: Environment of a cluster started here: no usage reports, and workers at normal priority (Ray's
#: default niceness is 15).
RAY_VARIABLES = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_METRICS_COLLECTION": "1",
}
_FORMS = "'ray' (a cluster on this machine, or the one at RAY_ADDRESS), 'ray://HOST:PORT' (the Ray "
_FORMS += "client port, usually 10001) or 'ray:HOST:PORT' (from a machine of the cluster)"

#: Where the head has a token, a client without one gets no answer that would say so.
_TOKEN_HINT = " If the cluster asks for a token, set RAY_AUTH_MODE=token (and RAY_AUTH_TOKEN)."


def parse(text: str) -> str | None:
    """The address that `--on` names, as Ray takes it; None: a new cluster on this machine.

    Raises:
        ClusterError: The text has none of the known forms.
    """
    if text == "ray":
        return os.environ.get("RAY_ADDRESS") or None
    address = text if text.startswith("ray://") else text.removeprefix("ray:")
    if address != text or text.startswith("ray://"):
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if address == "auto" or (host and port.isdecimal() and 0 < int(port) < 65536):
            return address
    raise ClusterError(f"--on {text!r}: give {_FORMS}.")


def require_ray() -> None:
    if find_spec("ray") is None:
        raise RayMissingError("Ray is not installed: pip install 'firstlight[ray]'")


@contextlib.contextmanager
def connected(on: str, files: str | None = None) -> Iterator[Any]:
    """The module `ray`, connected; a cluster that was started for this is stopped afterwards.

    A process that is already connected stays so, even if `on` names another cluster. files: a
    folder that is copied to the machines of a remote cluster, as their workers' working directory.
    """
    address = parse(on)
    require_ray()
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon:  # 'auto' has no port, and an address in RAY_ADDRESS need not have one
        _require_answer(host.strip("[]"), int(port))
    with _settings():
        import ray

    if ray.is_initialized():
        yield ray
        return
    with _messages_on_stderr():
        with _settings(), _keeping_signals():
            _start(ray, address, files)
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Set the variables for Ray's processes, and for no others that this process starts."""
    added = [name for name in RAY_VARIABLES if name not in os.environ]
    os.environ.update({name: RAY_VARIABLES[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def _keeping_signals() -> Iterator[None]:
    """Keep this process's SIGTERM handler: Ray's aborts with a stack trace."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Not in the main thread, or with a handler set in C.
        with contextlib.suppress(ValueError, TypeError):
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """Print Ray's messages about nodes as one line on stderr; Ray would mix them into results.

    This replaces a private function of Ray; where Ray has none of that name, nothing changes.
    """
    from ray._private import worker

    def show(data: Mapping[str, Any], **_: Any) -> None:
        first = str((data.get("lines") or [""])[0]).splitlines()[0]
        print(f"firstlight: Ray: {first[:200]}", file=sys.stderr)

    before = getattr(worker, "print_to_stdstream", None)
    if before is None:
        yield
        return
    worker.print_to_stdstream = show
    try:
        yield
    finally:
        worker.print_to_stdstream = before


def _start(ray: Any, address: str | None, files: str | None) -> None:
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options |= {"include_dashboard": False, "num_cpus": _usable_cores()}
        options["address"] = "local"  # never a cluster that someone else left running
    else:
        options["address"] = address
        options["runtime_env"] = {"working_dir": files} if files else None
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        hint = "" if "RAY_AUTH_MODE" in os.environ or address is None else _TOKEN_HINT
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = " ".join(lines[:4]) or type(error).__name__
        raise UnreachableError(f"Ray at {address or 'this machine'}: {why}.{hint}") from error


def _require_answer(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), _ANSWER_SECONDS).close()
    except OSError as error:
        raise UnreachableError(
            f"no Ray cluster answers at {host}:{port} ({error.strerror or error}). Check the "
            "address and that the cluster runs: ray status."
        ) from None


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
