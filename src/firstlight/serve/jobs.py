"""What the engine is given and gives back: jobs, and the results or refusals of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from firstlight.serve.compiled_models import Arrays
from firstlight.serve.signature import Signature
from firstlight.serve.tensors import Rows

#: A source whose jobs fail gets batches of its own while its failures, of which each counts for
#: eight successes, are two or more.
_FAILURE, _ASIDE, _MAX_SCORE = 8, 16, 64


class Reason(Enum):
    """Why a request is not computed; the values are labels of metrics."""

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    EXPIRED = "expired"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Refusal:
    """Why a request gets no result, and after how many seconds it may be sent again."""

    reason: Reason
    retry_seconds: float = 0.0


class Source:
    """Who sends jobs, such as a connection, and how often the model failed on them lately."""

    __slots__ = ("_score",)

    def __init__(self) -> None:
        self._score = 0

    @property
    def is_aside(self) -> bool:
        return self._score >= _ASIDE

    def failed(self) -> None:
        self._score = min(self._score + _FAILURE, _MAX_SCORE)

    def succeeded(self) -> None:
        self._score -= self._score > 0


class Job:
    """One request: its rows, its deadline, and what to do with the outcome."""

    __slots__ = ("arrays", "arrived", "deadline", "extents", "over", "rows")

    def __init__(self, rows: Rows, deadline: float, arrived: float) -> None:
        self.arrays, self.rows, self.extents = rows.arrays, rows.rows, rows.extents
        self.deadline, self.arrived = deadline, arrived
        self.over = False  # it was answered at its deadline, and a later result is dropped

    def finish(self, outcome: Result | Refusal) -> None:
        raise NotImplementedError

    def is_gone(self) -> bool:
        """Whether the client has left."""
        return False

    def is_drawn(self) -> bool:
        """Whether its version was chosen at random, or is the only one."""
        return True

    def move(self, to: object) -> None:
        """It will be answered by another version."""

    def source(self) -> Source | None:
        """Who sent it, if that is known."""
        return None

    def trace_context(self) -> tuple[bytes | None, bytes | None]:
        """The headers traceparent and tracestate of the request."""
        return None, None


def is_aside(job: Job) -> bool:
    source = job.source()
    return source is not None and source.is_aside


class Outputs:
    """The outputs for some rows."""

    def __init__(self, signature: Signature, outputs: Arrays) -> None:
        self.signature, self.outputs = signature, outputs
        self.cold = False

    @cached_property
    def flat(self) -> list[list[Any]]:
        """Outputs as flat lists of Python numbers, converted once for all jobs."""
        return [output.ravel().tolist() for output in self.outputs]

    @cached_property
    def nested(self) -> list[list[Any]]:
        """Outputs as nested lists, one per row."""
        return [output.tolist() for output in self.outputs]


class Result(NamedTuple):
    """Rows `start` to `stop` of a batch."""

    batch: Outputs
    start: int
    stop: int

    def array(self, i: int, extents: dict[str, int] | None = None) -> np.ndarray[Any, Any]:
        """Output i, without the padding of variable axes."""
        rows = self.batch.outputs[i][self.start : self.stop]
        if extents is None:
            return rows
        shape = self.batch.signature.outputs[i].shape
        cut = (slice(extents[size]) if isinstance(size, str) else slice(None) for size in shape)
        return rows[(slice(None), *cut)]
