"""Pieces of work handed to a Ray cluster, and handed out again when a node is lost.

Ray could retry by itself. Doing it here says when nobody is left to do the work, bounds how often a
piece may take its worker down, and keeps every result before the next one is waited for.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from firstlight.cluster.errors import ClusterError, NoNodesError
from firstlight.cluster.nodes import working
from firstlight.errors import FirstlightError

#: Seconds without any node before the work is given up: an autoscaler may still bring one.
PATIENCE_SECONDS = 60.0
#: How often a piece may end its worker: a node dies for its own reasons, once or twice.
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
        slots: Callable[[], int] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """submit: starts a piece, returns its reference. keep: takes its result.

        slots: how many pieces may be under way; default: two per core, so that none waits.
        """
        self._ray = ray
        self._submit, self._keep = submit, keep
        self._slots = slots or (lambda: 2 * int(working(ray.nodes())))
        self._patience = patience_seconds
        self._attempts: Counter[P] = Counter()
        self._running: dict[Any, P] = {}
        lost = ray.exceptions
        self._lost = (
            *(lost.WorkerCrashedError, lost.NodeDiedError, lost.ObjectLostError),
            *(lost.LocalRayletDiedError, lost.OutOfMemoryError, lost.RayActorError),
        )

    def run(self, pieces: Iterable[P]) -> None:
        """Run all pieces; raises what a piece raised, after which nothing is left running."""
        waiting = deque(pieces)
        slots, looked, seen = self._slots(), time.monotonic(), time.monotonic()
        try:
            while waiting or self._running:
                while waiting and len(self._running) < max(slots, 1):
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
                    slots, looked = self._slots(), now
                seen = now if slots or done else seen
                if now - seen > self._patience:
                    raise NoNodesError(
                        f"no node has been there to work for {self._patience:g} s; "
                        f"{len(waiting) + len(self._running)} pieces are left."
                    )
        finally:
            self._end()

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

    def _end(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
