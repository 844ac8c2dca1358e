"""Train on significance in several processes, with DistributedDataParallel.

    torchrun --standalone --nproc-per-node 2 examples/train_on_ranks.py [--epochs 30]

Every rank simulates its own events. `SoftHistogram(..., group=...)` fills a histogram with the
events of all ranks, so every step follows the gradient of the significance of the whole batch. (The
mean of the ranks' own significances would be smaller.) All ranks make the same fits.

Prints the expected significance before and after, and whether the ranks still have equal networks.
Runs with gloo on CPUs and with NCCL on GPUs. Needs `pip install '.[jax,torch]'`.
"""

from __future__ import annotations

import argparse
import gc
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from firstlight.torch import SignificanceLoss, SoftHistogram

BINS, SIGNAL, BACKGROUND = 4, 30.0, 400.0  # expected events
EVENTS = 1000  # simulated events per class and rank


def workspace() -> dict[str, Any]:
    """One channel; its templates are placeholders for those of the network."""
    rate = {"type": "normsys", "name": "rate", "data": {"hi": 1.05, "lo": 0.95}}
    poi = {"type": "normfactor", "name": "mu", "data": None}
    flat = [BACKGROUND / BINS] * BINS
    samples = [
        {"name": "signal", "data": [SIGNAL / BINS] * BINS, "modifiers": [poi]},
        {"name": "background", "data": flat, "modifiers": [rate]},
    ]
    return {
        "version": "1.0.0",
        "channels": [{"name": "SR", "samples": samples}],
        "observations": [{"name": "SR", "data": flat}],
        "measurements": [{"name": "search", "config": {"poi": "mu", "parameters": []}}],
    }


def train(epochs: int, device: torch.device) -> tuple[list[float], bool]:
    """The expected significance at every step, and whether the ranks end with equal networks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # other events on each rank; DDP copies the network of rank 0
    signal = torch.randn((EVENTS, 2)) + torch.tensor([0.8, 0.5])
    background = torch.randn((EVENTS, 2)) - torch.tensor([0.8, 0.5])
    events = torch.cat([signal, background]).to(device)
    layers = (torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1), torch.nn.Sigmoid())
    network = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    histogram = SoftHistogram(torch.linspace(0, 1, BINS + 1), group=dist.group.WORLD)
    loss = SignificanceLoss(workspace(), "signal", objective="asimov")
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    values = []
    for _ in range(epochs):
        optimiser.zero_grad()
        scores = network(events)[:, 0]  # one call per step, so that DDP averages once
        value = loss(
            {
                "signal": histogram(scores[:EVENTS]) * (SIGNAL / (ranks * EVENTS)),
                "background": histogram(scores[EVENTS:]) * (BACKGROUND / (ranks * EVENTS)),
            }
        )
        value.backward()
        optimiser.step()
        values.append(-value.item())

    mine = torch.cat([p.detach().flatten() for p in network.parameters()])
    smallest, largest = mine.clone(), mine.clone()
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return values, bool((smallest == largest).all())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args().epochs
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    values, equal = train(epochs, device)
    # DistributedDataParallel is part of reference cycles. If it outlives the group, gloo's threads
    # outlive the interpreter, which sometimes aborts the process at exit.
    gc.collect()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: ", end="")
        print(f"expected Z0 from {values[0]:.2f} to {values[-1]:.2f}")
        print(f"networks equal: {equal}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
