"""A tool about latency starts lightly."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"jax", "jaxlib", "numpy", "torch", "scipy", "rich", "psutil", "jsonschema"}


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_nothing_heavy() -> None:
    code = "from firstlight.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not HEAVY & modules_after(code)


def test_the_decorator_imports_nothing() -> None:
    assert modules_after("from firstlight import bench") - modules_after("") == {"firstlight"}
