"""`start`, `stop` and `step`: the watch of this process, for programs that use it explicitly."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from firstlight.telemetry.collectors import Destination, Signal
from firstlight.telemetry.watch.addresses import Address
from firstlight.telemetry.watch.process import ProcessWatch, Settings
from firstlight.token_file import read_token

_P = ParamSpec("_P")
_R = TypeVar("_R")
_current: ProcessWatch | None = None


def start(
    metrics: str | None = None,
    *,
    push: str | None = None,
    otlp: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    max_functions: int = 200,
    interval_seconds: float = 10.0,
    profile_folder: str | os.PathLike[str] = "firstlight-profiles",
    profile_seconds: float = 5.0,
    gradient_seconds: float = 5.0,
) -> ProcessWatch:
    """Watch this process from now on. Does not import JAX; functions jitted earlier are not seen.

    Args:
        metrics: Address to serve metrics on: `HOST:PORT`, or `HOST:FIRST-LAST`, where each process
            takes the first free port. Without a free port there is one warning and no server.
        push: URL of a push-gateway, updated every `interval_seconds` and at exit.
        otlp: URL of an OpenTelemetry collector (`http://HOST:4318`), updated likewise; by default
            the one that OTEL_EXPORTER_OTLP_ENDPOINT names.
        token_file: File with the token for `POST /debug/profile`, which is disabled without it.
        max_functions: The number of functions named in labels; the others are labelled "other".
        interval_seconds: Time between samples of memory, results and GPUs.
        profile_folder: Folder for profiles.
        profile_seconds: Duration of a profile requested with SIGUSR2.
        gradient_seconds: Time limit of one gradient check; 0 disables automatic checks.

    Raises:
        ValueError: An invalid address or URL. TokenError: A token file that others can read.
    """
    global _current
    stop()
    watch = ProcessWatch(
        Settings(
            address=None if metrics is None else Address.parse(metrics),
            push_url=push,
            collector=Destination.of_variables(os.environ, Signal.METRICS)
            if otlp is None
            else Destination.at(otlp, os.environ, Signal.METRICS),
            token=None if token_file is None else read_token(os.fspath(token_file)),
            max_functions=max_functions,
            interval_seconds=interval_seconds,
            profile_folder=os.fspath(profile_folder),
            profile_seconds=profile_seconds,
            gradient_seconds=gradient_seconds,
        )
    )
    watch.start()
    _current = watch
    return watch


def stop() -> None:
    """Stop watching, and restore JAX."""
    global _current
    if _current is not None:
        _current.close()
        _current = None


def current() -> ProcessWatch | None:
    """The watch of this process."""
    return _current


class step:  # noqa: N801 (used as a function)
    """`with step("train"):` or `@step("train")`: one named step of a program.

    It is timed from its begin to its end or, if results of jitted functions called in it are not
    ready by then, to the next wait after which they are. It never waits itself. Calls of jitted
    functions within a step are not counted separately. Without `start()` it does nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> step:
        if _current is not None:
            _current.steps.enter(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if _current is not None:
            _current.steps.exit(self._name, error)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def stepping(*arguments: _P.args, **named: _P.kwargs) -> _R:
            with self:
                return function(*arguments, **named)

        return stepping
