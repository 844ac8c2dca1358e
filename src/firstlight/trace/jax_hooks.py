"""Listens to JAX: every stage of every compile, what the cache did, when the host waited."""

from __future__ import annotations

import sys
from _thread import get_ident
from functools import partial
from time import monotonic_ns

from firstlight.telemetry.events import CACHE, STAGES
from firstlight.trace import calls, programs
from firstlight.trace.cache_folder import CacheFolder
from firstlight.trace.waits import Waits, leave_out_caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from firstlight.trace.recorder import Recorder

#: Calls of one name that may wait for their next stage.
_MOST_PENDING = 100
_ORDER = ("trace", "lower", "compile")


def attach(recorder: Recorder) -> JaxHooks:
    """Listen from now on; JAX has been imported."""
    hooks = JaxHooks(recorder)
    hooks.listen()
    hooks.watch_backends()
    hooks.waits.watch()
    recorder.before_end.append(hooks.waits.write)
    return hooks


def _bare(name: str) -> str:
    """`jit(f)` without what JAX puts around it."""
    return name.partition("(")[2].removesuffix(")") if name.endswith(")") else name


class _Stage:
    """A stage that is now running in a thread."""

    def __init__(self, name: str, stage: str, call: int | None, begin_ns: int) -> None:
        self.name, self.stage, self.call, self.begin_ns = name, stage, call, begin_ns
        self.inside_ns = 0  # other stages within
        self.results = 0  # read by the program before
        self.cache: dict[str, int] = {}


class _Known:
    """A call that is under way: by the frame that knows it, and the function that it is of."""

    def __init__(self, frame: int, fun: int, number: int, stage: str) -> None:
        self.frame, self.fun, self.number, self.stage = frame, fun, number, stage


