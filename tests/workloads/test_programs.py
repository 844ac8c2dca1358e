"""Every program computes what it says, in every framework; the references have their own oracles.

Errors are max|output - reference| / max|reference|, the worst over the outputs of a program.
"""

from __future__ import annotations

import ast
import importlib
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

SEED = 7

# Reduced sizes. Float32 rounds to 6e-8; through these programs it grows to at most 2e-6 (measured
# with NumPy, JAX and PyTorch at these sizes and at the catalogue's), so 1e-5 leaves a factor five.
SIZES: dict[str, dict[str, Any]] = {
    "matmul": {"n": 48},
    "batched_inference": {"requests": 5, "width": 16},
    "mlp_train": {"width": 16, "batch": 32, "steps": 3},
    "transformer_block": {"batch": 2, "tokens": 8, "width": 16, "heads": 4},
    "ode_gradient": {"trajectories": 8, "steps": 20},
    "pinn": {"points": 16, "hidden": 8},
    "hypergradient": {"rows": 32, "features": 6, "inner_steps": 20},
    "option_greeks": {"paths": 2048, "dates": 6},
    "data_parallel_step": {"batch": 32, "width": 16},
    "sharded_model_step": {"batch": 8, "width": 6, "hidden": 16},
    "mixed_precision": {"precision": "float32", "width": 32, "batch": 32},
    "sweep": {"points": 3, "features": 5, "padded": False},
}
#: Their JAX programs use every device of the process; there is no PyTorch twin.
SEVERAL_DEVICES = ("data_parallel_step", "sharded_model_step")
ONE_DEVICE = [name for name in SIZES if name not in SEVERAL_DEVICES]
TOLERANCE = dict.fromkeys(SIZES, 1e-5)
# A path that ends within a rounding error of the strike may count as paid or not: it changes delta
# by 1 / (2048 paths * 0.55 exercised) of itself.
TOLERANCE["option_greeks"] = 1e-3
# bfloat16 keeps 8 bits: 2**-8 an operation, 7e-3 measured for the gradient.
BFLOAT16_TOLERANCE = 3e-2


def program(name: str) -> ModuleType:
    return importlib.import_module(f"firstlight.workloads.programs.{name}")


def as_tuple(outputs: Any) -> tuple[np.ndarray, ...]:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(np.asarray(out.cpu() if hasattr(out, "cpu") else out) for out in outputs)


def worst_error(outputs: Any, expected: tuple[np.ndarray, ...]) -> float:
    outputs = as_tuple(outputs)
    assert [out.shape for out in outputs] == [want.shape for want in expected]
    assert {out.dtype for out in outputs} == {np.dtype(np.float32)}
    pairs = zip(outputs, expected, strict=True)
    return float(max(np.abs(out - want).max() / np.abs(want).max() for out, want in pairs))


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


# --- every framework against the float64 reference ---


@pytest.mark.parametrize("name", SIZES)
def test_numpy_twin_matches_the_reference(name: str) -> None:
    step, args = program(name).build_numpy(as_written, SEED, **SIZES[name])
    assert worst_error(step(*args), program(name).reference(SEED, **SIZES[name])) < TOLERANCE[name]


@pytest.mark.parametrize("name", SIZES)
def test_jitted_jax_program_matches_the_reference(name: str) -> None:
    import jax

    step, args = program(name).build_jax(jax.jit, SEED, **SIZES[name])
    assert worst_error(step(*args), program(name).reference(SEED, **SIZES[name])) < TOLERANCE[name]


# Not those of several devices: eager shard_map compiles every operation again on every call.
@pytest.mark.parametrize("name", ONE_DEVICE)
def test_eager_jax_program_matches_the_reference(name: str) -> None:
    step, args = program(name).build_jax(as_written, SEED, **SIZES[name])
    assert worst_error(step(*args), program(name).reference(SEED, **SIZES[name])) < TOLERANCE[name]


