"""x"""

from __future__ import annotations


def kind_here() -> str:
    """The kind of this machine, without importing JAX."""
    from importlib.metadata import PackageNotFoundError, version

    from firstlight.warmstart import folder

    return folder.compatible(version("jax"), version("jaxlib"))
