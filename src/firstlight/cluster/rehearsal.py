"""A cluster of several nodes on one machine: `with rehearsal([1, 1]) as nodes: nodes.address`.

A node is a raylet with its workers; `kill` ends one as a power cut would. Run as a program, this
module holds the nodes, which end when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from firstlight.cluster.connection import RAY_VARIABLES

#: Seconds until the cluster knows that a node is gone: five checks, one per second.
_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 5,
}


class Nodes:
    """A running cluster: its address, and its nodes, of which the first is the head."""

    def __init__(self, holder: subprocess.Popen[str], cores: Sequence[int]) -> None:
        self._holder = holder
        self.raylets: list[int] = []
        for count in cores:
            self.add(count)

    def add(self, cores: int) -> None:
        """Add a node."""
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.write(f"{cores}\n")
        self._holder.stdin.flush()
        line = self._holder.stdout.readline()
        if not line:
            raise RuntimeError("the nodes did not start: is Ray installed, and memory free?")
        said = json.loads(line)
        self.address = f"ray:{said['address']}"  # as `--on` takes it
        self.raylets.append(said["raylet"])

    def kill(self, number: int) -> None:
        """Kill (SIGKILL) a node's raylet and all its descendants."""
        import psutil

        raylet = psutil.Process(self.raylets[number])
        for process in (raylet, *raylet.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def rehearsal(cores: Sequence[int] = (1, 1)) -> Iterator[Nodes]:
    """A cluster with one node per entry of `cores`; it ends if its head, the first, does."""
    holder = subprocess.Popen(
        [sys.executable, "-P", "-m", "firstlight.cluster.rehearsal"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with holder:
        assert holder.stdin is not None
        try:
            yield Nodes(holder, cores)
        finally:
            holder.stdin.close()
            holder.wait()


def main() -> None:
    """Start one node per line of standard input, until end of file; the first is the head."""
    os.environ.update(RAY_VARIABLES)
    from ray.cluster_utils import Cluster

    # By default every node would reserve 30 % of the machine's memory for objects.
    options: dict[str, Any] = {"object_store_memory": 256 << 20, "include_log_monitor": False}
    head_only: dict[str, Any] = {"include_dashboard": False, "no_monitor": True}
    head_only["_system_config"] = _HEALTH
    cluster = Cluster()
    for line in sys.stdin:
        more = {} if cluster.head_node else head_only
        node = cluster.add_node(num_cpus=int(line), **options, **more)
        raylet = node.all_processes["raylet"][0].process.pid
        print(json.dumps({"address": cluster.address, "raylet": raylet}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
