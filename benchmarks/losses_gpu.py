"""Correctness and absolute times of the losses on an accelerator, through PyTorch and JAX.

    PYTHONPATH=src:benchmarks python benchmarks/losses_gpu.py [--workspace FILE …] [--json FILE]
    PYTHONPATH=src:benchmarks python benchmarks/losses_gpu.py --parts [--json FILE]

Needs only jax, torch, numpy and the package's source. Workspaces and times are as in
`histfactory_gpu.py`. A training step is a network of 2 → 64 → 64 → 1 on 1024 events, a soft
histogram of its scores with the bins of the signal, the significance, backward, and Adam; its time
is the mean of 20 steps, the median over rounds. Runs on a CPU too, for a trial; the bars are for an
H200.

`--parts` takes about four minutes. It measures q0, its gradient, training steps and toys in fresh
processes: as they are; with every fit ending after its first search (`--core one-search`), which
shows what the test for further minima costs. Values and gradients are compared with NumPy's first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import firstlight.torch as ft
from firstlight import histfactory as hf
from firstlight import losses
from firstlight.histfactory import branches, lanes, synthetic, templates
from firstlight.histfactory.dimensions import PRESETS
from firstlight.histfactory.internal_order import poi_position
from firstlight.histfactory.likelihood import Prepared
from firstlight.torch.bridge import to_jax, to_torch
from histfactory_gpu import Figures, Times

EVENTS, WIDTH, STEPS = 1024, 64, 20


def signal_samples(model: hf.Model) -> list[str]:
    """The samples that the parameter of interest scales."""
    row = poi_position(model) - model.about.sizes.alphas
    mask = model.about.structure.factor_mask[row]
    found = {
        sample
        for channel, sample, _ in model.about.slots
        if mask[templates.place_of(model, (channel, sample)).where].any()
    }
    return sorted(found)


def nominal(model: hf.Model, samples: Iterable[str]) -> Any:
    """Their yields in the order of a session's histogram."""
    parts = []
    for sample in samples:
        present = {c for c, s, _ in model.about.slots if s == sample}
        parts += [np.asarray(model.nominal(c, sample)) for c in model.channel_names if c in present]
    return np.concatenate(parts)


def cut(model: hf.Model, samples: list[str], values: Any) -> dict[Any, Any]:
    """A histogram of several samples by name, for JAX."""
    found, begin = {}, 0
    for sample in samples:
        size = len(nominal(model, [sample]))
        found[sample] = values[begin : begin + size]
        begin += size
    return found


