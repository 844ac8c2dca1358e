"""Runs on a node. NumPy and JAX are imported after the number of threads per fit is set."""

from __future__ import annotations

import os
import sys
from typing import Any

from firstlight.cluster.nodes import Versions, versions

#: The job of this process: most workers only ever see one.
_kept: tuple[str, Any] | None = None


def compute(expected: Versions, name: str, shared: list[Any], piece: tuple[int, ...]) -> Any:
    """The arrays of one piece of the job `name`, or the versions here if they differ.

    shared: a list with the reference to the job, which is fetched once per process.
    """
    here = versions()
    if here != expected:
        return here
    job = _job(name, shared)
    from firstlight.cluster.jobs import Piece

    return job.compute(Piece(*piece))


def _job(name: str, shared: list[Any]) -> Any:
    global _kept
    if _kept is None or _kept[0] != name:
        if "numpy" not in sys.modules:  # OpenBLAS reads it when it is loaded
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # A task has reserved one core. XLA reads NPROC when it starts: further threads would spin
        # while they wait for work, which took a third of the processor time of a fit.
        os.environ["FIRSTLIGHT_FIT_THREADS"] = os.environ["NPROC"] = "1"
        import ray

        job, executables = ray.get(shared[0])
        if executables:
            from firstlight.cluster.frozen_fits import install

            install(job.model, executables)
        _kept = (name, job)
    return _kept[1]
