"""Actions around the import of a module that may never be imported.

Runs at the start of every Python process under `firstlight exec`, so it imports only modules that
Python has loaded already.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def when_imported(name: str, action: "Callable[[], None]") -> None:
    """Call `action` now if the module is imported, otherwise right after its import."""
    if sys.modules.get(name) is not None:  # None: its import is blocked
        action()
    else:
        sys.meta_path.insert(0, _Watch(name, action))


def import_without_collecting(name: str) -> None:
    """Turn the garbage collector off while the module is imported.

    The objects that a large package creates at import stay alive. Scanning them for garbage
    repeatedly takes a tenth of the import of JAX.
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Uncollected(name, _nothing))


def _nothing() -> None:
    pass


class _Watch:
    """A finder that leaves finding the module to others, and wraps its execution."""

    def __init__(self, name: str, action: "Callable[[], None]") -> None:
        self._name = name
        self._action = action

    def execute(self, execute: "Callable[[Any], None]", module: "Any") -> None:
        execute(module)

    def find_spec(self, name: str, path: "Any", target: "Any" = None) -> "Any":
        if name != self._name:
            return None
        # Only the finders after this one: an earlier watch may be calling this method.
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in finders)
        spec: Any = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: "Any") -> None:
                self.execute(execute, module)
                # The loader of a zip file also loads other modules.
                if module.__name__ == self._name and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._action()

            spec.loader.exec_module = exec_module
        return spec


class _Uncollected(_Watch):
    def execute(self, execute: "Callable[[Any], None]", module: "Any") -> None:
        import gc  # builtin

        was_on = gc.isenabled()
        gc.disable()
        try:
            execute(module)
        finally:
            if was_on:
                if not gc.get_freeze_count():
                    # Move everything to the oldest generation unscanned, or the next collection of
                    # the youngest generation would scan all that was imported.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
