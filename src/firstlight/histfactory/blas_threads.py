"""Limits BLAS to one thread while small matrices are factorised on a CPU.

OpenBLAS splits even the Cholesky factorisation of a 150 × 150 matrix among all cores. If one of
them is busy, the others wait for it, many times longer than the work takes. The setting is global
to the process, so it is restored afterwards.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import LibController

_lock = threading.Lock()
_depth = 0
_before: list[tuple[LibController, int]] = []


@contextlib.contextmanager
def one_blas_thread(*, of_jax: bool = True) -> Iterator[None]:
    """Limit BLAS to one thread; the last of overlapping contexts restores the original setting.

    of_jax: whether JAX's LAPACK is used, or only NumPy's.
    """
    global _depth, _before
    libraries = _libraries(of_jax)
    with _lock:
        if _depth == 0:
            _before = [(library, library.get_num_threads()) for library in libraries]
            for library in libraries:
                library.set_num_threads(1)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for library, threads in _before:
                    library.set_num_threads(threads)


@cache
def _libraries(of_jax: bool) -> tuple[LibController, ...]:
    """The BLAS libraries of this process; none if threadpoolctl is not installed."""
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":
        return ()  # nothing to limit
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return ()
    # JAX uses SciPy's LAPACK, and loads it only when a program needs it.
    if of_jax:
        with contextlib.suppress(ImportError):
            import scipy.linalg.cython_lapack  # noqa: F401
    return tuple(
        library
        for library in ThreadpoolController().lib_controllers
        if library.user_api == "blas" and library.internal_api == "openblas"
    )
