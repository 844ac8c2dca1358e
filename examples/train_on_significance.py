"""Cross-entropy or significance? Train the same network on both, and compare.

    python examples/train_on_significance.py [--seeds 8] [--epochs 100] [--output FOLDER]

Signal and background are Gaussians in two dimensions (the background also has a broad tail). The
exact position of the background is unknown: a systematic uncertainty shifts it along one axis,
towards the signal or away from it. A classifier trained with cross-entropy does not know about
this. One trained on the expected discovery significance, with the systematic profiled, does: it
gives up separation along the uncertain axis. (It also starts with twenty epochs of cross-entropy:
from a random start some networks get stuck.)

Prints the expected significance on held-out events, in plain (not soft) histograms, for every seed
and as a median over the seeds; plots the scores of both networks and the significance per epoch.
Takes about a minute on two cores.

Needs `pip install '.[jax,torch,plots]'`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from firstlight import histfactory as hf
from firstlight import losses
from firstlight.statistics.intervals import median_estimate
from firstlight.torch import SignificanceLoss, SoftHistogram, from_pyhf

BINS, SIGNAL, BACKGROUND = 6, 50.0, 1000.0  # expected events
TRAINING, HELD_OUT = 4_000, 100_000  # simulated events per class
WARM_UP = 20  # epochs of cross-entropy first; training on significance alone may get stuck
EDGES = np.linspace(0.0, 1.0, BINS + 1)
MEANS = {"signal": (1.0, 0.6), "background": (-0.6, -0.6), "up": (0.2, -0.6), "down": (-1.4, -0.6)}
UP, DOWN = ("SR", "background", "shift", "hi"), ("SR", "background", "shift", "lo")
Events = dict[str, torch.Tensor]


def workspace() -> dict[str, Any]:
    """One channel; its templates are placeholders for those of a network."""
    flat = [BACKGROUND / BINS] * BINS
    shift = {"type": "histosys", "name": "shift", "data": {"hi_data": flat, "lo_data": flat}}
    rate = {"type": "normsys", "name": "rate", "data": {"hi": 1.03, "lo": 0.97}}
    signal = {
        "name": "signal",
        "data": [SIGNAL / BINS] * BINS,
        "modifiers": [{"type": "normfactor", "name": "mu", "data": None}],
    }
    background = {"name": "background", "data": flat, "modifiers": [shift, rate]}
    return {
        "version": "1.0.0",
        "channels": [{"name": "SR", "samples": [signal, background]}],
        "observations": [{"name": "SR", "data": flat}],
        "measurements": [{"name": "search", "config": {"poi": "mu", "parameters": []}}],
    }


def simulate(seed: int, n: int) -> Events:
    generator = torch.Generator().manual_seed(seed)
    events = {
        name: torch.randn((n, 2), generator=generator) + torch.tensor(mean)
        for name, mean in MEANS.items()
    }
    # A tenth of the background is spread out, so that no cut removes all of it.
    broad = 2.0 * torch.randn((n // 10, 2), generator=generator)
    for name in ("background", "up", "down"):
        events[name][: n // 10] = broad
    return {name: x[torch.randperm(n, generator=generator)] for name, x in events.items()}


def network(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1), torch.nn.Sigmoid())
    return torch.nn.Sequential(*layers)


def templates(scores: Events, histogram: Any) -> dict[Any, Any]:
    """Templates by their names in the model: signal, background, and the shifted background."""
    n = len(scores["signal"])
    return {
        "signal": histogram(scores["signal"]) * (SIGNAL / n),
        "background": histogram(scores["background"]) * (BACKGROUND / n),
        UP: histogram(scores["up"]) * (BACKGROUND / n),
        DOWN: histogram(scores["down"]) * (BACKGROUND / n),
    }


def scored(net: torch.nn.Module, events: Events) -> Events:
    return {name: net(x)[:, 0] for name, x in events.items()}


def held_out_significance(model: hf.Model, net: torch.nn.Module, events: Events) -> float:
    """Expected Z0 from plain histograms of held-out events."""
    with torch.no_grad():
        scores = scored(net, events)
    plain = templates(scores, lambda s: np.histogram(s.numpy(), EDGES)[0].astype(float))
    return float(losses.significance(model, plain, objective="asimov"))


class Trained(NamedTuple):
    net: torch.nn.Module
    per_epoch: list[float]  # Z0 on held-out events


def train(kind: str, model: hf.Model, seed: int, epochs: int, held_out: Events) -> Trained:
    events, net = simulate(seed, TRAINING), network(seed)
    histogram = SoftHistogram(EDGES, bandwidth=0.05)
    significance = SignificanceLoss(model, "signal", objective="asimov")
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    per_epoch = []
    for epoch in range(epochs):
        optimiser.zero_grad()
        scores = scored(net, events)
        if kind == "significance" and epoch >= WARM_UP:
            loss = significance(templates(scores, histogram))
        else:
            loss = -scores["signal"].log().mean() - (1 - scores["background"]).log().mean()
        loss.backward()
        optimiser.step()
        per_epoch.append(held_out_significance(model, net, held_out))
    return Trained(net, per_epoch)


def interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    found = median_estimate(values)
    return f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"


def plot(results: dict[str, list[Trained]], events: Events, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"signal": "#0072B2", "background": "#777777", "up": "#D55E00", "down": "#E69F00"}
    words = {"up": "background, shifted up", "down": "background, shifted down"}
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for axis, (kind, trained) in zip(axes, results.items(), strict=True):
        with torch.no_grad():
            scores = scored(trained[0].net, events)
        for name, values in scores.items():
            axis.hist(
                values.numpy(),
                np.linspace(0, 1, 51),
                density=True,
                histtype="step",
                linewidth=1.6,
                color=colours[name],
                label=words.get(name, name),
            )
        for edge in EDGES[1:-1]:
            axis.axvline(edge, color="#DDDDDD", linewidth=0.8, zorder=0)
        axis.set_yscale("log")
        axis.set_xlim(0, 1)
        axis.set_title(f"trained on {kind}")
        axis.set_xlabel("score (grey: bin edges)")
    axes[0].set_ylabel("density of held-out events")
    axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(folder / "scores.png", dpi=150)

    figure, axis = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for (kind, trained), colour in zip(results.items(), ("#777777", "#0072B2"), strict=True):
        for i, one in enumerate(trained):
            axis.plot(
                np.arange(1, len(one.per_epoch) + 1),
                one.per_epoch,
                color=colour,
                linewidth=1.2,
                alpha=0.8,
                label=f"trained on {kind}" if i == 0 else None,
            )
    axis.set_xlabel("epoch")
    axis.set_ylabel("expected significance $Z_0$, held-out events")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, loc="lower right", title="one line per seed", title_fontsize=9)
    figure.savefig(folder / "significance_per_epoch.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("train_on_significance"))
    options = parser.parse_args()
    # Networks this small are slower on two cores than on one.
    torch.set_num_threads(1)
    begin = time.perf_counter()
    model, held_out = from_pyhf(workspace()), simulate(1_000_003, HELD_OUT)
    # Evaluated after every epoch, so with fewer events than the final figures.
    glimpse = {name: x[:10_000] for name, x in held_out.items()}
    results: dict[str, list[Trained]] = {}
    final: dict[str, list[float]] = {}
    for kind in ("cross-entropy", "significance"):
        results[kind] = [
            train(kind, model, seed, options.epochs, glimpse) for seed in range(options.seeds)
        ]
        final[kind] = [held_out_significance(model, t.net, held_out) for t in results[kind]]
        each = ", ".join(f"{z:.3f}" for z in final[kind])
        print(f"trained on {kind}: Z0 = {interval(final[kind])}  (seeds: {each})", flush=True)
    gains = [b / a for a, b in zip(*final.values(), strict=True)]
    print(f"significance over cross-entropy, seed by seed: {interval(gains)}")
    options.output.mkdir(parents=True, exist_ok=True)
    plot(results, held_out, options.output)
    print(f"plots in {options.output}/; {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
