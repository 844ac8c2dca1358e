"""Training on significance: likelihood and q0 with gradients, and twenty training steps.

The workspaces are those of `histfactory`. A network of 2 -> 32 -> 1 gives each of 512 signal events
a score between 0 and 1; their soft histogram, scaled to the yields of the workspace, is the signal
in all its bins; the loss is minus the expected significance with all systematics profiled. The part
`forward` is twenty losses, `backward` twenty losses with their gradients, and `step` twenty Adam
updates.

This module has the inputs and the references, in plain NumPy and float64: derivatives of q0 by the
envelope theorem at minima found to rounding, and backpropagation by hand. The programs are in
`significance_jax` and `significance_torch`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from firstlight.workloads.programs import Array
    from firstlight.workloads.programs.histfactory_reference import Likelihood

EVENTS, WIDTH, STEPS = 512, 32, 20


def signal_samples(content: dict[str, Array]) -> list[str]:
    """The samples that the parameter of interest scales."""
    poi = content["measurements"][0]["config"]["poi"]
    return sorted(
        {
            sample["name"]
            for channel in content["channels"]
            for sample in channel["samples"]
            if any(m["name"] == poi for m in sample["modifiers"])
        }
    )


def signal_yields(content: dict[str, Array]) -> dict[str, Array]:
    """Their yields, channels sorted by name, 10 % larger than in the workspace."""
    import numpy as np

    channels = sorted(content["channels"], key=lambda c: str(c["name"]))
    return {
        name: np.concatenate(
            [s["data"] for c in channels for s in c["samples"] if s["name"] == name]
        )
        * 1.1
        for name in signal_samples(content)
    }


def network(seed: int) -> tuple[Array, list[Array]]:
    """Events, and weights and biases of both layers."""
    import numpy as np

    rng = np.random.default_rng(seed)
    x = rng.normal(0.3, 1.0, (EVENTS, 2))
    return x, [
        rng.standard_normal((2, WIDTH)) / 2**0.5,
        np.zeros(WIDTH),
        rng.standard_normal((WIDTH, 1)) / WIDTH**0.5,
        np.zeros(1),
    ]


def reference_nll_signal_grad(seed: int, preset: str) -> tuple[Array, ...]:
    """-ln L at the initial parameters, and its gradient with respect to the signal yields."""
    likelihood, cells, _ = _likelihood(seed, preset)
    theta, counts = likelihood.initial, likelihood.observed
    slope = likelihood.response(theta, cells) @ (1 - counts / likelihood.expected(theta))
    return likelihood.nll(theta, counts), slope


def reference_profiled_q0(seed: int, preset: str) -> tuple[Array, ...]:
    """q0 of the observed data, and its gradient, from that of the likelihood at both minima."""
    likelihood, cells, _ = _likelihood(seed, preset)
    counts = likelihood.observed
    values, slopes = [], []
    for held in ({"mu": 0.0}, None):
        value, theta = likelihood.exact_minimum(counts, held)
        values.append(value)
        ratio = counts / likelihood.expected(theta)
        slopes.append(likelihood.response(theta, cells) @ (1 - ratio))
    return 2 * (values[0] - values[1]), 2 * (slopes[0] - slopes[1])


def reference_significance_train_20(seed: int, preset: str, part: str) -> tuple[Array, ...]:
    """The last loss, and the gradient of the first layer (backward) or its final weights (step)."""
    import numpy as np

    from firstlight.workloads.programs.mlp_train import adam

    likelihood, cells, yields = _likelihood(seed, preset)
    x, weights = network(seed)
    zeros = [np.zeros_like(w) for w in weights]
    state: Array = (weights, zeros, zeros, 0)
    for _ in range(STEPS if part == "step" else 1):
        loss, gradients = _loss(likelihood, cells, float(yields.sum()), x, state[0])
        state = adam(state, gradients, np.sqrt)
    if part == "forward":
        return (loss,)
    return loss, (gradients[0] if part == "backward" else state[0][0])


def _loss(
    likelihood: Likelihood, cells: Array, total: float, x: Array, weights: list[Array]
) -> tuple[float, list[Array]]:
    """Minus the expected significance, and its gradient with respect to all weights."""
    import numpy as np

    w1, b1, w2, b2 = weights
    hidden = np.tanh(x @ w1 + b1)
    scores = 1 / (1 + np.exp(-(hidden @ w2 + b2)))[:, 0]
    shares, slopes = _soft_shares(scores, len(cells))
    z0, by_yield = _expected_significance(likelihood, cells, shares.sum(1) * total / EVENTS)
    by_score = -(by_yield @ slopes) * total / EVENTS
    by_output = (by_score * scores * (1 - scores))[:, None]
    by_hidden = by_output @ w2.T * (1 - hidden**2)
    return -z0, [x.T @ by_hidden, by_hidden.sum(0), hidden.T @ by_output, by_output.sum(0)]


def _soft_shares(scores: Array, bins: int) -> tuple[Array, Array]:
    """The fraction of every event in every bin, and its derivative with respect to the score."""
    import math

    import numpy as np

    edges, width = np.linspace(0, 1, bins + 1), 0.5 / bins
    distance = (edges[1:-1, None] - scores) / width
    inner = 0.5 * np.vectorize(math.erfc)(-distance / math.sqrt(2))
    density = -np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi) / width
    nothing, all_ = np.zeros((1, len(scores))), np.ones((1, len(scores)))
    return (
        np.diff(np.concatenate([nothing, inner, all_]), axis=0),
        np.diff(np.concatenate([nothing, density, nothing]), axis=0),
    )


def _expected_significance(
    likelihood: Likelihood, cells: Array, yields: Array
) -> tuple[float, Array]:
    """Z0 of the data expected with signal before a fit; its gradient with respect to the yields.

    Without signal the likelihood does not depend on the yields, so they change q0 only through the
    data: ∂q0/∂n = 2 ln(n/ν) at the minimum without signal, arXiv:1007.1727.
    """
    import math

    import numpy as np

    changed = likelihood.with_yields(cells, yields)
    counts = changed.expected(changed.initial)
    without, theta = changed.exact_minimum(counts, {"mu": 0.0})
    z0 = math.sqrt(2 * (without - changed.nll(changed.initial, counts)))
    by_count = 2 * np.log(counts / changed.expected(theta))
    return z0, changed.response(changed.initial, cells) @ by_count / (2 * z0)


def _likelihood(seed: int, preset: str) -> tuple[Likelihood, Array, Array]:
    """The likelihood with the signal of this workload, its cells, and its yields."""
    import numpy as np

    from firstlight.histfactory.spec import parse
    from firstlight.workloads.programs.histfactory import workspace
    from firstlight.workloads.programs.histfactory_reference import Likelihood

    content = workspace(seed, preset)
    # Only the order comes from our own reader.
    plain = Likelihood(content, parse(content).parameter_names)
    yields = signal_yields(content)
    cells = plain.cells_of(list(yields))
    values = np.concatenate(list(yields.values()))
    return plain.with_yields(cells, values), cells, values
