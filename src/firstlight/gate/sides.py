"""The two things that are compared: which Python runs a side, and what it imports first.

    revisions      two commits (or a commit and the working tree) of one repository
    environments   two virtual environments, such as two versions of JAX
    one side twice an A/A pair, for calibration

In all three the worker script is this Firstlight's own, so that one instrument measures both; the
exception is a repository that *is* Firstlight, where each side brings its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firstlight.errors import FirstlightError
from firstlight.gate.environments import (
    bare_instrument,
    compile_for,
    describe_interpreter,
    interpreter_of,
)
from firstlight.gate.worktrees import Checkout, checkouts, repository_root
from firstlight.measure.process import WORKER, Outcome, run_worker
from firstlight.workloads.catalog import registered

#: Packages that a reader wants to see beside each side.
_NAMED = ("jax", "jaxlib", "torch", "numpy")
_WORKER_IN_REPOSITORY = Path("src/firstlight/measure/worker.py")


class SetupError(FirstlightError):
    """A side cannot be prepared."""


@dataclass(frozen=True)
class Side:
    """One side of a gate."""

    name: str  # base or head
    python: str
    path: tuple[str, ...] = ()  # first on the import path
    file_root: Path | None = None  # the checkout; None: files are taken where they are
    folder: Path | None = None  # working directory of its processes; None: the gate's own
    worker: Path = WORKER
    repository: Path | None = None  # the user's own, from which nothing may be imported
    description: Mapping[str, Any] = field(default_factory=dict)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The inherited variables with this side's code first on the import path."""
        entries = [*self.path, *self._moved(inherited.get("PYTHONPATH", ""))]
        rest = {k: v for k, v in inherited.items() if k != "PYTHONPATH"}
        return rest | ({"PYTHONPATH": os.pathsep.join(entries)} if entries else {})

    def _moved(self, python_path: str) -> list[str]:
        """An inherited path into the repository would hide the checkout: it is led there."""
        entries = [entry for entry in python_path.split(os.pathsep) if entry]
        if self.file_root is None or self.repository is None:
            return entries
        moved = []
        for entry in entries:
            place = Path(os.path.abspath(entry))
            inside = place.is_relative_to(self.repository)
            moved.append(
                str(self.file_root / place.relative_to(self.repository)) if inside else entry
            )
        return moved

    def spawner(self, spawn: Callable[..., Outcome] = run_worker) -> Callable[..., Outcome]:
        """Start a worker on this side: what `Runner` and `cases_in` take as `spawn`."""

        def start(
            job: Mapping[str, Any],
            environment: Mapping[str, str],
            timeout_seconds: float,
            affinity: tuple[int, ...] | None = None,
            **turn: Any,
        ) -> Outcome:
            return spawn(
                {**job, "list_modules": True},
                self.environment(environment),
                timeout_seconds,
                affinity,
                python=self.python,
                worker=self.worker,
                folder=self.folder,
                **turn,
            )

        return start


@contextlib.contextmanager
def from_revisions(
    folder: Path,
    base: str,
    head: str,
    setup: str | None = None,
    python: str | None = None,
    shared_file: tuple[str, Path] | None = None,
) -> Iterator[tuple[Side, Side]]:
    """Both revisions of the repository around `folder`, checked out and set up.

    `python` is taken relative to each checkout. `shared_file` is (side, path in the repository): a
    benchmark file that is taken from one side for both.
    """
    root = repository_root(folder)
    inside = folder.resolve().relative_to(root)
    with checkouts(root, {"base": base, "head": head}) as found, bare_instrument() as instrument:
        if shared_file is not None:
            _share(found, *shared_file)
        own = all((c.root / _WORKER_IN_REPOSITORY).is_file() for c in found.values())
        sides = []
        for name, checkout in found.items():
            if setup is not None:
                run_setup(setup, name, checkout.root)
            worker = checkout.root / _WORKER_IN_REPOSITORY if own else instrument
            sides.append(_revision_side(name, checkout, root, inside, python, worker))
        yield sides[0], sides[1]


