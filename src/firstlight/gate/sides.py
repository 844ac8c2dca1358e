"""The two sides of a gate: which Python runs each one, and what it imports first.

    revisions        two commits (or a commit and the working tree) of one repository
    environments     two virtual environments, such as two versions of JAX
    one side twice   an A/A pair, for calibration

Both sides are measured by the worker script of this Firstlight. If the repository is Firstlight
itself, each side uses its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Required, TypedDict

import firstlight
from firstlight.gate.interpreters import (
    Interpreter,
    SetupError,
    describe_interpreter,
    interpreter_of,
)
from firstlight.gate.worktrees import Checkout, checkouts, repository_root
from firstlight.measure.process import WORKER, Outcome, end, run_worker, tail
from firstlight.measure.runner import compile_bytecode
from firstlight.records import JsonObject
from firstlight.workloads.catalog import registered

#: Packages whose versions are shown for each side.
_SHOWN_PACKAGES = ("jax", "jaxlib", "torch", "numpy")
_WORKER_IN_REPOSITORY = Path("src/firstlight/measure/worker.py")


class Description(TypedDict, total=False):
    """A side as stored in the plan of a gate; the keys depend on its kind."""

    kind: Required[Literal["revision", "environment", "same"]]
    revision: str
    commit: str
    uncommitted: str | None  # a hash of the changes in the working tree
    environment: str
    python: Interpreter  # after `Side.described`


@dataclass(frozen=True)
class Side:
    """One side of a gate."""

    name: str  # base or head
    python: str
    path: tuple[str, ...] = ()  # prepended to the import path
    file_root: Path | None = None  # the checkout; None: no checkout
    folder: Path | None = None  # working directory of its processes; None: the gate's
    worker: Path = WORKER
    repository: Path | None = None  # the user's, from which nothing may be imported
    description: Description = field(default_factory=lambda: Description(kind="same"))

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The inherited variables with this side's code first on the import path."""
        python_path = inherited.get("PYTHONPATH", "").split(os.pathsep)
        entries = [*self.path, *(self._moved(entry) for entry in python_path if entry)]
        rest = {k: v for k, v in inherited.items() if k != "PYTHONPATH"}
        return rest | ({"PYTHONPATH": os.pathsep.join(entries)} if entries else {})

    def _moved(self, entry: str) -> str:
        """A PYTHONPATH entry in the repository, moved to the checkout, which it would hide."""
        place = Path(os.path.abspath(entry))
        if not self.file_root or not self.repository or not place.is_relative_to(self.repository):
            return entry
        return str(self.file_root / place.relative_to(self.repository))

    def spawner(self, spawn: Callable[..., Outcome] = run_worker) -> Callable[..., Outcome]:
        """A function that starts a worker on this side, as `Runner` and `cases_in` expect."""

        def start(
            job: JsonObject, environment: Mapping[str, str], *limits: object, **turn: object
        ) -> Outcome:
            return spawn(
                {**job, "list_modules": True},
                self.environment(environment),
                *limits,
                python=self.python,
                worker=self.worker,
                folder=self.folder,
                **turn,
            )

        return start

    def described(self) -> Side:
        """The side with a description of its interpreter, whose bytecode is compiled."""
        backends, _ = registered()
        frameworks = sorted({name for backend in backends.values() for name in backend.requires})
        found = describe_interpreter(self.python, self.environment(os.environ), frameworks)
        if self.python != sys.executable:  # for which every Runner does it
            compile_bytecode(self.python)
        return replace(self, description={**self.description, "python": found})


@contextlib.contextmanager
def from_revisions(
    folder: Path,
    base: str,
    head: str,
    setup: str | None = None,
    python: str | None = None,
    shared_file: tuple[str, Path] | None = None,
) -> Iterator[tuple[Side, Side]]:
    """Both revisions of the repository that contains `folder`, checked out and set up.

    `python` is relative to each checkout. `shared_file` is (side, path in the repository): both
    sides use this file of that side.
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
            side = Side(name, _interpreter(checkout, python), worker=worker, repository=root)
            sides.append(_of_checkout(side, checkout, inside).described())
        yield sides[0], sides[1]


def _share(found: Mapping[str, Checkout], owner: str, file: Path) -> None:
    source = found[owner].root / file
    if not source.is_file():
        raise SetupError(f"{file} does not exist in {found[owner].revision!r}.")
    for checkout in found.values():
        if checkout.root / file != source:
            (checkout.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, checkout.root / file)


def _interpreter(checkout: Checkout, python: str | None) -> str:
    if python is None:
        return sys.executable
    if not os.access(checkout.root / python, os.X_OK):
        raise SetupError(
            f"--python {python} does not exist in the checkout of {checkout.revision!r}. It is "
            "relative to the top of the repository; --setup can create it."
        )
    return str(checkout.root / python)


def _of_checkout(side: Side, checkout: Checkout, inside: Path) -> Side:
    root, folder = checkout.root, checkout.root / inside
    return replace(
        side,
        path=tuple(str(place) for place in (root / "src", root) if place.is_dir()),
        file_root=root,
        folder=folder if folder.is_dir() else root,
        description={
            "kind": "revision",
            "revision": checkout.revision,
            "commit": checkout.commit,
            "uncommitted": checkout.changed,
        },
    )


@contextlib.contextmanager
def from_environments(base: Path, head: Path) -> Iterator[tuple[Side, Side]]:
    """The same programs in two virtual environments, which do not need Firstlight installed."""
    with bare_instrument() as instrument:
        one, other = (
            Side(
                name,
                interpreter_of(environment),
                worker=instrument,
                description={"kind": "environment", "environment": str(environment)},
            ).described()
            for name, environment in (("base", base), ("head", head))
        )
        yield one, other


@contextlib.contextmanager
def same_side_twice() -> Iterator[tuple[Side, Side]]:
    """An A/A pair: this interpreter on both sides, which differ only in name."""
    with bare_instrument() as instrument:
        side = Side("base", sys.executable, worker=instrument, description={"kind": "same"})
        base = side.described()
        yield base, replace(base, name="head")


@contextlib.contextmanager
def bare_instrument() -> Iterator[Path]:
    """The worker in a folder that contains only Firstlight.

    From its installed place, the worker would add that site-packages to the end of the path, where
    a package that the other environment lacks would then be found.
    """
    with tempfile.TemporaryDirectory(prefix="firstlight-instrument-") as folder:
        package = Path(folder) / "firstlight"
        package.symlink_to(Path(firstlight.__file__).parent, target_is_directory=True)
        yield package / "measure" / "worker.py"


def run_setup(command: str, name: str, folder: Path) -> None:
    """Run the user's command in a checkout; the error shows the end of its output."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env={**os.environ, "FIRSTLIGHT_SIDE": name},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = child.wait()
        except BaseException:  # Ctrl-C: end its processes too
            end(child)
            raise
        if code != 0:
            raise SetupError(
                f"--setup failed on {name} with exit code {code}:\n{tail(output).strip()}"
            )


def describe_side(side: Side) -> str:
    """A side in words, for the report."""
    about, python = side.description, side.description["python"]
    installed = python["installed"]
    versions = [f"{n} {installed[n]}" for n in _SHOWN_PACKAGES if n in installed]
    software = ", ".join([f"Python {python['version']}", *versions])
    match about["kind"]:
        case "revision" if about["uncommitted"]:
            return f"the working tree (on {about['commit'][:9]}), {software}"
        case "revision":
            return f"{about['revision']} ({about['commit'][:9]}), {software}"
        case "environment":
            return f"{about['environment']}, {software}"
    return f"this interpreter, {software}"
