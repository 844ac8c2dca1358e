"""Times every module that is imported, invisibly to the program.

Importing a loaded module again does not come through here, so it costs nothing.
"""

from __future__ import annotations

# Not importlib: the program may not have loaded it, and may have a module of that name itself.
import _frozen_importlib as bootstrap
import sys
from _thread import get_ident
from time import monotonic_ns

from firstlight.trace.record.program_errors import leave_out_caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_EXPENSIVE_NS = 20_000_000  # from here on the line of the import is recorded
# Python removes the frames of its import machinery from tracebacks, by their file name. Ours must
# go too, or an ImportError would look different in a traced program.
_HIDDEN_FILE = "<frozen importlib._bootstrap>"


class ImportClock:
    """Calls `done` after every outermost import, with all modules that it loaded in one flat list
    (name, begin, time, own time, name, …): a thousand tuples would make Python collect garbage
    earlier. Calls `appeared` for modules in `watched` as soon as they are loaded: the rest of the
    import may use them."""

    def __init__(
        self,
        done: Callable[[list[object], object], None],
        appeared: Callable[[str], None],
        watched: tuple[str, ...],
    ) -> None:
        self._done: Callable[[list[object], object], None] | None = done
        self._appeared, self._watched = appeared, watched
        self._sites: dict[str, list[Any] | None] = {}
        # By thread: modules now being loaded (name, begin, time of the modules inside).
        self._open: dict[int, list[list[Any]]] = {}
        self._loaded: dict[int, list[object]] = {}
        self._original: object = None
        self._ours: object = None

    def install(self) -> bool:
        """Start; False if this Python loads modules in another way."""
        original = getattr(bootstrap, "_find_and_load", None)
        if original is None:
            return False
        begin, end = self._begin, self._end

        def _find_and_load(name: str, import_: object) -> object:
            opened = begin(name)
            try:
                return original(name, import_)
            except BaseException as error:
                # Python hides its own frames and this one, but not from import_module.
                leave_out_caller(error)
                raise
            finally:
                end(opened)

        _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename=_HIDDEN_FILE)
        self._original, self._ours = original, _find_and_load
        bootstrap._find_and_load = _find_and_load  # type: ignore[attr-defined]
        return True

    def remove(self) -> None:
        """Stop. If somebody wrapped this clock, it stays in place and reports nothing."""
        self._done, self._watched = None, ()
        if self._ours is not None and getattr(bootstrap, "_find_and_load", None) is self._ours:
            bootstrap._find_and_load = self._original  # type: ignore[attr-defined]

    def forked(self) -> None:
        """Drop what other threads were loading: after a fork only this one exists."""
        for of_threads in (self._open, self._loaded):
            for thread in of_threads.keys() - {get_ident()}:
                del of_threads[thread]

    def _begin(self, name: str) -> list[object]:
        opened = [name, monotonic_ns(), 0]
        self._open.setdefault(get_ident(), []).append(opened)
        return opened

    def _end(self, opened: list[Any]) -> None:
        end = monotonic_ns()
        thread = get_ident()
        stack = self._open.get(thread, [])
        while stack and stack.pop() is not opened:
            pass
        name, begin, inside = opened
        loaded = self._loaded.setdefault(thread, [])
        if name in sys.modules:  # it was found
            loaded += (name, begin, end - begin, end - begin - inside)
            if end - begin >= _EXPENSIVE_NS:
                self._sites[name] = _statement()
        if stack:
            stack[-1][2] += end - begin
        else:
            self._open.pop(thread, None)  # a signal handler may have imported something
            self._loaded.pop(thread, None)
            if loaded and self._done is not None:
                # Only sites of this import: another thread may be importing too.
                sites = {one: self._sites.pop(one) for one in loaded[::4] if one in self._sites}
                self._done(loaded, sites)
        if name in self._watched:  # last: what it imports comes through here as well
            self._appeared(name)


def _statement() -> list[object] | None:
    """[file, line, function] of the import that now ends; None if `python -m` or pytest did it."""
    importlib = getattr(sys.modules.get("importlib"), "__file__", None) or "<frozen importlib"
    # The frames between an import and its caller; importlib.import_module is one of them.
    machinery = ("<frozen importlib", importlib.removesuffix("__init__.py"))
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(machinery):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename == "<frozen runpy>":
        return None
    if frame.f_globals.get("__package__") in ("_pytest", "_pytest.assertion", "pluggy"):
        return None
    return [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname]
