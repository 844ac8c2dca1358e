"""What happens to pieces when workers and nodes are lost: a cluster that does as it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from typing import Any

import pytest

from firstlight.cluster import nodes, spreading
from firstlight.cluster.computing import on_node
from firstlight.cluster.errors import ClusterError, NodeMismatchError, NoNodesError
from firstlight.cluster.samples import Fleet, MachineClass
from firstlight.cluster.slots import class_of, without_ray
from firstlight.cluster.spreading import Spread
from firstlight.measure.host import describe_host

ray = pytest.importorskip("ray")


class FakeCluster:
    """Answers like Ray: every submission is given its outcome from a list."""

    exceptions = ray.exceptions

    def __init__(self, outcomes: dict[int, list[Any]], cores: int = 1) -> None:
        self.outcomes = {piece: deque(several) for piece, several in outcomes.items()}
        self.cores = cores
        self.submitted: list[int] = []
        self.cancelled: list[Any] = []

    def submit(self, piece: int) -> tuple[int, int]:
        self.submitted.append(piece)
        return piece, len(self.submitted)

    def wait(self, references: list[Any], num_returns: int = 1, timeout: float = 0) -> Any:
        done = [r for r in references if self.outcomes[r[0]]]
        return done[:num_returns], [r for r in references if r not in done]

    def get(self, reference: Any) -> Any:
        outcome = self.outcomes[reference[0]].popleft()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def cancel(self, reference: Any, force: bool) -> None:
        self.cancelled.append(reference[0])

    def nodes(self) -> list[dict[str, Any]]:
        about = {"NodeID": "a1", "NodeManagerHostname": "node1"}
        return [{**about, "Alive": bool(self.cores), "Resources": {"CPU": self.cores}}]


def run(cluster: FakeCluster, pieces: list[int], **options: Any) -> dict[int, Any]:
    kept: dict[int, Any] = {}
    Spread(cluster, cluster.submit, kept.__setitem__, **options).run(pieces)
    return kept


LOST = ray.exceptions.NodeDiedError("the node died")


def test_a_piece_lost_with_its_node_is_submitted_again() -> None:
    cluster = FakeCluster({1: [LOST, "one"], 2: ["two"], 3: [LOST, LOST, "three"]})
    assert run(cluster, [1, 2, 3]) == {1: "one", 2: "two", 3: "three"}
    assert sorted(cluster.submitted) == [1, 1, 2, 3, 3, 3]


def test_a_piece_that_takes_down_every_worker_is_given_up() -> None:
    crash = ray.exceptions.WorkerCrashedError()
    cluster = FakeCluster({1: [crash] * 20, 2: []})
    with pytest.raises(ClusterError, match="took down the worker 10 times"):
        run(cluster, [1, 2])
    assert cluster.cancelled == [2]


def test_without_nodes_the_work_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(spreading.time, "monotonic", lambda: next(clock))
    cluster = FakeCluster({1: []}, cores=0)
    with pytest.raises(NoNodesError, match="1 pieces are left"):
        run(cluster, [1], patience_seconds=60.0)
    assert cluster.cancelled == [1]


def test_at_most_two_pieces_per_core_are_in_flight() -> None:
    cluster = FakeCluster({i: [i] for i in range(20)}, cores=3)
    most = 0
    submit = cluster.submit

    def counted(piece: int) -> Any:
        nonlocal most
        waiting = [p for p in cluster.submitted if cluster.outcomes[p]]
        most = max(most, len(waiting) + 1)
        return submit(piece)

    kept: dict[int, Any] = {}
    Spread(cluster, counted, kept.__setitem__).run(range(20))
    assert sorted(kept) == list(range(20)) and most == 6


def test_the_error_for_other_versions_names_the_node_and_the_difference() -> None:
    other = tuple((n, "0.0.0" if n == "firstlight" else v) for n, v in nodes.versions())
    error = nodes.mismatch("node7", other)
    assert isinstance(error, NodeMismatchError)
    assert "node7: firstlight is 0.0.0 there" in str(error) and "numpy" not in str(error)


def test_a_node_without_firstlight_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "firstlight.cluster.worker", None)
    host, answer = on_node()((), "name", [], (0, 0, 0, 1))
    assert isinstance(answer, str) and "firstlight.cluster.worker" in answer
    assert "pip install" in str(nodes.mismatch(host, answer))


def test_a_worker_with_other_versions_computes_nothing() -> None:
    _, answer = on_node()((("firstlight", "0.0.0"),), "name", [], (0, 0, 0, 1))
    assert answer == nodes.versions()


def test_a_measured_process_finds_nothing_of_ray_in_its_environment() -> None:
    found = without_ray(
        {
            "PATH": "/bin",
            "LD_PRELOAD": "/venv/ray/core/libjemalloc.so:/usr/lib/mine.so",
            "OMP_NUM_THREADS": "1",
            "RAY_JOB_ID": "01",
        }
    )
    assert found == {"PATH": "/bin", "LD_PRELOAD": "/usr/lib/mine.so"}
    assert without_ray({"LD_PRELOAD": "/venv/ray/core/libjemalloc.so"}) == {}


def test_a_measured_process_has_the_niceness_of_its_node() -> None:
    code = "import os; from firstlight.cluster.slots import take_niceness_of_parent as take\n"
    code += "take(); print(os.getpriority(os.PRIO_PROCESS, 0))"
    done = subprocess.run(
        ["nice", "-n", "3", sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert int(done.stdout) == (own if os.geteuid() == 0 else own + 3)  # only root may go back


def test_machines_are_of_one_class_only_if_nothing_that_matters_differs() -> None:
    host = describe_host()
    more = {**host, "memory_bytes": host["memory_bytes"] + (8 << 30)}
    other = {**host, "packages": {**host["packages"], "jaxlib": "0.0.1"}}
    busy = {**host, "load": [9.0, 9.0, 9.0], "memory_available_bytes": 1}
    assert class_of(busy) == class_of(host)
    assert len({class_of(one) for one in (host, more, other)}) == 3


def test_machines_of_two_classes_do_not_make_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = [MachineClass("old-2-cores"), MachineClass("new-8-cores")]
    monkeypatch.setattr(Fleet, "classes", lambda self: classes)
    with pytest.raises(ClusterError, match=r"2 classes .old-2-cores, new-8-cores.*run --on"):
        Fleet(ray).only_class()


def test_a_cluster_without_a_core_has_nothing_to_measure_on() -> None:
    with pytest.raises(NoNodesError, match="no node with a core"):
        Fleet(FakeCluster({}, cores=0)).classes()
