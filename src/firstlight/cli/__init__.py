"""The command line: one file per subcommand; everything heavy is imported in its handler.

Exit codes: 0 success, 1 a case failed, is unproven or got worse, 2 wrong usage or a machine
problem, 3 undecided (gate, replicate), 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from firstlight import __version__

#: Commands, their modules, and their lines in `firstlight --help`: only the module of the requested
#: command is imported.
COMMANDS = {
    "run": ("run", "measure a suite, a workload, or the benchmarks in your own file"),
    "trace": ("trace", "show where a JAX program's time to first result went, and what to do"),
    "exec": ("exec_program", "run a program with a compilation cache that its processes share"),
    "cache": ("cache", "look into a compilation cache, explain its misses, serve one"),
