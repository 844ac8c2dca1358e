"""The versions that are served: what stands behind a name, and how requests are divided."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from firstlight.serve.engine import Engine, Lane
from firstlight.serve.inference_protocol import Protocol
from firstlight.serve.loading import Loaded
from firstlight.serve.plain_json import PlainJson
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Counter, Values

F = TypeVar("F", bound="Form")


class Form:
    """One version of a model as it is on the wire."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded, self.model = loaded, loaded.model
        self.protocol, self.plain = Protocol(loaded), PlainJson(loaded)

    @property
    def paths(self) -> dict[bytes, bool]:
        """Where inference is asked for, and whether in plain JSON."""
        name = self.model.name.encode()
        return {b"/v2/models/%s/infer" % name: False, b"/models/%s" % name: True}


class Served(Form):
    """A version with its lanes and its metrics."""

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

    def refused(self, reason: str, status: int) -> None:
        """Count a request that got no result."""
        self._values.counter(metrics.REJECTED, self.model.name, reason).add()
        self.code(status).add()

    def answered(self, cold: bool, arrived: float) -> None:
        """Count a result that was given."""
        self.succeeded.value += 1
        (self.cold if cold else self.warm).observe(time.perf_counter() - arrived)


@dataclass
class Name(Generic[F]):
    """What a name stands for; `canary` gets `share` of the requests, and all that ask for it."""

    current: F
    canary: F | None = None
    share: float = 0.0

    def versions(self) -> Iterator[tuple[str, F]]:
        yield "current", self.current
        if self.canary is not None:
            yield "canary", self.canary

    def choose(self, wants_canary: bool, draw: Callable[[], float]) -> F:
        """draw: gives numbers between 0 and 1, uniformly."""
        if self.canary is not None and (wants_canary or draw() < self.share):
            return self.canary
        return self.current


@dataclass
class Models:
    """Names and what they stand for. Changed on the event loop's thread only."""

    engine: Engine
    values: Values
    draw: Callable[[], float]  # uniform between 0 and 1
    names: dict[str, Name[Served]] = field(default_factory=dict)
    #: Where inference is asked for, looked up whole, and whether in plain JSON.
    paths: dict[bytes, tuple[Name[Served], bool]] = field(default_factory=dict)

    def put(self, loaded: Loaded, canary_share: float | None = None) -> None:
        """Serve a loaded version: in place of the current one, or beside it as a canary."""
        made = Served(loaded, self.engine, self.values)
        name = self.names.get(loaded.model.name)
        if name is None:
            name = self.names[loaded.model.name] = Name(made)
            self.paths |= {path: (name, plain) for path, plain in made.paths.items()}
        elif canary_share is not None:
            old, name.canary, name.share = name.canary, made, canary_share
            self._retire(name, old)
        else:
            old, name.current = name.current, made
            self._retire(name, old)
            if name.canary is not None and name.canary.model.version == made.model.version:
                self.drop_canary(loaded.model.name)  # it is what everybody gets now
        self._describe(name)

    def drop_canary(self, named: str) -> None:
        name = self.names[named]
        old, name.canary, name.share = name.canary, None, 0.0
        self._retire(name, old)

    def all_served(self) -> list[Served]:
        return [served for name in self.names.values() for _, served in name.versions()]

    def _retire(self, name: Name[Served], old: Served | None) -> None:
        """Those that wait for the old version are still answered by it."""
        if old is None:
            return
        self.engine.remove(old.lanes.values())
        for role in ("current", "canary"):
            self.values.drop_gauge(metrics.MODEL_INFO, old.model.name, old.model.version, role)
        self._describe(name)

    def _describe(self, name: Name[Served]) -> None:
        def waiting() -> float:
            return sum(lane.queued_rows for _, s in name.versions() for lane in s.lanes.values())

        self.values.gauge(metrics.QUEUE_LENGTH, waiting, name.current.model.name)
        for role, served in name.versions():
            labels = (served.model.name, served.model.version, role)
            self.values.gauge(metrics.MODEL_INFO, lambda: 1.0, *labels)
