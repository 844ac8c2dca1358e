"""The persistent cache of the traced process: its settings, and its entries at the start."""

from __future__ import annotations

import os
import sys
from functools import cache
from itertools import islice
from typing import Any

from firstlight.trace.record.calls import Facts
from firstlight.trace.record.program_errors import pass_on

_MAX_ENTRIES = 20_000  # names that are read of one folder


class CacheFolder:
    """Reads the settings at every compile, and the entries once, before the process adds any."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._entries: dict[str, int] = {}

    def look(self) -> bool:
        """Whether there is a cache. Called before a compile; reads the entries of a new folder."""
        folder = _setting("jax_compilation_cache_dir")
        if not folder or not _setting("jax_enable_compilation_cache"):
            return False
        if folder != self._folder:
            self._folder, self._entries = folder, _entries(str(folder))
        return True

    def about(self, module: str) -> Facts:
        """The fields for one compile. module: JAX's name of it, `jit(f)`."""
        if not self.look():
            return {"cache_folder": False}
        name = module.replace("(", "_").removesuffix(")")
        in_key = _setting("jax_persistent_cache_enable_xla_caches")
        return {
            "cache_folder": True,
            "cache_least_seconds": _setting("jax_persistent_cache_min_compile_time_secs"),
            # XLA's own caches, which put the path of the folder into every key.
            "cache_in_key": in_key if _path_is_in_key() else "none",
            "cache_keeps_callbacks": _keeps_callbacks(),
            "cache_entries_of_name": self._entries.get(name, 0),
            "process_index": _process_index(),
        }


def _setting(name: str) -> Any:
    return getattr(sys.modules["jax"].config, name, None)


def _entries(folder: str) -> dict[str, int]:
    """Number of entries by program; {} if it is not a folder of this machine."""
    names: dict[str, int] = {}
    try:
        with os.scandir(folder) as files:
            for file in islice(files, _MAX_ENTRIES):
                # jit_f-<key>-cache
                program, _, rest = file.name.rpartition("-")
                if rest == "cache":
                    program = program.rpartition("-")[0]
                    names[program] = names.get(program, 0) + 1
    except OSError:
        return {}
    return names


@cache
def _path_is_in_key() -> bool:
    """Whether this JAX's keys include the paths that it passes to XLA: since 0.11 they do not."""
    try:
        from jax._src.cache_key import xla_flags_to_exclude_from_cache_key as left_out

        return "--xla_gpu_per_fusion_autotune_cache_dir" not in left_out
    except Exception as error:
        pass_on(error)
        return True


@cache
def _keeps_callbacks() -> bool:
    """Whether this JAX stores programs that call back into Python: since 0.11 it does."""
    try:
        from jax._src.compilation_cache import get_executable_and_time

        return "host_callbacks" in get_executable_and_time.__code__.co_varnames
    except Exception as error:
        pass_on(error)
        return False


def _process_index() -> int | None:
    """The index in jax.distributed: only process 0 writes to the cache."""
    try:
        from jax._src import distributed

        return int(distributed.global_state.process_id)
    except Exception as error:
        pass_on(error)
        return None