@pytest.mark.parametrize("name", ONE_DEVICE)
def test_eager_torch_program_matches_the_reference(name: str) -> None:
    step, args = program(name).build_torch(as_written, SEED, **SIZES[name])
    assert worst_error(step(*args), program(name).reference(SEED, **SIZES[name])) < TOLERANCE[name]


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_bfloat16_agrees_to_its_own_precision_and_no_better(framework: str) -> None:
    params = SIZES["mixed_precision"] | {"precision": "bfloat16"}
    module = program("mixed_precision")
    step, args = getattr(module, f"build_{framework}")(as_written, SEED, **params)
    error = worst_error(step(*args), module.reference(SEED, **params))
    # Below the lower bound the arithmetic would not have been in bfloat16 at all.
    assert 1e-4 < error < BFLOAT16_TOLERANCE


@pytest.mark.parametrize("framework", ["numpy", "jax", "torch"])
def test_padded_sweep_gives_the_results_of_the_sweep_with_changing_shapes(framework: str) -> None:
    module, params = program("sweep"), SIZES["sweep"] | {"padded": True}
    step, args = getattr(module, f"build_{framework}")(as_written, SEED, **params)
    unpadded = module.reference(SEED, **SIZES["sweep"])
    assert worst_error(step(*args), unpadded) < TOLERANCE["sweep"]


FOUR_DEVICES_CHECK = """
import jax
from firstlight.workloads.programs import data_parallel_step, sharded_model_step

jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
events = []

def compare(program, params, divided, whole):
    step, args = program.build_jax(jax.jit, 7, **params)
    shards = args[divided].addressable_shards
    assert len(shards) == 4 and shards[0].data.nbytes == whole // 4, shards
    outputs = step(*args)
    for out, want in zip(outputs, program.reference(7, **params), strict=True):
        assert abs(out - want).max() < 1e-5 * abs(want).max(), (out, want)
    return step, args, outputs

compare(data_parallel_step, {"batch": 32, "width": 16}, 4, 32 * 32 * 4)
sizes = {"batch": 8, "width": 6, "hidden": 16}
step, args, outputs = compare(sharded_model_step, sizes, 0, 3 * 6 * 16 * 4)
events.clear()
again = step(*outputs[1:], *args[3:])
assert "/jax/core/compile/backend_compile_duration" not in events, events
assert again[1].sharding == args[0].sharding and again[0] < outputs[0]
"""


def test_each_of_four_devices_has_a_quarter_and_the_step_is_that_of_one_device() -> None:
    """Of the batch, or of the model; then the next step is the same program."""
    source = str(Path(program("matmul").__file__ or "").parents[3])
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": source,
    }
    command = [sys.executable, "-c", FOUR_DEVICES_CHECK]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


# --- what the harness relies on ---


@pytest.mark.parametrize("name", SIZES)
def test_loading_a_program_imports_nothing_but_its_own_package(name: str) -> None:
    tree = ast.parse(Path(program(name).__file__ or "").read_text())
    assert not [node for node in tree.body if isinstance(node, ast.Import)]
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert modules <= {"__future__", "firstlight.workloads.programs"}


