"""Fits as frozen executables, with which a fresh process fits without JAX and without compiling.

The driver freezes a model's programs once per kind of model, machine and source, and keeps the
files. Workers receive the bytes and install them; they need no cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firstlight.cluster.errors import ClusterError
from firstlight.histfactory.engine import FIT_PROGRAMS, Eager
from firstlight.histfactory.fitting import problem_of
from firstlight.histfactory.internal_order import to_internal
from firstlight.histfactory.likelihood import Prepared
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Problem
from firstlight.histfactory.programs import PackedProgram, Packing, in_one_vector, leaves_of


def frozen_programs(model: Model) -> bytes:
    """The file with all executables for fits of such models; it is made if needed."""
    import jax

    if jax.default_backend() != "cpu":
        raise ClusterError(
            f"fits are spread over CPUs, but this process uses {jax.default_backend()!r}: the "
            "digits would differ. Set JAX_PLATFORMS=cpu, or leave out --on."
        )
    engine = Eager(model)
    with _folder() as folder:
        path = folder / _identity(engine.prepared)
        if not path.is_file():
            _freeze(path, engine)
        return path.read_bytes()


def install(model: Model, executables: bytes) -> None:
    """Run the fits of such models by these executables in this process."""
    from firstlight.warmstart import load

    with tempfile.TemporaryDirectory(prefix="firstlight-") as folder:
        # No signature is asked for: a driver can run any code on its nodes anyway.
        path = Path(folder) / "fits"
        path.write_bytes(executables)
        path.chmod(0o600)
        function = load(path, with_jax=False)
    prepared = Eager(model).prepared
    for name, program in FIT_PROGRAMS.items():
        program.install(prepared.kind, partial(_run, function, name))


def _run(function: Any, name: str, prepared: Prepared, problem: Problem) -> Any:
    """Run a frozen program, called as `Program` calls it."""
    packed = function(*_leaves(prepared, problem), program=name)
    return Packing(_example(problem, name)).unpacked(np.asarray(packed))


def _example(problem: Problem, name: str) -> Any:
    """A result in the form in which a program returns it."""
    point, number, count = problem.start, np.float64(0), np.int32(0)
    found = Minimum(point, number, point, number, count, count, count)
    return (found, np.bool_(True)) if name == "first" else found


def _leaves(prepared: Prepared, problem: Problem) -> list[Any]:
    arrays = [getattr(prepared, name) for name in _array_names()]
    return [*arrays, in_one_vector(leaves_of(problem))]


def _array_names() -> list[str]:
    return [field.name for field in fields(Prepared) if field.name != "codes"]


def _freeze(path: Path, engine: Eager) -> None:
    from firstlight.histfactory.precision import float64_scope
    from firstlight.histfactory.programs import compiler_options
    from firstlight.warmstart import Example, freeze

    codes = engine.prepared.codes
    names = _array_names()
    start = to_internal(engine.model, engine.model.init)
    problem = problem_of(engine, engine.asimov(start))._replace(near=np.float64(0))

    def search(*leaves: Any, program: str) -> Any:
        # The same program as in this process, or the digits would differ.
        model = Prepared(**dict(zip(names, leaves, strict=False)), codes=codes)
        packed = PackedProgram(FIT_PROGRAMS[program].function, (problem,))
        return packed.in_program(model, leaves[-1])

    leaves = [np.asarray(leaf, np.float64) for leaf in _leaves(engine.prepared, problem)]
    calls = [Example(*leaves, program=name) for name in FIT_PROGRAMS]
    with float64_scope():
        freeze(search, *calls, path=path, static=["program"], compiler_options=compiler_options())


def _identity(prepared: Prepared) -> str:
    """What an executable depends on: shapes, the machine, and the source it was made from."""
    from firstlight import histfactory
    from firstlight.warmstart.frozen.places import this_place

    text = json.dumps([repr(prepared.kind), this_place().to_json()], sort_keys=True)
    known = hashlib.sha256(text.encode())
    for source in sorted(Path(histfactory.__file__).parent.glob("*.py")):
        known.update(source.read_bytes())
    return known.hexdigest()[:32]


@contextmanager
def _folder() -> Iterator[Path]:
    """Where frozen fits are kept: beside the cache of compiled programs, or nowhere."""
    from firstlight.warmstart import folder

    if folder.is_off():
        with tempfile.TemporaryDirectory(prefix="firstlight-") as name:
            yield Path(name)
        return
    named = os.environ.get("FIRSTLIGHT_CACHE_DIR", "")
    base = folder.in_front() if not named or "://" in named else named
    path = Path(folder.opened(base)).parent / "frozen-fits"
    path.mkdir(mode=0o700, exist_ok=True)
    yield path
