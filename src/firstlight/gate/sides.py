"""The two things that are compared: which Python runs a side, and what it imports first.

    revisions      two commits (or a commit and the working tree) of one repository
    environments   two virtual environments, such as two versions of JAX
    one side twice an A/A pair, for calibration

In all three the worker script is this Firstlight's own, so that one instrument measures both; the
exception is a repository that *is* Firstlight, where each side brings its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Required, TypedDict

import firstlight
from firstlight.errors import FirstlightError
from firstlight.gate.worktrees import Checkout, checkouts, repository_root
from firstlight.measure.process import WORKER, Outcome, end, run_worker, tail
from firstlight.measure.runner import compile_bytecode
from firstlight.records import JsonObject
from firstlight.workloads.catalog import registered

#: Packages that a reader wants to see beside each side.
_NAMED = ("jax", "jaxlib", "torch", "numpy")
_WORKER_IN_REPOSITORY = Path("src/firstlight/measure/worker.py")
Modules = Mapping[str, Mapping[str, str]]  # by case: {top-level module: file}
_INSTALLED = {"site-packages", "dist-packages"}
_NOT_CODE = {"tests", "test", "docs", "examples", "benchmarks"}
#: Run by the other interpreter: its standard library is all there is.
_DESCRIBE = r"""
import json, platform, re, sys
from importlib.metadata import distributions
from importlib.util import find_spec
installed = {}
for found in distributions():
    name = found.metadata["Name"]
    if name:
        installed.setdefault(re.sub(r"[-_.]+", "-", name).lower(), found.version)
print(json.dumps({
    "version": platform.python_version(),
    "implementation": platform.python_implementation(),
    "compiler": platform.python_compiler(),
    "number": list(sys.version_info[:2]),
    "installed": installed,
    "modules": [name for name in sys.argv[1:] if find_spec(name) is not None],
}))
"""


class Interpreter(TypedDict):
    """What `_DESCRIBE` prints."""

    version: str
    implementation: str
    compiler: str
    number: list[int]
    installed: dict[str, str]
    modules: list[str]


class Description(TypedDict, total=False):
    """What a side is, as the plan of a gate stores it: only what its kind has."""

    kind: Required[Literal["revision", "environment", "same"]]
    revision: str
    commit: str
    uncommitted: str | None  # a hash of the changes in the working tree
    environment: str
    python: Interpreter  # once it was asked


class SetupError(FirstlightError):
    """A side cannot be prepared, or its interpreter cannot be used."""


class WrongCodeError(FirstlightError):
    """A side did not run the code that it stands for."""


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
    description: Description = field(default_factory=lambda: Description(kind="same"))

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The inherited variables with this side's code first on the import path."""
        python_path = inherited.get("PYTHONPATH", "").split(os.pathsep)
        entries = [*self.path, *(self._moved(entry) for entry in python_path if entry)]
        rest = {k: v for k, v in inherited.items() if k != "PYTHONPATH"}
        return rest | ({"PYTHONPATH": os.pathsep.join(entries)} if entries else {})

    def _moved(self, entry: str) -> str:
        """An inherited path into the repository would hide the checkout: it is led there."""
        place = Path(os.path.abspath(entry))
        if not self.file_root or not self.repository or not place.is_relative_to(self.repository):
            return entry
        return str(self.file_root / place.relative_to(self.repository))

    def spawner(self, spawn: Callable[..., Outcome] = run_worker) -> Callable[..., Outcome]:
        """Start a worker on this side: what `Runner` and `cases_in` take as `spawn`."""

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
        """The side with what its interpreter says of itself; its bytecode is written beside."""
        backends, _ = registered()
        frameworks = sorted({name for backend in backends.values() for name in backend.requires})
        found = describe_interpreter(self.python, self.environment(os.environ), frameworks)
        if self.python != sys.executable:  # for this one every Runner does it
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
    """The same programs under two virtual environments, which need not have Firstlight."""
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
    """An A/A pair: this interpreter on both sides, which differ in nothing but their name."""
    with bare_instrument() as instrument:
        side = Side("base", sys.executable, worker=instrument, description={"kind": "same"})
        base = side.described()
        yield base, replace(base, name="head")


@contextlib.contextmanager
def bare_instrument() -> Iterator[Path]:
    """The worker in a folder that holds Firstlight and nothing else.

    Run from where it is installed, the worker would put that site-packages at the end of the path:
    a package that the other environment lacks would then be found in this one.
    """
    with tempfile.TemporaryDirectory(prefix="firstlight-instrument-") as folder:
        package = Path(folder) / "firstlight"
        package.symlink_to(Path(firstlight.__file__).parent, target_is_directory=True)
        yield package / "measure" / "worker.py"


