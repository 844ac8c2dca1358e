"""Compute the unfinished pieces of a job, here or on a cluster, and keep them in a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from firstlight.cluster.checkpoint import Arrays, Checkpoint
from firstlight.cluster.connection import connected
from firstlight.cluster.errors import NoNodesError
from firstlight.cluster.jobs import Job, Piece
from firstlight.cluster.nodes import mismatch, versions
from firstlight.cluster.spreading import Spread

Progress = Callable[[int, int], None]  # (items done, items in all)
Keep = Callable[[Piece, Arrays], None]


class Finished:
    """The pieces of a finished job, in a folder."""

    def __init__(self, checkpoint: Checkpoint, pieces: list[Piece]) -> None:
        self._checkpoint, self._pieces = checkpoint, pieces

    def parts(self) -> Iterator[tuple[Piece, Arrays]]:
        """Every piece in order; one in memory at a time."""
        for piece in self._pieces:
            yield piece, self._checkpoint.load(piece.number)

    def column(self, name: str) -> Any:
        """One array over all pieces."""
        return np.concatenate([arrays[name] for _, arrays in self.parts()])


@contextmanager
def computed(
    job: Job,
    on: str | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Iterator[Finished]:
    """All pieces of a job; those in the checkpoint are not computed again.

    on: as for `--on`; None: in this process. checkpoint: a folder; None: a temporary one.
    """
    with _folder(checkpoint) as folder:
        kept = Checkpoint(folder, job.identity(), resume)
        try:
            pieces = job.pieces()
            done = kept.finished()
            for number in done:  # a damaged piece is reported before hours are spent on the rest
                kept.load(number)
            items = sum(len(piece) for piece in pieces if piece.number in done)
            total = sum(map(len, pieces))

            def keep(piece: Piece, arrays: Arrays) -> None:
                nonlocal items
                kept.keep(piece.number, arrays)
                items += len(piece)
                if progress:
                    progress(items, total)

            todo = [piece for piece in pieces if piece.number not in done]
            if on is None:
                for piece in todo:
                    keep(piece, job.compute(piece))
            elif todo:
                _on_cluster(job, todo, on, keep, named=checkpoint is not None)
            yield Finished(kept, pieces)
        finally:
            kept.close()


@contextmanager
def _folder(given: str | Path | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="firstlight-") as name:
        yield Path(name) / "pieces"


def _on_cluster(job: Job, todo: list[Piece], on: str, keep: Keep, named: bool) -> None:
    with connected(on) as ray:  # before JAX is imported: its threads do not survive a fork
        executables = b""
        if job.compiled:
            from firstlight.cluster.frozen_fits import frozen_programs

            executables = frozen_programs(job.model)
        shared, name, here = [ray.put((job, executables))], uuid4().hex, versions()
        task = ray.remote(on_node()).options(num_cpus=1, max_retries=0)

        def submit(piece: Piece) -> Any:
            return task.remote(here, name, shared, astuple(piece))

        def take(piece: Piece, result: Any) -> None:
            host, answer = result
            if not isinstance(answer, dict):
                raise mismatch(host, answer)
            keep(piece, answer)

        try:
            Spread(ray, submit, take).run(todo)
        except NoNodesError as error:
            hint = " Finished pieces are kept: continue with --resume." if named else ""
            raise NoNodesError(f"{error}{hint}") from None


def on_node() -> Callable[..., Any]:
    """The function that a node runs; pickled by value, so that it can report what is missing."""

    def run(expected: Any, name: str, shared: list[Any], piece: Any) -> tuple[str, Any]:
        from socket import gethostname

        try:
            from firstlight.cluster.worker import compute
        except ImportError as error:
            return gethostname(), str(error)
        return gethostname(), compute(expected, name, shared, piece)

    return run
