"""The versions being served: the current one and the canary of each name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from firstlight.serve.compiled_models import Loaded
from firstlight.serve.engine import Engine, Lane
from firstlight.serve.http_formats import PlainJson, Protocol
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Counter, Values

V = TypeVar("V", bound="Endpoint")


class Endpoint:
    """One version of a model with its paths and request formats."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded, self.model = loaded, loaded.model
        self.protocol, self.plain = Protocol(loaded), PlainJson(loaded)

    @property
    def paths(self) -> dict[bytes, bool]:
        """The paths of inference, and whether their format is plain JSON."""
        name = self.model.name.encode()
        return {b"/v2/models/%s/infer" % name: False, b"/models/%s" % name: True}


class Served(Endpoint):
    """A version with its lanes and metrics."""

    def __init__(self, loaded: Loaded, engine: Engine, values: Values) -> None:
        super().__init__(loaded)
        self.lanes: dict[tuple[int, ...], Lane] = engine.add(loaded)
        name = self.model.name
        self.warm = values.histogram(metrics.REQUEST_DURATION, name, "warm")
        self.cold = values.histogram(metrics.REQUEST_DURATION, name, "cold")
        self._values = values
        self._codes: dict[int, Counter] = {}
        self.succeeded = self.code(200)

    def code(self, status: int) -> Counter:
        """The counter of answers with this status."""
        if status not in self._codes:
            labels = (self.model.name, self.model.version, str(status))
            self._codes[status] = self._values.counter(metrics.REQUESTS, *labels)
        return self._codes[status]

    @property
    def failures(self) -> int:
        """How many requests got no result."""
        return sum(int(c.value) for status, c in self._codes.items() if status != 200)

    def refused(self, reason: str, status: int) -> None:
        """Count a request without a result."""
        self._values.counter(metrics.REJECTED, self.model.name, reason).add()
        self.code(status).add()

    def answered(self, cold: bool, arrived: float) -> None:
        """Count a request answered with a result."""
        self.succeeded.value += 1
        (self.cold if cold else self.warm).observe(time.perf_counter() - arrived)


@dataclass
class Deployment(Generic[V]):
    """The versions of one name. `canary` gets `share` of the requests, and all that ask for it."""

    current: V
    canary: V | None = None
    share: float = 0.0

    def versions(self) -> Iterator[tuple[str, V]]:
        yield "current", self.current
        if self.canary is not None:
            yield "canary", self.canary

    def choose(self, wants_canary: bool, draw: Callable[[], float]) -> V:
        """draw: Returns uniform random numbers between 0 and 1."""
        if self.canary is not None and (wants_canary or draw() < self.share):
            return self.canary
        return self.current


@dataclass
class Models:
    """Deployments by name. Changed on the event loop's thread only."""

    engine: Engine
    values: Values
    draw: Callable[[], float]  # uniform between 0 and 1
    names: dict[str, Deployment[Served]] = field(default_factory=dict)
    #: The paths of inference, and whether their format is plain JSON.
    paths: dict[bytes, tuple[Deployment[Served], bool]] = field(default_factory=dict)

    def put(self, loaded: Loaded, canary_share: float | None = None) -> None:
        """Serve a loaded version: in place of the current one, or beside it as a canary."""
        made = Served(loaded, self.engine, self.values)
        deployment = self.names.get(loaded.model.name)
        if deployment is None:
            deployment = self.names[loaded.model.name] = Deployment(made)
            self.paths |= {path: (deployment, plain) for path, plain in made.paths.items()}
        elif canary_share is not None:
            self._retire(deployment.canary)
            deployment.canary, deployment.share = made, canary_share
        else:
            self._retire(deployment.current)
            deployment.current, canary = made, deployment.canary
            if canary is not None and canary.model.version == made.model.version:
                self._retire(canary)  # promoted
                deployment.canary, deployment.share = None, 0.0
        self._describe(deployment)

    def remove(self, name: str) -> None:
        """Serve a name no longer."""
        deployment = self.names.pop(name)
        for path in deployment.current.paths:
            del self.paths[path]
        for _, served in deployment.versions():
            self._retire(served)
        self.values.drop_gauge(metrics.QUEUE_LENGTH, name)

    def all_served(self) -> list[Served]:
        return [served for each in self.names.values() for _, served in each.versions()]

    def _retire(self, old: Served | None) -> None:
        """Requests in its queue are still answered."""
        if old is None:
            return
        self.engine.remove(old.lanes.values())
        for role in ("current", "canary"):
            self.values.drop_gauge(metrics.MODEL_INFO, old.model.name, old.model.version, role)

    def _describe(self, deployment: Deployment[Served]) -> None:
        def waiting() -> float:
            served = (version for _, version in deployment.versions())
            return sum(lane.queued_rows for each in served for lane in each.lanes.values())

        self.values.gauge(metrics.QUEUE_LENGTH, waiting, deployment.current.model.name)
        for role, served in deployment.versions():
            labels = (served.model.name, served.model.version, role)
            self.values.gauge(metrics.MODEL_INFO, lambda: 1.0, *labels)
