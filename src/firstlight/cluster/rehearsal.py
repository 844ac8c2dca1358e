"""Several nodes on one machine, to try on: `with rehearsal([1, 1]) as nodes: nodes.address`.

A node is a raylet with its workers, and `kill` ends one as a power cut would. Run as a program, it
is what holds the nodes: they end with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Seconds until the cluster knows that a node is gone: five checks, one per second.
_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 5,
}


@dataclass(frozen=True)
class Nodes:
    """A running cluster: its address, and the processes of its nodes."""

    address: str  # as `--on` takes it
    raylets: tuple[int, ...]

    def kill(self, number: int) -> None:
        """kill -9 of a node: its raylet and everything that this has started."""
        import psutil

        raylet = psutil.Process(self.raylets[number])
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (raylet, *raylet.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    os.kill(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def rehearsal(cores: Sequence[int] = (1, 1)) -> Iterator[Nodes]:
    """A cluster with a head that does no work, and one node per entry of `cores`."""
    holder = subprocess.Popen(
        [sys.executable, "-P", "-m", "firstlight.cluster.rehearsal", json.dumps(list(cores))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            said = json.loads(holder.stdout.readline() or "null")
            if said is None:
                raise RuntimeError("the nodes did not start: is Ray installed, and memory free?")
            yield Nodes(f"ray:{said['address']}", tuple(said["raylets"]))
        finally:
            holder.stdin.close()
            holder.wait()


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=count) for count in json.loads(sys.argv[1])]
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    sys.stdin.read()
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
