"""Claims about names: tab completion finds the public ones, and all of them can be loaded."""

from __future__ import annotations

import json
import pydoc
import subprocess
import sys
from importlib import import_module

import pytest

import firstlight

PACKAGES = (
    "cluster",
    "histfactory",
    "interpret",
    "losses",
    "serve",
    "telemetry",
    "torch",
    "trace",
    "warmstart",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_of_a_package_lists_its_public_names_and_each_can_be_loaded(package: str) -> None:
    module = import_module(f"firstlight.{package}")
    names = dir(module)
    assert names == sorted(module.__all__)
    assert not [name for name in names if getattr(module, name) is None]


def test_dir_of_firstlight_lists_its_public_names_and_packages() -> None:
    assert dir(firstlight) == sorted([*firstlight.__all__, *PACKAGES])
    for package in PACKAGES:
        assert getattr(firstlight, package) is import_module(f"firstlight.{package}")


def test_listing_names_imports_nothing() -> None:
    script = """
import json, sys, firstlight, firstlight.torch, firstlight.losses, firstlight.serve
from firstlight import histfactory
found = [dir(m) for m in (firstlight, histfactory, firstlight.torch, firstlight.serve)]
heavy = {"numpy", "jax", "torch", "firstlight.runs"} & {*sys.modules}
print(json.dumps([sum(found, []), sorted(heavy)]))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    names, heavy = json.loads(done.stdout)
    assert {"load", "fit", "run", "SignificanceLoss", "Input"} <= {*names}
    assert heavy == []


def test_help_begins_with_what_firstlight_is() -> None:
    lines = pydoc.plain(pydoc.render_doc(firstlight)).splitlines()
    assert lines[3] == (
        "    firstlight - Firstlight measures, explains and removes the time to first result of "
        "compiled Python."
    )
    assert lines[6].strip() == "import firstlight"
