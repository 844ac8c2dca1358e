"""The HistFactory workload with `firstlight.histfactory`, compiled by its caller.

The model is a constant of the compiled function, as in a script that analyses one workspace; the
parameters or counts, which vary, are its argument.
"""

from __future__ import annotations

import jax

from firstlight.histfactory.evaluation import nll, nll_and_gradient
from firstlight.histfactory.fitting import fit
from firstlight.histfactory.inference import discovery
from firstlight.histfactory.loading import load
from firstlight.workloads.programs.histfactory import side_by_side, toy_counts, vector, workspace

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from firstlight.histfactory.model import Model
    from firstlight.workloads.programs import Array, Built, Compile


def build_nll(compile: Compile, seed: int, preset: str) -> Built:
    """-ln L."""
    model = load(workspace(seed, preset))
    return compile(lambda theta: nll(model, theta)), _theta(seed, model)


def build_nll_grad(compile: Compile, seed: int, preset: str) -> Built:
    """-ln L and its gradient, in closed form."""
    model = load(workspace(seed, preset))
    return compile(lambda theta: nll_and_gradient(model, theta)), _theta(seed, model)


def build_fit(compile: Compile, seed: int, preset: str) -> Built:
    """The minimum of -ln L, by Newton's method."""
    model = load(workspace(seed, preset))
    return compile(lambda counts: fit(model, counts).nll), (jax.device_put(model.observed),)


def build_q0(compile: Compile, seed: int, preset: str) -> Built:
    """q0 by a free and a conditional fit."""
    model = load(workspace(seed, preset))
    return compile(lambda counts: discovery(model, counts).q0), (jax.device_put(model.observed),)


def build_toys(compile: Compile, seed: int, preset: str, toys: int) -> Built:
    """The minimum of every toy: sequentially on a CPU, all at once on a GPU."""
    content = workspace(seed, preset)
    model = load(content)

    def minimum(counts: Array) -> Array:
        return fit(model, counts).nll

    def step(rows: Array) -> Array:
        one_by_one = jax.default_backend() == "cpu"
        return jax.lax.map(minimum, rows) if one_by_one else jax.vmap(minimum)(rows)

    counts = side_by_side(toy_counts(seed, content, toys), model.channel_names)
    return compile(step), (jax.device_put(counts),)


def _theta(seed: int, model: Model) -> tuple[Array, ...]:
    return (jax.device_put(vector(seed, model.parameter_names)),)