def same_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Run backward in this thread: PyTorch would otherwise wake another one for it."""

    def run() -> None:
        with torch.autograd.set_multithreading_enabled(False):
            call()

    return run


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Subject:
    """One model, and everything that is measured with it."""

    def __init__(self, name: str, model: hf.Model, device: torch.device, large: bool) -> None:
        self.name, self.model, self.device, self.large = name, model, device, large
        self.samples = signal_samples(model)
        self.signal = nominal(model, self.samples)
        self.tensor = torch.tensor(self.signal, device=device, requires_grad=True)
        with jax.enable_x64(True):
            self.array = jnp.asarray(self.signal)

    def bar(self, large: float, small: float) -> float:
        return large if self.large else small

    def nll_jax(self) -> Any:
        return jax.jit(
            jax.value_and_grad(lambda s: losses.nll(self.model, cut(self.model, self.samples, s)))
        )

    def q0_jax(self, objective: str) -> Any:
        return jax.jit(
            jax.value_and_grad(
                lambda s: losses.q0(self.model, cut(self.model, self.samples, s), objective)
            )
        )

    def by_torch(self, loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
        def call() -> None:
            self.tensor.grad = None
            loss(self.tensor).backward()
            synchronise(self.device)

        return call

    def correctness(self, figures: Figures) -> None:
        for objective in ("observed", "asimov"):
            session = ft.create_profiled_session(self.model, self.samples, objective=objective)
            ours = ft.signal_jacobian(self.tensor.detach(), session).cpu().numpy()
            _, slope = self.q0_jax(objective)(self.array)
            error = np.abs(ours - np.asarray(slope)).max()
            figures.check(f"{self.name}: {objective}: torch against jax", error, 1e-12)
            cpu = torch.tensor(self.signal)
            session = ft.create_profiled_session(self.model, self.samples, objective=objective)
            there = ft.signal_jacobian(cpu, session).numpy()
            error = np.abs(ours - there).max()
            figures.check(f"{self.name}: {objective}: gradient against the CPU's", error, 1e-11)
            error = self._differences(session, ours)
            figures.check(f"{self.name}: {objective}: gradient against differences", error, 1e-7)

    def streams(self, figures: Figures) -> None:
        """The loss of a histogram that is still being computed, on another stream."""
        if self.device.type != "cuda":
            return
        session = ft.create_profiled_session(self.model, self.samples)
        wanted = ft.signal_jacobian(self.tensor.detach(), session)
        (by_nll,) = torch.autograd.grad(ft.nll_loss(self.tensor, session), self.tensor)
        big = torch.rand(4096, 4096, device=self.device)
        worst = 0.0
        for _ in range(5):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                late = big
                for _ in range(20):
                    late = late @ big
                    late = late / late.abs().max()
                # Zero, but nobody knows before the products are done.
                signal = self.tensor.detach() + (late.sum() - late.sum()).double()
                found = ft.signal_jacobian(signal, session)
                worst = max(worst, float((found - wanted).abs().max()))
                slope = torch.autograd.grad(ft.nll_loss(signal.requires_grad_(), session), signal)
                worst = max(worst, float((slope[0] - by_nll).abs().max()))
        figures.check(f"{self.name}: on a busy stream", worst, 1e-11)

    def _differences(self, session: Any, slope: Any) -> float:
        """Largest error in three bins, relative to Richardson differences in float64 on the CPU."""
        worst = 0.0
        for i in np.argsort(self.signal)[-3:]:
            width = 0.02 * self.signal[i]

            def central(h: float, i: int = i) -> float:
                moved = [self.signal.copy(), self.signal.copy()]
                moved[0][i] += h
                moved[1][i] -= h
                up, down = (float(ft.profiled_q0_loss(torch.tensor(m), session)) for m in moved)
                return (up - down) / (2 * h)

            a, b, c = (central(width / 2**k) for k in range(3))
            a, b = (4 * b - a) / 3, (4 * c - b) / 3
            worst = max(worst, abs((16 * b - a) / 15 - slope[i]))
        return worst

    def likelihood(self, figures: Figures, n: int) -> None:
        call = self.nll_jax()
        bar = self.bar(0.16, 0.09)
        figures.time(f"{self.name}: jax: NLL + signal gradient", lambda: call(self.array), n, bar)
        session = ft.create_session(self.model, self.samples)
        name, call = (
            f"{self.name}: torch: NLL + signal gradient",
            self.by_torch(lambda s: ft.nll_loss(s, session)),
        )
        figures.time(name, call, n, self.bar(0.35, 0.25))
        name += ", backward in the same thread"
        figures.time(name, same_thread(call), n, self.bar(0.35, 0.25))

    def profiled(self, figures: Figures, n: int) -> None:
        call = self.q0_jax("observed")
        figures.time(f"{self.name}: jax: q0 + gradient", lambda: call(self.array), n)
        for warm in (False, True):
            session = ft.create_profiled_session(self.model, self.samples, warm_start=warm)
            name = f"{self.name}: torch: q0 + gradient{', warm start' if warm else ''}"
            through = self.by_torch(partial(ft.profiled_q0_loss, session=session))
            figures.time(name, through, n, self.bar(4.5, 1.3))
            name += ", backward in the same thread"
            figures.time(name, same_thread(through), n, self.bar(4.5, 1.3))

    def training(self, figures: Figures, rounds: int) -> None:
        for objective in ("observed", "asimov"):
            step = torch_training(self, objective)
            name = f"{self.name}: torch: training step, {objective}"
            figures.all[name] = _report(name, step, rounds, self.bar(6, 2.2))
            name += ", backward in the same thread"
            figures.all[name] = _report(name, same_thread(step), rounds, self.bar(6, 2.2))
            step = jax_training(self, objective)
            name = f"{self.name}: jax: training step, {objective}"
            figures.all[name] = _report(name, step, rounds, self.bar(5, 1.5))


def histograms(figures: Figures, device: torch.device) -> None:
    """Compare soft histograms with the CPU's: repeated shapes, several before one backward."""
    random, worst = torch.Generator().manual_seed(0), 0.0
    for mode, overflow in itertools.product(("kde", "sigmoid"), ("drop", "clip", "leak")):
        filled = ft.SoftHistogram(np.linspace(0, 1, 21), mode=mode, overflow=overflow)
        for turn, precision in itertools.product(range(8), (torch.float32, torch.float64)):
            n = (1000, 517)[turn % 2]
            x = [torch.randn(n, generator=random, dtype=precision) * 0.5 + 0.5 for _ in range(2)]
            w = torch.rand(n, generator=random, dtype=torch.float64)
            here, there = (_slopes(filled, x, w, d) for d in (torch.device("cpu"), device))
            for a, b in zip(here, there, strict=True):
                error = float((a - b.cpu()).abs().max() / a.abs().max())
                # A gradient has the precision of what it is by: a million times less in float32.
                worst = max(worst, error if a.dtype == torch.float64 else 1e-6 * error)
    figures.check("soft histograms and their derivatives against the CPU's", worst, 1e-12)


