"""Times every module that is imported, without being seen by the program.

A module that is loaded already never gets here, so a statement that imports it again costs nothing.
"""

from __future__ import annotations

# Not importlib: a program that has not loaded it should find it so, and may have one of its own.
import _frozen_importlib as bootstrap
import sys
from _thread import get_ident
from time import monotonic_ns

from firstlight.trace.record.program_errors import leave_out_caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Of these the line that imported them is recorded.
_EXPENSIVE_NS = 20_000_000
# Python takes the frames of its own import machinery out of tracebacks, by the name of their file:
# ours must be taken out as well, or an ImportError would look different when traced.
_HIDDEN_FILE = "<frozen importlib._bootstrap>"


class ImportClock:
    """Calls `done` after every outermost import, with all modules that it loaded in one list (name,
    begin, time, own time, name, …): a thousand tuples would make Python collect garbage earlier.
    Calls `appeared` for modules in `watched` at once: what comes after them may use them."""

    def __init__(
        self,
        done: Callable[[list[object], object], None],
        appeared: Callable[[str], None],
        watched: tuple[str, ...],
    ) -> None:
        self._done: Callable[[list[object], object], None] | None = done
        self._appeared, self._watched = appeared, watched
        self._sites: dict[str, list[Any] | None] = {}
        # Of each thread: modules now being loaded (name, begin, time of those inside).
        self._open: dict[int, list[list[Any]]] = {}
        self._loaded: dict[int, list[object]] = {}
        self._original: object = None
        self._ours: object = None

    def install(self) -> bool:
        """Start; False where this Python loads modules in another way."""
        original = getattr(bootstrap, "_find_and_load", None)
        if original is None:
            return False
        begin, end = self._begin, self._end

        def _find_and_load(name: str, import_: object) -> object:
            opened = begin(name)
            try:
                return original(name, import_)
            except BaseException as error:
                # Python hides its own frames, and this one with them, but not from import_module.
                leave_out_caller(error)
                raise
            finally:
                end(opened)

        _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename=_HIDDEN_FILE)
        self._original, self._ours = original, _find_and_load
        bootstrap._find_and_load = _find_and_load  # type: ignore[attr-defined]
        return True

    def remove(self) -> None:
        """Stop; where somebody has put another clock over this one, it goes on unheard."""
        self._done, self._watched = None, ()
        if self._ours is not None and getattr(bootstrap, "_find_and_load", None) is self._ours:
            bootstrap._find_and_load = self._original  # type: ignore[attr-defined]

    def forked(self) -> None:
        """In a new process that has one thread: what others were loading is over."""
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
        if name in sys.modules:  # not one that was looked for in vain
            loaded += (name, begin, end - begin, end - begin - inside)
            if end - begin >= _EXPENSIVE_NS:
                self._sites[name] = _statement()
        if stack:
            stack[-1][2] += end - begin
        else:
            self._open.pop(thread, None)  # a handler of signals may have imported something
            self._loaded.pop(thread, None)
            if loaded and self._done is not None:
                # Only its own: another thread may be importing as well.
                sites = {one: self._sites.pop(one) for one in loaded[::4] if one in self._sites}
                self._done(loaded, sites)
        if name in self._watched:  # last: what is imported for it comes by here as well
            self._appeared(name)


def _statement() -> list[object] | None:
    """[file, line, function] of the import that now ends; None: `python -m` or pytest loads it."""
    importlib = getattr(sys.modules.get("importlib"), "__file__", None) or "<frozen importlib"
    # Between an import and who asked for it; importlib.import_module is part of it.
    machinery = ("<frozen importlib", importlib.removesuffix("__init__.py"))
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(machinery):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename == "<frozen runpy>":
        return None
    if frame.f_globals.get("__package__") in ("_pytest", "_pytest.assertion", "pluggy"):
        return None
    return [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname]
