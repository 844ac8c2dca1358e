"""Limits BLAS to one thread while many small matrices are factorised on a CPU.

OpenBLAS splits even the Cholesky factor of 150 parameters among all cores; if one of them is busy,
the others wait for it, many times longer than the work takes. The setting belongs to the process,
so it is restored afterwards.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

_lock = threading.Lock()
_depth = 0
_before: list[int] = []


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread; the last of overlapping contexts restores the original setting."""
    global _depth, _before
    libraries = _libraries()
    with _lock:
        if _depth == 0:
            _before = [library.get_num_threads() for library in libraries]
            for library in libraries:
                library.set_num_threads(1)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for library, threads in zip(libraries, _before, strict=True):
                    library.set_num_threads(threads)


@cache
def _libraries() -> tuple[Any, ...]:
    """The BLAS libraries of this process; none if threadpoolctl is not installed."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return ()
    # JAX uses SciPy's LAPACK, and loads it only when a program needs it.
    with contextlib.suppress(ImportError):
        import scipy.linalg.cython_lapack  # noqa: F401
    return tuple(
        library
        for library in ThreadpoolController().lib_controllers
        if library.user_api == "blas" and library.internal_api == "openblas"
    )
