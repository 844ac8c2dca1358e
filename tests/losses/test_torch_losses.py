"""Claims about the PyTorch losses: equal to those of JAX, and usable in training like torch's own.

The oracle of values and gradients is `firstlight.losses`, which has its own at 50 digits; that of
derivatives as autograd sees them is torch's `gradcheck`.
"""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from firstlight import histfactory as hf
from firstlight import losses
from firstlight import torch as ft
from firstlight.forks import ForkError
from firstlight.histfactory import programs
from firstlight.histfactory.programs import Patience, compiler_options
from firstlight.losses import LossError
from firstlight.torch import on_host

pytestmark = pytest.mark.slow

SIGNAL, OTHER, BACKGROUND = [6.0, 9.0, 4.0], [2.0, 3.0, 5.0], [50.0, 40.0, 20.0]
OBSERVED = [62.0, 57.0, 29.0]
#: All kinds of templates: two signals, a background and a shape.
TEMPLATES = {
    "signal": SIGNAL,
    "other": [2.5, 2.0, 5.5],
    ("SR", "background"): [51.0, 39.0, 21.0],
    ("SR", "background", "jes", "hi"): [55.0, 38.5, 19.0],
}
#: The same templates as in the workspace.
NOMINAL = {
    "signal": SIGNAL,
    "other": OTHER,
    ("SR", "background"): BACKGROUND,
    ("SR", "background", "jes", "hi"): [54.0, 39.0, 19.5],
}
ROWS = [SIGNAL, [3.0, 12.0, 8.0], [7.0, 1.0, 0.5]]
MUS = (0.5, 2.5, 4.0)
#: The model rejects wrong names and sizes, the losses everything else.
REFUSED = (LossError, hf.ModelError)


@pytest.fixture(scope="module")
def workspace(make: Any) -> dict[str, Any]:
    factor = make.modifier("normfactor", "mu")
    xs = make.normsys("xs", 0.93, 1.08)
    region = make.channel(
        "SR",
        make.sample("signal", SIGNAL, factor, make.normsys("eff", 0.95, 1.06)),
        make.sample("other", OTHER, factor),
        make.sample(
            "background",
            BACKGROUND,
            xs,
            make.histosys("jes", [47.0, 41.0, 21.0], NOMINAL["SR", "background", "jes", "hi"]),
            make.modifier("staterror", "stat", [3.0, 3.0, 2.0]),
        ),
    )
    control = make.channel("CR", make.sample("background", [100.0], xs))
    return make.workspace([region, control], [OBSERVED, [104.0]])


@pytest.fixture(scope="module")
def model(workspace: dict[str, Any]) -> hf.Model:
    return hf.load(workspace)


@pytest.fixture(scope="module")
def kept_session(model: hf.Model) -> ft.Session:
    return ft.create_profiled_session(model, "signal")


