"""The package as users get it: a wheel, built from the sdist and installed.

An editable install hides what a wheel lacks. Nothing is downloaded: the build backend and the
dependencies are those of this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from firstlight import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    """An environment that has Firstlight from a wheel, and a folder to work in."""

    wheel: Path
    folder: Path
    workplace: Path

    @property
    def site_packages(self) -> Path:
        variables = {"base": str(self.folder), "platbase": str(self.folder)}
        return Path(sysconfig.get_path("purelib", "venv", variables))

    def run(self, program: str, *arguments: object, **environment: str) -> str:
        """Return what a program of the environment prints, away from the source tree."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [self.folder / "bin" / program, *map(str, arguments)],
            cwd=self.workplace,
            env=inherited | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def hatchling(folder: Path, target: str, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hatchling(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


@pytest.fixture(scope="module")
def installed(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("environment")
    wheel = hatchling(unpacked, "wheel", tmp_path_factory.mktemp("wheel"))
    found = Installed(wheel, folder, tmp_path_factory.mktemp("workplace"))
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", wheel], check=True)
    # Python runs the .pth files of its own site-packages only: that of an editable install is not.
    borrowed = [path for path in sys.path if path.endswith("-packages")]
    (found.site_packages / "borrowed.pth").write_text("\n".join(borrowed))
    return found


def files_below(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in paths
        if "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(installed: Installed) -> None:
    source = {"firstlight/" + k: v for k, v in files_below(ROOT / "src/firstlight").items()}
    source |= {hook.name: hook.read_bytes() for hook in (ROOT / "src").glob("*.pth")}
    runbooks = files_below(ROOT / "docs/runbooks").items()
    source |= {f"firstlight/ops/runbook_texts/{name}": text for name, text in runbooks}
    with zipfile.ZipFile(installed.wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    about = f"firstlight-{__version__}.dist-info/"
    assert {name: data for name, data in packed.items() if not name.startswith(about)} == source
    assert about + "licenses/LICENSE" in packed
    kinds = {Path(name).suffix for name in source}
    assert {".py", ".typed", ".json", ".js", ".css", ".pth"} <= kinds


def test_the_sdist_has_what_make_run_and_make_test_need(unpacked: Path) -> None:
    needed = ["Makefile", "constraints.txt", "tools/install-chromium.sh", "tests/conftest.py"]
    assert [name for name in needed if not (unpacked / name).is_file()] == []


def test_the_metadata_is_what_an_index_accepts(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        raw = archive.read(f"firstlight-{__version__}.dist-info/METADATA")
    metadata = Metadata.from_email(raw, validate=True)
    assert str(metadata.version) == __version__
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.license_expression == "Apache-2.0"


def test_the_package_is_the_installed_one_and_the_command_line_is_there(
    installed: Installed,
) -> None:
    where = installed.run("python", "-c", "import firstlight; print(firstlight.__file__)")
    assert Path(where.strip()).is_relative_to(installed.site_packages)
    assert __version__ in installed.run("firstlight", "--version")


def test_alerts_and_runbooks_can_be_built_from_the_wheel(installed: Installed) -> None:
    written = installed.run("firstlight", "ops", "build", "--out", "ops").split()
    assert "ops/runbooks/playbook.md" in written


def test_the_pytest_plugin_is_registered_and_loads(installed: Installed) -> None:
    code = (
        "from importlib.metadata import distribution\n"
        "points = distribution('firstlight').entry_points.select(group='pytest11')\n"
        "print(*[point.load().__file__ for point in points])"
    )
    plugin = installed.run("python", "-c", code).strip()
    assert Path(plugin).is_relative_to(installed.site_packages)


def test_the_pth_file_traces_a_program_from_its_start(installed: Installed) -> None:
    """The program imports nothing from Firstlight."""
    log = installed.workplace / "log"
    log.mkdir()
    installed.run("python", "-c", "pass", FIRSTLIGHT_TRACE=str(log))
    assert any(log.iterdir())


def test_the_pth_file_prepares_the_compilation_cache_only_if_asked_to(installed: Installed) -> None:
    code = "import sys; print('firstlight.warmstart.startup' in sys.modules)"
    assert installed.run("python", "-c", code, FIRSTLIGHT_WARMSTART="1").strip() == "True"
    assert installed.run("python", "-c", code).strip() == "False"


def test_a_run_is_measured_validated_published_and_put_on_a_site(installed: Installed) -> None:
    """Schemas, style sheets and scripts are read from the installed package on the way."""
    brief = ["--backend", "numpy", "-b", "small", "--quick", "--processes", 1, "--out", "run"]
    installed.run("firstlight", "run", "matmul", *brief)
    installed.run("firstlight", "publish", "run", "--out", "store", HOME=str(installed.workplace))
    installed.run("firstlight", "site", "store", "--out", "public")
    pages = (installed.workplace / "public").rglob("*.html")
    assert any("matmul" in page.read_text() for page in pages)


def test_a_type_checker_reads_the_annotations(installed: Installed) -> None:
    (installed.workplace / "user.py").write_text(
        "from firstlight import __version__ as v, run, serve, warmstart\nv + 1\n"
        "serve.model(inputs={}, bucket=(1,))\nwarmstart.tiered(len)(1)\nrun().record.host + 1\n"
    )
    # Reading the types of these packages takes three quarters of the time, and none is used here.
    (installed.workplace / "mypy.ini").write_text(
        "[mypy]\n[mypy-jax.*,jaxlib.*,numpy.*,torch.*,scipy.*,rich.*]\nfollow_imports = skip\n"
    )
    python = installed.folder / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py"]
    done = subprocess.run(
        command, cwd=installed.workplace, capture_output=True, text=True, check=False
    )
    assert 'Unsupported operand types for + ("str" and "int")' in done.stdout, done.stdout
    assert 'Unexpected keyword argument "bucket"' in done.stdout, done.stdout
    assert 'user.py:5: error: Unsupported operand types for + ("Mapping' in done.stdout, done.stdout
    assert 'Argument 1 to "__call__" of "Tiered" has incompatible type "int"' in done.stdout
