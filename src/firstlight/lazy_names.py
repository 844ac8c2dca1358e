"""Names of a package that import their module on first use.

This is a tool about latency: `from firstlight import histfactory` must cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def lazy_names(
    package: str, home: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of `package`, which lists its `__all__` and nothing else.

    home: {module of the package: public names in it}.
    """
    module_of = {name: module for module, names in home.items() for name in names}

    def load(name: str) -> object:
        import sys
        from importlib import import_module

        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        # Cache it, also in place of a submodule of the same name, which its import has set here.
        setattr(sys.modules[package], name, value)
        return value

    def public() -> list[str]:
        import sys

        return list(sys.modules[package].__all__)

    return load, public
