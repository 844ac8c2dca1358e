"""`firstlight hf …`: fits, tests, limits and plots of a pyhf workspace; one module per command."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from firstlight.cli.histfactory import (
    cls,
    fit,
    impacts,
    inspect_workspace,
    limit,
    scan,
    significance,
    toys,
)
from firstlight.warmstart import enable

if TYPE_CHECKING:
    from firstlight.cli.values import Commands

EPILOG = """\
examples:
  firstlight hf inspect workspace.json              what it contains, and what looks odd
  firstlight hf fit workspace.json

exit codes: 0 success; 1 a fit did not converge; 2 wrong usage, or an unusable workspace;
130 interrupted"""


def add_to(commands: Commands) -> None:
    _prepare_imports()
    parser = commands.add_parser(
        "hf",
        description="Likelihood fits of binned data from pyhf JSON workspaces.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (inspect_workspace, fit, significance, cls, limit, scan, toys, impacts):
        command.add_to(below)


def _prepare_imports() -> None:
    """Set the environment that NumPy and JAX read when a command imports them."""
    if "numpy" not in sys.modules:  # fits use all cores themselves
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "jax" not in sys.modules:
        # Preallocating most of a GPU's memory would take longer than the command itself.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        enable()  # the next command loads what this one compiles
