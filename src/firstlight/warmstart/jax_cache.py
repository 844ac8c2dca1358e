"""Makes JAX's persistent compilation cache use our store, and store every program.

JAX has no public way to set a store: it calls `get_file_cache`, which is replaced here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from firstlight.telemetry.events import STAGES
from firstlight.warmstart import folder
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.key_requests import KeyRequest, KeyRequests
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.store import Store
from firstlight.warmstart.warning import warn

if TYPE_CHECKING:
    from firstlight.warmstart.sharing.shared import Shared

#: Store programs of any compile time and size. XLA's own caches would put paths into the keys.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "none",
}


def attach(cache: str | os.PathLike[str] | None = None) -> None:
    """Use the cache from now on; JAX's compilation cache must have been imported.

    If this JAX's cache has another form, warn and leave it unchanged.
    """
    if folder.is_off():
        return
    try:
        _attach(cache)
    except Exception as error:
        warn(f"this version of JAX cannot use it ({error!r}): programs are compiled as without it.")


def _attach(cache: str | os.PathLike[str] | None) -> None:
    from jax._src import compilation_cache
    from jax._src.config import config

    asked = cache or os.environ.get("FIRSTLIGHT_CACHE_DIR")
    path = os.fspath(asked or config.jax_compilation_cache_dir or folder.of_user())
    if not isinstance(compilation_cache.get_file_cache, _StoreMaker):
        compilation_cache.get_file_cache = _StoreMaker(compilation_cache.get_file_cache)
    if asked and "://" in path:
        compilation_cache.get_file_cache.urls.add(path)
    for name, value in _SETTINGS.items():
        config.update(name, value)
    config.update("jax_compilation_cache_dir", path if "://" in path else os.path.abspath(path))
    compilation_cache.reset_cache()


def current_store() -> Store | None:
    """The store that JAX uses, if it is ours."""
    from jax._src import compilation_cache
    from jax._src.config import config

    maker = compilation_cache.get_file_cache
    if not isinstance(maker, _StoreMaker) or not config.jax_enable_compilation_cache:
        return None
    compilation_cache._initialize_cache()  # once, as JAX does before the first compile
    return maker.store


class _StoreMaker:
    """JAX's `get_file_cache`: called with a folder before the first compile that may use it.

    If the program sets a folder after us, it is that one. urls: those given to Firstlight; JAX's
    own cache handles any other.
    """

    def __init__(self, get_file_cache: Any) -> None:
        from jax._src import monitoring

        self.urls: set[str] = set()
        self._get_file_cache = get_file_cache
        self._leases = Leases()
        self._requests = KeyRequests(_recorder())
        self.store: Store | None = None
        # Reported at the end of every compile, including those that fail or may not be stored.
        monitoring.register_event_duration_secs_listener(self._on_event)

    def __call__(self, path: str) -> tuple[Any, str] | None:
        if "://" in path and path not in self.urls:
            found: tuple[Any, str] | None = self._get_file_cache(path)
            return found
        try:
            self.store = self._make_store(path)
        except folder.CacheFolderError as error:
            warn(str(error))
            # Warn once: the processes that this one starts could not use it either.
            os.environ.pop("FIRSTLIGHT_WARMSTART", None)
            return None
        return self.store, path

    def _make_store(self, path: str) -> Store:
        from jax._src.lib import version_str
        from jax.version import __version__

        max_bytes, url = folder.max_bytes(), path if "://" in path else ""
        why_shared = ""
        try:
            root = folder.opened(folder.in_front() if url else path)
        except folder.ForeignFolderError as error:
            # Its entries may be signed: use it as a shared cache, behind the user's own folder.
            if url or os.path.abspath(path) == os.path.abspath(folder.in_front()):
                raise
            url, why_shared = path, str(error)
            root = folder.opened(folder.in_front())
        entries = Entries(root, folder.kind_name(__version__, version_str), max_bytes)
        return Store(
            entries,
            self._leases,
            _shares_work,
            self._requests.about,
            partial(_open_shared, url, why_shared) if url else lambda: None,
        )

    def _on_event(self, event: str, seconds: float, **about: Any) -> None:
        if STAGES.get(event) == "compile":
            self._requests.forget()
            if self.store is not None:
                self.store.release()


def _recorder() -> Callable[[KeyRequest], None]:
    """The recorder of every program under `firstlight warm record`, else one that does nothing."""
    path = os.environ.get("FIRSTLIGHT_WARM_RECORD")
    if not path:
        return lambda request: None
    from firstlight.warmstart.recording import Recorder

    return Recorder(path)


def _open_shared(url: str, why_shared: str) -> Shared | None:
    # Imports the library that checks signatures, so only after a miss in the folder.
    try:
        from firstlight.warmstart.sharing.shared import open_shared

        return open_shared(url, why_shared)
    except Exception as error:
        warn(f"{url} is not used: {error!r}.")
        return None


def _shares_work() -> bool:
    """Whether processes may wait for each other.

    The processes of jax.distributed communicate while they compile, and only the first one stores
    anything: if one waited, all would stop.
    """
    from jax._src import distributed

    return (distributed.global_state.num_processes or 1) == 1