def _share(found: Mapping[str, Checkout], owner: str, file: Path) -> None:
    source = found[owner].root / file
    if not source.is_file():
        raise SetupError(f"{file} does not exist in {found[owner].revision!r}.")
    for checkout in found.values():
        if checkout.root / file != source:
            (checkout.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, checkout.root / file)


def _revision_side(
    name: str,
    checkout: Checkout,
    root: Path,
    inside: Path,
    python: str | None,
    worker: Path,
) -> Side:
    interpreter = sys.executable if python is None else str(checkout.root / python)
    if python is not None and not os.access(interpreter, os.X_OK):
        raise SetupError(
            f"--python {python} does not exist in the checkout of {checkout.revision!r}. It is "
            "relative to the top of the repository; --setup can create it."
        )
    places = [checkout.root / "src", checkout.root]
    path = tuple(str(place) for place in places if place.is_dir())
    folder = checkout.root / inside
    side = Side(
        name=name,
        python=interpreter,
        path=path,
        file_root=checkout.root,
        folder=folder if folder.is_dir() else checkout.root,
        worker=worker,
        repository=root,
        description={
            "kind": "revision",
            "revision": checkout.revision,
            "commit": checkout.commit,
            "uncommitted": checkout.changed,
        },
    )
    return _described(side)


@contextlib.contextmanager
def from_environments(base: Path, head: Path) -> Iterator[tuple[Side, Side]]:
    """The same programs under two virtual environments, which need not have Firstlight."""
    with bare_instrument() as instrument:
        pair = [
            _described(
                Side(
                    name=name,
                    python=interpreter_of(environment),
                    worker=instrument,
                    description={"kind": "environment", "environment": str(environment)},
                )
            )
            for name, environment in (("base", base), ("head", head))
        ]
        yield pair[0], pair[1]


@contextlib.contextmanager
def same_side_twice() -> Iterator[tuple[Side, Side]]:
    """An A/A pair: this interpreter on both sides, which differ in nothing but their name."""
    with bare_instrument() as instrument:
        pair = [
            _described(Side(name, sys.executable, worker=instrument, description={"kind": "same"}))
            for name in ("base", "head")
        ]
        yield pair[0], pair[1]


def _described(side: Side) -> Side:
    """The side with what its interpreter says of itself; its bytecode is written beside."""
    from dataclasses import replace

    backends, _ = registered()
    frameworks = sorted({module for backend in backends.values() for module in backend.requires})
    found = describe_interpreter(side.python, side.environment(os.environ), frameworks)
    if side.python != sys.executable:  # for this one every Runner does it
        compile_for(side.python)
    return replace(side, description={**side.description, "python": found})


def run_setup(command: str, name: str, folder: Path) -> None:
    """Run the user's command in a checkout; on failure the end of what it printed is shown."""
    variables = {**os.environ, "FIRSTLIGHT_SIDE": name}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = child.wait()
        except BaseException:  # Ctrl-C: what it started must not go on
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        if code != 0:
            end = output.seek(0, os.SEEK_END)
            output.seek(max(0, end - 4000))
            tail = output.read().decode("utf-8", "replace").strip()
            raise SetupError(f"--setup failed on {name} with exit code {code}:\n{tail}")


def in_words(side: Side) -> str:
    """What a side is, for a reader of the report."""
    about, python = side.description, side.description["python"]
    versions = [f"{n} {python['installed'][n]}" for n in _NAMED if n in python["installed"]]
    software = ", ".join([f"Python {python['version']}", *versions])
    if about["kind"] == "revision":
        if about["uncommitted"]:
            return f"the working tree (on {about['commit'][:9]}), {software}"
        return f"{about['revision']} ({about['commit'][:9]}), {software}"
    if about["kind"] == "environment":
        return f"{about['environment']}, {software}"
    return f"this interpreter, {software}"