def test_the_package_of_the_programs_imports_nothing() -> None:
    package = importlib.import_module("firstlight.workloads.programs")
    tree = ast.parse(Path(package.__file__ or "").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["from __future__ import annotations"]
    assert package.TYPE_CHECKING is False


@pytest.mark.parametrize("name", SIZES)
def test_setting_up_a_jax_program_compiles_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    import jax

    # Other sizes than elsewhere in this file, so that no earlier test has compiled anything for it.
    other = {key: 2 * v if type(v) is int else v for key, v in SIZES[name].items()}
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        program(name).build_jax(jax.jit, SEED, **other)
    assert not [record for record in caplog.records if "compil" in record.getMessage().lower()]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", ONE_DEVICE)
def test_a_second_call_returns_the_same_because_arguments_are_not_modified(
    name: str, framework: str
) -> None:
    step, args = getattr(program(name), f"build_{framework}")(as_written, SEED, **SIZES[name])
    first, second = as_tuple(step(*args)), as_tuple(step(*args))
    for once, again in zip(first, second, strict=True):
        np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize(("padded", "compiles"), [(False, 3), (True, 1)])
def test_sweep_compiles_once_per_shape(padded: bool, compiles: int) -> None:
    import jax

    compiled = []

    def jit_and_keep(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled.append(jax.jit(function))
        return compiled[-1]

    params = SIZES["sweep"] | {"padded": padded}
    step, args = program("sweep").build_jax(jit_and_keep, SEED, **params)
    step(*args)
    assert [function._cache_size() for function in compiled] == [compiles]


# --- oracles of the references ---


def reference_with(
    monkeypatch: pytest.MonkeyPatch, name: str, inputs: list[np.ndarray], params: dict[str, Any]
) -> tuple[np.ndarray, ...]:
    """The reference's outputs for float64 inputs of the test's choice."""
    with monkeypatch.context() as patch:
        patch.setattr(program(name), "make_inputs", lambda *_, **__: tuple(inputs))
        return program(name).reference(SEED, **params)


def differences(
    monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any], index: int
) -> np.ndarray:
    """Gradient of the first output in input `index`, by central differences (error: h squared)."""
    inputs = [a.astype(np.float64) for a in program(name).make_inputs(SEED, **params)]
    centre, gradient = inputs[index], np.zeros_like(inputs[index])
    for place in np.ndindex(centre.shape):
        values = []
        h = 1e-5 * max(1.0, abs(centre[place]))
        for shift in (h, -h):
            inputs[index] = centre.copy()
            inputs[index][place] += shift
            values.append(float(reference_with(monkeypatch, name, inputs, params)[0]))
        gradient[place] = (values[0] - values[1]) / (2 * h)
    return gradient


def assert_close(actual: Any, wanted: Any, relative: float = 1e-7) -> None:
    """By default to what differences give: rounding 1e-16 / h = 1e-11, truncation h**2 = 1e-10."""
    assert np.abs(np.subtract(actual, wanted)).max() < relative * np.abs(wanted).max()


# Program, sizes, and which input each output beyond the loss is the gradient of.
GRADIENTS: list[tuple[str, dict[str, Any], dict[int, int]]] = [
    (
        "transformer_block",
        {"batch": 2, "tokens": 4, "width": 8, "heads": 2},
        {3: 2, 4: 5},
    ),
    ("ode_gradient", {"trajectories": 3, "steps": 40}, {1: 0}),
    ("pinn", {"points": 6, "hidden": 4}, {1: 0, 2: 1, 3: 2, 4: 3}),
    ("hypergradient", {"rows": 12, "features": 3, "inner_steps": 30}, {1: 0}),
    ("option_greeks", {"paths": 50, "dates": 5}, {1: 0, 2: 1, 3: 2}),
    ("mixed_precision", {"precision": "float32", "width": 4, "batch": 5}, {2: 0}),
]


@pytest.mark.parametrize(("name", "params", "pairs"), GRADIENTS, ids=[g[0] for g in GRADIENTS])
def test_reference_gradient_matches_central_differences(
    monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any], pairs: dict[int, int]
) -> None:
    outputs = program(name).reference(SEED, **params)
    for output, index in pairs.items():
        assert_close(outputs[output], differences(monkeypatch, name, params, index))


@pytest.mark.parametrize(
    ("name", "params", "output", "inputs"),
    [
        (
            "transformer_block",
            {"batch": 1, "tokens": 3, "width": 4, "heads": 2},
            2,
            range(2, 10),
        ),
        ("mixed_precision", {"precision": "float32", "width": 4, "batch": 5}, 1, range(3)),
    ],
    ids=["transformer_block", "mixed_precision"],
)
def test_reference_gradient_norms_match_central_differences(
    monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any], output: int, inputs: range
) -> None:
    norms = program(name).reference(SEED, **params)[output]
    gradients = [differences(monkeypatch, name, params, index) for index in inputs]
    assert_close(norms, [np.linalg.norm(gradient) for gradient in gradients])


def test_reference_token_gradients_match_central_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = {"batch": 2, "tokens": 3, "width": 4, "heads": 2}
    norms = program("transformer_block").reference(SEED, **params)[1]
    gradient = differences(monkeypatch, "transformer_block", params, 0)
    assert_close(norms, np.linalg.norm(gradient, axis=-1))


def test_data_parallel_reference_steps_down_the_gradient_of_central_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, params = program("data_parallel_step"), {"batch": 8, "width": 3}
    inputs = module.make_inputs(SEED, **params)
    outputs = module.reference(SEED, **params)
    for index in range(4):
        taken = (inputs[index] - outputs[1 + index]) / module.LEARNING_RATE
        assert_close(taken, differences(monkeypatch, "data_parallel_step", params, index))


