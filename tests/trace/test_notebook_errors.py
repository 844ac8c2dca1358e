"""A cell under the magic fails as it would alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CODE = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell('%load_ext firstlight.trace').raise_error()
result = shell.run_cell('%%firstlight\\nx = 5\\n1/0')
print('success', result.success, type(result.error_in_exec).__name__, shell.user_ns['x'])
print('success', shell.run_cell('%%firstlight\\nx = = 5').success)
print('success', shell.run_cell('%%firstlight\\nx = 6').success)
"""


def test_an_error_in_a_cell_is_raised_after_the_verdict_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("success")]
    assert told == ["success False ZeroDivisionError 5", "success False", "success True"]
    assert done.stdout.count("JAX was not imported") == 3