def _slopes(filled: Any, scores: Any, weights: Any, device: torch.device) -> list[torch.Tensor]:
    """Two histograms, the gradient by all arguments, and second derivatives along the scores."""
    a, b = (x.to(device).requires_grad_() for x in scores)
    w = weights.to(device).requires_grad_()
    signal, background = filled(a, w), filled(b)
    value = (signal**2 / (1 + background)).sum()
    first = torch.autograd.grad(value, (a, b, w), retain_graph=True)
    again = torch.autograd.grad(value, (a, b, w), create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in again), (a, b, w))
    return [signal.detach(), background.detach(), *first, *second]


def _report(name: str, steps: Callable[[], Any], rounds: int, bar: float | None) -> Times:
    """Milliseconds per step: the mean of 20, over rounds."""
    steps()
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        steps()
        taken.append(1e3 * (time.perf_counter() - begin) / STEPS)
    low, middle, high = np.quantile(taken, [0.05, 0.5, 0.95])
    verdict = "" if bar is None else ("ok    " if middle <= bar else "MISS  ")
    limit = "" if bar is None else f"  (bar: ≤ {bar:g} ms)"
    print(f"{verdict}{name}: {middle:.3f} ms [{low:.3f}, {high:.3f}]{limit}", flush=True)
    return {"median_ms": float(middle), "p5_ms": float(low), "p95_ms": float(high), "n": rounds}


def events(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0.4, 1.0, (EVENTS, 2)).astype(np.float32)


def torch_network(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(2, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 1),
        torch.nn.Sigmoid(),
    )
    return torch.nn.Sequential(*layers).to(device)


def torch_training(subject: Subject | None, objective: str = "observed") -> Callable[[], Any]:
    """Twenty steps; without a subject, the network and Adam alone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, x = torch_network(device), torch.tensor(events(), device=device)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    if subject is not None:
        size = len(subject.signal)
        histogram = ft.SoftHistogram(np.linspace(0, 1, size + 1)).to(device)
        loss = ft.SignificanceLoss(subject.model, subject.samples, objective=objective)
        scale = float(subject.signal.sum() / EVENTS)

    def steps() -> None:
        for _ in range(STEPS):
            optimiser.zero_grad()
            scores = network(x)[:, 0]
            if subject is None:
                scores.mean().backward()
            else:
                loss(scale * histogram(scores)).backward()
            optimiser.step()
        synchronise(device)

    return steps


def jax_training(subject: Subject, objective: str) -> Callable[[], Any]:
    """The same in JAX: one executable per step."""
    x, size = jnp.asarray(events()), len(subject.signal)
    scale = float(subject.signal.sum() / EVENTS)
    edges = np.linspace(0, 1, size + 1)
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(2, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    weights = [
        (jax.random.normal(k, s) / np.sqrt(s[0]), jnp.zeros(s[1]))
        for k, s in zip(keys, shapes, strict=True)
    ]

    def loss(weights: Any, state: Any) -> Any:
        h = x
        for w, b in weights[:-1]:
            h = jax.nn.relu(h @ w + b)
        scores = jax.nn.sigmoid(h @ weights[-1][0] + weights[-1][1])[:, 0]
        signal = losses.soft_histogram(scores, edges, jnp.full(EVENTS, scale))
        z0, state = losses.statistic_and_state(
            subject.model,
            cut(subject.model, subject.samples, signal),
            objective=objective,
            state=state,
        )
        return -z0, state

    def step(carry: Any) -> Any:
        weights, first, second, n, state = carry
        (_, state), slope = jax.value_and_grad(loss, has_aux=True)(weights, state)
        n = n + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slope)

        def moved(w: Any, m: Any, v: Any) -> Any:
            return w - 1e-3 * m / (1 - 0.9**n) / (jnp.sqrt(v / (1 - 0.999**n)) + 1e-8)

        return jax.tree.map(moved, weights, first, second), first, second, n, state

    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = losses.initial_state(subject.model)
    # What a step replaces it may overwrite: a GPU's program is recorded for fixed addresses.
    compiled = jax.jit(step, donate_argnums=0)
    carry = (weights, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(()), state)

    def steps() -> None:
        nonlocal carry
        for _ in range(STEPS):
            carry = compiled(carry)
        jax.block_until_ready(carry)

    return steps


COLD = """
import time; t = [time.perf_counter()]
import torch, firstlight.torch as ft
from firstlight.torch.session import Session
t.append(time.perf_counter())
import sys, numpy as np
from firstlight.histfactory import synthetic
model = ft.from_pyhf(synthetic.preset(sys.argv[1])) if sys.argv[1] in ("complex-8p", "thu-184p") \\
    else ft.from_pyhf(open(sys.argv[1]).read())
