"""JAX, imported on first use: NumPy answers plain calls in less time than importing JAX takes.

    from firstlight.histfactory.lazy_jax import jax, jnp

`pytree` registers a class with JAX: immediately if JAX is imported, otherwise as soon as anyone
imports it, because `jax.grad(f)(model)` flattens the model before it calls us.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from firstlight import import_watch

__all__ = ["custom_jvp", "is_imported", "is_installed", "jax", "jnp", "pytree", "when_imported"]

T = TypeVar("T", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


class _LazyModule:
    """Imports the module on the first use of an attribute, and caches the attribute."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(importlib.import_module(self._module), name)
        except ModuleNotFoundError as error:
            if error.name != "jax":
                raise
            raise ModuleNotFoundError(
                "compiled programs and derivatives need JAX, which is not installed: "
                "pip install 'firstlight[jax]'",
                name="jax",
            ) from None
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax, jnp = _LazyModule("jax"), _LazyModule("jax.numpy")


def is_imported() -> bool:
    """Whether JAX is imported; until then, nothing can be a JAX value."""
    return _imported or _try_now()


@cache
def is_installed() -> bool:
    """Whether JAX can be imported; without it, NumPy computes all but derivatives."""
    from importlib.util import find_spec  # few calls ask

    return is_imported() or find_spec("jax") is not None


def pytree(cls: T) -> T:
    """A dataclass whose instances are PyTrees, like `jax.tree_util.register_dataclass`."""
    when_imported(lambda: jax.tree_util.register_dataclass(cls))
    return cls


class custom_jvp(Generic[P, R]):  # noqa: N801, named like the JAX function
    """`jax.custom_jvp`, made on the first call."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function

    def defjvp(self, rule: Callable[..., object]) -> Callable[..., object]:
        self._rule = rule
        return rule

    @cached_property
    def _made(self) -> Callable[P, R]:
        rule = jax.custom_jvp(self._function)
        rule.defjvp(self._rule)
        made: Callable[P, R] = rule
        return made

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._made(*args, **kwargs)


def when_imported(action: Callable[[], object]) -> None:
    """Run `action` now if JAX is imported, or right after its import."""
    if is_imported():
        action()
    else:
        _actions.append(action)


_imported = False
_actions: list[Callable[[], object]] = []


def _try_now() -> bool:
    """Notice an import that ended before this module was imported."""
    module = sys.modules.get("jax")
    # While JAX's own import runs, its last names are missing.
    if module is not None and hasattr(module, "tree_util") and hasattr(module, "grad"):
        _after_import()
    return _imported


def _after_import() -> None:
    global _imported
    _imported = True
    while _actions:
        _actions.pop(0)()


if not _try_now():
    import_watch.import_without_collecting("jax")
    import_watch.when_imported("jax", _after_import)
