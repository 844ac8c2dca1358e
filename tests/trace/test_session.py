"""`recording()` has what JAX compiles in its block, and nothing after it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import api, array, monitoring, xla_bridge

import firstlight.trace

pytestmark = pytest.mark.slow


@pytest.fixture
def untouched() -> Iterator[None]:
    """JAX is restored."""

    def state() -> list[object]:
        listeners = [
            list(value)
            for name, value in vars(monitoring).items()
            if name.endswith("_listeners") and isinstance(value, list)
        ]
        assert len(listeners) == 4
        kept = [vars(array.ArrayImpl)[name] for name in ("_value", "block_until_ready")]
        kept += [jax.block_until_ready, jax.device_get, api.xc.batched_block_until_ready]
        return [listeners, *kept, xla_bridge._init_backend]

    before = state()
    yield
    assert state() == before


def fresh():  # type: ignore[no-untyped-def]
    """A new function with a NumPy array: exactly one compile."""
    return jax.jit(lambda x: x * 2 + 1), np.ones(3, np.float32)


@pytest.mark.usefixtures("untouched")
def test_a_recording_counts_as_jax_does(compilations) -> None:  # type: ignore[no-untyped-def]
    f, x = fresh()
    compilations.reset()
    with firstlight.trace.recording() as t:
        f(x).block_until_ready()
        f(x).block_until_ready()
        f(x[:2]).block_until_ready()
        jnp.cumsum(np.ones(7))
    assert t.compile_count == compilations.count
    assert t.recompiles == 1
    (function,) = [g for g in t.functions if g.name.endswith("<lambda>")]
    assert [c.recompile_reason for c in function.compiles] == [None, "shape"]
    assert t.trace.time_to_first_result_seconds is not None
    assert sum(c.compiled for g in t.functions for c in g.compiles) == t.compile_count


@pytest.mark.usefixtures("untouched")
def test_nothing_is_recorded_before_or_after_the_block() -> None:
    f, x = fresh()
    f(x)
    with firstlight.trace.recording() as t:
        f(x).block_until_ready()
    fresh()[0](x)
    assert t.compile_count == 0 and t.functions == ()


@pytest.mark.usefixtures("untouched")
def test_an_inner_recording_has_only_its_own_part() -> None:
    f, x = fresh()
    with firstlight.trace.recording() as outer:
        f(x).block_until_ready()
        with firstlight.trace.recording() as inner:
            f(x[:2]).block_until_ready()
        f(x[:1]).block_until_ready()
        assert outer.compile_count == 3  # even before its end
    assert (outer.compile_count, inner.compile_count) == (3, 1)
    assert (outer.recompiles, inner.recompiles) == (2, 0)
    assert inner.trace.time_to_first_result_seconds is not None
    assert len(outer.trace.processes) == len(inner.trace.processes) == 1


@pytest.mark.parametrize(
    ("wait", "times"),
    [
        (lambda y: y.block_until_ready(), 1),
        (jax.block_until_ready, 1),
        (lambda y: jax.block_until_ready([y, y + 1]), 1),
        (lambda y: jax.device_get([y, y + 1]), 1),
        (np.asarray, 0),  # NumPy's read of CPU memory is invisible: a limit stated in the docs
        (lambda y: float(y[0]), 1),
        (lambda y: y + 1, 0),
    ],
    ids=["method", "function", "several", "device_get", "asarray", "float", "no wait"],
)
@pytest.mark.usefixtures("untouched")
def test_every_way_to_wait_for_a_result_is_one_wait(wait, times) -> None:  # type: ignore[no-untyped-def]
    y = jnp.arange(3.0)
    wait(y)  # everything is compiled
    y = jnp.arange(3.0)  # a new array: values that were read are cached
    with firstlight.trace.recording() as t:
        wait(y)
    (process,) = t.trace.processes
    assert process.short_waits + sum(w.count for w in process.waits) == times
    assert (process.first_result_seconds is not None) == bool(times)


@pytest.mark.usefixtures("untouched")
def test_recordings_that_overlap_in_threads_do_not_disturb_each_other() -> None:
    begun, over = threading.Event(), threading.Event()
    found = []

    def record() -> None:
        with firstlight.trace.recording() as t:
            begun.set()
            assert over.wait(60)
        found.append(t)

    thread = threading.Thread(target=record)
    thread.start()
    assert begun.wait(60)
    f, x = fresh()
    with firstlight.trace.recording() as mine:
        f(x).block_until_ready()
    f(x[:2])
    over.set()
    thread.join()
    assert mine.compile_count == 1
    assert found[0].compile_count == 2  # in all threads, up to its end


@pytest.mark.usefixtures("untouched")
def test_an_exception_in_the_block_is_the_users() -> None:
    f, x = fresh()
    with (
        pytest.raises(ZeroDivisionError, match="mine"),
        firstlight.trace.recording() as t,
    ):
        f(x)
        raise ZeroDivisionError("mine")
    assert t.compile_count == 1


@pytest.mark.usefixtures("untouched")
def test_an_error_of_the_recorder_is_reported_and_not_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr("firstlight.trace.record.calls.call_of", broken)
    f, x = fresh()
    with firstlight.trace.recording() as t:
        assert f(x).tolist() == [3.0, 3.0, 3.0]
    assert any("injected" in problem for problem in t.trace.processes[0].problems)


def test_jax_may_be_imported_within_the_block() -> None:
    code = (
        "import firstlight.trace\n"
        "with firstlight.trace.recording() as t:\n"
        "    import jax\n"
        "    print(jax.jit(lambda x: x + 1)(1.0))\n"
        "imports = t.trace.processes[0].imports\n"
        "print(t.compile_count, [p.name for p in imports if p.name == 'jax'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2.0\n1 ['jax']\n"


def test_the_package_is_light_until_a_recording_is_made() -> None:
    code = "import sys, firstlight.trace; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    ours = {n.removeprefix("firstlight.trace.") for n in loaded if n.startswith("firstlight")}
    assert ours == {"firstlight", "firstlight.trace", "record", "record.marks"}
    assert not {"typing", "json", "jax", "numpy", "dataclasses"} & loaded


# --- notebook -------------------------------------------------------------------------------------


def test_the_display_is_escaped_and_says_the_verdict() -> None:
    def evil(x):  # type: ignore[no-untyped-def]
        return x + 1

    evil.__qualname__ = evil.__name__ = "<script>alert(1)</script>"
    with firstlight.trace.recording() as t:
        jax.jit(evil)(np.ones(2)).block_until_ready()
    page = t._repr_html_()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "1 program compiled" in page and "1 program compiled" in repr(t)


def test_the_magic_shows_the_verdict_under_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('%load_ext firstlight.trace').raise_error()\n"
        "shell.run_cell('import jax, numpy').raise_error()\n"
        "cell = '%%firstlight\\nf = jax.jit(lambda x: x + 1)\\nprint(f(numpy.ones(2)), f(1.0))'\n"
        "shell.run_cell(cell).raise_error()\n"
        "print(shell.user_ns['f'](2.0))\n"
        "shell.run_cell('%unload_ext firstlight.trace').raise_error()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.index("[2. 2.] 2.0") < done.stdout.index("programs compiled")
    assert done.stdout.endswith("3.0\n")
