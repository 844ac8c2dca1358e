"""How fast are the losses, compared with plain automatic differentiation on this CPU?

    python benchmarks/losses.py [--rounds N] [--workspace FILE]

The plain version is the obvious one: the same likelihood, gradient and Hessian by JAX, a fixed
number of Newton steps, and `jax.grad` through all of them. Both sides are measured in one
run, in turns, and every figure is a ratio with its spread; both give the same q0 and the same
gradient, which is printed too. Absolute times on an accelerator: `losses_gpu.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import firstlight.torch as ft
from firstlight import histfactory as hf
from firstlight import losses
from firstlight.histfactory import likelihood, synthetic, templates
from firstlight.histfactory.dimensions import PRESETS
from firstlight.histfactory.internal_order import poi_position, to_internal
from firstlight.histfactory.internal_order import prepared as prepared_arrays
from firstlight.statistics.intervals import median_estimate
from histfactory import ratios
from losses_gpu import cut, nominal, signal_samples

NEWTON_STEPS = 12


def plain_q0(model: hf.Model, samples: list[str]) -> Callable[[Any], Any]:
    """q0 by Newton steps with `jax.hessian`, to be differentiated through."""
    structure = model.about.structure
    free = np.flatnonzero(structure.fixed == 0)
    poi = poi_position(model)
    # From the minimum: without damping, Newton's method would not find it from afar.
    found = hf.discovery(model)
    best, null = (
        jnp.asarray(to_internal(model, f.values)) for f in (found.free, found.conditional)
    )
    data = likelihood.Data(*map(jnp.asarray, (model._settings.observed, model._settings.auxdata)))

    def q0(signal: Any) -> Any:
        prepared = prepared_arrays(templates.exchange(model, cut(model, samples, signal)))

        def minimum(moving: Any, at: Any) -> Any:
            def nll(values: Any) -> Any:
                return likelihood.nll(prepared, data, at.at[moving].set(values))

            def step(values: Any, _: Any) -> Any:
                return values - jnp.linalg.solve(jax.hessian(nll)(values), jax.grad(nll)(values)), 0

            values, _ = jax.lax.scan(step, at[moving], None, length=NEWTON_STEPS)
            return nll(values)

        without = minimum(free[free != poi], null)
        return 2 * (without - minimum(free, best))

    return q0


def compare(name: str, model: hf.Model, rounds: int) -> None:
    hf.precompile(model)  # warm times are those of many steps
    samples = signal_samples(model)
    signal = nominal(model, samples)
    jax.config.update("jax_enable_x64", True)
    plain = jax.jit(jax.value_and_grad(plain_q0(model, samples)))
    ours = jax.jit(jax.value_and_grad(lambda s: losses.q0(model, cut(model, samples, s))))
    point = jnp.asarray(signal)
    wanted, found = plain(point), ours(point)
    error = np.abs(np.asarray(wanted[1]) - np.asarray(found[1])).max()
    print(f"{name}: q0 {float(found[0]):.9g}, plain {float(wanted[0]):.9g}; ", end="")
    print(f"gradients differ by {error:.1g}")
    session = ft.create_profiled_session(model, samples)
    tensor = torch.tensor(signal, requires_grad=True)

    def by_torch() -> None:
        tensor.grad = None
        ft.profiled_q0_loss(tensor, session).backward()

    for title, call in (
        ("JAX", lambda: jax.block_until_ready(ours(point))),
        ("PyTorch, warm start", by_torch),
    ):
        e = median_estimate(ratios(call, lambda: jax.block_until_ready(plain(point)), rounds))
        print(f"  q0 and gradient, {title}: {e.median:.1f}× faster [{e.low:.1f}, {e.high:.1f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--workspace", action="append", default=[], help="measure this one too")
    options = parser.parse_args()
    for name in PRESETS:
        compare(name, hf.load(synthetic.preset(name)), options.rounds)
    for path in options.workspace:
        compare(Path(path).name, hf.load(path), options.rounds)


if __name__ == "__main__":
    main()
