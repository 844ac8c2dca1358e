"""Remembers, for later processes, programs that were compiled before NumPy had answered."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from firstlight.warmstart import folder

#: Afterwards the first tier is tried again: the machine may have been busy.
_FORGOTTEN_AFTER_SECONDS = 7 * 24 * 3600


def is_slower(program: object) -> bool:
    """Whether an earlier process has lost time with the first tier of this program."""
    if (here := _folder()) is None or not here.is_dir():
        return False
    with suppress(OSError):
        age = time.time() - (here / _digest(program)).stat().st_mtime
        return age < _FORGOTTEN_AFTER_SECONDS
    return False


def remember(program: object) -> None:
    """Create an empty file named after the program, if possible."""
    if (here := _folder()) is not None:
        with suppress(OSError):
            here.mkdir(mode=0o700, parents=True, exist_ok=True)
            (here / _digest(program)).touch()


def _folder() -> Path | None:
    if folder.is_off():
        return None
    given = os.environ.get("FIRSTLIGHT_CACHE_DIR", "")
    return Path(given if given and "://" not in given else folder.in_front()) / "tiers"


def _digest(program: Any) -> str:
    """A digest of the operations, shapes, JAX, processor, and whether JAX has a persistent cache.

    With a cache, the compiled program may be ready sooner.
    """
    import jax
    from jaxlib.version import __version__

    where = folder.kind_name(jax.__version__, __version__)
    cached = bool(jax.config.jax_compilation_cache_dir)
    whole = hashlib.sha256(f"{where} {cached} ".encode())
    for operation in _operations(program.jaxpr):
        whole.update(operation.encode())
    return whole.hexdigest()[:32]


def _operations(program: Any) -> Iterator[str]:
    for equation in program.eqns:
        shapes = " ".join(variable.aval.str_short() for variable in equation.outvars)
        yield f"{equation.primitive.name} {equation.params.get('length', '')} {shapes};"
        for value in equation.params.values():
            for held in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner := getattr(held, "jaxpr", held), "eqns"):
                    yield from _operations(inner)