loss = ft.SignificanceLoss(model, sys.argv[2].split(","))
device = "cuda" if torch.cuda.is_available() else "cpu"
s = torch.tensor(np.load(sys.argv[3]), device=device, requires_grad=True)
t.append(time.perf_counter())
loss(s).backward(); s.grad.sum().item()
t.append(time.perf_counter())
loss(s).backward(); s.grad.sum().item()
t.append(time.perf_counter())
print(*np.diff(t))
"""


def cold(subject: Subject, source: str, figures: Figures, folder: Path) -> None:
    """Time of a fresh process to its first gradient, without a cache."""
    path = folder / "signal.npy"
    np.save(path, subject.signal)
    command = [sys.executable, "-W", "ignore", "-c", COLD, source, ",".join(subject.samples)]
    begin = time.perf_counter()
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
    whole = time.perf_counter() - begin
    parts = [float(x) for x in done.stdout.split()]
    names = ("import", "load", "first gradient", "second gradient")
    figures.all[f"{subject.name}: cold"] = dict(zip(names, parts, strict=True), whole=whole)
    text = ", ".join(f"{n} {1e3 * p:.0f} ms" for n, p in zip(names, parts, strict=True))
    print(f"{subject.name}: torch: fresh process {whole:.2f} s: {text}", flush=True)


#: Variants of the engine, for `--core`.
VARIANTS = ("as-it-is", "one-search")


def no_evidence(model: Prepared) -> branches.Evidence:
    """That nothing speaks for another minimum."""
    return branches.Evidence(jnp.zeros(model.blocks[0]), jnp.zeros((), bool))


def change_engine(variant: str) -> None:
    """Switch off a part of the engine in this process, before anything is traced."""
    if variant == "one-search":
        branches.MAX_STARTS = 1
        for module in (branches, lanes):
            setattr(module, "evidence_of", lambda model, *_: no_evidence(model))  # noqa: B010


def core(figures: Figures, device: torch.device, options: argparse.Namespace) -> None:
    """The figures of `--parts` for one variant, after a comparison with NumPy."""
    alone = "the network and Adam alone: torch"
    figures.all[alone] = _report(alone, torch_training(None), 20, None)
    calls: int = options.calls
    for name in PRESETS:
        if options.only and options.only != name:
            continue
        model = hf.load(synthetic.preset(name))
        subject = Subject(name, model, device, large=model.n_parameters > 100)
        against_numpy(subject, figures)
        hf.precompile(model)
        value = jax.jit(
            lambda s, c=subject: losses.q0(c.model, cut(c.model, c.samples, s), "observed")
        )
        array, both = subject.array, subject.q0_jax("observed")
        figures.time(f"{name}: jax: q0", partial(value, array), calls, subject.bar(3.4, 0.9))
        bar = subject.bar(3.4, 1.2)
        figures.time(f"{name}: jax: q0 + gradient", partial(both, array), calls, bar)
        for objective in ("observed", "asimov"):
            step = torch_training(subject, objective)
            label = f"{name}: torch: training step, {objective}"
            figures.all[label] = _report(label, step, 10, subject.bar(3.5, 2.4))
            label += ", backward in the same thread"
            figures.all[label] = _report(label, same_thread(step), 10, subject.bar(3.5, 2.4))
        seeds = itertools.count()
        call = partial(_toys, model, seeds)
        figures.time(f"{name}: 1000 toys", call, 5, subject.bar(900.0, 100.0))


def _toys(model: hf.Model, seeds: Iterator[int]) -> Any:
    return hf.toys(model, 1000, next(seeds)).nll


def against_numpy(subject: Subject, figures: Figures) -> None:
    """q0 and its gradient in a program, compared with the first answers, which NumPy computes."""
    for objective in ("observed", "asimov"):
        with jax.enable_x64(True):
            eager = jax.value_and_grad(
                lambda s, o=objective: losses.q0(
                    subject.model, cut(subject.model, subject.samples, s), o
                )
            )
            value, slope = (np.asarray(x) for x in eager(subject.array))
            found, there = (np.asarray(x) for x in subject.q0_jax(objective)(subject.array))
        name = f"{subject.name}: {objective}: against NumPy:"
        figures.check(f"{name} q0", float(abs(found - value) / abs(value)), 1e-10)
        error = float(np.abs(there - slope).max() / np.abs(slope).max())
        figures.check(f"{name} gradient", error, 1e-10)


def parts(options: argparse.Namespace) -> None:
    """Run `--core` once per variant, each in a fresh process, and compare the times."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for variant in VARIANTS:
            path = Path(folder) / "figures.json"
            print(f"\n{variant}:", flush=True)
            command = [sys.executable, __file__, "--core", variant, "--calls", str(options.calls)]
            command += ["--only", options.only] if options.only else []
            subprocess.run([*command, "--json", str(path)], check=True)
            found[variant] = json.loads(path.read_text())
    print("\nmilliseconds: " + ", ".join(VARIANTS))
    for name in found[VARIANTS[0]]:
        figures = [found[variant][name] for variant in VARIANTS]
        if "median_ms" in figures[0]:
            print(f"{name}: " + ", ".join(f"{f['median_ms']:.3f}" for f in figures), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--workspace", action="append", default=[], help="measure this one too")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--only", help="a model by name")
    parser.add_argument("--parts", action="store_true", help="what parts of the engine cost")
    parser.add_argument("--core", choices=VARIANTS, help="the figures of --parts for one variant")
    options = parser.parse_args()
    if options.parts:
        parts(options)
        return
    figures = Figures()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, torch {torch.__version__}")
    if options.core:
        change_engine(options.core)
        core(figures, device, options)
        finish(figures, options)
        return
    sources = {n: n for n in PRESETS} | {Path(p).name: p for p in options.workspace}
    vector = torch.ones(64, dtype=torch.float64, device=device)
    double = jax.jit(lambda v: 2 * v)

    def round_trip() -> None:
        with jax.enable_x64(True):
            to_torch(double(to_jax(vector)))
        synchronise(device)

    def bare_round_trip() -> None:
        with jax.enable_x64(True):
            torch.from_dlpack(double(jax.dlpack.from_dlpack(vector)))
        synchronise(device)

    figures.time("floor: torch → jax → torch", bare_round_trip, options.calls)
    figures.time("the same by our bridge", round_trip, options.calls)
    histograms(figures, device)
    alone = torch_training(None)
    name = "the network and Adam alone: torch"
    figures.all[name] = _report(name, alone, 20, None)
    name += ", backward in the same thread"
    figures.all[name] = _report(name, same_thread(alone), 20, None)
    for name, source in sources.items():
        if options.only and options.only != name:
            continue
        model = hf.load(synthetic.preset(source) if source in PRESETS else source)
        hf.precompile(model)  # warm times are those of many steps
        subject = Subject(name, model, device, large=model.n_parameters > 100)
        subject.correctness(figures)
        subject.streams(figures)
        subject.likelihood(figures, options.calls)
        subject.profiled(figures, options.calls)
        subject.training(figures, 10)
        with tempfile.TemporaryDirectory() as folder:
            cold(subject, source, figures, Path(folder))
    finish(figures, options)


def finish(figures: Figures, options: argparse.Namespace) -> None:
    """Write the figures, and fail if a comparison did."""
    if options.json:
        Path(options.json).write_text(json.dumps(figures.all, indent=1))
    if any(isinstance(f, dict) and f.get("good") is False for f in figures.all.values()):
        raise SystemExit("something is wrong: see the lines marked WRONG")


if __name__ == "__main__":
    main()