@pytest.fixture(params=["NumPy", "compiled"])
def session(
    kept_session: ft.Session, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ft.Session:
    """One session for all tests, reset."""
    use(request.param, monkeypatch)
    kept_session.reset()
    return kept_session


def use(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in NumPy only, or in compiled programs only."""
    monkeypatch.setattr(programs, "PATIENCE", 1e9 if backend == "NumPy" else 0.0)
    monkeypatch.setattr(programs, "_AT_ONCE", set())  # other tests of the process add to it
    monkeypatch.setattr(on_host, "_PATIENCE", Patience(evaluations=18))


def scalar(value: Any) -> float:
    """The value as a number; torch would warn about a tensor with a history."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def tensor(values: Any, **options: Any) -> Any:
    return torch.tensor(values, dtype=torch.float64, **options)


def leaf(values: Any) -> Any:
    return tensor(values, requires_grad=True)


def leaves(histograms: dict[Any, Any]) -> dict[Any, Any]:
    return {key: leaf(values) for key, values in histograms.items()}


def in_jax(function: Callable[..., Any], keys: list[Any]) -> Callable[..., Any]:
    """Value and gradient with respect to all templates, in JAX, compiled once."""

    def of_numbers(*values: Any) -> Any:
        return function(dict(zip(keys, values, strict=True)))

    # Without `jit` NumPy would compute it, as it does for the session.
    by_all = jax.value_and_grad(of_numbers, tuple(range(len(keys))))
    program = jax.jit(by_all, compiler_options=compiler_options())

    def call(histograms: dict[Any, Any]) -> tuple[float, list[Any]]:
        with jax.enable_x64(True):
            value, gradient = program(*(jnp.asarray(histograms[k], jnp.float64) for k in keys))
            return scalar(value), [np.asarray(g) for g in gradient]

    return call


@pytest.fixture(scope="module")
def q0_in_jax(model: hf.Model) -> Callable[..., tuple[float, list[Any]]]:
    return in_jax(lambda h: losses.q0(model, h), list(TEMPLATES))


@pytest.fixture(scope="module")
def jax_q0(q0_in_jax: Callable[..., tuple[float, list[Any]]]) -> tuple[float, Any]:
    """q0 with the workspace's own templates, and its gradient with respect to the signal."""
    value, (gradient, *_) = q0_in_jax(NOMINAL)
    assert value > 1
    return value, gradient


@pytest.fixture(scope="module")
def nll_in_jax(model: hf.Model) -> Callable[..., Any]:
    """Value and gradient with respect to the signal and the parameters, compiled once."""

    def nll(signal: Any, parameters: Any) -> Any:
        return losses.nll(model, {"signal": signal}, parameters)

    return jax.jit(jax.value_and_grad(nll, (0, 1)), compiler_options=compiler_options())


def assert_same(value: Any, gradient: Any, expected: tuple[float, Any]) -> None:
    """Agreement to 1e-12 relative to the value, and to the largest slope."""
    assert scalar(value) == pytest.approx(expected[0], rel=1e-12, abs=1e-14)
    scale = np.max(np.abs(expected[1]))
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-12, atol=1e-12 * scale)


# --- the same as JAX ------------------------------------------------------------------------------


def test_q0_and_its_gradient_are_those_of_jax(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    signal = leaf(SIGNAL)
    value = ft.profiled_q0_loss(signal, session)
    assert value.shape == ()
    assert value.dtype == torch.float64
    value.backward()
    assert_same(value.detach(), signal.grad, jax_q0)


def test_z0_and_the_loss_are_roots_of_q0_with_their_slopes(
    model: hf.Model, session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    q0, slope = jax_q0
    for eps in (1e-12, 0.25):
        root = math.sqrt(q0 + eps)
        loss = ft.SignificanceLoss(model, eps=eps)
        plain = ft.SignificanceLoss(model, "signal", negate=False, eps=eps)
        for function, sign in (
            (lambda s, e=eps: ft.profiled_z0_loss(s, session, eps=e), 1),
            (loss, -1),
            (plain, 1),
            (loss.z0, 1),
        ):
            signal = leaf(SIGNAL)
            value = function(signal)
            value.backward()
            assert_same(value.detach(), signal.grad, (sign * root, sign * slope / (2 * root)))
        assert scalar(loss.q0(tensor(SIGNAL))) == pytest.approx(q0, rel=1e-12)


def test_loss_equals_the_significance_of_jax(model: hf.Model, session: ft.Session) -> None:
    found = losses.significance(model, {"signal": np.array(SIGNAL)})
    assert scalar(ft.profiled_z0_loss(tensor(SIGNAL), session, eps=0.0)) == pytest.approx(
        found, rel=1e-12
    )
    assert scalar(ft.SignificanceLoss(model)(tensor(SIGNAL))) == pytest.approx(-found, rel=1e-12)


def test_qmu_and_zmu_are_those_of_jax_and_nothing_is_excluded_below_the_best_fit(
    model: hf.Model, session: ft.Session
) -> None:
    """Their gradients come from the same program and are checked below."""
    named = {"signal": np.array(SIGNAL)}
    for mu in (2.5, 4.0):
        expected = losses.qmu_tilde(model, named, mu)
        assert expected > 0.5
        value = ft.profiled_qmu_loss(tensor(SIGNAL), session, mu)
        assert scalar(value) == pytest.approx(expected, rel=1e-12)
        root = ft.profiled_zmu_loss(tensor(SIGNAL), session, mu, eps=0.0)
        assert scalar(root) == pytest.approx(losses.z_mu(model, named, mu), rel=1e-12)
    signal = leaf(SIGNAL)
    below = ft.profiled_qmu_loss(signal, session, 0.1)
    below.backward()
    assert scalar(below) == 0
    assert np.all(signal.grad.numpy() == 0)


def test_nll_and_its_gradients_are_those_of_jax(
    model: hf.Model, session: ft.Session, nll_in_jax: Callable[..., Any]
) -> None:
    init = model.init.astype(np.float64)
    elsewhere = init + np.linspace(-0.1, 0.2, len(init))
    for point in (None, elsewhere):
        with jax.enable_x64(True):
            value, (by_signal, by_parameters) = nll_in_jax(
                jnp.asarray(SIGNAL, jnp.float64), jnp.asarray(init if point is None else point)
            )
        signal = leaf(SIGNAL)
        params = None if point is None else leaf(point)
        ours = ft.nll_loss(signal, session, params)
        ours.backward()
        assert_same(ours.detach(), signal.grad, (scalar(value), np.asarray(by_signal)))
        if params is not None:
            assert_same(ours.detach(), params.grad, (scalar(value), np.asarray(by_parameters)))


def test_mapping_of_backgrounds_and_systematics_has_the_gradients_of_jax(
    session: ft.Session, q0_in_jax: Callable[..., tuple[float, list[Any]]]
) -> None:
    expected = q0_in_jax(TEMPLATES)
    given = leaves(TEMPLATES)
    value = ft.profiled_q0_loss(given, session)
    value.backward()
    scale = max(np.max(np.abs(g)) for g in expected[1])
    assert scalar(value) == pytest.approx(expected[0], rel=1e-12)
    for (key, found), slope in zip(given.items(), expected[1], strict=True):
        assert found.grad.shape == found.shape
        np.testing.assert_allclose(
            found.grad, slope, rtol=1e-11, atol=1e-12 * scale, err_msg=str(key)
        )
        assert np.any(slope != 0), key


def test_one_histogram_holds_two_concatenated_signal_samples(model: hf.Model) -> None:
    both = ft.create_profiled_session(model, ["signal", "other"])
    assert both.signal_n_bins() == 6
    joined = leaf([*SIGNAL, *TEMPLATES["other"]])
    value = ft.profiled_q0_loss(joined, both)
    value.backward()
    named = leaves({"signal": SIGNAL, "other": TEMPLATES["other"]})
    apart = ft.profiled_q0_loss(named, both)
    apart.backward()
    assert scalar(value) == pytest.approx(scalar(apart), rel=1e-12)
    np.testing.assert_allclose(
        joined.grad, torch.cat([t.grad for t in named.values()]), rtol=1e-12, atol=1e-13
    )
    rebuilt = losses.q0(model, {k: np.array(TEMPLATES[k]) for k in ("signal", "other")})
    assert scalar(value) == pytest.approx(rebuilt, rel=1e-12)


def test_jacobian_is_the_gradient_of_q0_without_autograd(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    found = ft.signal_jacobian(leaf(SIGNAL), session)
    assert not found.requires_grad
    assert_same(jax_q0[0], found, jax_q0)
    as_numpy = ft.signal_jacobian_numpy(tensor(SIGNAL), session)
    assert isinstance(as_numpy, np.ndarray)
    np.testing.assert_allclose(as_numpy, found, rtol=1e-12)


def test_other_data_fixed_parameters_and_relative_variations_are_those_of_jax(
    model: hf.Model,
) -> None:
    signal = {"background": np.array([51.0, 39.0, 21.0])}
    named = {("SR", "background"): signal["background"]}
    options = {"data": np.array([104.0, 70.0, 55.0, 25.0]), "variations": "relative"}
    fixed = {"xs": 0.5}
    ours = ft.Session(model, [("SR", "background")], fixed=fixed, **options)
    value = ft.profiled_q0_loss(tensor(named["SR", "background"]), ours)
    expected = losses.q0(model, named, fixed=fixed, **options)
    assert scalar(value) == pytest.approx(expected, rel=1e-12)
    assert expected > 1


# --- batches --------------------------------------------------------------------------------------


def test_rows_of_a_batch_equal_single_calls(session: ft.Session, model: hf.Model) -> None:
    rows = leaf(ROWS)
    together = ft.batch_profiled_q0_loss(rows, session)
    assert [t.shape for t in together] == [()] * 3
    weights = (1.0, -2.0, 0.5)
    sum(w * q for w, q in zip(weights, together, strict=True)).backward()
    alone = ft.Session(model, warm_start=False)
    for row, weight, value, gradient in zip(ROWS, weights, together, rows.grad, strict=True):
        single = leaf(row)
        q0 = ft.profiled_q0_loss(single, alone)
        q0.backward()
        assert scalar(value) == pytest.approx(scalar(q0), rel=1e-12)
        np.testing.assert_allclose(gradient, weight * single.grad, rtol=1e-11, atol=1e-12)


def test_batch_of_signal_strengths_equals_single_calls(session: ft.Session) -> None:
    signal = leaf(SIGNAL)
    together = ft.batch_profiled_qmu_loss(signal, session, MUS)
    for value, mu in zip(together, MUS, strict=True):
        (gradient,) = torch.autograd.grad(value, signal, retain_graph=True)
        single = leaf(SIGNAL)
        qmu = ft.profiled_qmu_loss(single, session, mu)
        qmu.backward()
        assert scalar(value) == pytest.approx(scalar(qmu), rel=1e-12, abs=1e-15)
        np.testing.assert_allclose(gradient, single.grad, rtol=1e-11, atol=1e-12)
    rows = ft.batch_profiled_qmu_loss(tensor([SIGNAL] * 3), session, list(MUS))
    assert [scalar(v) for v in rows] == pytest.approx([scalar(v) for v in together], rel=1e-12)


def test_batch_of_one_or_no_histogram_is_a_list(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    (only,) = ft.batch_profiled_q0_loss(tensor(SIGNAL), session)
    assert scalar(only) == pytest.approx(jax_q0[0], rel=1e-12)
    assert ft.batch_profiled_q0_loss(torch.zeros((0, 3), dtype=torch.float64), session) == []
    assert ft.batch_profiled_qmu_loss(tensor(SIGNAL), session, []) == []


# --- derivatives as torch sees them ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["q0", "z0", "qmu", "zmu"])
def test_profiled_losses_pass_gradcheck_and_gradgradcheck(session: ft.Session, name: str) -> None:
    function = {
        "q0": lambda s: ft.profiled_q0_loss(s, session),
        "z0": lambda s: ft.profiled_z0_loss(s, session),
        "qmu": lambda s: ft.profiled_qmu_loss(s, session, 2.5),
        "zmu": lambda s: ft.profiled_zmu_loss(s, session, 2.5),
    }[name]
    assert torch.autograd.gradcheck(function, (leaf(SIGNAL),))
    assert torch.autograd.gradgradcheck(function, (leaf(SIGNAL),))


def test_nll_and_batches_pass_gradcheck(session: ft.Session, model: hf.Model) -> None:
    params = leaf(model.init + 0.05)
    assert torch.autograd.gradcheck(lambda s, p: ft.nll_loss(s, session, p), (leaf(SIGNAL), params))
    assert torch.autograd.gradcheck(
        lambda rows: torch.stack(ft.batch_profiled_q0_loss(rows, session)), (leaf(ROWS),)
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp
@pytest.mark.parametrize("name", ["q0", "nll", "mapping", "batch"])
def test_torch_func_gives_the_derivatives_of_backward(
    kept_session: ft.Session, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    use("NumPy", monkeypatch)
    session = kept_session
    function = {
        "q0": lambda s: ft.profiled_q0_loss(s, session),
        "nll": lambda s: ft.nll_loss(s, session),
        "mapping": lambda s: ft.profiled_z0_loss({"signal": s, "other": s + 1.0}, session),
        "batch": lambda s: ft.batch_profiled_q0_loss(torch.stack([s, s + 1]), session)[1],
    }[name]
    rows, along = tensor(ROWS), tensor([1.0, -0.5, 2.0])
    values, wanted = [], []
    for row in ROWS:
        signal = leaf(row)
        values.append(function(signal))
        values[-1].backward()
        wanted.append(signal.grad)
    slopes, func = torch.stack(wanted), torch.func
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
    for found, expected in (
        (func.grad(function)(rows[0]), slopes[0]),
        (func.vmap(function)(rows), torch.stack(values).detach()),
        (func.vmap(func.grad(function))(rows), slopes),
        (func.grad(lambda r: func.vmap(function)(r).sum())(rows), slopes),
        (func.jvp(function, (rows[0],), (along,))[1], slopes[0] @ along),
        (func.jacfwd(function)(rows[0]), slopes[0]),
    ):
        torch.testing.assert_close(found, expected, **close)
    if name in ("nll", "batch"):
        for way in (func.hessian, lambda f: func.jacrev(func.jacrev(f))):
            with pytest.raises(ft.DerivativeError, match="second derivatives"):
                way(function)(rows[0])
        return
    curvature = torch.autograd.functional.hessian(function, rows[0])
    for way in (func.hessian, lambda f: func.jacrev(func.jacrev(f))):
        torch.testing.assert_close(way(function)(rows[0]), curvature, **close)
    with pytest.raises(ft.DerivativeError, match="first and second"):
        func.grad(lambda s: func.hessian(function)(s).sum())(rows[0])


def test_torch_func_differentiates_a_training_step_by_the_parameters_of_the_network(
    asimov_loss: ft.SignificanceLoss,
) -> None:
    signal, background, network = toy()

    def step(parameters: Any) -> Any:
        def scores(events: Any) -> Any:
            return torch.func.functional_call(network, parameters, (events,))

        return asimov_loss(yields(scores, signal, background))

    found = torch.func.grad(step)(dict(network.named_parameters()))
    asimov_loss(yields(network, signal, background)).backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_a_network_under_autocast_trains(asimov_loss: ft.SignificanceLoss) -> None:
    signal, background, network = toy()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network(signal).dtype == torch.bfloat16
        loss = asimov_loss(yields(network, signal, background))
    loss.backward()
    assert loss.dtype == torch.float64
    rounded = scalar(loss)
    assert rounded == pytest.approx(scalar(asimov_loss(yields(network, signal, background))), 1e-2)
    assert all(torch.all(torch.isfinite(p.grad)) for p in network.parameters())


def test_second_derivatives_of_batches_and_of_the_nll_are_rejected(session: ft.Session) -> None:
    signal = leaf(SIGNAL)
    (slope,) = torch.autograd.grad(ft.nll_loss(signal, session), signal, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        slope.sum().backward()


def test_hessian_product_goes_through_a_function_of_the_loss(session: ft.Session) -> None:
    """d²(Z0²) = d²q0: the chain rule over a loss whose own slope depends on the templates."""
    signal, along = leaf(SIGNAL), tensor([1.0, -0.5, 2.0])

    def product(function: Callable[[Any], Any]) -> Any:
        (slope,) = torch.autograd.grad(function(signal), signal, create_graph=True)
        return torch.autograd.grad(slope @ along, signal)[0]

    squared = product(lambda s: ft.profiled_z0_loss(s, session, eps=0.0) ** 2)
    direct = product(lambda s: ft.profiled_q0_loss(s, session))
    np.testing.assert_allclose(squared, direct, rtol=1e-9)


def test_second_derivatives_after_a_step_in_numpy_and_after_a_compiled_one_are_one_program(
    kept_session: ft.Session, compilations: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_session.reset()
    for backend in ("NumPy", "compiled"):
        use(backend, monkeypatch)
        signal = leaf(SIGNAL)
        value = ft.profiled_q0_loss(signal, kept_session)
        (slope,) = torch.autograd.grad(value, signal, create_graph=True)
        compilations.reset()
        slope.sum().backward()
    assert compilations.count == 0


# --- in a training --------------------------------------------------------------------------------


def toy(dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    """Events of signal and background, and a network that is not trained yet."""
    generator = torch.Generator().manual_seed(3)
    signal = torch.randn(200, 2, generator=generator, dtype=dtype) + 1.0
    background = torch.randn(400, 2, generator=generator, dtype=dtype)
    network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Sigmoid()).to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return signal, background, network


def yields(network: Any, signal: Any, background: Any) -> dict[Any, Any]:
    histogram = ft.SoftHistogram([0.0, 0.35, 0.65, 1.0], overflow="clip")
    return {
        "signal": histogram(network(signal)[:, 0]) * 0.1,
        ("SR", "background"): histogram(network(background)[:, 0]) * 0.3,
    }


@pytest.fixture(scope="module")
def asimov_loss(model: hf.Model) -> ft.SignificanceLoss:
    return ft.SignificanceLoss(model, objective="asimov", variations="relative")


def test_asimov_objective_is_that_of_jax(model: hf.Model, asimov_loss: ft.SignificanceLoss) -> None:
    histograms = {key: TEMPLATES[key] for key in ("signal", ("SR", "background"))}
    asimov_q0 = in_jax(
        lambda h: losses.q0(model, h, "asimov", variations="relative"), list(histograms)
    )
    expected = asimov_q0(histograms)
    given = leaves(histograms)
    value = asimov_loss.q0(given)
    value.backward()
    gradient = torch.stack([t.grad for t in given.values()])
    assert_same(value, gradient, (expected[0], np.stack(expected[1])))


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS])
def test_optimisers_lower_the_loss_of_a_float32_network(
    asimov_loss: ft.SignificanceLoss, optimiser: Any
) -> None:
    asimov_loss.session.reset()
    signal, background, network = toy()
    rate = {"SGD": 0.5, "Adam": 0.1, "LBFGS": 0.5}[optimiser.__name__]
    steps = optimiser(network.parameters(), lr=rate)

    def closure() -> Any:
        steps.zero_grad()
        loss = asimov_loss(yields(network, signal, background))
        loss.backward()
        return loss

    first = scalar(closure())
    for _ in range(5):
        steps.step(closure)
    assert all(p.grad.dtype == torch.float32 for p in network.parameters())
    assert scalar(closure()) < first - 0.01
    assert asimov_loss.session.failures == []


def test_gradient_of_a_network_is_the_difference_of_its_loss(
    asimov_loss: ft.SignificanceLoss,
) -> None:
    signal, background, network = toy(torch.float64)
    loss = asimov_loss(yields(network, signal, background))
    loss.backward()
    weight = network[0].weight

    def moved(by: float) -> float:
        with torch.no_grad():
            weight[0, 0] += by
            found = scalar(asimov_loss(yields(network, signal, background)))
            weight[0, 0] -= by
        return found

    near, far = ((moved(h) - moved(-h)) / (2 * h) for h in (1e-3, 2e-3))
    assert scalar(weight.grad[0, 0]) == pytest.approx((4 * near - far) / 3, rel=1e-8)


def test_float32_histogram_gets_a_float32_gradient_of_a_float64_loss(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    signal = torch.tensor(SIGNAL, dtype=torch.float32, requires_grad=True)
    value = ft.profiled_q0_loss(signal, session)
    value.backward()
    assert value.dtype == torch.float64
    assert signal.grad.dtype == torch.float32
    assert scalar(value) == pytest.approx(jax_q0[0], rel=1e-12)  # these are numbers of float32
    np.testing.assert_allclose(signal.grad, jax_q0[1], rtol=1e-6, atol=1e-7)


def test_anomaly_mode_finds_no_anomaly(session: ft.Session, jax_q0: tuple[float, Any]) -> None:
    signal = leaf(SIGNAL)
    with torch.autograd.set_detect_anomaly(True):
        ft.profiled_q0_loss(signal, session).backward()
        (-ft.profiled_z0_loss(signal, session)).backward()
    assert np.all(np.isfinite(signal.grad.numpy()))


def test_without_grad_the_value_is_the_same_and_has_no_history(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    signal = leaf(SIGNAL)
    for nothing_followed in (torch.no_grad, torch.inference_mode):
        with nothing_followed():
            value = ft.profiled_q0_loss(signal, session)
            assert not value.requires_grad
            assert scalar(value) == pytest.approx(jax_q0[0], rel=1e-12)
    assert not ft.profiled_q0_loss(tensor(SIGNAL), session).requires_grad


def test_gradients_accumulate_over_backward_calls(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    signal = leaf(SIGNAL)
    for _ in range(2):
        ft.profiled_q0_loss(signal, session).backward()
    (3 * ft.profiled_q0_loss(signal, session)).backward()
    np.testing.assert_allclose(signal.grad, 5 * jax_q0[1], rtol=1e-11, atol=1e-12)


def test_values_and_gradients_can_be_modified_and_outlive_the_next_step(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    """They do not share the memory of JAX, so in-place operations of a training are harmless."""
    signal = leaf(SIGNAL)
    value = ft.profiled_q0_loss(signal, session)
    value.backward()
    kept, before = value.detach().clone(), signal.grad.clone()
    ft.profiled_q0_loss(tensor(ROWS[1]), session)
    assert torch.equal(value.detach(), kept)
    assert torch.equal(signal.grad, before)
    signal.grad.zero_()
    value.detach().zero_()
    again = leaf(SIGNAL)
    second = ft.profiled_q0_loss(again, session)
    second.backward()
    assert_same(second.detach(), again.grad, jax_q0)
    jacobian = ft.signal_jacobian(tensor(SIGNAL), session)
    jacobian.zero_()
    assert_same(jax_q0[0], ft.signal_jacobian(tensor(SIGNAL), session), jax_q0)


def test_a_strided_histogram_is_read_correctly(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    strided = tensor([[x, 99.0] for x in SIGNAL])[:, 0]
    assert not strided.is_contiguous()
    assert scalar(ft.profiled_q0_loss(strided, session)) == pytest.approx(jax_q0[0], rel=1e-12)


def test_loss_is_a_torch_module_that_reports_its_sizes(model: hf.Model) -> None:
    loss = ft.SignificanceLoss(model)
    assert isinstance(loss, torch.nn.Module)
    assert loss.n_bins == 3
    assert loss.n_params == model.n_parameters == loss.session.n_params()
    assert loss.session.parameter_names() == list(model.parameter_names)
    assert loss.session.parameter_init() == [scalar(x) for x in model.init]
    assert list(loss.parameters()) == []


SCRIPT = textwrap.dedent(
    """
    import torch
    from nextstat import from_pyhf
    from nextstat.torch import SignificanceLoss, SoftHistogram

    torch.manual_seed(0)
    model = from_pyhf(workspace_text)
    loss_fn = SignificanceLoss(model, signal_sample_name="signal", device="auto")
    soft_hist = SoftHistogram(bin_edges=torch.linspace(0.0, 1.0, 4), bandwidth=0.1, mode="kde")
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1), torch.nn.Sigmoid()
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    events, weights = torch.randn(300, 2), torch.full((300,), 0.06)

    history = []
    for epoch in range(6):
        optimizer.zero_grad()
        scores = network(events).squeeze(-1)
        histogram = soft_hist(scores, weights=weights)
        loss = loss_fn(histogram.double())
        loss.backward()
        optimizer.step()
        history.append(loss_fn.z0(histogram.double().detach()).item())
    assert loss_fn.n_bins == soft_hist.n_bins == len(soft_hist.bin_centers)
    """
)


def test_training_script_of_nextstat_runs_with_the_import_changed(
    workspace: dict[str, Any],
) -> None:
    script = SCRIPT.replace("from nextstat import", "from firstlight.torch import")
    script = script.replace("from nextstat.torch import", "from firstlight.torch import")
    assert "nextstat" not in script
    names: dict[str, Any] = {"workspace_text": json.dumps(workspace)}
    exec(compile(script, "train.py", "exec"), names)
    history = names["history"]
    assert history[-1] > history[0] > 0


SHARED_NAMES = (
    *("SignificanceLoss", "SoftHistogram", "nll_loss", "create_session"),
    *("create_profiled_session", "profiled_q0_loss", "profiled_z0_loss", "profiled_qmu_loss"),
    *("profiled_zmu_loss", "batch_profiled_q0_loss", "batch_profiled_qmu_loss"),
    *("signal_jacobian", "signal_jacobian_numpy", "as_tensor", "discovery_z0"),
)
SHARED_CLASSES = (
    *("NextStatNLL", "NextStatQ0", "NextStatZ0", "ProfiledQ0Loss", "ProfiledQmuLoss"),
    *("MetalProfiledQ0Loss", "MetalProfiledQmuLoss"),
)


def test_names_arguments_and_defaults_are_those_of_nextstat() -> None:
    import nextstat.torch as theirs

    def required(function: Any) -> list[tuple[Any, ...]]:
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.default, p.kind) for p in found]

    def same(ours: Any, their: Any) -> None:
        mine = required(ours)
        positional = [p for p in required(their) if p[2] is not inspect.Parameter.KEYWORD_ONLY]
        assert mine[: len(positional)] == positional
        assert set(required(their)) <= set(mine)
        # Arguments that only Firstlight has are optional keywords.
        for _, default, kind in {*mine[len(positional) :]} - {*required(their)}:
            assert kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
            assert kind is inspect.Parameter.VAR_KEYWORD or default is not inspect.Parameter.empty

    for name in SHARED_NAMES:
        same(getattr(ft, name), getattr(theirs, name))
    for name in SHARED_CLASSES:
        same(getattr(ft, name).apply, getattr(theirs, name).apply)
    public = {n for n, v in vars(theirs).items() if getattr(v, "__module__", "") == theirs.__name__}
    assert {n for n in public if not n.startswith("_")} <= {*dir(ft)}
    for module in ("SignificanceLoss", "SoftHistogram"):
        public = {n for n in vars(getattr(theirs, module)) if not n.startswith("_")}
        assert public <= set(dir(getattr(ft, module)))
    same(ft.SoftHistogram.forward, theirs.SoftHistogram.__call__)
    same(ft.SignificanceLoss.forward, theirs.SignificanceLoss.__call__)
    same(ft.SignificanceLoss.q0, theirs.SignificanceLoss.q0)
    same(ft.SignificanceLoss.z0, theirs.SignificanceLoss.z0)


@pytest.mark.parametrize("yields", [[6.0, 9.0, 4.0], [3.0, 12.0, 1.0], [7.0, 1.0, 0.5]])
def test_functions_of_nominal_yields_return_what_those_of_nextstat_do(
    make: Any, yields: list[float]
) -> None:
    import nextstat
    import nextstat.torch as theirs

    stat = make.modifier("staterror", "stat", [3.0, 3.0, 2.0])
    workspace = make.counting(SIGNAL, BACKGROUND, OBSERVED, make.normsys("xs", 0.9, 1.1), stat)
    place = {"channel": "SR", "sample": "signal"}
    model = nextstat.from_pyhf(json.dumps(workspace))
    given = {"mle": nextstat.MaximumLikelihoodEstimator(), "model": model, **place}
    own = {"mle": None, "model": ft.from_pyhf(workspace), **place}
    for call in (
        lambda module, x, about: module.discovery_z0(x, **about),
        lambda module, x, about: module.NextStatZ0.apply(x, **about, eps=1e-3),
        lambda module, x, about: module.NextStatQ0.apply(x, **about),
    ):
        at, there = leaf(yields), leaf(yields)
        value, expected = call(ft, at, own), call(theirs, there, given)
        value.backward()
        expected.backward()
        assert scalar(value) == pytest.approx(scalar(expected), rel=1e-6)
        # NextStat's fits end 1e-4 before the minimum.
        torch.testing.assert_close(at.grad, there.grad, rtol=1e-2, atol=1e-3)


def test_classes_of_nextstat_call_the_functions_of_the_same_quantity(
    kept_session: ft.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("NumPy", monkeypatch)
    session = kept_session
    parameters = tensor(session.parameter_init()) + 0.05
    for found, expected in (
        (ft.ProfiledQ0Loss.apply, ft.profiled_q0_loss),
        (lambda *a: ft.ProfiledQmuLoss.apply(*a, 2.5), lambda *a: ft.profiled_qmu_loss(*a, 2.5)),
        (
            lambda *a: ft.NextStatNLL.apply(*a, params_tensor=parameters),
            lambda *a: ft.nll_loss(*a, parameters),
        ),
    ):
        slopes = []
        for function in (found, expected):
            session.reset()
            signal = leaf(SIGNAL)
            value = function(signal, session)
            value.backward()
            slopes.append(torch.cat([value.detach()[None], signal.grad]))
        torch.testing.assert_close(*slopes, rtol=0.0, atol=0.0)


def test_wrong_places_and_yields_of_discovery_z0_are_named(model: hf.Model) -> None:
    about: dict[str, Any] = {"mle": None, "model": model, "channel": "SR"}
    with pytest.raises(REFUSED, match="no sample 'zz'"):
        ft.discovery_z0(tensor(SIGNAL), **about, sample="zz")
    with pytest.raises(REFUSED, match="nominal is list"):
        ft.discovery_z0(SIGNAL, **about, sample="signal")
    with pytest.raises(REFUSED, match="shape"):
        ft.discovery_z0(tensor(SIGNAL[:2]), **about, sample="signal")


def test_a_model_of_nextstat_is_rejected_and_the_message_says_what_to_give(
    workspace: dict[str, Any],
) -> None:
    import nextstat

    with pytest.raises(LossError, match=r"model is .*from_pyhf"):
        ft.SignificanceLoss(nextstat.from_pyhf(json.dumps(workspace)))


# --- tensors and models of other origin -----------------------------------------------------------


def test_as_tensor_takes_tensors_arrays_of_other_frameworks_and_lists() -> None:
    given = tensor(SIGNAL)
    assert ft.as_tensor(given) is given
    array = np.array(SIGNAL)
    over_numpy = ft.as_tensor(array)
    array[0] = 7.5
    assert scalar(over_numpy[0]) == 7.5  # no copy
    with jax.enable_x64(True):
        over_jax = ft.as_tensor(jnp.asarray(SIGNAL, jnp.float64))
    assert over_jax.dtype == torch.float64
    assert over_jax.tolist() == ft.as_tensor(SIGNAL).tolist() == SIGNAL


def test_histogram_of_jax_goes_into_the_loss_of_torch(
    session: ft.Session, jax_q0: tuple[float, Any]
) -> None:
    with jax.enable_x64(True):
        array = jnp.asarray(SIGNAL, jnp.float64)
    value = ft.profiled_q0_loss(ft.as_tensor(array), session)
    assert scalar(value) == pytest.approx(jax_q0[0], rel=1e-12)


def test_model_comes_from_text_bytes_a_mapping_or_a_file(
    workspace: dict[str, Any], tmp_path: Path
) -> None:
    text = json.dumps(workspace)
    file = tmp_path / "workspace.json"
    file.write_text(text)
    expected = hf.nll(hf.load(workspace))
    for given in (text, f"\n  {text}", text.encode(), workspace, str(file)):
        assert hf.nll(ft.from_pyhf(given)) == expected
        assert ft.Session(given).signal_n_bins() == 3
    codes = ft.from_pyhf(text, interpolation=("code1", "code0"))
    assert codes.about != ft.from_pyhf(text).about


# --- warm starts ----------------------------------------------------------------------------------


def test_warm_and_cold_sessions_give_the_same_numbers(model: hf.Model) -> None:
    rng = np.random.default_rng(8)
    warm, cold = ft.Session(model), ft.Session(model, warm_start=False)
    histogram = np.array(SIGNAL)
    for _ in range(6):
        histogram = histogram * rng.uniform(0.7, 1.4, 3)
        found = []
        for session in (warm, cold):
            signal = leaf(histogram)
            value = ft.profiled_q0_loss(signal, session)
            value.backward()
            found.append((scalar(value), signal.grad.numpy()))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
        np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-10)


def test_a_reset_session_has_no_memory_of_earlier_steps(model: hf.Model) -> None:
    session = ft.Session(model)
    first = ft.profiled_q0_loss(tensor(SIGNAL), session)
    ft.profiled_q0_loss(tensor([40.0, 0.1, 30.0]), session)
    assert session.step == 2
    session.reset()
    assert session.step == 0
    assert session.failures == []
    assert torch.equal(ft.profiled_q0_loss(tensor(SIGNAL), session), first)


# --- fits that fail -------------------------------------------------------------------------------

#: Events where no background is expected: without signal their probability is zero.
IMPOSSIBLE = [*SIGNAL, 50.0, 40.0, 0.0]
POSSIBLE = [*SIGNAL, *BACKGROUND]
BOTH = ("signal", ("SR", "background"))


@pytest.fixture(scope="module")
def fallible(make: Any) -> hf.Model:
    """No systematic on the background, so that an empty bin of it stays empty."""
    signal = make.sample("signal", SIGNAL, make.modifier("normfactor", "mu"))
    background = make.sample("background", BACKGROUND)
    return hf.load(make.workspace([make.channel("SR", signal, background)], [OBSERVED]))


def test_a_failed_fit_raises_an_error_with_the_step_and_what_to_do(fallible: hf.Model) -> None:
    session = ft.Session(fallible, BOTH)
    ft.profiled_q0_loss(tensor(POSSIBLE), session)
    ft.profiled_q0_loss(tensor(POSSIBLE), session)
    with pytest.raises(ft.FitError, match=r"step 3: the conditional fit .*on_failure='skip'"):
        ft.profiled_q0_loss(leaf(IMPOSSIBLE), session)
    # The failure does not affect later steps.
    signal = leaf(POSSIBLE)
    value = ft.profiled_q0_loss(signal, session)
    value.backward()
    fresh = ft.profiled_q0_loss(tensor(POSSIBLE), ft.Session(fallible, BOTH))
    assert scalar(value) == pytest.approx(scalar(fresh), rel=1e-12)
    assert np.all(np.isfinite(signal.grad.numpy()))


def test_skipped_step_has_gradient_zero_and_is_recorded(fallible: hf.Model) -> None:
    session = ft.Session(fallible, BOTH, on_failure="skip")
    ft.profiled_q0_loss(tensor(POSSIBLE), session)
    histogram = leaf(IMPOSSIBLE)
    with pytest.warns(RuntimeWarning, match=r"step 2: .*gradient is zero"):
        value = ft.profiled_q0_loss(histogram, session)
    value.backward()
    assert np.all(histogram.grad.numpy() == 0)
    (failure,) = session.failures
    assert failure.step == 2
    assert "conditional fit" in failure.message
    session.reset()
    assert session.failures == []


def test_network_does_not_move_in_a_skipped_step(fallible: hf.Model) -> None:
    loss = ft.SignificanceLoss(fallible, BOTH, on_failure="skip")
    scale = torch.nn.Parameter(torch.ones(6))
    optimiser = torch.optim.SGD([scale], lr=0.1)
    before = scale.detach().clone()
    with pytest.warns(RuntimeWarning, match="step 1") as caught:
        loss(scale * tensor(IMPOSSIBLE)).backward()
    assert caught[0].filename == __file__  # the user's line, not one of torch or of ours
    optimiser.step()
    assert torch.equal(scale.detach(), before)
    optimiser.zero_grad()
    loss(scale * tensor(POSSIBLE)).backward()
    optimiser.step()
    assert not torch.equal(scale.detach(), before)


def test_last_good_step_replaces_a_failed_one(fallible: hf.Model) -> None:
    session = ft.Session(fallible, BOTH, on_failure="last_good")
    with pytest.warns(RuntimeWarning, match="step 1"):  # nothing was good yet
        nothing = leaf(IMPOSSIBLE)
        ft.profiled_z0_loss(nothing, session).backward()
    assert np.all(nothing.grad.numpy() == 0)
    good = leaf(POSSIBLE)
    value = ft.profiled_z0_loss(good, session)
    value.backward()
    bad = leaf(IMPOSSIBLE)
    with pytest.warns(RuntimeWarning, match="step 3.*last good"):
        instead = ft.profiled_z0_loss(bad, session)
    instead.backward()
    assert scalar(instead) == scalar(value)
    assert torch.equal(bad.grad, good.grad)
    assert [f.step for f in session.failures] == [1, 3]


def test_a_failed_row_of_a_batch_does_not_affect_the_others(fallible: hf.Model) -> None:
    rows = leaf([POSSIBLE, IMPOSSIBLE, [*ROWS[1], *BACKGROUND]])
    session = ft.Session(fallible, BOTH, on_failure="skip")
    with pytest.warns(RuntimeWarning, match="row 1"):
        found = ft.batch_profiled_q0_loss(rows, session)
    (found[0] + found[2]).backward()
    for i in (0, 2):
        single = leaf(rows[i].tolist())
        value = ft.profiled_q0_loss(single, session)
        value.backward()
        assert scalar(found[i]) == pytest.approx(scalar(value), rel=1e-12)
        np.testing.assert_allclose(rows.grad[i], single.grad, rtol=1e-11, atol=1e-12)
    assert np.all(rows.grad[1].numpy() == 0)
    with pytest.raises(ft.FitError, match=r"row 1"):
        ft.batch_profiled_q0_loss(rows, ft.Session(fallible, BOTH))


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("histogram", "message"),
    [
        (lambda: tensor([1.0, 2.0]), r"signal_histogram has shape \(2,\).*3 bins"),
        (lambda: tensor(3.0), r"signal_histogram has shape \(\)"),
        (lambda: tensor(ROWS), "signal_histogram has a leading axis.*batch"),
        (lambda: tensor([1.0, math.nan, 2.0]), "signal_histogram.*'signal' has NaN"),
        (lambda: tensor([1.0, -0.5, 2.0]), "signal_histogram.*negative"),
        (lambda: tensor(SIGNAL).half(), "signal_histogram.*float16"),
        (lambda: tensor(SIGNAL).bfloat16(), "signal_histogram.*bfloat16"),
        (lambda: torch.tensor([1, 2, 3]), "signal_histogram.*int64"),
        (lambda: SIGNAL, "signal_histogram is list.*as_tensor"),
        (lambda: np.array(SIGNAL), "signal_histogram is ndarray"),
        (lambda: tensor(SIGNAL, device="meta"), "on meta.*cpu or cuda"),
        (dict, "signal_histogram is empty"),
        (lambda: {"signal": SIGNAL}, "signal_histogram.*'signal' is list, not a tensor"),
        (lambda: {"signal": tensor([1.0])}, r"'signal' has shape \(1,\).*3 bins"),
        (lambda: {"signl": tensor(SIGNAL)}, "no sample 'signl'.*background, other, signal"),
        (lambda: {("SR", "no"): tensor(SIGNAL)}, "'no'"),
        (lambda: {("no", "signal"): tensor(SIGNAL)}, "'no'"),
        (lambda: {("SR", "signal", "jes", "hi"): tensor(SIGNAL)}, "no normsys or histosys 'jes'"),
        (lambda: {("SR", "background", "jes", "up"): tensor(SIGNAL)}, "'hi' or 'lo', not 'up'"),
        (
            lambda: {"signal": tensor(SIGNAL), "other": tensor(OTHER, device="meta")},
            "'other' is on meta, another on cpu",
        ),
    ],
)
def test_bad_histogram_is_rejected_by_every_loss_with_its_name(
    session: ft.Session, histogram: Callable[[], Any], message: str
) -> None:
    given = histogram()
    for function in (ft.profiled_q0_loss, ft.nll_loss, ft.signal_jacobian):
        with pytest.raises(REFUSED, match=message):
            function(given, session)


def test_infinite_yields_are_rejected(session: ft.Session) -> None:
    for function in (ft.profiled_q0_loss, ft.signal_jacobian):
        with pytest.raises(LossError, match=r"signal_histogram.*infinite"):
            function(tensor([1.0, math.inf, 2.0]), session)


def test_session_works_after_bad_input(session: ft.Session, jax_q0: tuple[float, Any]) -> None:
    ft.profiled_q0_loss(tensor(SIGNAL), session)
    with pytest.raises(LossError):
        ft.profiled_q0_loss(tensor([1.0, math.nan, 2.0]), session)
    assert scalar(ft.profiled_q0_loss(tensor(SIGNAL), session)) == pytest.approx(
        jax_q0[0], rel=1e-12
    )


def test_bad_row_of_a_batch_is_named(session: ft.Session) -> None:
    with pytest.raises(LossError, match=r"row 1 of signal_histogram.*negative"):
        ft.batch_profiled_q0_loss(tensor([SIGNAL, [1.0, -1.0, 2.0], SIGNAL]), session)
    with pytest.raises(LossError, match="2 mu_values for 3 rows"):
        ft.batch_profiled_qmu_loss(tensor(ROWS), session, [1.0, 2.0])
    with pytest.raises(LossError, match="too many axes"):
        ft.batch_profiled_q0_loss(tensor([ROWS]), session)


def test_bad_strengths_and_parameters_are_named(session: ft.Session) -> None:
    with pytest.raises(REFUSED, match="mu_test"):
        ft.profiled_qmu_loss(tensor(SIGNAL), session, math.nan)
    with pytest.raises(REFUSED, match="mu_values"):
        ft.batch_profiled_qmu_loss(tensor(SIGNAL), session, [1.0, math.inf])
    with pytest.raises(LossError, match=r"params have shape \(2,\)"):
        ft.nll_loss(tensor(SIGNAL), session, tensor([1.0, 1.0]))
    elsewhere = torch.zeros(session.n_params(), dtype=torch.float64, device="meta")
    with pytest.raises(LossError, match="params are on meta, signal_histogram on cpu"):
        ft.nll_loss(tensor(SIGNAL), session, elsewhere)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signal_sample_name": "signl"}, "no sample 'signl'.*background, other, signal"),
        ({"signal_sample_name": []}, "signal_sample_name"),
        ({"signal_sample_name": ["signal", "signal"]}, "signal_sample_name.*once"),
        ({"device": "gpu"}, "device is 'gpu', not one of 'auto', 'cpu', 'cuda'"),
        ({"objective": "best"}, "objective is 'best', not one of 'observed', 'asimov'"),
        ({"on_failure": "ignore"}, "on_failure.*'raise', 'skip', 'last_good'"),
        ({"variations": "both"}, "variations.*'absolute', 'relative'"),
        ({"objective": "asimov", "data": [1.0, 2.0, 3.0, 4.0]}, "data.*asimov"),
        ({"data": [1.0, 2.0]}, "data"),
        ({"fixed": ["nothing"]}, "nothing"),
    ],
)
def test_bad_options_of_a_session_are_named(
    model: hf.Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(REFUSED, match=message):
        ft.SignificanceLoss(model, **options)


def test_a_tensor_on_another_device_than_the_chosen_one_is_rejected(model: hf.Model) -> None:
    on_gpu = ft.SignificanceLoss(model, device="cuda")
    with pytest.raises(LossError, match='is on cpu, but device="cuda"'):
        on_gpu(tensor(SIGNAL))
    on_cpu = ft.SignificanceLoss(model, device="cpu")
    with pytest.raises(LossError, match='is on meta, but device="cpu"'):
        on_cpu(tensor(SIGNAL, device="meta"))


def test_an_object_that_is_not_a_model_is_rejected() -> None:
    with pytest.raises(LossError, match=r"model is builtins\.int"):
        ft.Session(3)


# --- compiling ------------------------------------------------------------------------------------


def test_sessions_of_one_structure_compile_once(
    workspace: dict[str, Any],
    kept_session: ft.Session,
    compilations: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other yields, data, policies, forms and strengths are numbers, not programs."""
    use("compiled", monkeypatch)
    signal, session = leaf(SIGNAL), kept_session
    ft.profiled_q0_loss(signal, session).backward()
    ft.profiled_qmu_loss(signal, session, 1.0).backward()
    ft.nll_loss(signal, session).backward()
    text = json.dumps(workspace).replace("62.0", "66.0").replace("47.0", "46.5")
    compilations.reset()
    other = ft.Session(ft.from_pyhf(text), on_failure="skip", warm_start=False)
    shifted = ft.SignificanceLoss(text, data=[111.0, 70.0, 50.0, 31.0], eps=1e-3)
    for histogram in ROWS:
        given = leaf(histogram)
        for value in (
            ft.profiled_q0_loss(given, other),
            ft.profiled_z0_loss(given, other, eps=0.1),
            ft.profiled_qmu_loss(given, other, 0.7),
            ft.profiled_zmu_loss(given, other, 3.0),
            ft.nll_loss(given, other),
        ):
            value.backward()
        ft.signal_jacobian(given, other)
    assert compilations.count == 0
    # User data are an argument that the first session did not have: one more program.
    shifted(leaf(SIGNAL)).backward()
    compilations.reset()
    shifted(leaf(ROWS[1])).backward()
    assert compilations.count == 0


def test_a_training_starts_in_numpy_and_continues_compiled_in_the_same_minimum(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both variations add yields, so there are two minima; that of the training becomes higher."""
    both = make.histosys("h", [83.9, 70.8], [84.1, 67.2])
    model = hf.load(make.counting([8.0, 2.0], [50.0, 60.0], [76, 85], both))
    steps = [leaf([8.0 - 1.2 * k, 2.0 + 1.2 * k]) for k in range(6)]

    def trained(*backends: str, **options: Any) -> np.ndarray:
        session, found = ft.Session(model, **options), []
        for backend, signal in zip(backends, steps, strict=True):
            use(backend, monkeypatch)
            signal.grad = None
            value = ft.profiled_q0_loss(signal, session)
            value.backward()
            found.append([scalar(value), *signal.grad.tolist()])
        return np.array(found)

    alone = trained(*["compiled"] * 6)
    for first in (["NumPy"] * 6, ["NumPy"] * 4 + ["compiled"] * 2):
        np.testing.assert_allclose(trained(*first), alone, rtol=1e-9, atol=1e-11)
    lowest = trained(*["NumPy"] * 6, warm_start=False)
    assert np.all(lowest[3:, 0] > alone[3:, 0] + 0.01)  # the test sees where a training is


_FIRST_STEP = """
import json, sys
import torch
from firstlight import torch as ft
from firstlight.forks import ForkError

loss = ft.SignificanceLoss(sys.argv[1])
signal = torch.tensor([6.0, 9.0, 4.0], dtype=torch.float64, requires_grad=True)
value = loss(signal)
value.backward()
loaded = [name for name in ("jax", "scipy", "torch._dynamo") if name in sys.modules]

graphs = []
def record(graph, inputs):
    graphs.extend(n.target.__name__ for n in graph.graph.nodes if n.op.startswith("call"))
    return graph.forward

again = torch.compile(lambda x: loss(2 * x) + 1, backend=record)(signal / 2)
print(json.dumps([loaded, value.item(), signal.grad.tolist(), again.item(), graphs]))
"""


def test_the_first_step_imports_neither_jax_nor_torch_compile_which_does_not_trace_into_the_loss(
    workspace: dict[str, Any], jax_q0: tuple[float, Any]
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FIRST_STEP, json.dumps(workspace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, value, gradient, again, graphs = json.loads(done.stdout)
    assert loaded == []
    q0, slopes = jax_q0
    assert_same(-value, -np.array(gradient), (math.sqrt(q0), slopes / (2 * math.sqrt(q0))))
    assert again == pytest.approx(1 + value, rel=1e-12)
    assert sorted(graphs) == ["add", "mul"]


# --- forked processes -----------------------------------------------------------------------------


class Losses(torch.utils.data.Dataset[float]):
    def __init__(self, session: ft.Session) -> None:
        self.session = session

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        return scalar(ft.profiled_q0_loss(tensor(SIGNAL), self.session))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # by JAX
@pytest.mark.parametrize("backend", ["NumPy", "compiled"])
def test_a_loss_in_a_forked_worker_of_a_dataloader_answers_in_numpy_or_raises(
    model: hf.Model, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    jnp.zeros(1).block_until_ready()  # XLA's threads exist
    use("NumPy", monkeypatch)
    if backend == "compiled":
        programs.compile_at_once(model.about)
    loader = torch.utils.data.DataLoader(
        Losses(ft.create_session(model)), num_workers=1, timeout=60, multiprocessing_context="fork"
    )
    if backend == "compiled":
        with pytest.raises(ForkError, match="spawn"):
            list(loader)
    else:
        (found,) = list(loader)
        assert found.item() == scalar(ft.profiled_q0_loss(tensor(SIGNAL), ft.create_session(model)))
