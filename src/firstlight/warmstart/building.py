"""Compile a manifest into a cache without the program, in several processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from firstlight.warmstart.manifest import Manifest, ManifestError, Program, kind_here

_WORKER = "firstlight.warmstart.build_worker"


class Outcome(Enum):
    COMPILED = "compiled"
    FOUND = "found"
    NOT_STORED = "not stored"
    FAILED = "failed"


@dataclass(frozen=True)
class Built:
    program: Program
    outcome: Outcome
    seconds: float = 0.0
    why: str = ""


def versions_differ(program: Program, here: str) -> bool:
    """Whether it was recorded with another JAX or Python, so that its key does not match here."""
    return _versions(program.kind) != _versions(here)


def _versions(kind: str) -> str:
    return "-".join(kind.split("-")[:-3])  # without system, machine and processor


def build(
    manifest: Manifest, cache: str, jobs: int, on_built: Callable[[Built], None]
) -> list[Built]:
    """Compile every program; programs with different XLA flags in different processes."""
    here = kind_here()
    other = next((p for p in manifest.programs if versions_differ(p, here)), None)
    if other is not None:
        raise ManifestError(
            f"it was recorded with {_versions(other.kind)}, and this is {_versions(here)}, which "
            "lowers programs differently, to other keys. Run the program again: "
            "firstlight warm build --run, or record it here."
        )
    built: list[Built] = []
    groups: dict[str, list[Program]] = {}
    for program in manifest.programs:
        if program.has_callbacks:
            # Its executable would hold the address of a function in another process.
            built.append(Built(program, Outcome.NOT_STORED, why="it calls back into Python"))
            on_built(built[-1])
        else:
            flags = json.dumps([program.variables, program.arguments])
            groups.setdefault(flags, []).append(program)
    with tempfile.TemporaryDirectory(prefix="firstlight-warm-") as objects:
        for name, content in manifest.objects.items():
            (Path(objects) / name).write_bytes(content)
        for programs in groups.values():
            built += _built(programs, Path(objects), cache, jobs, on_built)
    return built


def _built(
    programs: list[Program],
    objects: Path,
    cache: str,
    jobs: int,
    on_built: Callable[[Built], None],
) -> list[Built]:
    waiting = iter(programs)  # of a list: threads may share it
    built: list[Built] = []

    def work() -> None:
        with _worker(cache, programs[0]) as ask:
            for program in waiting:
                one = _outcome(program, ask(_task(program, objects)))
                built.append(one)
                on_built(one)

    workers = min(jobs, len(programs))
    with ThreadPoolExecutor(workers) as pool:
        for running in [pool.submit(work) for _ in range(workers)]:
            running.result()  # raises what went wrong in the thread
    return built


@contextmanager
def _worker(
    cache: str, like: Program
) -> Iterator[Callable[[dict[str, object]], dict[str, object]]]:
    """A process with the XLA flags that a program was recorded with, as a function to ask it."""
    flags = {name: like.variables.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    environment = {k: v for k, v in os.environ.items() if k not in flags}
    environment |= {name: value for name, value in flags.items() if value}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", _WORKER, cache, *like.arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask(task: dict[str, object]) -> dict[str, object]:
            try:
                questions.write(json.dumps(task) + "\n")
                questions.flush()
                answer = answers.readline()
            except BrokenPipeError:
                answer = ""
            found: dict[str, Any] = json.loads(answer or '{"error": "its process ended"}')
            return found

        try:
            yield ask
        finally:
            with suppress(BrokenPipeError):  # what a process that ended early has not read
                questions.close()


def _task(program: Program, objects: Path) -> dict[str, object]:
    return {
        "program": str(objects / program.program),
        "options": str(objects / program.options),
        "devices": program.devices,
        "platform": program.platform,
    }


def _outcome(program: Program, answer: dict[str, Any]) -> Built:
    seconds = float(answer.get("seconds", 0.0))
    if "error" in answer:
        return Built(program, Outcome.FAILED, seconds, answer["error"])
    if answer["hit"]:
        return Built(program, Outcome.FOUND, seconds)
    return Built(program, Outcome.COMPILED if answer["stored"] else Outcome.NOT_STORED, seconds)
