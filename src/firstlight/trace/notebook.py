"""The verdict under a cell: `%load_ext firstlight.trace`, then `%%firstlight` on top of a cell."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Called by %load_ext."""

    def firstlight(line: str, cell: str) -> None:
        """Run the cell, then show what it compiled and what to do about it."""
        from IPython.display import display

        from firstlight.trace.session import recording

        with recording() as recorded:
            result = shell.run_cell(cell)
        display(recorded)
        result.raise_error()  # "run all" must stop here, as without us

    shell.register_magic_function(firstlight, "cell")


def unload_ipython_extension(shell: Any) -> None:
    """Called by %unload_ext."""
    shell.magics_manager.magics["cell"].pop("firstlight", None)
