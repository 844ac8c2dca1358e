"""The Python that runs a side: which one, what is installed in it, and the instrument for it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import firstlight
from firstlight.errors import FirstlightError
from firstlight.measure.host import PACKAGES

#: Run by the other interpreter: its standard library is all there is.
_DESCRIBE = r"""
import json, platform, re, sys
from importlib.metadata import distributions
from importlib.util import find_spec
installed = {}
for found in distributions():
    name = found.metadata["Name"]
    if name:
        installed.setdefault(re.sub(r"[-_.]+", "-", name).lower(), found.version)
print(json.dumps({
    "version": platform.python_version(),
    "implementation": platform.python_implementation(),
    "compiler": platform.python_compiler(),
    "number": list(sys.version_info[:2]),
    "installed": installed,
    "modules": [name for name in sys.argv[1:] if find_spec(name) is not None],
}))
"""


class EnvironmentProblem(FirstlightError):  # noqa: N818 (EnvironmentError is Python's own)
    """An interpreter or virtual environment cannot be used."""


def interpreter_of(environment: Path) -> str:
    """The Python of a virtual environment; an interpreter itself is taken as it is."""
    for candidate in (environment, environment / "bin" / "python"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            # Not resolved: a virtual environment's python is a link to another one.
            return str(candidate.absolute())
    raise EnvironmentProblem(
        f"{environment}: no Python there. Give a virtual environment (the folder that has "
        "bin/python) or an interpreter."
    )


def describe_interpreter(
    python: str, variables: Mapping[str, str], modules: Sequence[str] = ()
) -> dict[str, Any]:
    """Version and packages as that interpreter itself sees them, and which `modules` it has."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", _DESCRIBE, *modules],
            env=dict(variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        said = done.stderr.strip()[-500:] if isinstance(error, ValueError) else error
        raise EnvironmentProblem(
            f"{python}: cannot be asked for its packages: {said}. It must be Python 3.11 or newer."
        ) from None
    if tuple(found["number"]) < (3, 11):
        raise EnvironmentProblem(
            f"{python} is Python {found['version']}; the instrument needs 3.11 or newer."
        )
    return found


def protocol_packages(installed: Mapping[str, str]) -> dict[str, str]:
    """The packages whose version is part of the protocol, named as `firstlight run` names them."""
    found = {name: installed.get(re.sub(r"[-_.]+", "-", name).lower()) for name in PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


def package_changes(base: Mapping[str, str], head: Mapping[str, str]) -> list[str]:
    """What differs between two sets of packages, one line each: `jax 0.10.2 → 0.11.2`."""
    lines = []
    for name in sorted({*base, *head}):
        before, after = base.get(name), head.get(name)
        if before != after:
            lines.append(f"{name} {before or '(absent)'} → {after or '(absent)'}")
    return lines


@contextlib.contextmanager
def bare_instrument() -> Iterator[Path]:
    """The worker in a folder that holds Firstlight and nothing else.

    Run from where it is installed, the worker would put that site-packages at the end of the path:
    a package that the other environment lacks would then be found in this one.
    """
    with tempfile.TemporaryDirectory(prefix="firstlight-instrument-") as folder:
        package = Path(folder) / "firstlight"
        package.symlink_to(Path(firstlight.__file__).parent, target_is_directory=True)
        yield package / "measure" / "worker.py"


def compile_for(python: str) -> None:
    """Bytecode of the instrument for another version of Python, before anything is timed."""
    package = Path(firstlight.__file__).parent
    folders = [package, package / "measure", package / "measure" / "adapters"]
    folders += [package / "workloads", package / "workloads" / "programs", package / "histfactory"]
    # Where the package cannot be written to, loading stays a little slower, on this side only:
    # a few milliseconds, visible as `unattributed`.
    subprocess.run(
        [python, "-P", "-m", "compileall", "-q", "-l", *map(str, folders)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
