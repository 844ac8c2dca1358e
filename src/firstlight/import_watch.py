"""Something to do around the import of a module, which may never come.

Part of the start of every Python under `firstlight exec`, so it imports nothing that Python has
not loaded already.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def when_imported(name: str, action: "Callable[[], None]") -> None:
    """Call `action` now if the module is there, otherwise as soon as its import has ended."""
    if sys.modules.get(name) is not None:  # None: its import is forbidden
        action()
    else:
        sys.meta_path.insert(0, _Watch(name, action))


def import_without_collecting(name: str) -> None:
    """Turn the garbage collector off while the module is imported.

    What a large package makes at its import stays, and to look through it again and again for
    garbage takes a tenth of the import of JAX.
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Uncollected(name, _nothing))


def _nothing() -> None:
    pass


class _Watch:
    """A finder that lets the others find the module, and sees it executed."""

    def __init__(self, name: str, action: "Callable[[], None]") -> None:
        self._name = name
        self._action = action

    def execute(self, execute: "Callable[[Any], None]", module: "Any") -> None:
        execute(module)

    def find_spec(self, name: str, path: "Any", target: "Any" = None) -> "Any":
        if name != self._name:
            return None
        # Those that follow: another watch before this one is asking it right now.
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in finders)
        spec: Any = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: "Any") -> None:
                self.execute(execute, module)
                # A loader of a zip file is that of other modules too.
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
                    # To the oldest generation without a look at it, or the next collection of the
                    # youngest one would go through all that was imported.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