class JaxHooks:
    """Turns JAX's events into those of the log."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._jax = calls.jax_folders()
        self._open: dict[int, list[_Stage]] = {}
        self._known: dict[int, list[_Known]] = {}  # of each thread, the innermost last
        self._describing: set[int] = set()
        self.waits = Waits(recorder, self.is_busy, (self._open, self._describing))
        # Calls that were traced or lowered and no more, by name: (number, stage).
        self._pending: dict[str, list[tuple[int, str]]] = {}
        self._last: dict[str, dict[str, Any]] = {}  # the last function of a name
        self._calls = 0
        self._functions: dict[int, tuple[Any, int]] = {}
        self._serials = 0
        self._cache_folder = CacheFolder()
        self._active = True
        self._undo: list[Callable[[], None]] = []

    def listen(self) -> None:
        from jax import monitoring

        safely = self._recorder.safely
        for kind, ours, gone in (
            ("scalar", self._begin, "scalar"),
            ("event_duration_secs", self._end, "event_duration"),
            ("event", self._cache, "event"),
        ):
            listener = safely(ours)
            getattr(monitoring, f"register_{kind}_listener")(listener)
            unregister = getattr(monitoring, f"unregister_{gone}_listener", None)
            if unregister is not None:  # an older JAX keeps listeners: `_active` silences them
                self._undo.append(partial(unregister, listener))
        self._recorder.event("jax", version=sys.modules["jax"].__version__, ns=monotonic_ns())

    def watch_backends(self) -> None:
        """Time the start of backends, for which JAX has no event."""
        from jax._src import xla_bridge

        original = getattr(xla_bridge, "_init_backend", None)
        if original is None:
            self._recorder.problem("backends: this JAX starts them in an unknown way")
            return

        def _init_backend(platform: str) -> Any:
            begin = monotonic_ns()
            try:
                return original(platform)
            except BaseException as error:
                leave_out_caller(error)
                raise
            finally:
                self._recorder.event(
                    "backend",
                    platform=platform,
                    begin_ns=begin,
                    end_ns=monotonic_ns(),
                    thread=get_ident(),
                )

        xla_bridge._init_backend = _init_backend

        def restore() -> None:
            if xla_bridge._init_backend is _init_backend:
                xla_bridge._init_backend = original

        self._undo.append(restore)

    def detach(self) -> None:
        """Stop listening, and leave JAX as it was."""
        self._active = self.waits.active = False
        self.waits.unwatch()
        for undo in self._undo:
            self._recorder.safely(undo)()
        self._undo = []

    def is_busy(self) -> bool:
        """Whether a stage is under way in this thread: reading an array is then no result."""
        thread = get_ident()
        return bool(self._open.get(thread)) or thread in self._describing

    # --- stages -----------------------------------------------------------------------------------

    def _begin(self, event: str, value: float, **about: Any) -> None:
        stage = STAGES.get(event)
        if stage is None or not self._active:
            return
        begin = monotonic_ns()
        name = str(about.get("fun_name"))
        opened = self._open.setdefault(get_ident(), [])
        current = _Stage(name, stage, None, begin)
        current.results = self.waits.count
        opened.append(current)  # first: whatever happens below, its end takes it away again
        current.call = self._call(stage, name)
        if stage == "compile":
            self._cache_folder.look()
            # The longest by far: should the process die in it, this is what it was doing.
            self._recorder.event(
                "begin", stage=stage, name=name, call=current.call, ns=begin, thread=get_ident()
            )

    def _end(self, event: str, seconds: float, **about: Any) -> None:
        stage = STAGES.get(event)
        opened = self._open.get(get_ident())
        if stage is None or not opened or not self._active:
            return
        end = monotonic_ns()
        current = opened.pop()
        while current.stage != stage and opened:  # one that failed has no end of its own
            current = opened.pop()
        if not opened:
            del self._open[get_ident()]  # while it is empty, waits need not ask
        if current.stage != stage:
            return
        if opened:
            opened[-1].inside_ns += end - current.begin_ns
        self._recorder.event(
            "stage",
            stage=stage,
            name=current.name,
            call=current.call,
            thread=get_ident(),
            begin_ns=current.begin_ns,
            end_ns=end,
            own_ns=end - current.begin_ns - current.inside_ns,
            results=current.results,
            **self._more(current, (end - current.begin_ns) / 1e9),
        )

    def _more(self, current: _Stage, seconds: float) -> dict[str, Any]:
        """What is known at the end of a stage beyond its times."""
        if current.stage == "trace":
            return {}
        frames = calls.stack(sys._getframe(2))
        try:
            if current.stage == "lower":
                more = programs.lowered(frames)
            else:
                folder = self._cache_folder.about(current.name)
                more = {**programs.compiled(frames, seconds), "cache": current.cache or None}
                more.update(folder)
        except Exception as error:
            more = {"problem": f"{current.stage}: {type(error).__name__}: {error}"[:200]}
        if "problem" in more:
            self._recorder.problem(more.pop("problem"))
        return more

    def _cache(self, event: str, **_: Any) -> None:
        what = CACHE.get(event)
        opened = self._open.get(get_ident())
        if what is not None and opened:
            opened[-1].cache[what] = opened[-1].cache.get(what, 0) + 1

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, stage: str, name: str) -> int | None:
        """The number of the call that this stage belongs to; a new one is written down."""
        thread = get_ident()
        self._describing.add(thread)
        try:
            frames = calls.stack(sys._getframe(1))
            found = calls.call_of(frames)
            if found is None:
                return self._call_without_frame(stage, name, frames)
            number = self._number(stage, *found, frames)
            self._leave_pending(_bare(name), number, stage)
            return number
        finally:
            self._describing.discard(thread)

    def _number(self, stage: str, frame: Any, call: dict[str, Any], frames: list[Any]) -> int:
        known = self._known.setdefault(get_ident(), [])
        alive = {id(f) for f in frames}
        known[:] = [k for k in known if k.frame in alive]
        for one in known:
            same = one.frame == id(frame) and one.fun == id(call["fun"])
            # A frame that is gone may leave its number to a new one: stages do not go back.
            if same and _ORDER.index(one.stage) < _ORDER.index(stage):
                one.stage = stage
                return one.number
        self._calls += 1
        known[:] = [k for k in known if k.frame != id(frame)]
        known.append(_Known(id(frame), id(call["fun"]), self._calls, stage))
        self._describe(self._calls, call, frames)
        return self._calls

    def _call_without_frame(self, stage: str, name: str, frames: list[Any]) -> int | None:
        """Lowered.compile(), whose call is over; or the backward pass of a function."""
        bare = _bare(name)
        before = "trace" if stage == "lower" and calls.is_lowered_by_hand(frames) else "lower"
        for number, reached in self._pending.get(bare, ()):
            if reached == before and stage != "trace":
                self._leave_pending(bare, number, stage)
                return number
        about = self._last.get(bare)
        if stage != "lower" or about is None:
            return None
        self._calls += 1
        near, user = calls.sites(frames, self._jax)
        context = {**calls.context(), "transformation": "the backward pass of grad"}
        place = {"call": self._calls, "site": near, "user_site": user, "context": context}
        self._recorder.event("call", **{**about, **place})
        self._leave_pending(bare, self._calls, stage)
        return self._calls

    def _leave_pending(self, bare: str, number: int, stage: str) -> None:
        """A call got to this stage; by its name it is found again if the next comes by itself."""
        pending = [one for one in self._pending.get(bare, ()) if one[0] != number]
        if stage != "compile":
            pending.append((number, stage))
        self._pending[bare] = pending[-_MOST_PENDING:]

    def _describe(self, number: int, call: dict[str, Any], frames: list[Any]) -> None:
        near, user = calls.sites(frames, self._jax)
        fun = call["fun"]
        about = calls.definition(fun)
        place = about["place"]
        event = {
            "call": number,
            "function": about,
            "object": self._serial(fun),
            # Not the user's function but one of JAX itself: an operation outside of any jit.
            "library": bool(getattr(fun, "_apply_primitive", False))
            or bool(place and place[0].startswith(self._jax)),
            "site": near,
            "user_site": user,
            "entry_site": calls.entry_site(frames, self._jax),
            "context": calls.context(call["args"], call["kwargs"]),
            **calls.signature(call),
        }
        self._last[getattr(fun, "__name__", "")] = event
        self._recorder.event("call", **event)

    def _serial(self, fun: Any) -> int:
        """A number for a function object that no other one ever has."""
        import contextlib
        import weakref

        known = self._functions.get(id(fun))
        if known is not None and known[0]() is fun:
            return known[1]
        self._serials += 1
        # What cannot be referred to weakly is new each time: nobody can say that it is the same.
        with contextlib.suppress(TypeError):
            self._functions[id(fun)] = (weakref.ref(fun), self._serials)
        return self._serials
