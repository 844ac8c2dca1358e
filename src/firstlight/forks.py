"""Compiled programs in forked processes.

XLA runs programs on threads of its own, and a fork copies only the thread that forks: a program
called in the child would wait forever for threads that do not exist. What runs compiled programs
calls `require_threads` first. A process that is forked before XLA runs is not concerned, and
neither is a forked process that computes with NumPy only.
"""

from __future__ import annotations

import os
import sys

from firstlight.errors import FirstlightError


class ForkError(FirstlightError, RuntimeError):
    """A compiled program was called in a process forked from one in which XLA runs."""


def require_threads() -> None:
    """Raise a `ForkError` if this process has lost XLA's threads in a fork."""
    if _lost:
        raise ForkError(
            "this process was forked from one that has run compiled programs, whose threads do not "
            "survive a fork: a compiled program would never return here. Start the process with "
            'spawn (multiprocessing.get_context("spawn"); in PyTorch '
            'DataLoader(..., multiprocessing_context="spawn")), or make this call before the fork.'
        )


def has_lost_threads() -> bool:
    """Whether compiled programs cannot run in this process."""
    return _lost


def note_threads() -> None:
    """Note that XLA runs in this process without JAX, which would know it."""
    global _runs_without_jax
    _runs_without_jax = True


_runs_without_jax = False
_lost = False


def _forked() -> None:
    global _lost
    # Read without JAX's lock, which another thread may have held during the fork.
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = getattr(bridge, "_backends", ("unknown",)) if bridge else ()
    _lost = _lost or _runs_without_jax or bool(backends)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forked)
