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
from typing import Any

from firstlight.cluster.connection import RAY_VARIABLES

#: Seconds until the cluster knows that a node is gone: five checks, one per second.
_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 5,
}


class Nodes:
    """A running cluster: its address, and the processes of its nodes."""

    def __init__(self, holder: subprocess.Popen[str]) -> None:
        self._holder = holder
        self.raylets: list[int] = []
        self.address = f"ray:{self._said()['address']}"  # as `--on` takes it

    def add(self, cores: int) -> None:
        """One node more."""
        assert self._holder.stdin is not None
        self._holder.stdin.write(f"{cores}\n")
        self._holder.stdin.flush()
        self.raylets.append(self._said()["raylet"])

    def _said(self) -> Any:
        assert self._holder.stdout is not None
        line = self._holder.stdout.readline()
        if not line:
            raise RuntimeError("the nodes did not start: is Ray installed, and memory free?")
        return json.loads(line)

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
        [sys.executable, "-P", "-m", "firstlight.cluster.rehearsal"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with holder:
        assert holder.stdin is not None
        try:
            nodes = Nodes(holder)
            for count in cores:
                nodes.add(count)
            yield nodes
        finally:
            holder.stdin.close()
            holder.wait()


def main() -> None:
    """Start the head, and a node for every line of standard input, until that ends."""
    os.environ.update(RAY_VARIABLES)
    from ray.cluster_utils import Cluster

    # By default every node would reserve 30 % of the machine's memory for objects.
    store = {"object_store_memory": 256 << 20}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _HEALTH, **store}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        node = cluster.add_node(num_cpus=int(line), **store)
        raylet = node.all_processes["raylet"][0].process.pid
        print(json.dumps({"raylet": raylet}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
