"""Finds the call of the program that a stage belongs to, and records every call once.

Usually the call is on the stack. A program that was traced or lowered by hand is compiled long
after: then the object that JAX made of the call identifies it. Its name would not be unique.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import Any
from zlib import crc32

from firstlight.telemetry.events import bare_name
from firstlight.trace.record import calls, definitions
from firstlight.trace.record.arguments import Arguments
from firstlight.trace.record.calls import Facts, Frames
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.record.structures import identity
from firstlight.trace.record.value_text import fields_of, text_of

_ORDER = ("trace", "lower", "compile")
#: Calls per function that are remembered for their backward passes, which may never come.
_MAX_FORWARD = 50


class Numbers:
    """Numbers of objects by identity, kept while the objects live."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, int]] = {}

    def get(self, thing: object) -> int | None:
        known = self._of.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else None

    def put(self, thing: object, number: int) -> bool:
        """False if the object cannot be recognised again: it has no weak references."""
        key = id(thing)
        try:
            reference = weakref.ref(thing, lambda _: self._of.pop(key, None))
        except TypeError:
            return False
        self._of[key] = (reference, number)
        return True


@dataclass
class _Known:
    """A call in progress, identified by its frame and its function."""

    frame: int
    fun: int
    number: int
    stage: str


class KnownCalls:
    """Finds the call of a stage. Threads may ask at the same time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers, self._serials = count(1), count(1)
        self._objects = Numbers()
        self._made = Numbers()  # what JAX made of a call by tracing and by lowering it
        self._in_progress: dict[int, list[_Known]] = {}  # by thread, the innermost last
        # Calls whose backward pass has not come yet, the latest last. The key is all that is known
        # when that pass comes: the thread, the function's name and where it is defined.
        self._forward: dict[tuple[int, str, tuple[str, int]], list[Facts]] = {}

    def forget(self) -> None:
        """Drop the state of the parent process, after a fork."""
        self._in_progress.clear()
        self._forward.clear()

    def number(self, stage: str, name: str, frames: Frames) -> int | None:
        """The number of the call that this stage belongs to; None if it is unknown."""
        found = calls.call_of(frames)
        if found is not None:
            return self._on_stack(stage, *found, frames)
        made = calls.made_before(stage, frames)
        if made is not None:
            return self._made.get(made)
        within = calls.within_transformation(frames) if stage == "lower" else None
        return None if within is None else self._of_transformation(bare_name(name), within, frames)

    def ended(self, stage: str, number: int | None, frames: Frames) -> None:
        """Remember what a stage made, so that a later stage can be matched to the call."""
        made = calls.made_by(stage, frames)
        if number is not None and made is not None:
            self._made.put(made, number)

    def _on_stack(self, stage: str, frame: FrameType, call: Facts, frames: Frames) -> int:
        known = self._in_progress.setdefault(get_ident(), [])
        alive = {id(f) for f in frames}
        known[:] = [k for k in known if k.frame in alive]
        for one in known:
            same = one.frame == id(frame) and one.fun == id(call["fun"])
            # A new frame may reuse the id of an old one; then its stage does not come later.
            if same and _ORDER.index(one.stage) < _ORDER.index(stage):
                one.stage = stage
                return one.number
        number = next(self._numbers)
        known[:] = [k for k in known if k.frame != id(frame)]
        known.append(_Known(id(frame), id(call["fun"]), number, stage))
        self._describe(number, call, frames)
        return number

    def _describe(self, number: int, call: Facts, frames: Frames) -> None:
        fun = definitions.function_of_user(call)
        about = definitions.definition(fun)
        place = about["place"]
        # A function of JAX itself, not the user's: an operation outside any jit.
        library = definitions.is_operation(fun) or (
            _is_jax(place) and not definitions.binds_function_of_user(call["fun"])
        )
        parts = None if library else definitions.Parts(call["fun"])
        arguments = Arguments(call, frames)
        near, user = calls.callers(frames)
        calling = user or near
        event = {
            "call": number,
            "function": {**about, "made_of": parts and parts.number},
            "object": self._serial(fun) or next(self._serials),
            "belongs_to": self._serials_of(parts.objects if parts else ()),
            "library": library,
            "site": near and calls.line_of(near),
            "user_site": user and calls.line_of(user),
            # Tells calls on one line apart: it may call two functions.
            "instruction": calling and calling.f_lasti,
            "entry_site": calls.entry_site(frames),
            "stack": calls.call_stack(frames),
            "context": calls.context(arguments.leaves),
            **arguments.signature(),
            "identity": dict(self._identities(arguments)),
        }
        if place is not None:
            bare = about["name"].rpartition(".")[2]
            forward = self._forward.setdefault((get_ident(), bare, tuple(place)), [])
            forward.append(event)
            del forward[:-_MAX_FORWARD]
        self._recorder.event("call", **event)

    def _identities(self, arguments: Arguments) -> Iterator[tuple[str, list[Any]]]:
        """(path, [kind, number, code, owners]) of static values that are equal only to themselves.
        number: the same for the same object."""
        for path, value in arguments.static_values:
            kind = identity(value)
            if kind is None:
                continue
            parts = definitions.Parts(value)
            number, objects = parts.number, parts.objects
            if kind == "method" and fields_of(value.__self__) is not None:
                # For equal modules the method does the same, though JAX cannot know that.
                number, objects = crc32(f"{number} {text_of(value.__self__)}".encode()), []
            # Every access makes another bound method: its object identifies it.
            itself = self._serial(value.__self__ if kind == "method" else value)
            yield path, [kind, itself, number, self._serials_of(objects)]

    def _of_transformation(self, bare: str, within: Facts, frames: Frames) -> int:
        """Record a jitted function that JAX itself runs: a backward pass, or in a checkpoint."""
        number, place = next(self._numbers), within["place"]
        near, user = calls.sites(frames)
        known = self._forward_call(bare, tuple(place))
        # Which pass it belongs to is unknown. The number makes each a separate program, so that
        # none counts as a recompile.
        words = "the backward pass of grad" if known else f"within grad or checkpoint ({number})"
        about = known or {
            "function": {"name": bare, "module": None, "kind": None, "place": place},
            "object": 0,
            "library": _is_jax(place),
            "arrays": within["arrays"],
            "leaves": len(within["arrays"]),
        }
        stack = calls.call_stack(frames)
        here = {"call": number, "site": near, "user_site": user, "stack": stack}
        context = {**calls.context(), "transformation": words}
        self._recorder.event("call", **{**about, **here, "context": context})
        return number

    def _forward_call(self, bare: str, place: tuple[str, int]) -> Facts | None:
        """The call of the current backward pass: passes come in the reverse order of their calls,
        and each comes once."""
        forward = self._forward.get((get_ident(), bare, place)) or []
        under_grad = [c for c in forward if "grad" in str(c["context"]["transformation"])]
        known = next(reversed(under_grad or forward), None)
        forward[:] = [call for call in forward if call is not known]
        return known

    def _serial(self, thing: object) -> int | None:
        """A unique number of the object; None if it cannot be recognised again."""
        known = self._objects.get(thing)
        if known is not None:
            return known
        number = next(self._serials)
        return number if self._objects.put(thing, number) else None

    def _serials_of(self, things: Iterable[object]) -> list[int]:
        return [number for thing in things if (number := self._serial(thing))]


def _is_jax(place: list[Any] | None) -> bool:
    return bool(place and place[0].startswith(calls.jax_folders()))
