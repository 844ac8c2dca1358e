"""Submits pieces of work to a Ray cluster, and again when a node is lost.

Ray itself could retry. Retrying here reports when no node is left, bounds how often a piece may
crash its worker, and stores every result before it waits for the next one.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from firstlight.cluster.errors import ClusterError, NoNodesError
from firstlight.cluster.nodes import working
from firstlight.errors import FirstlightError

#: Seconds without any node before the work is given up: an autoscaler may still start one.
PATIENCE_SECONDS = 60.0
#: How often a piece may lose its worker: a node may die for other reasons, once or twice.
_MAX_ATTEMPTS = 10
_LOOK_SECONDS = 1.0
P = TypeVar("P")


class Spread(Generic[P]):
    """Runs pieces on a cluster until all are kept."""

    def __init__(
        self,
        ray: Any,
        submit: Callable[[P], Any],
        keep: Callable[[P, Any], None],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """submit: starts a piece and returns its reference. keep: stores its result."""
        self._ray = ray
        self._submit, self._keep = submit, keep
        self._patience = patience_seconds
        self._attempts: Counter[P] = Counter()
        self._running: dict[Any, P] = {}
        lost = ray.exceptions
        self._lost = (
            *(lost.WorkerCrashedError, lost.NodeDiedError, lost.ObjectLostError),
            *(lost.LocalRayletDiedError, lost.OutOfMemoryError, lost.RayActorError),
        )

    def run(self, pieces: Iterable[P]) -> None:
        """Run all pieces; if one raises, cancel the others and raise its error."""
        waiting = deque(pieces)
        in_flight, looked, seen = self._capacity(), time.monotonic(), time.monotonic()
        try:
            while waiting or self._running:
                while waiting and len(self._running) < max(in_flight, 1):
                    piece = waiting.popleft()
                    self._running[self._submit(piece)] = piece
                done, _ = self._ray.wait(
                    list(self._running), num_returns=len(self._running), timeout=0
                )
                if not done:
                    done, _ = self._ray.wait(list(self._running), timeout=_LOOK_SECONDS)
                for reference in done:
                    piece = self._running.pop(reference)
                    if not self._take(piece, reference):
                        waiting.appendleft(piece)
                now = time.monotonic()
                if now - looked > _LOOK_SECONDS:
                    in_flight, looked = self._capacity(), now
                seen = now if in_flight or done else seen
                if now - seen > self._patience:
                    raise NoNodesError(
                        f"no node has been available for {self._patience:g} s; "
                        f"{len(waiting) + len(self._running)} pieces are left."
                    )
        finally:
            for reference in self._running:
                self._ray.cancel(reference, force=True)

    def _capacity(self) -> int:
        """How many pieces may be in flight: two per core, so that no core waits."""
        return 2 * int(working(self._ray.nodes()))

    def _take(self, piece: P, reference: Any) -> bool:
        """Keep a result; false if it was lost with its worker."""
        try:
            result = self._ray.get(reference)
        except self._lost as error:
            self._attempts[piece] += 1
            if self._attempts[piece] >= _MAX_ATTEMPTS:
                raise ClusterError(
                    f"{piece} took down the worker {_MAX_ATTEMPTS} times: {error}"
                ) from None
            return False
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, FirstlightError):
                raise cause from None
            raise
        self._keep(piece, result)
        return True
