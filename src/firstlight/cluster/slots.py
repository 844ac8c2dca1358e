"""The actor that measures on a node: one process at a time, with the same runner as locally.

A slot reserves all cores of its node, so that no other Ray work disturbs a sample.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstlight.cluster.nodes import Versions, versions
from firstlight.measure.host import describe_host
from firstlight.measure.planning import Request, fingerprint, plan_run
from firstlight.measure.runner import Runner
from firstlight.records import PRIMED, Case, Plan, Sample, to_json

#: Variables that Ray sets for its workers; a measured process gets the environment of the node.
_OF_RAY = re.compile(r"^(RAY_|OMP_NUM_THREADS$|PYTHONBREAKPOINT$|SPT_NOENV$|CUDA_VISIBLE_DEVICES$)")
_ALLOCATOR = re.compile(r"/ray/core/libjemalloc[^/]*$")
#: Machines that are equal in these are comparable: their samples make one run.
_CLASS = ("cpu", "container", "gpus", "os", "python", "packages", "environment")


class Slot:
    """The runner of one node, with its own scratch space and caches."""

    def __init__(self) -> None:
        environment = environment_of_node()
        os.environ.clear()
        os.environ.update(environment)
        self._runner: Runner | None = None
        self._ready: set[tuple[str, str]] = set()  # cases checked and primed here

    def facts(self) -> tuple[Versions, str, str]:
        """Versions, the class of the machine, and the readable name of the class."""
        host = describe_host()
        return versions(), class_of(host), class_name(host)

    def plan(self, request: Request) -> Plan:
        """The plan of a request on this machine."""
        return plan_run(request)

    def fingerprint(self, cases: tuple[Case, ...]) -> Any:
        """What must not change within a run, as it is on this machine."""
        return to_json(fingerprint(cases))

    def begin(self, plan: Plan) -> None:
        self.end()
        self._runner = Runner(plan.cases, plan.settings, lambda sample: None)
        self._runner.__enter__()

    def measure(self, case: Case, kind: str, index: int) -> list[Sample]:
        """The sample of a process, after those of the check and priming it needs on this node."""
        runner = self._runner
        assert runner is not None
        take_niceness_of_parent()  # of this thread, which the measured process inherits
        needed = [("check", True), ("prime", case.cache in PRIMED and kind != "check")]
        found: list[Sample] = []
        for before, is_needed in needed:
            if is_needed and before != kind and (case.id, before) not in self._ready:
                found.append(self._take(runner, case, before, 0))
                if found[-1].status != "ok":
                    return found
        return [*found, self._take(runner, case, kind, index)]

    def _take(self, runner: Runner, case: Case, kind: str, index: int) -> Sample:
        sample = runner.take(case, kind, index)
        if sample.status == "ok":
            self._ready.add((case.id, kind))
        return sample

    def end(self) -> None:
        """Kill the measured processes and remove scratch files."""
        import psutil

        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        if self._runner is not None:
            self._runner.__exit__()
            self._runner = None
        self._ready.clear()


def take_niceness_of_parent() -> None:
    """Run at the node's own priority, if permitted; Ray gives its workers a lower one.

    Where it is not permitted, start the nodes with RAY_worker_niceness=0.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))


def environment_of_node() -> dict[str, str]:
    """The environment that Ray was started with on this node, without Ray's own variables."""
    try:
        text = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode("utf-8", "surrogateescape")
        pairs = [entry.partition("=") for entry in text.split("\0") if entry]
        found = {name: value for name, _, value in pairs}
    except OSError:  # no /proc here
        found = dict(os.environ)
    return without_ray(found)


def without_ray(variables: Mapping[str, str]) -> dict[str, str]:
    """An environment without Ray's variables and without its preloaded allocator."""
    found = {name: value for name, value in variables.items() if not _OF_RAY.match(name)}
    preloaded = found.pop("LD_PRELOAD", "").split(":")
    if kept := [path for path in preloaded if path and not _ALLOCATOR.search(path)]:
        found["LD_PRELOAD"] = ":".join(kept)
    return found


def class_of(host: Mapping[str, Any]) -> str:
    """The digest that all machines of one class share."""
    parts = {name: host[name] for name in _CLASS}
    parts["memory_gib"] = round(host["memory_bytes"] / 2**30)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def class_name(host: Mapping[str, Any]) -> str:
    """A readable name for messages and folders, ending in the class."""
    cpu = host["cpu"]
    words = f"{cpu['model'] or cpu['architecture']} {cpu['logical_cores']} cores"
    readable = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40].strip("-")
    return f"{readable}-{class_of(host)}"
