"""One rank of a training with DistributedDataParallel, for `test_ranks.py`.

    python on_ranks.py RANK RANKS FILE

Rank 0 prints, as JSON, how far the averaged gradient is from that of one process with all events.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from firstlight.losses import LossError
from firstlight.torch import SignificanceLoss, SoftHistogram, sum_over_ranks

EDGES = torch.linspace(0.2, 0.8, 4)
ALONE = "a group of one of two ranks"
#: Events of each rank, by case.
EVENTS = {"uneven": (40, 9), "none on one rank": (31, 0), ALONE: (40,)}


def workspace() -> dict[str, Any]:
    flat = [40.0, 45.0, 50.0]
    jes = {"hi_data": [44.0, 50.0, 57.0], "lo_data": [37.0, 41.0, 45.0]}
    poi = {"type": "normfactor", "name": "mu", "data": None}
    samples = [
        {"name": "signal", "data": [5.0, 6.0, 7.0], "modifiers": [poi]},
        {
            "name": "background",
            "data": flat,
            "modifiers": [{"type": "histosys", "name": "jes", "data": jes}],
        },
    ]
    return {
        "version": "1.0.0",
        "channels": [{"name": "SR", "samples": samples}],
        "observations": [{"name": "SR", "data": flat}],
        "measurements": [{"name": "m", "config": {"poi": "mu", "parameters": []}}],
    }


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = (torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1), torch.nn.Sigmoid())
    return torch.nn.Sequential(*layers).double()


def gradient(net: torch.nn.Module, events: torch.Tensor, histogram: Any) -> torch.Tensor:
    loss = SignificanceLoss(workspace(), "signal", objective="asimov")
    (loss(0.4 * histogram(net(events)[:, 0])) + 1.0).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def compared(rank: int, case: str, group: Any) -> dict[str, float]:
    sizes = EVENTS[case]
    events = torch.randn((sum(sizes), 2), generator=torch.Generator().manual_seed(2)).double()
    mine = events.split(sizes)[rank]
    found = {}
    single = gradient(network(), events, SoftHistogram(EDGES))
    ways = {"histogram": SoftHistogram(EDGES, group=group)}
    if min(sizes):  # a histogram of its own needs events
        own = SoftHistogram(EDGES, overflow="drop")
        ways["sum"] = lambda scores: sum_over_ranks(own(scores), group)
    for name, histogram in ways.items():
        net = DistributedDataParallel(network(), process_group=group)
        there = gradient(net, mine, histogram)
        found[name] = float((there - single).abs().max() / single.abs().max())
    found["size"] = float(single.abs().max())
    return found


def refused(group: Any, score: float, overflow: str = "drop") -> bool:
    """Whether this rank refuses what cannot be used."""
    try:
        SoftHistogram(EDGES, group=group, overflow=overflow)(torch.full((3,), score))
    except LossError:
        return True
    return False


def main() -> None:
    rank, ranks, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    alone = dist.new_group([0])
    found = {case: compared(rank, case, dist.group.WORLD) for case in EVENTS if case != ALONE}
    if rank == 0:
        found[ALONE] = compared(rank, ALONE, alone)
    broken = float("nan") if rank else 0.5  # on one rank only
    refusals = [
        refused(dist.group.WORLD, 5.0),
        *(refused(dist.group.WORLD, broken, overflow) for overflow in ("drop", "clip", "leak")),
    ]
    agreed = torch.tensor(refusals).double()
    dist.all_reduce(agreed)
    if rank == 0:
        print(json.dumps({**found, "refused by": agreed.tolist()}))
    gc.collect()  # as in examples/train_on_ranks.py
    dist.destroy_process_group()


main()
