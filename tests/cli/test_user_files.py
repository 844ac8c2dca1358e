"""Users' files: what they may contain, and the messages if they cannot be measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Write = Callable[[str, str], Path]
Firstlight = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def measure(command: Firstlight, write: Write, tmp_path: Path) -> Callable[..., Any]:
    """Measure the text of a benchmark file with one process: (exit code, cases, output)."""

    def run(text: str, *options: str) -> tuple[int, dict[str, dict[str, Any]], str]:
        write("mine.py", text)
        done = command("run", "mine.py", "--quick", "-p", "1", "--out", "out", *options)
        path = tmp_path / "out" / "run.json"
        cases = json.loads(path.read_text())["cases"] if path.exists() else []
        return done.returncode, {c["workload"]: c for c in cases}, done.stdout + done.stderr

    return run


def test_jax_imported_in_a_function_is_not_measured_as_numpy(measure: Any) -> None:
    """Its results would not be waited for: a large product would take microseconds."""
    code, cases, _ = measure(
        """
        import numpy as np
        from firstlight import bench
        @bench
        def hidden():
            import jax
            return jax.jit(lambda x: x @ x), (np.ones((64, 64), np.float32),)
        """
    )
    assert code == 2
    assert cases["hidden"]["status"] == "failed" and cases["hidden"]["cold_seconds"] is None
    assert "runs jax, but is measured as 'numpy'" in cases["hidden"]["reason"]
    assert "backend='jax-jit'" in cases["hidden"]["reason"]


def test_a_numpy_case_may_live_in_a_file_that_imports_jax(measure: Any) -> None:
    code, cases, text = measure(
        """
        import jax, numpy as np
        from firstlight import bench
        @bench(backend="numpy")
        def plain():
            return (lambda x: x @ x), (np.ones((8, 8)),)
        """
    )
    assert code == 0, text
    assert cases["plain"]["status"] == "ok"


def test_environment_set_before_importing_jax_holds_and_any_pytree_or_float_is_a_result(
    measure: Any,
) -> None:
    code, cases, text = measure(
        """
        import os
        os.environ["JAX_ENABLE_X64"] = "1"
        import jax, jax.numpy as jnp, numpy as np
        from firstlight import bench
        @jax.tree_util.register_dataclass
        @__import__("dataclasses").dataclass
        class Fit:
            value: object
            error: object
            count: object
        reference = lambda: (np.arange(3) / 3.0, np.ones(3), np.array(2.0))
        @bench(backend="jax-jit", reference=reference, tolerance=1e-15)
        def fit():
            ones = lambda x: jnp.ones_like(x, jnp.bfloat16)
            make = jax.jit(lambda x: Fit(x / 3, ones(x), x.sum() * 0 + 2))
            return make, (jax.device_put(np.arange(3.0)),)
        """
    )
    assert code == 0, text
    assert cases["fit"]["protocol"]["precision"]["x64"] is True
    assert cases["fit"]["protocol"]["data"][0]["dtype"] == "float64"
    assert cases["fit"]["correctness"]["max_relative_error"] <= 1e-15


def test_parameters_may_be_any_value_and_arrive_unchanged(measure: Any) -> None:
    code, cases, text = measure(
        """
        import enum, numpy as np
        from firstlight import bench
        class Mode(enum.Enum):
            FAST = 1
        @bench(sizes={"a": {"n": np.int64(4), "mode": Mode.FAST, "kind": np.float32,
                            "inf": float("inf"), "pair": (1, 2)}})
        def typed(n, mode, kind, inf, pair):
            assert type(n) is np.int64 and mode is Mode.FAST and kind is np.float32
            assert inf == float("inf") and pair == (1, 2)
            return lambda: np.ones(n, kind)
        """
    )
    assert code == 0, text
    shown = cases["typed"]["protocol"]["parameters"]
    assert shown["mode"] == "<Mode.FAST: 1>" and shown["inf"] == "inf" and shown["pair"] == [1, 2]


def test_sizes_whose_names_look_alike_do_not_share_a_reference(
    measure: Any, tmp_path: Path
) -> None:
    code, _, text = measure(
        """
        import numpy as np
        from firstlight import bench
        @bench(sizes={"1e-3": {"x": 1e-3}, "1e+3": {"x": 1e3}}, reference=lambda x: np.array(x))
        def scale(x):
            return lambda: np.array(x)
        """
    )
    assert code == 0, text
    cases = json.loads((tmp_path / "out/run.json").read_text())["cases"]
    assert [c["status"] for c in cases] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("step", "reference", "tolerance"),
    [
        ("np.ones(2)", "np.array([1.0, np.nan])", 1e-6),
        ("(np.ones(2), np.ones(2))", "(np.ones(2), np.full(2, np.inf))", 1e-6),
        ("np.array([1 - 5j, 2 + 7j])", "np.array([1 + 5j, 2 + 7j])", 1e-6),
        ("np.array([1 + 1e-9])", "np.array([1.0])", 0),
        ("np.ones(3)", "np.ones((3, 1))", 1e-6),
        ("np.array([np.nan])", "np.array([1.0])", 1e-6),
    ],
)
def test_a_result_that_cannot_be_confirmed_has_no_timing(
    measure: Any, step: str, reference: str, tolerance: float
) -> None:
    code, cases, _ = measure(
        f"""
        import numpy as np
        from firstlight import bench
        @bench(reference=lambda: {reference}, tolerance={tolerance})
        def doubtful():
            return lambda: {step}
        """
    )
    assert code in (1, 2)
    assert cases["doubtful"]["status"] == "failed" and cases["doubtful"]["cold_seconds"] is None


def test_real_and_imaginary_parts_of_a_result_are_compared(measure: Any) -> None:
    code, cases, text = measure(
        """
        import numpy as np
        from firstlight import bench
        @bench(reference=lambda: np.array([1 + 5j]), tolerance=1e-12)
        def wave():
            return lambda: np.array([1 + 5j], dtype=np.complex64)
        """
    )
    assert code == 0 and cases["wave"]["correctness"]["max_relative_error"] == 0.0, text


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("step, np.ones((1, 3))", "Return a tuple, even for one argument"),
        ("step, {'x': 1}", "Return a tuple, even for one argument"),
        ("step, (1,), 3", "a tuple of 3, not a step"),
        ("None", "not a step"),
    ],
)
def test_a_wrong_return_value_is_explained(measure: Any, returned: str, words: str) -> None:
    code, cases, _ = measure(
        f"""
        import numpy as np
        from firstlight import bench
        @bench
        def odd():
            step = lambda x: x
            return {returned}
        """
    )
    assert code == 2 and words in cases["odd"]["reason"]


def test_an_exception_is_the_reason_not_the_last_line_of_a_traceback(measure: Any) -> None:
    code, cases, _ = measure(
        """
        import jax, numpy as np
        from firstlight import bench
        @bench(backend="jax-jit")
        def shapes():
            return jax.jit(lambda x: x @ x), (np.ones((2, 3), np.float32),)
        """
    )
    assert code == 1
    assert cases["shapes"]["reason"].startswith("check process: TypeError: dot_general requires")
    assert "Traceback" in cases["shapes"]["stderr_tail"]


def test_a_lingering_thread_does_not_cost_the_result(measure: Any) -> None:
    code, cases, text = measure(
        """
        import threading, time, numpy as np
        from firstlight import bench
        @bench
        def lingering():
            threading.Thread(target=time.sleep, args=(600,)).start()
            return lambda: np.ones(2)
        """
    )
    assert code == 0 and cases["lingering"]["status"] == "ok", text


def test_a_file_may_have_dots_in_its_name_and_helpers_beside_it(
    command: Firstlight, write: Write
) -> None:
    write("helpers_of_mine.py", "N = 3\n")
    write(
        "bench.v2.py",
        "import numpy as np\nfrom helpers_of_mine import N\nfrom firstlight import bench\n"
        "@bench\ndef f(): return lambda: np.ones(N)\n",
    )
    done = command("run", "bench.v2.py", "--quick", "-p", 1, "--out", "out")
    assert done.returncode == 0, done.stderr


def test_what_a_program_prints_cannot_steer_the_terminal(measure: Any) -> None:
    code, _, text = measure(
        r"""
        from firstlight import bench
        @bench
        def evil():
            raise RuntimeError("title\x1b]0;owned\x07 and \x9b2J")
        """
    )
    assert code == 1 and "owned" in text
    assert "\x1b" not in text and "\x07" not in text and "\x9b" not in text


def test_the_cases_of_a_file_can_be_listed(command: Firstlight, write: Write) -> None:
    write(
        "mine.py",
        "from firstlight import bench\n@bench(sizes={'a': {}, 'b': {}})\ndef f(): ...\n",
    )
    done = command("list", "mine.py")
    assert done.stdout.split() == ["f[a]/python/none", "f[b]/python/none"]


def test_a_missing_reference_is_reported(measure: Any) -> None:
    code, _, text = measure(
        """
        import numpy
        from firstlight import bench
        @bench
        def f():
            return lambda: numpy.ones(1)
        """
    )
    assert code == 0 and "no reference, the result was only checked to be finite" in text


def test_a_wrong_result_is_shown_with_the_reference(measure: Any) -> None:
    _, cases, _ = measure(
        """
        import numpy as np
        from firstlight import bench
        @bench(reference=lambda: np.array([1.0, 11.0]))
        def f():
            return lambda: np.array([1.0, 10.0])
        """
    )
    assert "output 0 at [1] is 10, the reference 11" in cases["f"]["reason"]
