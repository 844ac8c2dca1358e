"""Python interpreters of other environments: finding them, and asking for version and packages."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from firstlight.errors import FirstlightError

#: Run by the other interpreter, so it may import only the standard library.
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


class Interpreter(TypedDict):
    """The output of `_DESCRIBE`."""

    version: str
    implementation: str
    compiler: str
    number: list[int]
    installed: dict[str, str]
    modules: list[str]


class SetupError(FirstlightError):
    """A side cannot be prepared, or its interpreter cannot be used."""


def interpreter_of(environment: Path) -> str:
    """The Python of a virtual environment; the path of an interpreter is also accepted."""
    for candidate in (environment, environment / "bin" / "python"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            # Not resolved: the python of a virtual environment is a link to the one it is based on.
            return str(candidate.absolute())
    raise SetupError(
        f"{environment}: no Python there. Give a virtual environment (the folder that has "
        "bin/python) or an interpreter."
    )


def describe_interpreter(
    python: str, variables: Mapping[str, str], modules: Sequence[str]
) -> Interpreter:
    """Version and packages of an interpreter, and which of `modules` it can import."""
    command = [python, "-P", "-c", _DESCRIBE, *modules]
    said: object = ""
    try:
        done = subprocess.run(
            command, env=dict(variables), capture_output=True, text=True, timeout=60, check=False
        )
        said = done.stderr.strip()[-500:]
        found: Interpreter = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise SetupError(
            f"{python}: cannot be asked for its packages: {said or error}. It must be Python 3.11 "
            "or newer."
        ) from None
    if tuple(found["number"]) < (3, 11):
        raise SetupError(
            f"{python} is Python {found['version']}; the instrument needs 3.11 or newer."
        )
    return found
