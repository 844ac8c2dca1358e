"""The parts of `scale.py` that need Ray: what it costs, and what a lost node costs."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from firstlight import cluster
from firstlight import histfactory as hf
from firstlight.cluster.checkpoint import Checkpoint
from firstlight.cluster.connection import connected
from firstlight.cluster.frozen_fits import frozen_programs
from firstlight.cluster.jobs import ToyJob
from firstlight.cluster.rehearsal import Nodes, rehearsal
from firstlight.cluster.slots import Slot
from firstlight.histfactory import synthetic
from firstlight.histfactory.toy_fits import plan_toys
from firstlight.measure.planning import Request, plan_run
from firstlight.measure.runner import Runner
from firstlight.records import Case
from firstlight.statistics.intervals import median_estimate


def ratios(pairs: Sequence[tuple[float, float]]) -> str:
    """The median of the ratios of pairs, with its interval."""
    found = median_estimate([a / b for a, b in pairs])
    return f"{found.median:.3f} [{found.low:.3f}, {found.high:.3f}] (n={found.n})"


def seconds_of(work: Callable[..., Any], *arguments: Any) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def model_of(options: argparse.Namespace) -> hf.Model:
    return hf.load(options.workspace or synthetic.preset("thu-184p"))


def cpu_seconds() -> float:
    """CPU seconds of this process, Ray and its workers, which depend little on the load."""
    own = psutil.Process()
    every = [own, *own.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in every)


def toys(options: argparse.Namespace) -> None:
    """Two one-core nodes, compared with one process with two threads, in turns."""
    model = model_of(options)
    each = options.toys // options.rounds
    with rehearsal([1, 1]) as nodes, connected(nodes.address):
        cluster.toys(model, 512, on=nodes.address)  # workers started, programs loaded
        hf.toys(model, 512)
        pairs, work = [], []
        for number in range(options.rounds):
            sides = [
                partial(cluster.toys, model, each, number, on=nodes.address),
                partial(hf.toys, model, each, number),
            ]
            order = [0, 1] if number % 2 else [1, 0]
            took, used = {}, {}
            for side in order:
                before = cpu_seconds()
                took[side] = seconds_of(sides[side])
                used[side] = cpu_seconds() - before
            pairs.append((took[1], took[0]))
            work.append((used[1], used[0]))
            print(f"{each} toys: Ray {took[0]:.1f} s, one process {took[1]:.1f} s", flush=True)
    print(f"rate on two nodes / rate of one process with two threads: {ratios(pairs)}")
    print(f"the same by processor time, everything of Ray included: {ratios(work)}")


class TimedSlot(Slot):
    """A slot that reports how long a sample took: the rest of the driver's time is Ray's."""

    def timed(self, case: Case, index: int) -> float:
        return seconds_of(self.measure, case, "timed", index)


def samples(options: argparse.Namespace) -> None:
    """A fresh-process sample, asked for over Ray and locally, in turns."""
    request = Request(target="matmul", pattern="small", backends=[options.backend], caches=["none"])
    plan = plan_run(request)
    (case,) = plan.cases
    with (
        rehearsal([1]) as nodes,
        connected(nodes.address) as ray,
        Runner(plan.cases, plan.settings, lambda sample: None) as local,
    ):
        slot = ray.remote(TimedSlot).remote()
        ray.get(slot.begin.remote(plan))
        ray.get(slot.timed.remote(case, 0))
        local.take(case, "check", 0)
        pairs, shares = [], []
        for number in range(options.rounds):
            begin = time.perf_counter()
            inside = ray.get(slot.timed.remote(case, number))
            there = time.perf_counter() - begin
            pairs.append((there, seconds_of(local.take, case, "timed", number)))
            shares.append((there - inside) / inside)
        print(f"{case.id}: {statistics.median(b for _, b in pairs):.3f} s per sample locally")
        share = median_estimate(shares)
        print(
            f"what Ray adds to a sample: {share.median:.2%} [{share.low:.2%}, {share.high:.2%}] "
            f"of its time (n={share.n})"
        )
        print(f"samples in turns, over Ray / locally: {ratios(pairs)}")


class Killer:
    """Kills the last node when a share of the work is done; records what was finished by then."""

    def __init__(self, nodes: Nodes, folder: Path, share: float) -> None:
        self._nodes, self._folder, self._share = nodes, folder, share
        self.finished: dict[Path, int] = {}

    def __call__(self, done: int, of: int) -> None:
        """Kill the node if the work has come far enough."""
        if not self.finished and self._share * of < done:
            self.finished = {p: p.stat().st_mtime_ns for p in self._folder.glob("piece-*")}
            self._nodes.kill(len(self._nodes.raylets) - 1)

    def lost(self) -> int:
        """How many of the finished pieces are missing or changed."""
        known = self.finished.items()
        return sum(not p.exists() or p.stat().st_mtime_ns != moment for p, moment in known)


def kill(options: argparse.Namespace) -> None:
    """`kill -9` a node at random moments: nothing finished is lost, and the result is equal."""
    model, draw = model_of(options), random.Random(options.seed)
    expected = hf.toys(model, options.toys, 1)
    lost = unequal = middle = 0
    with rehearsal([1, 1]) as nodes, connected(nodes.address):
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name) / "c"
                killer = Killer(nodes, folder, draw.random())
                found = cluster.toys(
                    model, options.toys, 1, on=nodes.address, checkpoint=folder, progress=killer
                )
                same = np.array_equal(found.values, expected.values)
                lost, unequal = lost + killer.lost(), unequal + (not same)
                after, pieces = len(killer.finished), len(list(folder.glob("piece-*")))
                middle += after < pieces
            word = "equal" if same else "NOT EQUAL"
            print(f"{number + 1}: killed after {after} of {pieces} pieces, {word}", flush=True)
            nodes.add(1)
    print(
        f"{options.rounds} kills, {middle} of them before the last piece: {lost} finished pieces "
        f"lost, {unequal} results not equal"
    )


FIRST_FIT = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    job, executables = pickle.load(file)
from firstlight.cluster.frozen_fits import install
install(job.model, executables)
job.fits.fit(0, 1)
"""


