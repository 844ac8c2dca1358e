"""Training on significance with `firstlight.torch`: a PyTorch network, the likelihood in JAX."""

from __future__ import annotations

import torch

from firstlight.histfactory.model import Model
from firstlight.histfactory.programs import compile_at_once
from firstlight.torch.losses import SignificanceLoss, nll_loss, profiled_q0_loss
from firstlight.torch.session import create_session, from_pyhf
from firstlight.torch.soft_histogram import SoftHistogram
from firstlight.workloads.programs import Array, Built, Compile, Step, tensors
from firstlight.workloads.programs.histfactory import workspace
from firstlight.workloads.programs.significance import EVENTS, STEPS, network, signal_yields


def build_nll_signal_grad(compile: Compile, seed: int, preset: str) -> Built:
    """-ln L and its gradient with respect to the signal yields."""
    return _with_gradient(compile, seed, preset, nll_loss)


def build_profiled_q0(compile: Compile, seed: int, preset: str) -> Built:
    """q0 and its gradient with respect to the signal yields."""
    return _with_gradient(compile, seed, preset, profiled_q0_loss)


def build_significance_train_20(compile: Compile, seed: int, preset: str, part: str) -> Built:
    """One part of a training step, twenty times."""
    import numpy as np

    content = workspace(seed, preset)
    yields = signal_yields(content)
    bins, total = sum(len(v) for v in yields.values()), sum(float(v.sum()) for v in yields.values())
    histogram = SoftHistogram(np.linspace(0, 1, bins + 1))
    loss = SignificanceLoss(_compiled(content), list(yields), objective="asimov")
    x, weights = network(seed)
    events, *start = tensors([x, *weights])

    def value_of(weights: Array) -> Array:
        w1, b1, w2, b2 = weights
        scores = torch.sigmoid(torch.tanh(events @ w1 + b1) @ w2 + b2)[:, 0]
        return loss(histogram(scores) * (total / EVENTS))

    def losses(*given: Array) -> Array:
        with torch.no_grad():
            for _ in range(STEPS):
                value = value_of(given)
        return value

    def gradients(*given: Array) -> Array:
        weights = [w.clone().requires_grad_() for w in given]
        for _ in range(STEPS):
            value = value_of(weights)
            slopes = torch.autograd.grad(value, weights)
        return value.detach(), slopes[0]

    def updates(*given: Array) -> Array:
        weights = [w.clone().requires_grad_() for w in given]
        optimiser = torch.optim.Adam(weights)  # default settings, those of `significance`
        for _ in range(STEPS):
            optimiser.zero_grad()
            value = value_of(weights)
            value.backward()
            optimiser.step()
        return value.detach(), weights[0].detach()

    chosen = {"forward": losses, "backward": gradients, "step": updates}[part]
    return compile(chosen), tuple(start)


def _compiled(content: dict[str, Array]) -> Model:
    """A model whose first step compiles its loss: this is what is measured."""
    model = from_pyhf(content)
    compile_at_once(model.about)
    return model


def _with_gradient(compile: Compile, seed: int, preset: str, loss: Step) -> Built:
    import numpy as np

    content = workspace(seed, preset)
    yields = signal_yields(content)
    session = create_session(_compiled(content), list(yields))

    def step(signal: Array) -> Array:
        signal = signal.detach().requires_grad_()
        value = loss(signal, session)
        value.backward()
        return value.detach(), signal.grad

    return compile(step), tensors([np.concatenate(list(yields.values()))])
