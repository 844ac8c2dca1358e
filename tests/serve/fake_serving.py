"""Models, jobs and exchanges in memory: plain functions in place of executables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from firstlight.serve import Input, Model
from firstlight.serve.app import Exchange
from firstlight.serve.compiled_models import Bucket, Loaded
from firstlight.serve.jobs import Job, Refusal, Result, Source
from firstlight.serve.signature import Signature, Tensor
from firstlight.serve.tensors import Rows

FLOAT = np.dtype(np.float32)


def fake_loaded(
    call: Callable[[Any], Any],
    costs: dict[int, float],
    name: str = "fake",
    **options: Any,
) -> Loaded:
    """A model of one number per row; its buckets, with the given costs, are plain functions."""
    model = Model(call, {"x": Input("float32", ())}, name, buckets=tuple(costs), **options)
    signature = Signature((Tensor("x", FLOAT, ()),), (Tensor("y", FLOAT, ()),), {}, call)
    buckets = tuple(
        Bucket(rows, (), lambda x: [call(x)], seconds, 0.0, False)
        for rows, seconds in costs.items()
    )
    return Loaded(model, signature, (), {(): buckets}, 0, False)


class SeenJob(Job):
    """A job that keeps its outcome."""

    def __init__(
        self,
        numbers: Sequence[float],
        deadline: float = 1e9,
        arrived: float = 0.0,
        gone: bool = False,
        source: Source | None = None,
    ) -> None:
        array = np.array(numbers, np.float32)
        super().__init__(Rows([array], len(array)), deadline, arrived)
        self.gone, self.sent_by = gone, source
        self.outcome: Result | Refusal | None = None

    def is_gone(self) -> bool:
        return self.gone

    def source(self) -> Source | None:
        return self.sent_by

    def finish(self, outcome: Result | Refusal) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome

    @property
    def numbers(self) -> list[float]:
        assert isinstance(self.outcome, Result), self.outcome
        numbers: list[float] = self.outcome.array(0).tolist()
        return numbers


class SeenExchange(Exchange):
    """A request made by a test, and its answer."""

    def __init__(
        self,
        path: str,
        body: bytes = b"",
        method: str = "POST",
        headers: dict[bytes, bytes] | None = None,
        arrived: float = 0.0,
    ) -> None:
        self.method, self.path, self.body = method.encode(), path.encode(), body
        self.headers, self.arrived = headers or {}, arrived
        self.status: int | None = None
        self.answered = self.content_type = self.more = b""

    def answer(
        self,
        status: int,
        parts: list[Any],
        content_type: bytes = b"application/json",
        more: bytes = b"",
    ) -> None:
        assert self.status is None, "answered twice"
        self.status, self.content_type, self.more = status, content_type, more
        self.answered = b"".join(parts)