def run_setup(command: str, name: str, folder: Path) -> None:
    """Run the user's command in a checkout; on failure the end of what it printed is shown."""
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
        except BaseException:  # Ctrl-C: what it started must not go on
            end(child)
            raise
        if code != 0:
            raise SetupError(
                f"--setup failed on {name} with exit code {code}:\n{tail(output).strip()}"
            )


def interpreter_of(environment: Path) -> str:
    """The Python of a virtual environment; an interpreter itself is taken as it is."""
    for candidate in (environment, environment / "bin" / "python"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            # Not resolved: a virtual environment's python is a link to another one.
            return str(candidate.absolute())
    raise SetupError(
        f"{environment}: no Python there. Give a virtual environment (the folder that has "
        "bin/python) or an interpreter."
    )


def describe_interpreter(
    python: str, variables: Mapping[str, str], modules: Sequence[str]
) -> Interpreter:
    """Version and packages as that interpreter itself sees them, and which `modules` it has."""
    command = [python, "-P", "-c", _DESCRIBE, *modules]
    said: object = ""
    try:
        done = subprocess.run(
            command, env=dict(variables), capture_output=True, text=True, timeout=60, check=False
        )
        said = done.stderr.strip()[-500:]
        found: Interpreter = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise SetupError(
            f"{python}: cannot be asked for its packages: {said or error}. It must be Python 3.11 "
            "or newer."
        ) from None
    if tuple(found["number"]) < (3, 11):
        raise SetupError(
            f"{python} is Python {found['version']}; the instrument needs 3.11 or newer."
        )
    return found


def in_words(side: Side) -> str:
    """What a side is, for a reader of the report."""
    about, python = side.description, side.description["python"]
    versions = [f"{n} {python['installed'][n]}" for n in _NAMED if n in python["installed"]]
    software = ", ".join([f"Python {python['version']}", *versions])
    match about["kind"]:
        case "revision" if about["uncommitted"]:
            return f"the working tree (on {about['commit'][:9]}), {software}"
        case "revision":
            return f"{about['revision']} ({about['commit'][:9]}), {software}"
        case "environment":
            return f"{about['environment']}, {software}"
    return f"this interpreter, {software}"


# --- whose code ran -------------------------------------------------------------------------------


def require_own_code(
    sides: tuple[Side, Side], modules: Mapping[str, Modules]
) -> dict[str, set[str]]:
    """Refuse a comparison of revisions in which a side ran code that is not its own.

    The usual cause: the project is installed in the environment that both sides use, in a way that
    comes before the checkout. Gives by side the modules that came from its checkout.
    """
    own: dict[str, set[str]] = {side.name: set() for side in sides}
    for side, other in (sides, sides[::-1]):
        if side.file_root is None:
            return {}
        packages = package_names(side.file_root)
        for case, loaded in modules[side.name].items():
            for name, file in loaded.items():
                if _inside(file, side.file_root):
                    own[side.name].add(name)
                elif name in packages or _is_foreign(name, file, side, other):
                    raise WrongCodeError(
                        f"{case}: {side.name} imported {name!r} from {file}, not from its own "
                        "checkout, so the comparison would say nothing. Give each side an "
                        "environment of its own: --setup 'python -m venv .venv && "
                        ".venv/bin/pip install …' --python .venv/bin/python"
                    )
    if not any(own.values()) and any(modules.values()):
        raise WrongCodeError(
            "no case imported anything from the checkouts: both sides ran the same code. Name a "
            "benchmark file of the repository as the target, or install each side into an "
            "environment of its own with --setup and --python."
        )
    return own


def _is_foreign(name: str, file: str, side: Side, other: Side) -> bool:
    """Whether a module comes from the other checkout or the user's own, and is not installed."""
    if name == "firstlight" or _INSTALLED.intersection(Path(file).parts):
        return False
    return _inside(file, other.file_root) or _inside(file, side.repository)


def _inside(file: str, folder: Path | None) -> bool:
    return folder is not None and Path(file).is_relative_to(folder)


def package_names(root: Path) -> set[str]:
    """Top-level packages of a checkout: folders with `__init__.py` whose parent has none.

    Searched to a depth of four; environments and hidden folders are not the project's own.
    """
    found = set()
    for depth in range(1, 5):
        for file in root.glob("*/" * depth + "__init__.py"):
            parts = file.relative_to(root).parts[:-1]
            hidden = any(p.startswith(".") or p in ("site-packages", "venv") for p in parts)
            if not hidden and not (file.parent.parent / "__init__.py").exists():
                found.add(file.parent.name)
    return found - _NOT_CODE - {"firstlight"}
