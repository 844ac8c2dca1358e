"""The versions being served: the current one and the canary of each name."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from firstlight.serve.canaries import Trial
from firstlight.serve.compiled_models import Loaded
from firstlight.serve.declaration import Model
from firstlight.serve.engine import Engine
from firstlight.serve.http_formats import PlainJson, Protocol
from firstlight.serve.jobs import Reason
from firstlight.serve.lanes import Lane
from firstlight.serve.signature import described
from firstlight.telemetry import metrics
from firstlight.telemetry.values import Counter, Values

#: Versions no longer served whose metrics are exported.
_RETIRED_VERSIONS = 2


class Served:
    """One version of a model with its paths, request formats, lanes and metrics."""

    def __init__(self, loaded: Loaded, engine: Engine, values: Values) -> None:
        self.loaded, self.model = loaded, loaded.model
        self.protocol, self.plain = Protocol(loaded), PlainJson(loaded)
        self.lanes: dict[tuple[int, ...], Lane] = engine.add(loaded)
        name = self.model.name
        self.warm = values.histogram(metrics.REQUEST_DURATION, name, "warm")
        self.cold = values.histogram(metrics.REQUEST_DURATION, name, "cold")
        self._values = values
        self._codes: dict[int, Counter] = {}
        self.succeeded = self.code(200)

    @property
    def paths(self) -> dict[bytes, bool]:
        """The paths of inference, and whether their format is plain JSON."""
        name = self.model.name.encode()
        return {b"/v2/models/%s/infer" % name: False, b"/models/%s" % name: True}

    def takes_what(self, other: Served) -> bool:
        """Whether its inputs and outputs are those of another version."""
        a, b = self.loaded.signature, other.loaded.signature
        return self.lanes.keys() == other.lanes.keys() and described(a) == described(b)

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

    def refused(self, reason: Reason, status: int) -> None:
        """Count a request without a result. An error of the model is not a refusal."""
        if reason is not Reason.FAILED:
            self._values.counter(metrics.REJECTED, self.model.name, reason.value).add()
        self.code(status).add()

    def invalid(self, status: int) -> None:
        """Count a request that cannot be read, or does not fit the model."""
        self._values.counter(metrics.REJECTED, self.model.name, "invalid").add()
        self.code(status).add()

    def answered(self, cold: bool, arrived: float) -> None:
        """Count a request answered with a result."""
        self.succeeded.value += 1
        (self.cold if cold else self.warm).observe(time.perf_counter() - arrived)


@dataclass
class Deployment:
    """The versions of one name. `canary` gets `share` of the requests, and all that ask for it."""

    current: Served
    canary: Served | None = None
    share: float = 0.0
    taken_back: str | None = None  # the version of the last canary that failed
    trial: Trial | None = None
    retired: deque[str] = field(default_factory=deque)  # versions whose metrics are still exported

    def versions(self) -> Iterator[tuple[str, Served]]:
        yield "current", self.current
        if self.canary is not None:
            yield "canary", self.canary

    def choose(self, wants_canary: bool, draw: Callable[[], float]) -> Served:
        """draw: Returns uniform random numbers between 0 and 1."""
        if self.canary is not None and (wants_canary or draw() < self.share):
            return self.canary
        return self.current


class Change(Enum):
    """What a declared model is to the versions being served."""

    NEW = "new"
    SAME = "same"
    TAKEN_BACK = "taken back"


@dataclass
class Models:
    """Deployments by name. Changed on the event loop's thread only."""

    engine: Engine
    values: Values
    draw: Callable[[], float]  # uniform between 0 and 1
    names: dict[str, Deployment] = field(default_factory=dict)
    #: The paths of inference, and whether their format is plain JSON.
    paths: dict[bytes, tuple[Deployment, bool]] = field(default_factory=dict)
    say: Callable[[str], None] = lambda _: None  # called when a canary is taken back
    #: Median latency of the rehearsal, by name and version.
    rehearsed: dict[tuple[str, str], float] = field(default_factory=dict)

    def put(self, loaded: Loaded, canary_share: float | None = None) -> None:
        """Serve a loaded version: in place of all others, or beside the current one as a canary."""
        made = Served(loaded, self.engine, self.values)
        deployment = self.names.get(loaded.model.name)
        if deployment is None:
            deployment = self.names[loaded.model.name] = Deployment(made)
            self.paths |= {path: (deployment, plain) for path, plain in made.paths.items()}
        elif canary_share is not None:
            self._end_canary(deployment)
            self._begin_canary(deployment, made, canary_share)
        else:
            self._end_canary(deployment)
            old, deployment.current = deployment.current, made
            deployment.taken_back = None
            self._retire(deployment, old)
        self._describe(deployment)

    def change_of(self, model: Model) -> Change:
        """Whether a declared model has to be loaded."""
        deployment = self.names.get(model.name)
        if deployment is None:
            return Change.NEW
        served = {role: each.model.version for role, each in deployment.versions()}
        if model.version == served["current"]:
            return Change.SAME
        if model.canary_share is None:
            return Change.NEW
        if model.version == deployment.taken_back:
            return Change.TAKEN_BACK
        return Change.SAME if model.version == served.get("canary") else Change.NEW

    def settle(self, declared: Sequence[Model], kept: Collection[str] = ()) -> list[str]:
        """End what is no longer declared, and take over shares; returns what was done.

        kept: Names that were not declared, but loaded on request.
        """
        done = []
        by_name = {model.name: model for model in declared}
        for name, deployment in list(self.names.items()):
            model, canary = by_name.get(name), deployment.canary
            if model is None and name in kept:
                continue
            if model is None:
                self.remove(name)
                done.append(f"{name} is no longer declared and was removed")
            elif canary is None:
                continue
            elif model.version != canary.model.version:
                self._end_canary(deployment)
                done.append(f"{name} {canary.model.version} is no longer declared: canary ended")
            elif model.canary_share == 0 < deployment.share:
                self._end_canary(deployment)
                done.append(f"{name} {canary.model.version} has canary_share=0: canary ended")
            elif model.canary_share is not None:
                deployment.share = model.canary_share
        return done

    def remove(self, name: str) -> None:
        """Serve a name no longer. Requests in its queues are still answered."""
        deployment = self.names.pop(name)
        for path in deployment.current.paths:
            del self.paths[path]
        self._end_canary(deployment)
        self._retire(deployment, deployment.current)
        for metric in (metrics.QUEUE_LENGTH, metrics.BATCH_OVERDUE, metrics.DEPLOY_IN_PROGRESS):
            self.values.drop_gauge(metric, name)
        self.values.drop(model=name)

    def take_back(self, name: str) -> str | None:
        """End a canary, which is not loaded again; returns its version, or None without one."""
        deployment = self.names[name]
        if (canary := deployment.canary) is None:
            return None
        deployment.taken_back = canary.model.version
        self._end_canary(deployment)
        self.values.counter(metrics.CANARIES_TAKEN_BACK, name).add()
        return canary.model.version

    def all_served(self) -> list[Served]:
        return [served for each in self.names.values() for _, served in each.versions()]

    def _begin_canary(self, deployment: Deployment, made: Served, share: float) -> None:
        name = made.model.name
        self.values.counter(metrics.CANARIES_TAKEN_BACK, name)  # exported from now on, as 0

        def failed() -> None:
            version = self.take_back(name)
            self.say(f"{name} {version}: canary taken back: {trial}")

        trial = Trial(failed)
        deployment.canary, deployment.share, deployment.trial = made, share, trial
        for lanes, arm in ((deployment.current.lanes, trial.current), (made.lanes, trial.canary)):
            for lane in lanes.values():
                lane.arm = arm

    def _end_canary(self, deployment: Deployment) -> None:
        """Its requests that wait are answered by the current version, if that takes them."""
        canary, current = deployment.canary, deployment.current
        if canary is None or deployment.trial is None:
            return
        deployment.trial.end()
        deployment.canary, deployment.trial, deployment.share = None, None, 0.0
        for lane in current.lanes.values():
            lane.arm = None
        if canary.takes_what(current):
            for sizes, lane in canary.lanes.items():
                self.engine.move(lane, current.lanes[sizes], current)
        self._retire(deployment, canary)

    def _retire(self, deployment: Deployment, old: Served) -> None:
        """Requests in its queue are still answered."""
        self.engine.remove(old.lanes.values())
        name, version = old.model.name, old.model.version
        self.rehearsed.pop((name, version), None)
        for role in ("current", "canary"):
            self.values.drop_gauge(metrics.MODEL_INFO, name, version, role)
        # A scrape may still want the last counts of one that has just ended, not those of all.
        if version in deployment.retired:
            deployment.retired.remove(version)
        deployment.retired.append(version)
        while len(deployment.retired) > _RETIRED_VERSIONS:
            gone = deployment.retired.popleft()
            if all(gone != each.model.version for _, each in deployment.versions()):
                self.values.drop(model=name, version=gone)

    def _describe(self, deployment: Deployment) -> None:
        def waiting() -> float:
            served = (version for _, version in deployment.versions())
            return sum(lane.queued_rows for each in served for lane in each.lanes.values())

        def stuck() -> float:
            return self.engine.stuck(0.0).get(deployment.current.model.name, 0.0)

        self.values.gauge(metrics.BATCH_OVERDUE, stuck, deployment.current.model.name)
        self.values.gauge(metrics.QUEUE_LENGTH, waiting, deployment.current.model.name)
        for role, served in deployment.versions():
            labels = (served.model.name, served.model.version, role)
            self.values.gauge(metrics.MODEL_INFO, lambda: 1.0, *labels)
