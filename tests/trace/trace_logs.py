"""Logs made by hand, for tests of readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from firstlight.trace.findings import load
from firstlight.trace.read.model import Trace

MS = 1_000_000
#: Threads.
MAIN, POOL = 7, 99


class Log:
    """A log made by hand; times are milliseconds from the start of the process."""

    def __init__(self, pid: int = 100, started: int = 1000, **changed: Any) -> None:
        self._started = started * MS
        self._pid = pid
        self.lines: list[str] = []
        head = {"schema": "firstlight.trace", "version": 1, "pid": pid, "parent": 1, "rank": None}
        head |= {"python": "3.11.7", "command": ["python", "a.py"], "folder": "/", "whole": True}
        head |= {"started_ns": self._started, "recording_ns": self.at(50), "thread": MAIN}
        head |= {"clock": [self.at(50), self.at(50) + 10**18]}
        self.event("process", **{**head, **changed})

    def at(self, ms: float) -> int:
        return self._started + round(ms * MS)

    def event(self, kind: str, **about: Any) -> Log:
        self.lines.append(json.dumps({"event": kind, **about}))
        return self

    def jax(self) -> Log:
        return self.event("jax", version="0.10.2", ns=self.at(250))

    def imports(self, *modules: tuple[str, float, float, float], thread: int = MAIN) -> Log:
        told = [[n, self.at(begin), int(t * MS), int(o * MS)] for n, begin, t, o in modules]
        return self.event("imports", modules=told, sites={}, thread=thread)

    def call(self, number: int, name: str = "f", **changed: Any) -> Log:
        function = {"name": name, "module": "m", "kind": "function", "place": ["/p/a.py", 3]}
        plain = {"call": number, "function": function, "object": 1, "library": False}
        plain |= {"site": ["/p/a.py", 9, "main"], "user_site": ["/p/a.py", 9, "main"]}
        plain |= {"context": {"jax_enable_x64": False}, "leaves": 1, "tree": "*", "static": {}}
        plain |= {"arrays": [["x", "float32", [3], False, None]], "positional": 1}
        return self.event("call", **{**plain, **changed})

    def stage(
        self, stage: str, call: int | None, begin: float, end: float, name: str = "f", **more: Any
    ) -> Log:
        named = name if stage == "trace" else f"jit({name})"
        about = {"stage": stage, "name": named, "call": call, "thread": MAIN, **more}
        times = {"begin_ns": self.at(begin), "end_ns": self.at(end)}
        return self.event("stage", **times, **about)

    def begin(self, call: int, at: float, name: str = "f") -> Log:
        return self.event("begin", stage="compile", name=f"jit({name})", call=call, ns=self.at(at))

    def first_result(self, at: float, place: list[Any] | None = None) -> Log:
        """Read by the program itself."""
        self.event("first_result", ns=self.at(at), site=place, by="")
        return self.event("read", ns=self.at(at), site=place)

    def end(self, at: float, **more: Any) -> Log:
        return self.event("end", ns=self.at(at), own_ns=MS, problems=[], **more)

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / f"{self._pid}.jsonl").write_text("\n".join(self.lines) + "\n")
        return folder

    def read(self, folder: Path) -> Trace:
        return load(self.write(folder))


def whole_log() -> Log:
    """Import 60–200 with a compile inside, a backend, two compiles, waits, to 1000 ms."""
    log = Log()
    log.imports(("lib", 60, 140, 100), ("lib.sub", 100, 40, 40)).jax()
    log.call(1).stage("trace", 1, 300, 340).event(
        "backend", platform="cpu", begin_ns=log.at(350), end_ns=log.at(370), thread=MAIN
    )
    log.stage("lower", 1, 345, 400, equations=5, constant_bytes=8)
    log.begin(1, 400).stage("compile", 1, 400, 500, cache_folder=False, executable_bytes=77)
    log.first_result(510, ["/p/a.py", 9, "main"])
    log.call(2, arrays=[["x", "float32", [4], False, None]])
    log.stage("trace", 2, 600, 610).stage("lower", 2, 610, 620)
    log.begin(2, 620).stage("compile", 2, 620, 700, cache_folder=False)
    site = {"thread": MAIN, "site": ["/p/a.py", 9, "main"], "user_site": ["/p/a.py", 9, "main"]}
    waited = {**site, "n": 3, "ns": 60 * MS, "span": [log.at(700), log.at(900)]}
    log.event("waits", sites=[waited], long=[[log.at(700), log.at(720), 0]], short=4, short_ns=MS)
    return log.end(1000)


def compile_in(log: Log, call: int, begin: float, end: float, thread: int, **named: Any) -> None:
    log.call(call)
    log.event(
        "begin", stage="compile", name="f", call=call, ns=log.at(begin), thread=thread, **named
    )
    log.stage("compile", call, begin, end, thread=thread, cache_folder=False)