def test_sharded_model_reference_steps_down_the_gradient_of_central_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, params = program("sharded_model_step"), {"batch": 3, "width": 2, "hidden": 4}
    inputs = module.make_inputs(SEED, **params)
    outputs = module.reference(SEED, **params)
    for index in range(3):
        taken = (inputs[index] - outputs[1 + index]) / module.LEARNING_RATE
        assert_close(taken, differences(monkeypatch, "sharded_model_step", params, index))


def test_training_reference_matches_the_adam_of_torch_in_float64() -> None:
    import torch

    module, params = program("mlp_train"), {"width": 8, "batch": 16, "steps": 5}
    inputs = module.make_inputs(SEED, **params)
    x, y, *weights = (torch.from_numpy(a.astype(np.float64)) for a in inputs)
    weights = [w.requires_grad_() for w in weights]
    optimiser = torch.optim.Adam(weights, lr=1e-3)
    for _ in range(params["steps"]):
        optimiser.zero_grad()
        hidden = torch.tanh(x @ weights[0] + weights[1])
        hidden = torch.tanh(hidden @ weights[2] + weights[3])
        loss = 0.5 * torch.nn.functional.mse_loss(hidden @ weights[4] + weights[5], y)
        loss.backward()
        optimiser.step()
    final_loss, first_layer = module.reference(SEED, **params)
    assert_close(final_loss, loss.item(), 1e-12)
    assert_close(first_layer, weights[0].detach().numpy(), 1e-12)


def test_matmul_reference_matches_exactly_rounded_sums() -> None:
    left, right = (a.astype(float) for a in program("matmul").make_inputs(SEED, n=20))
    exact = [[math.fsum(row * column) for column in right.T] for row in left]
    assert_close(program("matmul").reference(SEED, n=20)[0], exact, 1e-14)


def test_inference_reference_equals_each_request_computed_alone() -> None:
    module, params = program("batched_inference"), {"requests": 4, "width": 6}
    w1, b1, w2, b2, w3, b3, requests = (a.tolist() for a in module.make_inputs(SEED, **params))

    def layer(values: list[float], weights: Any, biases: Any) -> list[float]:
        columns = zip(*weights, strict=True)
        products = ([v * c for v, c in zip(values, column, strict=True)] for column in columns)
        return [math.fsum(p) + bias for p, bias in zip(products, biases, strict=True)]

    for request, answer in zip(requests, module.reference(SEED, **params)[0], strict=True):
        hidden = [max(value, 0.0) for value in layer(request, w1, b1)]
        hidden = [math.tanh(value) for value in layer(hidden, w2, b2)]
        assert_close(answer, layer(hidden, w3, b3), 1e-13)


def test_inner_descent_of_the_hypergradient_matches_its_closed_form() -> None:
    module, params = program("hypergradient"), {"rows": 20, "features": 4, "inner_steps": 25}
    logs, x, y, x_v, y_v = (a.astype(float) for a in module.make_inputs(SEED, **params))
    penalty, rate = np.exp(logs)
    hessian = x.T @ x / len(x) + penalty * np.eye(4)
    # Gradient descent on a quadratic from zero: w_k = (1 - (1 - rate H)^k) H^-1 X'y/n.
    left = np.eye(4) - np.linalg.matrix_power(np.eye(4) - rate * hessian, 25)
    weights = left @ np.linalg.solve(hessian, x.T @ y / len(x))
    expected = 0.5 * np.mean((x_v @ weights - y_v) ** 2)
    assert_close(module.reference(SEED, **params)[0], expected, 1e-12)


def test_simulated_trajectories_match_an_adaptive_integrator() -> None:
    import scipy.integrate as integrate

    module, params = program("ode_gradient"), {"trajectories": 2, "steps": 60}
    rates, initial, observed = (a.astype(float) for a in module.make_inputs(SEED, **params))
    a, b, c, d = rates
    times = module.TIME_STEP * np.arange(1, 61)
    squares = []
    for index in range(2):
        solution = integrate.solve_ivp(
            lambda _, s: [a * s[0] - b * s[0] * s[1], c * s[0] * s[1] - d * s[1]],
            *((0.0, times[-1]), initial[:, index]),
            t_eval=times,
            rtol=1e-11,
            atol=1e-11,
        )
        squares.append((solution.y.T - observed[:, :, index]) ** 2)
    # The fixed step's own truncation error, TIME_STEP**4 = 6e-6 a unit of time.
    assert_close(module.reference(SEED, **params)[0], np.mean(squares), 1e-4)


