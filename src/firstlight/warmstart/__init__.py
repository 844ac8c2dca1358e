"""A warm start for any JAX program: a persistent compilation cache that processes share.

`enable()` turns it on for this process; `firstlight exec python program.py` does so for an
unmodified program and the processes that it starts.
"""

# All these processes import this module at their start, so it imports nothing at the top level.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any

    from firstlight.warmstart.frozen.freezing import Example, freeze
    from firstlight.warmstart.frozen.loading import load
    from firstlight.warmstart.tiers.tiered import tiered

__all__ = ["Example", "enable", "freeze", "load", "tiered"]

_HOME = {
    "frozen.freezing": ("Example", "freeze"),
    "frozen.loading": ("load",),
    "tiers.tiered": ("tiered",),
}


def __getattr__(name: str) -> "Any":
    from firstlight.lazy_names import lazy_names

    return lazy_names(__name__, _HOME)[0](name)


def __dir__() -> "list[str]":
    return __all__


def enable(cache: "str | os.PathLike[str] | None" = None) -> None:
    """Load what JAX has compiled before, and store what it compiles from now on.

    Call it before the first `jit`; it does not import JAX. If the cache cannot be used, there is
    one warning, and the program compiles as usual. `FIRSTLIGHT_CACHE=off` turns the cache off.

    Args:
        cache: A folder, or the URL of a cache shared by machines. By default
            `FIRSTLIGHT_CACHE_DIR`, else the folder set in JAX, else `firstlight` in the user's
            cache folder.
    """
    from firstlight.import_watch import import_without_collecting, when_imported
    from firstlight.warmstart.jax_cache import attach

    import_without_collecting("jax")
    when_imported("jax._src.compilation_cache", lambda: attach(cache))
