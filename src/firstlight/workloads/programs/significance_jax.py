"""Training on significance with `firstlight.losses`, compiled by its caller."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from firstlight.histfactory.loading import load
from firstlight.losses.objectives import nll, q0, statistic_and_state
from firstlight.losses.soft_histogram import soft_histogram
from firstlight.losses.state import initial_state
from firstlight.workloads.programs import Array, Built, Compile, Step
from firstlight.workloads.programs.histfactory import workspace
from firstlight.workloads.programs.mlp_train import adam
from firstlight.workloads.programs.significance import EVENTS, STEPS, network, signal_yields


def build_nll_signal_grad(compile: Compile, seed: int, preset: str) -> Built:
    """-ln L and its gradient with respect to the signal yields."""
    return _with_gradient(compile, seed, preset, nll)


def build_profiled_q0(compile: Compile, seed: int, preset: str) -> Built:
    """q0 and its gradient with respect to the signal yields."""
    return _with_gradient(compile, seed, preset, q0)


def build_significance_train_20(compile: Compile, seed: int, preset: str, part: str) -> Built:
    """Twenty calls of one compiled part of a training step, in a Python loop."""
    import numpy as np

    content = workspace(seed, preset)
    model, yields = load(content), signal_yields(content)
    sizes = [len(v) for v in yields.values()]
    edges = np.linspace(0, 1, sum(sizes) + 1)
    total = sum(float(v.sum()) for v in yields.values())
    x, weights = jax.device_put(network(seed))

    def loss(weights: Array, state: Array) -> Array:
        w1, b1, w2, b2 = weights
        scores = jax.nn.sigmoid(jnp.tanh(x @ w1 + b1) @ w2 + b2)[:, 0]
        signal = soft_histogram(scores, edges) * (total / EVENTS)
        parts = jnp.split(signal, np.cumsum(sizes)[:-1])
        histograms: dict[Array, Array] = dict(zip(yields, parts, strict=True))
        z0, state = statistic_and_state(model, histograms, objective="asimov", state=state)
        return -z0, state

    def gradient(weights: Array, state: Array) -> Array:
        return jax.value_and_grad(loss, has_aux=True)(weights, state)

    def update(moments: Array, state: Array) -> Array:
        (value, state), slopes = gradient(moments[0], state)
        return value, adam(moments, slopes, jnp.sqrt), state

    forward, backward, step = compile(loss), compile(gradient), compile(update)

    def losses(weights: Array) -> Array:
        state = initial_state(model)
        for _ in range(STEPS):
            value, state = forward(weights, state)
        return value

    def gradients(weights: Array) -> Array:
        state = initial_state(model)
        for _ in range(STEPS):
            (value, state), slopes = backward(weights, state)
        return value, slopes[0]

    def updates(weights: Array) -> Array:
        zeros = tuple(jnp.zeros_like(w) for w in weights)
        moments, state = (tuple(weights), zeros, zeros, jnp.zeros(())), initial_state(model)
        for _ in range(STEPS):
            value, moments, state = step(moments, state)
        return value, moments[0][0]

    return {"forward": losses, "backward": gradients, "step": updates}[part], (weights,)


def _with_gradient(compile: Compile, seed: int, preset: str, function: Step) -> Built:
    content = workspace(seed, preset)
    model = load(content)

    def step(yields: Array) -> Array:
        value, slopes = jax.value_and_grad(lambda y: function(model, y))(yields)
        return value, jnp.concatenate(list(slopes.values()))

    return compile(step), (jax.device_put(signal_yields(content)),)
