"""`firstlight run --on ray`: fresh-process samples on the nodes of a cluster.

Every node has one slot, which runs one process at a time. Samples from machines of one class make
one run; another class makes another run. A lost node costs only the sample it was measuring, which
another node of its class measures again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from firstlight.cluster.connection import connected
from firstlight.cluster.errors import ClusterError, NoNodesError
from firstlight.cluster.nodes import mismatch, versions
from firstlight.cluster.slots import Slot
from firstlight.measure.planning import Request, ResumeError
from firstlight.measure.runner import Runner, Watch
from firstlight.records import MEASURED_ON, Plan, Sample, jobs
from firstlight.records.run_directory import RunDirectory

#: Time for slots to describe themselves: a node may have to start Python from a slow disk.
_START_SECONDS = 120.0
#: Time for a slot to end its measurement when the run is interrupted.
_END_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class MachineClass:
    """Machines whose samples may be mixed, with their slots by node."""

    name: str
    slots: dict[str, Any] = field(default_factory=dict)


class Fleet:
    """The slots of a cluster, by class of machine."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._slots: dict[str, Any] = {}

    @classmethod
    @contextlib.contextmanager
    def on(cls, on: str) -> Iterator[Fleet]:
        with connected(on) as ray:
            fleet = cls(ray)
            try:
                yield fleet
            finally:
                fleet.end()

    def classes(self) -> list[MachineClass]:
        """The classes of machines in the cluster; fails for a node that cannot take part."""
        for node in self._ray.nodes():
            cores = node["Resources"].get("CPU", 0)
            if node["Alive"] and cores and node["NodeID"] not in self._slots:
                self._slots[node["NodeID"]] = self._slot(node["NodeID"], cores)
        names = {n["NodeID"]: n["NodeManagerHostname"] for n in self._ray.nodes()}
        found: dict[str, MachineClass] = {}
        for node, slot in list(self._slots.items()):
            facts = self._facts(node, names[node], slot)
            if facts is None:
                del self._slots[node]
                continue
            there, key, name = facts
            if there != versions():
                raise mismatch(names[node], there)
            found.setdefault(key, MachineClass(name)).slots[node] = slot
        if not found:
            raise NoNodesError("the cluster has no node with a core to measure on.")
        return list(found.values())

    def only_class(self) -> MachineClass:
        """The class of all machines; fails if there are several, since a run has one."""
        found = self.classes()
        if len(found) > 1:
            raise ClusterError(
                f"the nodes are of {len(found)} classes ({', '.join(c.name for c in found)}), "
                "which make different runs: measure them with the command `firstlight run --on`."
            )
        return found[0]

    def _slot(self, node: str, cores: float) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            self._ray.remote(Slot)
            .options(
                num_cpus=cores,
                max_concurrency=2,  # one call measures, another can end it
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote()
        )

    def _facts(self, node: str, host: str, slot: Any) -> Any:
        """A slot's versions, class and class name; None if its node is gone."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(slot.facts.remote(), timeout=_START_SECONDS)
        except errors.GetTimeoutError:
            raise ClusterError(
                f"node {host}: its cores were not free within {_START_SECONDS:g} s. A sample needs "
                "the whole node: wait for its other work, or remove the node from the cluster."
            ) from None
        except errors.RayActorError as error:
            if not any(n["Alive"] for n in self._ray.nodes() if n["NodeID"] == node):
                return None
            raise mismatch(host, str(error).strip().splitlines()[-1]) from None

    def plan(self, machines: MachineClass, request: Request) -> Plan:
        """The plan of a request for a class of machines, made on one of them."""
        slot = next(iter(machines.slots.values()))
        plan: Plan = self._answer(slot.plan.remote(request))
        return plan

    def same(self, plan: Plan) -> MachineClass:
        """The class of machines on which a run can be continued."""
        for machines in self.classes():
            slot = next(iter(machines.slots.values()))
            if self._answer(slot.fingerprint.remote(plan.cases)) == plan.fingerprint:
                return machines
        raise ResumeError(
            "no node of the cluster matches the ones on which this run began: machine, versions, "
            "environment variables or the benchmark file differ. Start a new run."
        )

    def measure(
        self, machines: MachineClass, plan: Plan, directory: RunDirectory, watch: Watch
    ) -> None:
        """Measure the missing samples of a run on the slots of one class."""
        for node, slot in list(machines.slots.items()):
            try:
                self._answer(slot.begin.remote(plan))
            except self._ray.exceptions.RayActorError:  # lost in the meantime
                del machines.slots[node]
        _Measuring(self._ray, machines, plan, directory, watch).run()

    def _answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None

    def end(self) -> None:
        """End running measurements and release the nodes."""
        slots = list(self._slots.values())
        ending = [slot.end.remote() for slot in slots]
        if ending:
            self._ray.wait(ending, num_returns=len(ending), timeout=_END_SECONDS)
        for slot in slots:
            self._ray.kill(slot)
        self._slots.clear()


class _Measuring:
    """One run on the slots of one class."""

    def __init__(
        self,
        ray: Any,
        machines: MachineClass,
        plan: Plan,
        directory: RunDirectory,
        watch: Watch,
    ) -> None:
        self._ray, self._directory, self._watch = ray, directory, watch
        self._idle = deque(machines.slots.items())
        # The runner keeps the book: which samples exist, and which cases are sound.
        done = directory.samples()
        self._book = Runner(plan.cases, plan.settings, directory.keep, done)
        self._sound = {(s.case, s.kind, s.index) for s in done if s.status == "ok"}
        self._planned = jobs(self._book.cases, plan.settings)
        self._running: dict[Any, tuple[str, Any, int]] = {}

    def run(self) -> None:
        for wanted in ("check", "prime", "timed"):  # a case is timed once checked and primed
            waiting = deque(i for i, (_, kind, _) in enumerate(self._planned) if kind == wanted)
            while waiting or self._running:
                while waiting and self._idle:
                    self._hand_out(waiting.popleft())
                if not self._running:
                    if waiting and not self._idle:
                        raise NoNodesError(
                            "every node of this class is lost. Finished samples are kept: continue "
                            f"with firstlight run --resume {self._directory.path} --on ray…"
                        )
                    break
                done, _ = self._ray.wait(list(self._running))
                for reference in done:
                    if (again := self._take(reference)) is not None:
                        waiting.appendleft(again)

    def _hand_out(self, number: int) -> None:
        case, kind, index = self._planned[number]
        if not self._book.is_missing(case, kind, index):
            return
        self._watch(number, self._planned)
        node, slot = self._idle.popleft()
        self._running[slot.measure.remote(case, kind, index)] = (node, slot, number)

    def _take(self, reference: Any) -> int | None:
        """Keep what a slot measured; returns the job's number if its node was lost."""
        node, slot, number = self._running.pop(reference)
        try:
            samples: list[Sample] = self._ray.get(reference)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError):
            return number
        self._idle.append((node, slot))
        for sample in samples:
            self._accept(replace(sample, facts={**sample.facts, MEASURED_ON: node[:8]}))
        return None

    def _accept(self, sample: Sample) -> None:
        """Keep a sample, unless it is a check or priming that another node has already passed."""
        key = (sample.case, sample.kind, sample.index)
        if sample.status != "ok" or key not in self._sound:
            self._book.accept(replace(sample, order=self._book.order))
        if sample.status == "ok":
            self._sound.add(key)
