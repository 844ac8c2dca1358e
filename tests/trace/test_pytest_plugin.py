"""The mark and the fixture, each in a separate pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = """
    import jax, numpy as np, pytest

    @pytest.fixture
    def step():
        return jax.jit(lambda x: x * 2)

    @pytest.mark.firstlight(max_compiles=1, max_recompiles=0)
    def test_within(step):
        step(np.ones(3, np.float32)); step(np.ones(3, np.float32))

    @pytest.mark.firstlight(max_recompiles=0)
    def test_beyond(step):
        step(np.ones(3, np.float32)); step(np.ones(4, np.float32))

    @pytest.mark.firstlight(max_compiles=0)
    def test_fails_by_itself(step):
        step(np.ones(3, np.float32))
        assert 1 == 2

    @pytest.mark.firstlight(max_compile=0)
    def test_misspelt():
        pass

    @pytest.mark.firstlight
    def test_no_limit():
        pass

    @pytest.mark.firstlight(max_ttfr=1e-9)
    def test_slow(step):
        step(np.ones(3, np.float32)).block_until_ready()

    @pytest.mark.firstlight(max_compiles="a")
    def test_no_number():
        pass

    @pytest.mark.firstlight(max_recompiles=0, max_compiles=9)
    class TestOfClass:
        @pytest.mark.firstlight(max_compiles=2)
        def test_both_marks(self, step):
            step(np.ones(3, np.float32)); step(np.ones(4, np.float32))

        @pytest.mark.firstlight(max_recompiles=1)
        def test_closest_mark(self, step):
            step(np.ones(3, np.float32)); step(np.ones(4, np.float32))

    def test_fixture(firstlight_trace, step):
        assert firstlight_trace.compile_count == 0
        step(np.ones(3, np.float32))
        assert firstlight_trace.compile_count == 1
        step(np.ones(2, np.float32))
        assert firstlight_trace.recompiles == 1

    def test_unmarked(step):
        step(np.ones(5, np.float32))
"""


def run_pytest(folder: Path, text: str, *options: str) -> str:
    (folder / "test_it.py").write_text(textwrap.dedent(text))
    # The plugin by name: another test checks its entry point.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py"],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "firstlight.trace.pytest_plugin",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plugin")
    return run_pytest(folder, TESTS, "--strict-markers", "-rA", "-W", "error")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("within", "PASSED"),
        ("beyond", "FAILED"),
        ("fails_by_itself", "FAILED"),
        ("misspelt", "FAILED"),
        ("no_limit", "FAILED"),
        ("slow", "FAILED"),
        ("no_number", "FAILED"),
        ("fixture", "PASSED"),
        ("unmarked", "PASSED"),
    ],
)
def test_a_test_fails_only_for_its_own_limits(output: str, name: str, outcome: str) -> None:
    assert f"{outcome} test_it.py::test_{name}" in output, output


def test_limits_of_a_class_hold_where_the_method_says_nothing(output: str) -> None:
    assert "FAILED test_it.py::TestOfClass::test_both_marks - Failed: max-recompiles" in output
    assert "PASSED test_it.py::TestOfClass::test_closest_mark" in output


def test_the_message_has_signature_reason_and_place(output: str) -> None:
    assert "max-recompiles: 1 recompile, 0 allowed" in output
    assert "x: f32[3] → f32[4]" in output
    assert "test_it.py:14" in output


def test_limits_are_not_checked_if_the_test_fails(output: str) -> None:
    assert "assert 1 == 2" in output and "max-compiles" not in output


def test_an_unknown_limit_is_named(output: str) -> None:
    assert "not max_compile" in output and "says no limit" in output
    assert "pytest_plugin.py" not in output  # a message, not a traceback of ours
    assert "max_compiles: 'a' is not a limit" in output


def test_the_plugin_imports_nothing_until_it_is_used(tmp_path: Path) -> None:
    test = """
        import sys
        def test_light():
            names = (n for n in sys.modules if n.startswith("firstlight"))
            ours = {n.removeprefix("firstlight.trace.") for n in names}
            light = {"firstlight", "firstlight.trace", "record", "record.marks", "pytest_plugin"}
            assert ours == light
            assert "jax" not in sys.modules and "numpy" not in sys.modules
    """
    assert "1 passed" in run_pytest(tmp_path, test)


def test_the_entry_point_is_declared() -> None:
    import tomllib

    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    plugins = tomllib.loads(text)["project"]["entry-points"]["pytest11"]
    assert plugins == {"firstlight": "firstlight.trace.pytest_plugin"}
