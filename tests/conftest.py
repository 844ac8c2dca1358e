"""Shared by all tests: the command line as a real process, files, workspaces, compiles counted."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Firstlight = Callable[..., "subprocess.CompletedProcess[str]"]
Plain = dict[str, Any]

#: The files that take longest begin first, or one of two processes works alone at the end.
LONGEST = (
    "losses/test_torch_losses.py",
    "losses/test_objectives.py",
    "histfactory/test_derivatives.py",
    "measure/test_torch.py",
    "cli/test_gate_command.py",
    "workloads/",
    "trace/findings/test_findings.py",
    "histfactory/test_branches.py",
    "measure/test_jax.py",
    "histfactory/",
    "losses/",
    "test_examples.py",
    "packaging/",
)


def _load_blas_with_one_thread() -> None:
    """Two test processes on two cores: OpenBLAS's own threads would only wait for each other.

    It reads the variable when it is loaded; the processes that tests start inherit nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        import scipy.linalg.cython_lapack  # noqa: F401


def _import_pyhf_from_source() -> None:
    """Compare with the checkout of pyhf in PYHF_SOURCE, if given, instead of the installed pyhf."""
    if not (source := os.environ.get("PYHF_SOURCE")):
        return
    package = Path(source, "src", "pyhf").resolve()
    if not (package / "__init__.py").is_file():
        raise pytest.UsageError(
            f"PYHF_SOURCE={source}: no src/pyhf in it. Give a checkout of pyhf."
        )
    sys.path.insert(0, str(package.parent))
    if not (package / "_version.py").exists():  # only a build writes it
        version: Any = types.ModuleType("pyhf._version")
        version.version = "0+source"
        sys.modules["pyhf._version"] = version


def pytest_report_header() -> str | None:
    source = os.environ.get("PYHF_SOURCE")
    return f"pyhf: from {source}" if source else None


def pytest_configure(config: pytest.Config) -> None:
    """Commands that tests start have their own cache, and answer to Ctrl-C."""
    _import_pyhf_from_source()
    # A shell without job control starts background jobs with SIGINT ignored; children inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _load_blas_with_one_thread()
    if "FIRSTLIGHT_CACHE_DIR" not in os.environ:
        os.environ["FIRSTLIGHT_CACHE_DIR"] = folder = tempfile.mkdtemp(prefix="firstlight-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_finish() -> None:
    """Programs of the test process are compiled as cheaply as XLA can; that is half of the time.

    Not by a variable of the environment: what tests start compiles as a user's processes do.
    """
    if jax := sys.modules.get("jax"):
        jax.config.update("jax_disable_most_optimizations", True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        name = item.path.relative_to(here).as_posix() if item.path.is_relative_to(here) else ""
        return next((i for i, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))

    items.sort(key=rank)


@pytest.fixture
def firstlight(tmp_path: Path) -> Firstlight:
    """Run `firstlight …` in `tmp_path`, as a user would."""

    def call(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "firstlight", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return call


@pytest.fixture(scope="session")
def chromium() -> str:
    """A browser to ask."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(names)} on the PATH: no browser to ask")
    return found


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file with dedented text into `tmp_path`."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write_file


# --- HistFactory ----------------------------------------------------------------------------------


class Workspaces:
    """Short spelling of pyhf's JSON."""

    @staticmethod
    def modifier(kind: str, name: str, data: Any = None) -> Plain:
        return {"name": name, "type": kind, "data": data}

    @staticmethod
    def normsys(name: str, lo: float, hi: float) -> Plain:
        return {"name": name, "type": "normsys", "data": {"lo": float(lo), "hi": float(hi)}}

    @staticmethod
    def histosys(name: str, lo: Any, hi: Any) -> Plain:
        data = {"lo_data": [float(x) for x in lo], "hi_data": [float(x) for x in hi]}
        return {"name": name, "type": "histosys", "data": data}

    @staticmethod
    def sample(name: str, nominal: Any, *modifiers: Plain) -> Plain:
        return {"name": name, "data": [float(x) for x in nominal], "modifiers": list(modifiers)}

    @staticmethod
    def channel(name: str, *samples: Plain) -> Plain:
        return {"name": name, "samples": list(samples)}

    @staticmethod
    def workspace(
        channels: list[Plain], data: list[Any], poi: str = "mu", parameters: list[Plain] = ()
    ) -> Plain:
        return {
            "version": "1.0.0",
            "channels": channels,
            "observations": [
                {"name": c["name"], "data": [float(x) for x in d]}
                for c, d in zip(channels, data, strict=True)
            ],
            "measurements": [
                {"name": "meas", "config": {"poi": poi, "parameters": list(parameters)}}
            ],
        }

    def counting(
        self,
        signal: Any,
        background: Any,
        observed: Any,
        *systematics: Plain,
        parameters: list[Plain] = (),
    ) -> Plain:
        """One channel: a signal with strength `mu`, and a background with the systematics."""
        factor = self.modifier("normfactor", "mu")
        samples = [
            self.sample("signal", signal, factor),
            self.sample("background", background, *systematics),
        ]
        return self.workspace([self.channel("SR", *samples)], [observed], parameters=parameters)


@pytest.fixture(scope="session")
def make() -> Workspaces:
    return Workspaces()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the reference data, which is no part of the project."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FIRSTLIGHT_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip(
            f"no reference data: {folder} is not a folder. Set FIRSTLIGHT_SHARED_DATA to the one "
            "with pyhf_model_zoo_goldens.json and workspace_tHu.json."
        )
    return folder


class Compilations:
    """How many programs XLA compiled since `reset`."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        self.count = 0


@pytest.fixture(scope="session")
def compilations() -> Compilations:
    import jax

    counter = Compilations()

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counter.count += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counter


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a bucket on a server that speaks S3 over HTTP."""
    import fsspec
    import moto.server as moto

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket/results"
        fsspec.filesystem("s3").clear_instance_cache()
        # Buckets are kept in this process, and outlive the server.
        urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
    server.stop()
