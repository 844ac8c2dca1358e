"""Tiers: NumPy answers until the compiler is ready; both give the same results."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, monitoring

from firstlight.telemetry.events import STAGES
from firstlight.warmstart import tiered
from firstlight.warmstart.tiers import remembered
from firstlight.warmstart.tiers.interpreter import AbandonedError, Interpreter
from firstlight.warmstart.tiers.signature_calls import SignatureCalls, Switch, Tier, WhyOff

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIRSTLIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("FIRSTLIGHT_CACHE", raising=False)


@pytest.fixture
def stages() -> Iterator[list[tuple[str, str]]]:
    """(what JAX says it did, in which thread)."""
    heard: list[tuple[str, str]] = []

    def listen(event: str, seconds: float, **about: object) -> None:
        if event in STAGES:
            heard.append((STAGES[event], threading.current_thread().name))

    monitoring.register_event_duration_secs_listener(listen)
    yield heard
    monitoring.unregister_event_duration_listener(listen)


def test_numpy_answers_until_a_thread_has_compiled_the_program(
    stages: list[tuple[str, str]],
) -> None:
    x = np.linspace(0, 1, 8, dtype=np.float32)
    doubled = tiered(lambda x: {"twice": 2 * x, "sum": [x.sum()]})
    here = threading.current_thread().name
    # Before JAX 0.10, what is called within it (`2 * x`, `x.sum()`) is reported too.
    traced = [("trace", here)] * (1 if jax.__version_info__ >= (0, 10) else 3)
    for _ in range(2):
        found = doubled(x)
        assert isinstance(found["twice"], jax.Array)
        np.testing.assert_array_equal(found["twice"], 2 * x)
        np.testing.assert_allclose(found["sum"][0], 4.0, rtol=1e-6)
        assert [stage for stage in stages if stage[1] == here] == traced
    doubled.wait()
    np.testing.assert_array_equal(doubled(x)["twice"], 2 * x)
    assert stages == [
        *traced,
        ("lower", "firstlight-tiered"),
        ("compile", "firstlight-tiered"),
    ]
    (switch,) = doubled.switches
    assert (switch.signature, switch.first_tier, switch.switched) == (
        "(float32[8])",
        Tier.NUMPY,
        True,
    )


def test_every_signature_begins_in_the_first_tier() -> None:
    add = tiered(lambda x, times=1: x + times, static_argnums=1)
    assert add(np.float32(1), 1) == 2
    assert add(np.ones(2), times=3).tolist() == [4, 4]
    add.wait()
    assert add(np.float32(1), 1) == 2
    assert [switch.first_tier for switch in add.switches] == [Tier.NUMPY, Tier.NUMPY]
    assert all(switch.switched for switch in add.switches)


def test_it_is_differentiated_and_mapped_like_a_jitted_function() -> None:
    cube = tiered(lambda x: x**3)
    assert jax.grad(cube)(2.0) == 12.0
    assert jax.vmap(cube)(np.arange(3.0)).tolist() == [0, 1, 8]
    slope = tiered(jax.grad(lambda x: x**3))
    assert slope(2.0) == 12.0
    assert slope.switches[0].first_tier is Tier.NUMPY


def test_errors_of_the_function_and_of_the_compiler_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(x: Any) -> Any:
        raise LookupError("in the function")

    with pytest.raises(LookupError, match="in the function"):
        tiered(broken)(1.0)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the compiler gave up")

    fine = tiered(lambda x: x + 1)
    monkeypatch.setattr("jax.stages.Lowered.compile", fail)
    assert fine(1.0) == 2.0
    fine.wait()
    with pytest.raises(RuntimeError, match="the compiler gave up"):
        fine(1.0)


def test_a_function_that_calls_back_into_python_compiles_at_once_and_says_so() -> None:
    seen: list[float] = []

    def watched(x: Any) -> Any:
        jax.debug.callback(lambda value: seen.append(float(value)), x)
        return x

    both = tiered(watched)
    with pytest.warns(RuntimeWarning, match=r"tiered\(watched\) compiles at once: it calls back"):
        both(1.0).block_until_ready()
    jax.effects_barrier()
    assert seen == [1.0]
    assert both.switches[0].why_off is WhyOff.EFFECTS


def test_when_compiled_at_once_later_calls_go_to_jax_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda value: seen.append(float(value)), x)
        return x * 2

    both = tiered(f)
    for x in (jnp.float32(3), jnp.int32(4)):  # the second one after JAX was asked and refused
        with pytest.warns(RuntimeWarning, match="compiles at once"):
            both(x)

    def not_again(*_: Any) -> Any:
        raise AssertionError("the call did not go to JAX directly")

    monkeypatch.setattr(both, "_answer", not_again)
    assert (float(both(jnp.float32(5))), int(both(jnp.int32(6)))) == (10, 12)
    jax.effects_barrier()
    assert seen == [3, 4, 5, 6]


def test_a_program_that_numpy_cannot_run_is_compiled_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object) -> None:
        raise KeyError("num_consts")

    monkeypatch.setattr(Interpreter, "step", unknown)
    fine = tiered(lambda x: x + 1)
    with pytest.warns(RuntimeWarning, match="NumPy cannot run its program"):
        assert fine(1.0) == 2.0
    assert fine(2.0) == 3.0
    assert fine.switches[0].why_off is WhyOff.NOT_UNDERSTOOD


def test_a_slow_program_is_abandoned_when_the_compiled_one_is_ready() -> None:
    is_over = [False]
    interpreter = Interpreter(lambda: is_over[0])

    def forever(x: Any) -> Any:
        return lax.while_loop(lambda x: x > 0, lambda x: x + 1, x)

    closed = jax.make_jaxpr(forever)(1)
    body = closed.eqns[0].params["body_jaxpr"]

    def notice(*inputs: Any) -> Any:
        is_over[0] = inputs[0] > 5
        return [inputs[0] + 1]

    interpreter._prepared[id(body)] = notice  # type: ignore[assignment]
    with pytest.raises(AbandonedError):
        interpreter.run(closed, [np.asarray(1)])


def _linear_algebra(a: Any) -> Any:
    spd = a @ a.T + 4 * jnp.eye(4)
    lower = jnp.linalg.cholesky(spd)
    return (
        jnp.linalg.solve(spd, a[0]),
        lax.linalg.triangular_solve(lower, a, left_side=True, lower=True, transpose_a=True),
        lax.linalg.triangular_solve(lower, a, left_side=False, lower=True),
        lax.linalg.triangular_solve(lower.T, a, left_side=True, unit_diagonal=True),
        jnp.linalg.cholesky(-spd),
        jnp.linalg.inv(a),
    )


def _indexing(a: Any) -> Any:
    rows = jnp.array([0, 3, 9, -1])
    return (
        a[rows], a[rows, rows], a.at[rows].add(1.0), a.at[rows, 1].set(7.0), a.at[:2, 1:].mul(3.0),
        a.at[rows].get(mode="fill", fill_value=-5.0), a.at[rows].max(0.1, mode="clip"),
        lax.dynamic_slice(a, (3, 1), (2, 2)), lax.dynamic_update_slice(a, a[:2, :2], (3, 3)),
        lax.pad(a, 0.5, [(1, -1, 2), (-2, 3, 0)]), jnp.sort(a, 0), jnp.argsort(a, 1),
        lax.sort((a[0], a[1], a[2]), num_keys=2), a[::-1, ::2], jnp.stack([a, a], 1),
        jax.vmap(lambda row, i: row[i])(a, jnp.array([3, 2, 1, 0])), jnp.split(a, [1, 3], 1),
        jnp.take_along_axis(a, jnp.argmax(a, 1)[:, None], 1), jnp.argmin(a), a.T.reshape(2, 8),
    )  # fmt: skip


def _arithmetic(a: Any) -> Any:
    i = (10 * a).astype(jnp.int32)
    small = a.astype(jnp.bfloat16)
    return (
        i // 3, i % 3, lax.div(i, jnp.int32(-3)), lax.rem(i, jnp.int32(3)), i << 3, i >> 40, i & 6,
        ~i, lax.shift_right_logical(i, jnp.int32(2)), lax.shift_left(i, jnp.int32(33)),
        (1e20 * a).astype(jnp.int32), jnp.log(a - 9).astype(jnp.int32), a**-3, a**5, a**0.3,
        jnp.round(a), lax.round(a), jax.nn.sigmoid(a), lax.rsqrt(abs(a)), lax.erf(a), lax.erfc(a),
        jnp.clip(a, -0.1, 0.1), jnp.cumsum(a, 1), lax.cummax(a, 0, reverse=True), jnp.prod(a, 1),
        (a > 0).any(0), (a > 0).all(), ~(a > 0), (a > 0) ^ (a < 1), jnp.mean(i), small @ small,
        jnp.einsum("ij,kj,il->ikl", a, a, a), lax.erf_inv(a / 9),  # which NumPy has not
        jnp.select([a > 1, a > 0], [a, 2 * a], 3 * a), lax.clamp(0.0, a, 1.0), jnp.tanh(small),
        jnp.arange(3.0), i.sum(), i.max(0),
    )  # fmt: skip


def _control(a: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return carry + row.sum(), carry * row

    return (
        lax.scan(body, 0.0, a),
        lax.scan(body, 0.0, a, reverse=True),
        lax.while_loop(lambda x: x < 100, lambda x: 2 * x, 1.0),
        lax.cond(a[0, 0] > 0, lambda x: x, lambda x: -x, a),
        lax.switch(7, [lambda x: x, lambda x: 2 * x], a),
        lax.fori_loop(0, 4, lambda i, x: x.at[i].set(0.0), a),
        jax.checkpoint(jnp.sin)(a),
        jax.grad(lambda x: jnp.sum(jax.nn.relu(x) ** 2) + jax.nn.logsumexp(x))(a),
        lax.platform_dependent(a, cpu=lambda x: x, default=lambda x: x + 1),
        jax.vmap(lambda x: lax.while_loop(lambda y: y < 9, lambda y: y + 1, x))(a[0]),
    )


@pytest.mark.parametrize("program", [_linear_algebra, _indexing, _arithmetic, _control])
def test_numpy_computes_what_the_compiled_program_computes(program: Any) -> None:
    a = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    traced = jax.jit(program).trace(a)
    expected = jax.tree_util.tree_leaves(jax.jit(program)(a))
    found = Interpreter(lambda: False).run(traced.jaxpr, [a])
    pairs = zip(map(np.asarray, found), map(np.asarray, expected), strict=True)
    for number, (ours, xlas) in enumerate(pairs):
        assert (ours.shape, ours.dtype) == (xlas.shape, xlas.dtype), number
        exact = ours.dtype.kind in "iub"
        tolerance = 0 if exact else 2e-2 if ours.dtype.kind == "V" else 1e-5
        wide = [x if exact or x.dtype.kind == "c" else x.astype(np.float64) for x in (ours, xlas)]
        np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance, err_msg=str(number))


def test_a_program_that_is_slow_in_numpy_waits_while_it_is_lowered_and_not_for_xla(
    monkeypatch: pytest.MonkeyPatch, stages: list[tuple[str, str]]
) -> None:
    may_compile = threading.Event()
    compile_it = jax.stages.Lowered.compile

    def later(self: Any, *args: Any, **kwargs: Any) -> Any:
        may_compile.wait()
        return compile_it(self, *args, **kwargs)

    monkeypatch.setattr("jax.stages.Lowered.compile", later)
    monkeypatch.setattr("firstlight.warmstart.tiers.signature_calls._PATIENCE_SECONDS", -1.0)
    add = tiered(lambda x: x + 1)
    assert add(1.0) == 2.0
    assert [stage for stage, _ in stages] == ["trace", "lower"]
    (switch,) = add.switches
    assert (switch.first_tier, switch.numpy_calls, switch.switched) == (Tier.NUMPY, 1, False)
    assert switch.break_even_calls is None
    may_compile.set()
    add.wait()
    assert add.switches[0].break_even_calls is not None


def test_the_break_even_is_the_first_call_that_numpy_alone_would_have_answered_later() -> None:
    switch = Switch("(float32[8])", Tier.NUMPY, None, 3, True, 0.25, 1.0)
    totals = [calls * 0.25 for calls in range(1, 9)]
    assert switch.break_even_calls == 1 + next(i for i, took in enumerate(totals) if took > 1.0)


def test_if_the_compiler_was_faster_the_next_signature_and_process_compile_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_slow(self: SignatureCalls, leaves: list[Any]) -> Any:
        self.over.wait()
        raise AbandonedError

    def cube(x: Any) -> Any:
        return x**3

    with monkeypatch.context() as slow:
        slow.setattr(SignatureCalls, "by_numpy", too_slow)
        here = tiered(cube)
        assert here(2.0) == 8.0
    said = r"tiered\(cube\) compiles at once: it was compiled before NumPy had answered"
    with pytest.warns(RuntimeWarning, match=said):
        assert here(np.ones(3)).tolist() == [1, 1, 1]
    elsewhere = tiered(cube)  # as in another process: what it knows is in the folder
    with pytest.warns(RuntimeWarning, match=said):
        assert elsewhere(2.0) == 8.0
    assert [s.why_off for s in elsewhere.switches] == [WhyOff.SLOWER_IN_NUMPY]
    assert elsewhere(np.ones(3)).tolist() == [1, 1, 1]  # the first tier of this one was not slow
    assert elsewhere.switches[1].first_tier is Tier.NUMPY


def test_a_program_that_was_too_slow_is_tried_again_after_a_week(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = jax.make_jaxpr(jnp.sin)(1.0)
    remembered.remember(program)
    assert remembered.is_slower(program)
    assert not remembered.is_slower(jax.make_jaxpr(jnp.cos)(1.0))
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 8 * 24 * 3600)
    assert not remembered.is_slower(program)
