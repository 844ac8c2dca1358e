"""Listens to torch.compile: every region that it compiles, why again, and where its graph breaks.

Torch reports every compiled region to one function, which is wrapped here; calls that compile
nothing run none of this. Torch's texts may hold values of the program: they are stored under
`static`, which `--redact` turns into hashes.
"""

from __future__ import annotations

import os
import re
import sys
from _thread import get_ident
from time import monotonic_ns
from typing import Any

from firstlight.trace.record import calls
from firstlight.trace.record.calls import Facts
from firstlight.trace.record.program_errors import leave_out_caller
from firstlight.trace.record.recorder import Recorder

_MAX_TEXT = 4000  # of torch's, which go on for pages
#: Functions that are remembered for their backward passes, which are reported without a name.
_MAX_FUNCTIONS = 1000
_MISMATCH = re.compile(r"(size|dtype|rank|stride|requires_grad|dispatch key set|device) mismatch")
#: {name in the log: torch's}
_NUMBERS = {
    "backend_seconds": "backend_compile_time_s",
    "inductor_seconds": "inductor_compile_time_s",
    "restart_seconds": "dynamo_time_before_restart_s",
    "operations": "graph_op_count",
    "guards": "guard_count",
    "cache_hits": "inductor_fx_local_cache_hit_count",
    "cache_misses": "inductor_fx_local_cache_miss_count",
}


def attach(recorder: Recorder) -> TorchHooks:
    """Start listening. torch._dynamo must have been imported."""
    hooks = TorchHooks(recorder)
    hooks.listen()
    recorder.before_end.append(hooks.check_heard)
    return hooks


class TorchHooks:
    """Turns torch's report of a compiled region into an event of the log."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._utils: object = sys.modules.get("torch._dynamo.utils")
        torch = getattr(sys.modules.get("torch"), "__file__", None)
        self._torch = (os.path.dirname(torch) + os.sep,) if torch else ()
        self._functions: dict[str, tuple[object, object]] = {}  # torch's number: name and place
        self._heard = 0
        self._listens = False
        reasons = getattr(self._utils, "graph_break_reasons", None) or [None]
        self._last_break: object = reasons[-1]  # earlier ones are not part of this recording

    def listen(self) -> None:
        utils, name = self._utils, "log_compilation_event"
        original = getattr(utils, name, None)
        if original is None:
            self._recorder.problem("torch: this torch does not report what torch.compile compiles")
            return
        if not isinstance(getattr(utils, "graph_break_reasons", None), list):
            self._recorder.problem("torch: this torch does not report where its graphs break")
        if not hasattr(getattr(utils, "CompilationMetrics", None), "recompile_reason"):
            self._recorder.problem("torch: this torch does not report why it compiles again")
        compiled = self._recorder.safely(self._compiled)

        def log_compilation_event(metrics: object) -> object:
            compiled(metrics)
            try:
                return original(metrics)
            except BaseException as error:
                leave_out_caller(error)
                raise

        setattr(utils, name, log_compilation_event)
        self._listens = True

    def check_heard(self) -> None:
        """Report a problem if torch compiled and reported nothing."""
        known = getattr(self._utils, "get_compilation_metrics", None)
        if self._listens and not self._heard and known is not None and known():
            self._recorder.problem(
                "torch: it compiled regions and reported none of them "
                "(torch._dynamo.config.log_compilation_metrics is off)"
            )

    def _compiled(self, metrics: object) -> None:
        self._heard += 1
        end = monotonic_ns()
        seconds = _of(metrics, "entire_frame_compile_time_s")
        seconds = float((_of(metrics, "duration_us") or 0) / 1e6 if seconds is None else seconds)
        begin = end - int(seconds * 1e9)
        name, place = self._function(metrics)
        near, user = self._site(metrics)
        self._recorder.event(
            "torch_region",
            name=name,
            place=place,
            direction=_direction(metrics),
            **_frame(metrics),
            thread=get_ident(),
            begin_ns=begin,
            end_ns=end,
            seconds=seconds,
            imports_seconds=self._recorder.imports_since(begin) / 1e9,
            **{ours: _of(metrics, theirs) for ours, theirs in _NUMBERS.items()},
            site=near,
            user_site=user,
            recompile=_recompile(metrics),
            breaks=[_graph_break(one) for one in self._new_breaks()],
            failure=_failure(metrics),
        )

    def _function(self, metrics: object) -> tuple[object, object]:
        """Name and place. A region without a name (backward, beyond the limit) has an earlier
        region's number, and belongs to its function."""
        number, name = str(_of(metrics, "compile_id")).rpartition("/")[0], _of(metrics, "co_name")
        if name is None:
            return self._functions.get(number, (None, None))
        place = [_of(metrics, "co_filename"), _of(metrics, "co_firstlineno"), name]
        if len(self._functions) >= _MAX_FUNCTIONS:
            del self._functions[next(iter(self._functions))]
        self._functions[number] = (name, place)
        return name, place

    def _site(self, metrics: object) -> tuple[object, object]:
        """The call, without frames of the function being compiled, which may be on the stack."""
        own = (_of(metrics, "co_filename"), _of(metrics, "co_firstlineno"))
        stack = calls.stack(sys._getframe(2))
        others = [f for f in stack if (f.f_code.co_filename, f.f_code.co_firstlineno) != own]
        return calls.sites(others, self._torch)

    def _new_breaks(self) -> list[object]:
        """The breaks since the last region. The list is torch's; torch's reset clears it."""
        reasons = getattr(self._utils, "graph_break_reasons", None)
        if not isinstance(reasons, list):
            return []
        new: list[object] = []
        for one in reversed(reasons):
            if one is self._last_break:
                break
            new.insert(0, one)
        self._last_break = reasons[-1] if reasons else None
        return new


