"""Whether a frozen function answers in a fresh process as the function does in this one.

Run as a program, in that process: load the file, make the calls, write the results.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstlight.warmstart.frozen import artifact as content
from firstlight.warmstart.frozen.artifact import Artifact
from firstlight.warmstart.frozen.errors import CannotFreezeError
from firstlight.warmstart.frozen.sealing import sealed_function

_TIMEOUT_SECONDS = 600.0
#: Units in the last place of the largest result, between two runs of one executable: XLA's sums
#: may be taken in another order when threads share them.
_MAX_ULP = 64
#: Written by the fresh process, by whether JAX was imported.
_RESULTS = {False: "results-without-jax", True: "results-with-jax"}


@dataclass(frozen=True)
class Call:
    """Arguments, and what the function returns for them."""

    args: Any
    kwargs: dict[str, Any]
    results: Any


def prove(frozen: Artifact, calls: Sequence[Call]) -> Artifact:
    """The artifact as a fresh process has run it: without JAX, if it could be, and with it."""
    with tempfile.TemporaryDirectory(prefix="firstlight-freeze-") as name:
        folder = Path(name)
        _write(folder, frozen)
        given = [_on_host((call.args, call.kwargs)) for call in calls]
        (folder / "calls").write_bytes(pickle.dumps(given))
        ended = _run(folder, frozen)
        if frozen.without_jax and not (folder / _RESULTS[False]).is_file():
            # The private names of this jaxlib are others, or a class of its results imports JAX.
            frozen = replace(frozen, without_jax=False)
            (folder / "frozen").write_bytes(
                sealed_function(content.to_bytes(frozen), is_signed=False)
            )
            ended = _run(folder, frozen)
        if ended.returncode != 0:
            last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
            raise CannotFreezeError(
                f"{frozen.function}: its executable does not run in a fresh process: {last}"
            )
        for with_jax in {True, not frozen.without_jax}:
            found = pickle.loads((folder / _RESULTS[with_jax]).read_bytes())
            for call, results in zip(calls, found, strict=True):
                _require_equal(frozen.function, call.results, results)
    return frozen


def _write(folder: Path, frozen: Artifact) -> None:
    path = folder / "frozen"
    path.write_bytes(sealed_function(content.to_bytes(frozen), is_signed=False))
    path.chmod(0o600)


def _on_host(tree: object) -> object:
    """The same with NumPy arrays: those of JAX would import it where they are unpickled."""
    import jax
    import numpy as np

    def host(leaf: Any) -> Any:
        return np.asarray(leaf) if hasattr(leaf, "dtype") else leaf

    return jax.tree_util.tree_map(host, tree)


def _run(folder: Path, frozen: Artifact) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from firstlight.warmstart.frozen.proving import main\n"
        "main(sys.argv[1])"
    )
    # The program may have set in JAX what the environment does not say.
    environment = {**os.environ, "JAX_ENABLE_X64": str(frozen.place.x64).lower()}
    for name in ("FIRSTLIGHT_TRACE", "FIRSTLIGHT_WARMSTART"):
        environment.pop(name, None)
    about = json.dumps({"folder": str(folder), "without_jax": frozen.without_jax})
    return subprocess.run(
        [sys.executable, "-c", code, about],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )


def _require_equal(function: str, expected: object, found: object) -> None:
    import jax
    import numpy as np

    pairs = zip(jax.tree_util.tree_leaves(expected), jax.tree_util.tree_leaves(found), strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        a, b = np.asarray(ours), np.asarray(theirs)
        if a.shape != b.shape or a.dtype != b.dtype:
            why = f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
        elif not _is_close(a, b):
            why = "its values differ"
        else:
            continue
        raise CannotFreezeError(
            f"{function}: result {number} is another one in a fresh process: {why}. With "
            "buckets, the function must treat every row on its own."
        )


def _is_close(a: Any, b: Any) -> bool:
    import numpy as np

    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    exact = np.complex128 if a.dtype.kind == "c" else np.float64
    step = 2.0**-7 if a.dtype.kind == "V" or a.dtype.itemsize < 2 else float(np.finfo(a.dtype).eps)
    a, b = a.astype(exact), b.astype(exact)
    size = np.max(np.abs(a), initial=0.0, where=np.isfinite(a))
    return bool(np.allclose(a, b, rtol=0, atol=_MAX_ULP * step * size, equal_nan=True))


def main(about: str) -> None:
    """In the fresh process: first without JAX, which cannot be undone once it is imported."""
    given = json.loads(about)
    folder = Path(given["folder"])
    if given["without_jax"]:
        results = _answers(folder, with_jax=False)
        if "jax" in sys.modules:
            raise SystemExit("JAX was imported")
        (folder / _RESULTS[False]).write_bytes(pickle.dumps(results))
    import jax  # noqa: F401 (arguments may hold classes that it knows)

    results = [_on_host(result) for result in _answers(folder, with_jax=True)]
    (folder / _RESULTS[True]).write_bytes(pickle.dumps(results))


def _answers(folder: Path, with_jax: bool) -> list[object]:
    from firstlight.warmstart.frozen.loading import load

    function = load(folder / "frozen", with_jax=with_jax)
    calls = pickle.loads((folder / "calls").read_bytes())
    return [function(*args, **kwargs) for args, kwargs in calls]
