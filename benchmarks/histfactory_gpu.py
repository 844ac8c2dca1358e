"""Correctness and absolute times of `firstlight.histfactory` on an accelerator.

    PYTHONPATH=src python benchmarks/histfactory_gpu.py [--workspace FILE …] [--json FILE]

Needs only jax, numpy and the package's source. The workspaces are synthetic, with the dimensions of
a published analysis of 184 parameters and of a toy of eight; `--workspace` adds others. Times
are medians of synchronised calls with their 5 % and 95 % quantiles, without compilation. The floor
is a jitted call that does nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firstlight import histfactory as hf
from firstlight.histfactory import synthetic
from firstlight.histfactory.dimensions import PRESETS
from firstlight.histfactory.internal_order import poi_position

Times = dict[str, float]


def timed(call: Callable[[], Any], n: int) -> Times:
    """Milliseconds of `n` synchronised calls after one that compiles."""
    jax.block_until_ready(call())
    taken = []
    for _ in range(n):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(1e3 * (time.perf_counter() - begin))
    low, middle, high = np.quantile(taken, [0.05, 0.5, 0.95])
    return {"median_ms": float(middle), "p5_ms": float(low), "p95_ms": float(high), "n": n}


class Figures:
    """The measured figures, printed as they come."""

    def __init__(self) -> None:
        self.all: dict[str, Any] = {}

    def time(self, name: str, call: Callable[[], Any], n: int, bar: float | None = None) -> None:
        figure = timed(call, n)
        verdict = "" if bar is None else ("ok    " if figure["median_ms"] <= bar else "MISS  ")
        limit = "" if bar is None else f"  (bar: ≤ {bar:g} ms)"
        spread = f"[{figure['p5_ms']:.3f}, {figure['p95_ms']:.3f}]"
        print(f"{verdict}{name}: {figure['median_ms']:.3f} ms {spread}, n = {n}{limit}", flush=True)
        self.all[name] = figure

    def check(self, name: str, error: float, bar: float) -> None:
        good = error <= bar
        print(f"{'ok    ' if good else 'WRONG '}{name}: {error:.2g}  (bar: ≤ {bar:g})", flush=True)
        self.all[name] = {"error": float(error), "bar": bar, "good": bool(good)}


def signal_of(model: hf.Model) -> tuple[str, str]:
    """The sample that the parameter of interest changes most."""
    base = np.asarray(model.init)
    moved = base.copy()
    moved[model.poi_index] += 1
    change = hf.expected_data(model, moved, False) - hf.expected_data(model, base, False)
    bin_ = int(np.argmax(np.abs(change)))
    begin = 0
    for name, bins in model.about.channels:
        channel = name
        if bin_ < begin + bins:
            break
        begin += bins
    slot = poi_position(model) - model.about.sizes.alphas
    mask = model.about.structure.factor_mask[slot, :, bin_]
    for name, sample, place in model.about.slots:
        if name == channel and mask[place]:
            return channel, sample
    raise SystemExit("no sample carries the parameter of interest")


def correctness(name: str, model: hf.Model, figures: Figures) -> None:
    """Compare closed forms with automatic differentiation, and derivatives with differences."""
    rng = np.random.default_rng(1)
    step = np.where(model.fixed, 0.0, 0.05 * rng.standard_normal(model.n_parameters))
    theta = np.asarray(model.init) + step
    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(lambda t: hf.nll(model, t)))(theta)
        hessian = jax.jit(jax.hessian(lambda t: hf.nll(model, t)))(theta)
    pairs = {"gradient": (hf.gradient, gradient), "Hessian": (hf.hessian, hessian)}
    for what, (closed_form, automatic) in pairs.items():
        ours = closed_form(model, theta)
        # As NumPy: between JAX arrays of a 32-bit program the difference would have no digits.
        error = np.abs(ours - np.asarray(automatic)).max() / np.abs(ours).max()
        figures.check(f"{name}: {what} against autodiff", error, 1e-12)

    here, there = hf.fit(model), on_cpu(model, hf.fit)
    figures.check(f"{name}: EDM of the fit", here.edm, 1e-8)
    figures.check(f"{name}: NLL of the fit against CPU", abs(here.nll - there.nll), 1e-9)

    # Not the Asimov data themselves: there the derivative is zero.
    excess = hf.asimov(model, parameters={model.poi: 3.0})
    excess[: model.n_bins] *= 1 + 0.2 * np.cos(np.arange(model.n_bins))
    channel, sample = signal_of(model)
    at = np.asarray(model.nominal(channel, sample))

    def q0(yields: Any) -> Any:
        return hf.discovery(model.with_nominal({(channel, sample): yields}), excess).q0

    with jax.enable_x64(True):
        slope = np.asarray(jax.jit(jax.grad(q0))(at))[0]
    figures.check(f"{name}: ∂q0/∂signal against differences", difference_error(q0, at, slope), 1e-7)


def on_cpu(model: hf.Model, function: Callable[[hf.Model], Any]) -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        arrays = jax.tree.map(np.asarray, model.arrays)
        return function(hf.Model(arrays, model.about))


def difference_error(function: Callable[[Any], Any], at: Any, slope: float) -> float:
    """Relative distance to a Richardson difference of sixth order in the first component."""
    width = 0.02 * at[0]

    def central(h: float) -> float:
        shift = np.zeros_like(at)
        shift[0] = h
        return float((function(at + shift) - function(at - shift)) / (2 * h))

    a, b, c = (central(width / 2**k) for k in range(3))
    a, b = (4 * b - a) / 3, (4 * c - b) / 3
    return abs((16 * b - a) / 15 / slope - 1)


def speed(name: str, model: hf.Model, figures: Figures, large: bool) -> None:
    """Print times with their bars."""
    with jax.enable_x64(True):
        theta = jnp.asarray(model.init)
        channel, sample = signal_of(model)
        signal = jnp.asarray(model.nominal(channel, sample))

    evaluate = jax.jit(lambda t: hf.nll_and_gradient(model, t))
    bar = 0.16 if large else None
    figures.time(f"{name}: NLL + gradient", lambda: evaluate(theta), 500, bar)
    hf.precompile(model)
    figures.time(f"{name}: fit", lambda: hf.fit(model).values, 100)

    def q0(yields: Any) -> Any:
        return hf.discovery(model.with_nominal({(channel, sample): yields})).q0

    value, both = jax.jit(q0), jax.jit(jax.value_and_grad(q0))
    figures.time(f"{name}: q0", lambda: value(signal), 200, None if large else 0.9)
    figures.time(f"{name}: q0 and gradient", lambda: both(signal), 200, 4.0 if large else None)
    keys = iter(range(1000))
    bar = 900.0 if large else None
    figures.time(f"{name}: 1000 toys", lambda: hf.toys(model, 1000, next(keys)).nll, 5, bar)
    found = hf.toys(model, 1000, 0)
    print(f"      {found.not_converged} of 1000 toys did not converge", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--workspace", action="append", default=[], help="measure this one too")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    figures = Figures()
    device = jax.devices()[0]
    print(f"{device.device_kind}, jax {jax.__version__}")
    figures.all["device"], figures.all["jax"] = device.device_kind, jax.__version__
    models = {n: hf.load(synthetic.preset(n)) for n in PRESETS}
    models |= {Path(path).name: hf.load(path) for path in options.workspace}
    nothing = jax.jit(lambda x: x + 1)
    one = jnp.ones(())
    figures.time("floor", lambda: nothing(one), 500)
    for name, model in models.items():
        correctness(name, model, figures)
        speed(name, model, figures, large=model.n_parameters > 100)
    if options.json:
        Path(options.json).write_text(json.dumps(figures.all, indent=1))
    if any(isinstance(f, dict) and f.get("good") is False for f in figures.all.values()):
        raise SystemExit("something is wrong: see the lines marked WRONG")


if __name__ == "__main__":
    main()