def _of(metrics: object, name: str) -> Any:
    return getattr(metrics, name, None)


def _direction(metrics: object) -> str:
    if _of(metrics, "is_runtime"):
        return "at run time"  # tuning of kernels, recording of CUDA graphs
    return "backward" if _of(metrics, "is_forward") is False else "forward"


def _frame(metrics: object) -> dict[str, int | None]:
    """Torch's number of the code (frame) and of its compile, both from 0: `frame/compile`."""
    parts = str(_of(metrics, "compile_id")).split("/")[-2:]
    known = len(parts) == 2 and all(part.isdigit() for part in parts)
    frame, compile_ = map(int, parts) if known else (None, None)
    return {"frame": frame, "frame_compile": compile_}


def _recompile(metrics: object) -> Facts | None:
    reason = _of(metrics, "recompile_reason")
    if reason is None:
        return None
    text = str(reason)[:_MAX_TEXT]
    mismatch = _MISMATCH.search(text)
    other = "global state" if "GLOBAL_STATE" in text else "value"
    return {"kind": mismatch[1] if mismatch else other, "static": {"guard": text}}


def _graph_break(reason: object) -> Facts:
    text = str(getattr(reason, "reason", ""))[:_MAX_TEXT]
    stack = getattr(reason, "user_stack", None) or ()
    lines = [[frame.filename, frame.lineno, frame.name] for frame in stack]
    return {"kind": _kind(text), "lines": lines, "static": {"text": text}}


def _failure(metrics: object) -> Facts | None:
    """Why the function was not compiled and runs as it is."""
    kind, text = _of(metrics, "fail_type"), str(_of(metrics, "fail_reason"))[:_MAX_TEXT]
    if kind is None:
        return None
    file, line = _of(metrics, "fail_user_frame_filename"), _of(metrics, "fail_user_frame_lineno")
    place = [file, line, _of(metrics, "co_name")] if file and line else None
    return {"type": str(kind), "kind": _kind(text), "place": place, "static": {"text": text}}


def _kind(text: str) -> str | None:
    """Torch's name of the reason: the first line of its newer texts, which never has values."""
    return text.partition("\n")[0] if "\n  Explanation:" in text else None
