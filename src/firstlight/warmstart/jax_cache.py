"""JAX's persistent compilation cache, set to store everything, in a store of ours.

JAX has no public place for another store: it makes its own by `get_file_cache`, which is replaced.
"""

from __future__ import annotations

import os
from typing import Any

from firstlight.telemetry.events import STAGES
from firstlight.warmstart import folder
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.store import Store, warn

#: Whatever it took to compile; and no path in any key, which XLA's own caches would put there.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "none",
}


def attach(cache: str | os.PathLike[str] | None = None) -> None:
    """Use the cache from now on; JAX is imported, at least as far as its compilation cache.

    A JAX that keeps its programs in another way is left as it is, with a warning.
    """
    if folder.is_off():
        return
    try:
        _attach(cache)
    except Exception as error:
        warn(f"this JAX cannot use it ({error!r}): it compiles as without.")


def _attach(cache: str | os.PathLike[str] | None) -> None:
    from jax._src import compilation_cache
    from jax._src.config import config

    given = cache or os.environ.get("FIRSTLIGHT_CACHE_DIR") or config.jax_compilation_cache_dir
    path = os.fspath(given or folder.of_user())
    if not isinstance(compilation_cache.get_file_cache, _StoreMaker):
        compilation_cache.get_file_cache = _StoreMaker(compilation_cache.get_file_cache)
    for name, value in _SETTINGS.items():
        config.update(name, value)
    config.update("jax_compilation_cache_dir", path if "://" in path else os.path.abspath(path))
    compilation_cache.reset_cache()


class _StoreMaker:
    """JAX's `get_file_cache`: called with a folder before the first compile that may use it.

    The folder is the program's, where the program names one later than we do.
    """

    def __init__(self, get_file_cache: Any) -> None:
        from jax._src import monitoring

        self._get_file_cache = get_file_cache
        self._leases = Leases()
        # The end of every compile, also of one that fails or may not be stored.
        monitoring.register_event_duration_secs_listener(self._heard)

    def __call__(self, path: str) -> tuple[Any, str] | None:
        if "://" in path:
            found: tuple[Any, str] | None = self._get_file_cache(path)
            return found
        from jax._src.lib import version_str
        from jax.version import __version__

        try:
            root, max_bytes = folder.opened(path), folder.max_bytes()
        except folder.CacheFolderError as error:
            warn(str(error))
            # Said once: the processes that this one starts could not use it either.
            os.environ.pop("FIRSTLIGHT_WARMSTART", None)
            return None
        entries = Entries(root, folder.compatible(__version__, version_str), max_bytes)
        return Store(entries, self._leases, _shares_work), path

    def _heard(self, event: str, seconds: float, **about: Any) -> None:
        if STAGES.get(event) == "compile":
            self._leases.release()


def _shares_work() -> bool:
    """Whether processes may wait for each other.

    Those of jax.distributed compile together, talking to each other, and only the first one stores
    anything: one that waited would stop them all.
    """
    from jax._src import distributed

    return (distributed.global_state.num_processes or 1) == 1
