"""Listens to JAX: every stage of every compile, cache hits and misses, the start of backends."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from firstlight.telemetry.events import CACHE, STAGES
from firstlight.trace.record import calls, program_contents
from firstlight.trace.record.cache_folder import CacheFolder
from firstlight.trace.record.call_tracking import KnownCalls
from firstlight.trace.record.calls import Facts, Frames
from firstlight.trace.record.device_use import DeviceUse, started_backends
from firstlight.trace.record.outputs import Outputs
from firstlight.trace.record.program_errors import leave_out_caller, pass_on
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.record.replacements import Replacements
from firstlight.trace.record.value_text import own
from firstlight.trace.record.waits import Waits


def attach(recorder: Recorder) -> JaxHooks:
    """Start listening. JAX must have been imported."""
    hooks = JaxHooks(recorder)
    hooks.listen()
    hooks.watch_backends()
    hooks.watch_first_use(started_backends())
    hooks.waits.watch()
    recorder.before_end.append(hooks.waits.write)
    recorder.after_fork.append(hooks.forked)
    return hooks


@dataclass
class _Stage:
    """A stage now running in a thread."""

    name: str
    stage: str
    begin_ns: int
    frame: int
    results: int  # that the program had read when it began
    call: int | None = None
    cache: Counter[str] = field(default_factory=Counter)


class JaxHooks:
    """Turns JAX's events into those of the log."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open: dict[int, list[_Stage]] = {}
        self._calls = KnownCalls(recorder)
        self._describing: set[int] = set()
        self.waits = Waits(recorder, self.is_busy, (self._open, self._describing))
        self._outputs = Outputs(recorder, lambda: self.waits.count)
        self._cache_folder = CacheFolder()
        self._active = True
        self._frames_stay = True  # every stage so far ended in the frame in which it began
        self._replaced = Replacements()
        self._device_use = DeviceUse(recorder)
        self._listeners = {
            "scalar": recorder.safely(self._begin),
            "event_duration": recorder.safely(self._end),
            "event": recorder.safely(self._cache),
        }
        self.waits.before_write = self._listen_on
        self.waits.after_own_read = self._outputs.expect

    def listen(self) -> None:
        for kind, listener in self._listeners.items():
            _register(kind, listener)
        self._recorder.event("jax", version=sys.modules["jax"].__version__, ns=monotonic_ns())

    def _listen_on(self) -> None:
        """Listen again if the program removed all of JAX's listeners, and report that."""
        from jax._src import monitoring

        for kind, listener in self._listeners.items():
            listening = getattr(monitoring, f"get_{kind}_listeners", None)
            if self._active and listening is not None and listener not in listening():
                _register(kind, listener)
                self._recorder.problem(
                    "events: the program removed the listeners of JAX's events (as "
                    "jax.monitoring.clear_event_listeners does): compiles between that and the "
                    "next wait for a result may be missing in this trace",
                    missing="the program removed the listeners of JAX's events for a while",
                )

    def watch_backends(self) -> None:
        """Time the start of backends: JAX has no event for it."""
        from jax._src import xla_bridge

        original, event = getattr(xla_bridge, "_init_backend", None), self._recorder.event
        if original is None:
            self._recorder.problem("backends: how this JAX starts them is unknown")
            return

        def _init_backend(platform: str) -> Any:
            begin = monotonic_ns()
            try:
                backend = original(platform)
            except BaseException as error:
                leave_out_caller(error)
                raise
            finally:
                times = {"begin_ns": begin, "end_ns": monotonic_ns()}
                event("backend", platform=platform, **times, thread=get_ident())
            self.watch_first_use([platform])
            return backend

        self._replaced.put(xla_bridge, "_init_backend", _init_backend)

    def watch_first_use(self, platforms: Iterable[str]) -> None:
        """Time the first use of an accelerator, which reserves its memory, if one is among them.

        With a CPU only, nothing is replaced: a program's errors may show every frame.
        """
        if any(platform != "cpu" for platform in platforms):
            from jax._src.interpreters import pxla

            self._device_use.watch(pxla)

    def detach(self) -> None:
        """Stop listening and restore JAX."""
        from jax import monitoring

        self._active = self.waits.active = False
        self.waits.unwatch()
        self._outputs.unwatch()
        self._replaced.undo()
        self._device_use.stop()
        for kind, listener in self._listeners.items():
            self._recorder.safely(getattr(monitoring, f"unregister_{kind}_listener"))(listener)

    def forked(self) -> None:
        """Drop the state of the parent process, after a fork: the parent's log has it."""
        self._open.clear()
        self._describing.clear()
        self._calls.forget()
        self.waits.forget()

    def is_busy(self) -> bool:
        """Whether a stage is running in this thread: reading an array is then not a result."""
        thread = get_ident()
        self._forget_broken_off(calls.stack(sys._getframe(1)))
        return bool(self._open.get(thread)) or thread in self._describing

    def _forget_broken_off(self, frames: Frames) -> None:
        """Drop stages that will never end: another listener or a signal handler raised."""
        opened = self._open.get(get_ident())
        if not opened or not self._frames_stay:
            return
        alive = {id(frame) for frame in frames}
        opened[:] = [stage for stage in opened if stage.frame in alive]
        if not opened:
            self._open.pop(get_ident(), None)

    def _begin(self, event: str, value: float, **about: object) -> None:
        stage = STAGES.get(event)
        if stage is None or not self._active:
            return
        begin = monotonic_ns()
        if stage == "trace" and get_ident() not in self._open:
            self._listen_on()
        name, frames = str(about.get("fun_name")), calls.stack(sys._getframe(1))
        self._forget_broken_off(frames)
        opened = self._open.setdefault(get_ident(), [])
        current = _Stage(name, stage, begin, id(calls.timing(frames)), self.waits.count)
        opened.append(current)  # first: if something below fails, the end of the stage removes it
        self._describing.add(get_ident())
        try:
            current.call = self._calls.number(stage, name, frames)
        finally:
            self._describing.discard(get_ident())
        if stage == "compile":
            self._cache_folder.look()
            # The longest stage by far: if the process dies in it, the log says what it compiled.
            thread = {"thread": get_ident(), "thread_name": _thread_name()}
            about = {"stage": stage, "name": name, "call": current.call}
            self._recorder.event("begin", **about, ns=begin, **thread)

    def _end(self, event: str, seconds: float, **_: object) -> None:
        stage = STAGES.get(event)
        opened = self._open.get(get_ident())
        if stage is None or not opened or not self._active:
            return
        end = monotonic_ns()
        current = opened.pop()
        while current.stage != stage and opened:  # a stage that failed has no end
            current = opened.pop()
        if not opened:  # while the dict is empty, waits need not ask
            self._open.pop(get_ident(), None)  # a signal handler that compiled may have removed it
        if current.stage != stage:
            return
        frames = calls.stack(sys._getframe(1))
        # If JAX times stages in another way, frames cannot show which stages were broken off.
        self._frames_stay &= any(id(frame) == current.frame for frame in frames)
        about = {"stage": stage, "name": current.name, "call": current.call}
        times = {"begin_ns": current.begin_ns, "end_ns": end}
        more = {"results": current.results, **self._more(current, frames)}
        self._recorder.event("stage", **about, thread=get_ident(), **times, **more)
        if stage == "compile":
            self.waits.expect()
            self._outputs.expect()

    def _more(self, current: _Stage, frames: Frames) -> Facts:
        """The fields of a stage beyond its times, known at its end."""
        try:
            self._calls.ended(current.stage, current.call, frames)
            if current.stage == "trace":
                return {}
            if current.stage == "lower":
                more = program_contents.lowered(frames)
            else:
                more = {
                    **self._cache_folder.about(current.name),
                    **program_contents.compiled(frames),
                    "cache": current.cache or None,
                    **calls.compiler_options(frames),
                }
        except Exception as error:
            pass_on(error)
            more = {"problem": f"{current.stage}: {type(error).__name__}: {error}"[:200]}
        if "problem" in more:
            self._recorder.problem(more.pop("problem"))
        return more

    def _cache(self, event: str, **_: object) -> None:
        what = CACHE.get(event)
        opened = self._open.get(get_ident())
        if what is not None and opened:
            opened[-1].cache[what] += 1


def _register(kind: str, listener: object) -> None:
    from jax import monitoring

    name = {"event_duration": "event_duration_secs"}.get(kind, kind)
    getattr(monitoring, f"register_{name}_listener")(listener)


def _thread_name() -> str | None:
    """The name of this thread, read without running code of the program's classes."""
    threading = sys.modules.get("threading")
    name = own(getattr(threading, "_active", {}).get(get_ident()), "_name")
    return name if type(name) is str else None