def test_network_curvature_in_the_pinn_loss_matches_central_differences() -> None:
    module, params = program("pinn"), {"points": 5, "hidden": 4}
    inputs = (v.astype(float) for v in module.make_inputs(SEED, **params))
    a, w, b, c, x, forcing = inputs

    def network(points: Any) -> Any:
        return np.tanh(np.multiply.outer(points, w) + b) @ a + c

    h = 1e-4
    curvature = (network(x + h) - 2 * network(x) + network(x - h)) / h**2
    edges = network(0.0) ** 2 + network(1.0) ** 2
    expected = np.mean((curvature - forcing) ** 2) + edges
    assert_close(module.reference(SEED, **params)[0], expected, 1e-6)
    np.testing.assert_allclose(forcing, -(np.pi**2) * np.sin(np.pi * x), rtol=1e-6)


def black_scholes(s: float, v: float, r: float, k: float, t: float) -> list[float]:
    """Price, delta, vega, rho of a European call (Hull, chapters 15 and 19)."""
    d1 = (math.log(s / k) + (r + v * v / 2) * t) / (v * math.sqrt(t))
    d2 = d1 - v * math.sqrt(t)
    below_1, below_2 = (0.5 * math.erfc(-d / math.sqrt(2)) for d in (d1, d2))
    density = math.exp(-d1 * d1 / 2) / math.sqrt(2 * math.pi)
    discounted = k * math.exp(-r * t)
    price = s * below_1 - discounted * below_2
    return [price, below_1, s * density * math.sqrt(t), t * discounted * below_2]


def test_asian_call_with_one_date_has_the_price_and_greeks_of_black_scholes() -> None:
    module = program("option_greeks")
    runs = np.array([module.reference(seed, paths=20_000, dates=1) for seed in range(40)])
    market = (module.SPOT, module.VOLATILITY, module.RATE, module.STRIKE, module.MATURITY_YEARS)
    standard_errors = runs.std(0, ddof=1) / math.sqrt(len(runs))
    assert (standard_errors < 0.01 * runs.mean(0)).all()
    # Four standard errors: one seed choice in 4000 would fail, and the seeds are fixed.
    assert (np.abs(runs.mean(0) - black_scholes(*market)) < 4 * standard_errors).all()


def test_asian_call_is_cheaper_than_the_european_and_dearer_than_the_geometric() -> None:
    module, dates = program("option_greeks"), 12
    s, v, r, k, t = (
        *(module.SPOT, module.VOLATILITY, module.RATE),
        *(module.STRIKE, module.MATURITY_YEARS),
    )
    # The geometric average is lognormal: its call is Black-Scholes with these moments of the log.
    times = t * np.arange(1, dates + 1) / dates
    variance = v * v * np.minimum.outer(times, times).mean()
    mean = math.log(s) + (r - v * v / 2) * times.mean()
    forward = math.exp(mean + variance / 2)
    geometric = black_scholes(forward, math.sqrt(variance), 0.0, k, 1.0)[0] * math.exp(-r * t)
    arithmetic = float(module.reference(SEED, paths=200_000, dates=dates)[0])
    assert geometric < arithmetic < black_scholes(s, v, r, k, t)[0]


def test_sweep_reference_satisfies_the_normal_equations_of_every_setting() -> None:
    module, params = program("sweep"), SIZES["sweep"]
    x, y, x_held, y_held, penalties = (a.astype(float) for a in module.make_inputs(SEED, **params))
    outputs = module.reference(SEED, **params)
    for index, penalty in enumerate(penalties):
        rows, targets = x[: 200 + 25 * index], y[: 200 + 25 * index]
        score, fitted = outputs[index], outputs[3 + index]
        pull = rows.T @ (targets - rows @ fitted) / len(rows)
        assert_close(penalty * fitted, pull, 1e-9)
        assert_close(score, np.square(x_held @ fitted - y_held).sum() / len(y_held), 1e-12)
