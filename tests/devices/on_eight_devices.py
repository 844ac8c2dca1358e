"""Run with eight host devices by `test_several_devices.py`: prints what it found, as JSON.

Everything is computed twice, on all devices and on one, and compared in the parent.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # as in the test processes

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from firstlight import histfactory as hf
from firstlight import losses, telemetry
from firstlight.histfactory.devices import MIN_POINTS, devices_for
from firstlight.telemetry import metrics
from firstlight.telemetry.watch import gradient_checks

FOUND: dict[str, Any] = {"compiled": {}}
COMPILES = [0]


def count(event: str, _: float, **__: Any) -> None:
    COMPILES[0] += event == "/jax/core/compile/backend_compile_duration"


def distance(here: Any, there: Any) -> float:
    """The largest difference, relative to the largest number."""
    here, there = np.asarray(here), np.asarray(there)
    return float(np.abs(here - there).max() / np.abs(there).max())


def counted(name: str, call: Any) -> Any:
    COMPILES[0] = 0
    result = call()
    FOUND["compiled"][name] = COMPILES[0]
    return result


def fits(model: hf.Model) -> None:
    counted("first toys", lambda: hf.toys(model, 133, 1))
    spread = counted("other toys of that size", lambda: hf.toys(model, 150, 3))
    alone = hf.toys(model, 150, 3, devices=1)
    FOUND["toys"] = {
        name: distance(getattr(spread, name), getattr(alone, name))
        for name in ("values", "nll", "branches", "data")
    }
    FOUND["toys not converged"] = spread.not_converged
    grid = np.linspace(0.0, 2.0, 9)
    scan = hf.scan(model, values=grid, devices=jax.devices())
    FOUND["scan"] = distance(scan.nll, hf.scan(model, values=grid).nll)
    tests = [hf.toy_cls(model, 1.0, 150, 5, devices=devices) for devices in (None, 1)]
    FOUND["CLs"] = [found.observed for found in tests]


def likelihoods(model: hf.Model) -> None:
    rng = np.random.default_rng(1)
    points = np.asarray(model.init) + 0.05 * rng.standard_normal((7, 300, model.n_parameters))
    value, slope = counted("likelihoods", lambda: hf.nll_and_gradient(model, points))
    counted("other likelihoods", lambda: hf.nll_and_gradient(model, points[::-1]))
    one_value, one_slope = hf.nll_and_gradient(model, points, devices=1)
    FOUND["likelihoods"] = [distance(value, one_value), distance(slope, one_slope)]
    FOUND["devices of many points"] = len(devices_for(2100, None, MIN_POINTS))
    FOUND["devices of few points"] = len(devices_for(2000, None, MIN_POINTS))
    with jax.default_device(jax.devices()[3]):
        FOUND["where a default is set"] = [d.id for d in devices_for(10**6)]


def training(model: hf.Model) -> None:
    """A step on the significance of all events, divided over the mesh or not."""
    edges = np.linspace(0.0, 1.0, model.n_bins + 1)
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def loss(network: Any, events: Any, weights: Any, axis: str | None) -> Any:
        scores = jax.nn.sigmoid(events @ network)
        signal = losses.soft_histogram(scores, edges, weights, axis_name=axis)
        return -losses.significance(model, {"signal": signal}, objective="asimov")

    rng = np.random.default_rng(2)
    events, weights = rng.normal(size=(400, 3)), np.full(400, 0.05)
    weights[-120:] = 0.0  # the batch was filled up: one device has ten events, two have none
    network = np.array([0.3, -0.2, 0.5])
    spread = jax.shard_map(
        jax.value_and_grad(lambda *a: loss(*a, "data")),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data"), PartitionSpec("data")),
        out_specs=PartitionSpec(),
    )
    with jax.enable_x64(True):  # not compiled: NumPy computes the gradient of the fit
        value, slope = jax.value_and_grad(lambda *a: loss(*a, None))(network, events, weights)
    for wide in (True, False):
        with jax.enable_x64(wide):
            kind = jnp.float64 if wide else jnp.float32
            given = (jnp.asarray(a, kind) for a in (network, events, weights))
            found, there = jax.jit(spread)(*given)
        FOUND[f"step in {64 if wide else 32} bits"] = [
            distance(found, value),
            distance(there, slope),
        ]
    FOUND["gradient of the step"] = float(np.abs(slope).max())


def watched_gradients() -> None:
    """Steps within `shard_map`, under watch: results of checks by the factor of a rule, of which 2
    is right, and by whether JAX tells arrays apart that are the same on all devices."""
    gradient_checks._MAX_SHARE, gradient_checks._EVERY_SECONDS = 1e12, 0.0
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    rng = np.random.default_rng(3)
    events = rng.normal(size=(16, 3)).astype(np.float32)
    for is_checked in (True, False):
        for factor in (2.0, 1.0):
            watch = telemetry.start(gradient_seconds=600, interval_seconds=3600)
            step = jax.jit(step_on_shards(mesh, factor, is_checked))
            same = NamedSharding(mesh, PartitionSpec())
            weights = jax.device_put(np.array([0.3, -0.2, 0.5], np.float32), same)
            for _ in range(6):
                weights = step(weights, events)
            FOUND[f"gradients {factor} {is_checked}"] = {
                sample.labels[0]: sample.value
                for sample in watch.samples()
                if sample.metric is metrics.GRADIENT_CHECKS
            }
            telemetry.stop()


def step_on_shards(mesh: Any, factor: float, is_checked: bool) -> Any:
    @jax.custom_vjp
    def square(x: Any) -> Any:
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (factor * g * x,))

    def step(weights: Any, events: Any) -> Any:
        def own(w: Any) -> Any:
            return jnp.mean(square(events @ w))

        def common(w: Any) -> Any:
            return jax.lax.pmean(own(w), ("a", "b"))

        gradient = jax.grad(own)(weights) + jax.grad(common)(weights)
        return weights - 1e-3 * (gradient if is_checked else jax.lax.pmean(gradient, ("a", "b")))

    spread, same = PartitionSpec(("a", "b")), PartitionSpec()
    return jax.shard_map(
        step, mesh=mesh, in_specs=(same, spread), out_specs=same, check_vma=is_checked
    )


def one_channel(bins: int, systematics: int = 3) -> hf.Model:
    flat = [40.0 + 5 * i for i in range(bins)]
    jes = {"hi_data": [1.1 * n for n in flat], "lo_data": [0.92 * n for n in flat]}
    modifiers = [
        {"type": "histosys", "name": "jes", "data": jes},
        {"type": "normsys", "name": "rate", "data": {"hi": 1.05, "lo": 0.95}},
        {"type": "staterror", "name": "stat", "data": [3.0] * bins},
    ]
    poi = {"type": "normfactor", "name": "mu", "data": None}
    samples = [
        {"name": "signal", "data": [5.0 + i for i in range(bins)], "modifiers": [poi]},
        {"name": "background", "data": flat, "modifiers": modifiers[:systematics]},
    ]
    return hf.load(
        {
            "version": "1.0.0",
            "channels": [{"name": "SR", "samples": samples}],
            "observations": [{"name": "SR", "data": [45.0 + 5 * i for i in range(bins)]}],
            "measurements": [{"name": "m", "config": {"poi": "mu", "parameters": []}}],
        }
    )


def main() -> None:
    jax.monitoring.register_event_duration_secs_listener(count)
    model = one_channel(4)
    hf.precompile(model)
    fits(model)
    likelihoods(model)
    training(one_channel(4, systematics=1))
    watched_gradients()
    print(json.dumps(FOUND))


main()
