"""Training on significance with `firstlight.torch`: a PyTorch network, the likelihood in JAX."""

from __future__ import annotations

import torch

from firstlight.torch.functional import nll_loss, profiled_q0_loss
from firstlight.torch.modules import SignificanceLoss, SoftHistogram
from firstlight.torch.session import create_profiled_session, create_session, from_pyhf
from firstlight.workloads.programs.histfactory import workspace
from firstlight.workloads.programs.significance import (
    EVENTS,
    LEARNING_RATE,
    STEPS,
    network,
    signal_yields,
)

TYPE_CHECKING = False  # not from typing: imports are timed
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Step = Callable[..., Any]
    Built = tuple[Step, tuple[Any, ...]]


def build_nll_signal_grad(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """-ln L and its gradient with respect to the signal yields."""
    content = workspace(seed, preset)
    session = create_session(from_pyhf(content), list(signal_yields(content)))
    return _with_gradient(compile, content, lambda signal: nll_loss(signal, session))


def build_profiled_q0(compile: Callable[[Step], Step], seed: int, preset: str) -> Built:
    """q0 and its gradient with respect to the signal yields."""
    content = workspace(seed, preset)
    session = create_profiled_session(from_pyhf(content), list(signal_yields(content)))
    return _with_gradient(compile, content, lambda signal: profiled_q0_loss(signal, session))


def build_significance_train_20(
    compile: Callable[[Step], Step], seed: int, preset: str, part: str
) -> Built:
    """One part of a training step, twenty times."""
    import numpy as np

    content = workspace(seed, preset)
    yields = signal_yields(content)
    bins, total = sum(len(v) for v in yields.values()), sum(float(v.sum()) for v in yields.values())
    histogram = SoftHistogram(np.linspace(0, 1, bins + 1))
    loss = SignificanceLoss(from_pyhf(content), list(yields), objective="asimov")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, first = network(seed)
    events = torch.tensor(x, device=device)
    start = [torch.tensor(w, device=device) for w in first]

    def value_of(weights: Any) -> Any:
        w1, b1, w2, b2 = weights
        scores = torch.sigmoid(torch.tanh(events @ w1 + b1) @ w2 + b2)[:, 0]
        return loss(histogram(scores) * (total / EVENTS))

    def losses(*given: Any) -> Any:
        with torch.no_grad():
            for _ in range(STEPS):
                value = value_of(given)
        return value

    def gradients(*given: Any) -> Any:
        weights = [w.clone().requires_grad_() for w in given]
        for _ in range(STEPS):
            value = value_of(weights)
            slopes = torch.autograd.grad(value, weights)
        return value.detach(), slopes[0]

    def updates(*given: Any) -> Any:
        weights = [w.clone().requires_grad_() for w in given]
        optimiser = torch.optim.Adam(weights, LEARNING_RATE)
        for _ in range(STEPS):
            optimiser.zero_grad()
            value = value_of(weights)
            value.backward()
            optimiser.step()
        return value.detach(), weights[0].detach()

    chosen = {"forward": losses, "backward": gradients, "step": updates}[part]
    return compile(chosen), tuple(start)


def _with_gradient(compile: Callable[[Step], Step], content: Any, function: Step) -> Built:
    import numpy as np

    def step(signal: Any) -> Any:
        signal = signal.detach().requires_grad_()
        value = function(signal)
        value.backward()
        return value.detach(), signal.grad

    device = "cuda" if torch.cuda.is_available() else "cpu"
    signal = np.concatenate(list(signal_yields(content).values()))
    return compile(step), (torch.tensor(signal, device=device),)