def worker(options: argparse.Namespace) -> None:
    """A new worker's first fit, compared with that of a local process with the same executables."""
    job = ToyJob(plan_toys(model_of(options), 100_000, 1))
    pairs, rays = [], []
    with (
        rehearsal([1]) as nodes,
        connected(nodes.address) as ray,
        tempfile.TemporaryDirectory() as f,
    ):
        shared = (job, frozen_programs(job.model))
        path = Path(f) / "job"
        path.write_bytes(pickle.dumps(shared))
        reference = [ray.put(shared)]

        def first_fit(given: list[Any]) -> None:
            os.environ["OPENBLAS_NUM_THREADS"] = "1"
            import ray

            job, executables = ray.get(given[0])
            from firstlight.cluster.frozen_fits import install

            install(job.model, executables)
            job.fits.fit(0, 1)

        fit = ray.remote(max_calls=1)(first_fit)
        empty = ray.remote(max_calls=1)(lambda: None)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", FIRST_FIT, str(path)]
        for _ in range(options.rounds):
            own = seconds_of(lambda: ray.get(empty.remote()))
            there = seconds_of(lambda: ray.get(fit.remote(reference)))
            here = seconds_of(lambda: subprocess.run(command, env=environment, check=True))
            rays.append(own)
            pairs.append((max(there - own, 1e-3), here))
    print(f"Ray's own start of a worker: {statistics.median(rays):.2f} s")
    print(f"a local frozen start: {statistics.median(b for _, b in pairs):.2f} s")
    print(f"(first fit in a new worker - Ray's own start) / local frozen start: {ratios(pairs)}")


def costs(options: argparse.Namespace) -> None:
    """Costs per task, object and checkpoint, from which a plan for many nodes is made."""
    job = ToyJob(plan_toys(model_of(options), 100_000, 1))
    with rehearsal([1, 1]) as nodes, connected(nodes.address) as ray:
        task = ray.remote(lambda: None)
        ray.get([task.remote() for _ in range(20)])
        count = 500
        burst = seconds_of(lambda: ray.get([task.remote() for _ in range(count)])) / count
        one = statistics.median(seconds_of(lambda: ray.get(task.remote())) for _ in range(100))
        piece = {"values": np.zeros((256, 184)), **{n: np.zeros(256) for n in "abcd"}}
        put = statistics.median(seconds_of(lambda: ray.put(piece)) for _ in range(50))
        remote = ray.remote(lambda: np.zeros((256, 188)))
        fetched = statistics.median(seconds_of(lambda: ray.get(remote.remote())) for _ in range(50))
        shared = (job, frozen_programs(job.model))
        whole = seconds_of(lambda: ray.put(shared))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        kept = Checkpoint(Path(name) / "c", job.identity(), resume=False)
        written = statistics.median(seconds_of(kept.keep, number, piece) for number in range(50))
        size = (Path(name) / "c" / "piece-000000.npz").stat().st_size
        kept.close()
    found = {
        "task, one after the other [ms]": 1e3 * one,
        "task, in a burst [ms]": 1e3 * burst,
        "task whose result is a piece (385 kB) [ms]": 1e3 * fetched,
        "putting a piece [ms]": 1e3 * put,
        "putting job and executables [ms]": 1e3 * whole,
        "their size [MB]": len(pickle.dumps(shared)) / 1e6,
        "checkpoint of a piece, synced [ms]": 1e3 * written,
        "its size [kB]": size / 1e3,
    }
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1))


def _part(handle: Callable[[argparse.Namespace], None], rounds: int, toys: int = 0) -> Any:
    def add(parts: Any) -> None:
        about = (handle.__doc__ or "").splitlines()[0]
        parser = parts.add_parser(handle.__name__, help=about, description=about)
        parser.add_argument("--rounds", type=int, default=rounds)
        parser.add_argument("--toys", type=int, default=toys, help=argparse.SUPPRESS)
        parser.add_argument("--workspace", type=Path, help="a pyhf JSON workspace to use instead")
        parser.add_argument("--seed", type=int, default=0, help="of the random moments")
        parser.add_argument("--backend", default="jax-jit", help="of the samples")
        parser.add_argument("--folder", help="where checkpoints are written (default: temporary)")
        parser.set_defaults(handle=handle)

    return add


PARTS = (
    _part(toys, rounds=10, toys=20_000),
    _part(samples, rounds=15),
    _part(kill, rounds=20, toys=10_000),
    _part(worker, rounds=10),
    _part(costs, rounds=1),
)
