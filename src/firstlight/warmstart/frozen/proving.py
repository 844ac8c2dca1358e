"""Proves that a frozen function returns in a fresh process what the function returns in this one.

`main` runs in the fresh process: it loads the file, makes the calls and writes the results.
"""

from __future__ import annotations

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
from firstlight.warmstart.frozen.sealing import opened, sealed_function

_TIMEOUT_SECONDS = 600.0
#: Tolerance between two runs of one executable, in units in the last place of the largest result:
#: threads may change the order of XLA's sums.
_MAX_ULP = 64
#: The files that the fresh process writes, by whether JAX was imported.
_RESULTS = {False: "results-without-jax", True: "results-with-jax"}


@dataclass(frozen=True)
class Call:
    """Arguments, and the function's results for them."""

    args: Any
    kwargs: dict[str, Any]
    results: Any


def prove(frozen: Artifact, calls: Sequence[Call]) -> Artifact:
    """The artifact, with `without_jax` as it was found in a fresh process.

    Raises:
        CannotFreezeError: It does not run there, or its results differ.
    """
    with tempfile.TemporaryDirectory(prefix="firstlight-freeze-") as name:
        folder = Path(name)
        _write(folder, frozen)
        given = [_on_host((call.args, call.kwargs)) for call in calls]
        (folder / "calls").write_bytes(pickle.dumps(given))
        ended = _run(folder, frozen)
        if frozen.without_jax and not (folder / _RESULTS[False]).is_file():
            # This jaxlib has other private names, or a class in the results imports JAX.
            frozen = replace(frozen, without_jax=False)
            _write(folder, frozen)
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
    """The tree with NumPy arrays: unpickling JAX's would import JAX."""
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
    # The program may have set the precision in JAX and not in the environment.
    environment = {**os.environ, "JAX_ENABLE_X64": str(frozen.place.x64).lower()}
    for name in ("FIRSTLIGHT_TRACE", "FIRSTLIGHT_WARMSTART"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
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
            f"{function}: result {number} differs in a fresh process: {why}. With buckets, the "
            "function must treat every row on its own."
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


def main(name: str) -> None:
    """Run the calls without JAX, if possible, and then with JAX, once that is imported."""
    folder = Path(name)
    if content.from_bytes(opened(folder / "frozen")).without_jax:
        results = _run_calls(folder, with_jax=False)
        if "jax" in sys.modules:
            raise SystemExit("JAX was imported")
        (folder / _RESULTS[False]).write_bytes(pickle.dumps(results))
    import jax  # noqa: F401 (arguments may contain classes that it registers)

    results = [_on_host(result) for result in _run_calls(folder, with_jax=True)]
    (folder / _RESULTS[True]).write_bytes(pickle.dumps(results))


def _run_calls(folder: Path, with_jax: bool) -> list[object]:
    from firstlight.warmstart.frozen.loading import load

    function = load(folder / "frozen", with_jax=with_jax)
    calls = pickle.loads((folder / "calls").read_bytes())
    return [function(*args, **kwargs) for args, kwargs in calls]
