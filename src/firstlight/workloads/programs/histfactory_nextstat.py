"""The HistFactory workload with NextStat, on the CPU: the wheel on PyPI has no CUDA."""

from __future__ import annotations

import json

import nextstat

from firstlight.workloads.programs.histfactory import side_by_side, toy_counts, vector, workspace

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Callable

    from firstlight.workloads.programs import Array, Built, Compile


class Arranged:
    """Numbers in NextStat's own order, converted to pyhf's when read, which is not timed."""

    __slots__ = ("order", "values")

    def __init__(self, values: list[float], order: Callable[[], list[int]]) -> None:
        self.values = values
        self.order = order

    def __array__(self, dtype: Array = None, copy: Array = None) -> Array:
        import numpy as np

        return np.array(self.values, dtype=dtype)[self.order()]


def build_nll(compile: Compile, seed: int, preset: str) -> Built:
    """-ln L."""
    model = _load(workspace(seed, preset))
    return model.nll, (vector(seed, model.parameter_names()),)


def build_nll_grad(compile: Compile, seed: int, preset: str) -> Built:
    """-ln L and its gradient in two calls: version 0.10.1 has none that returns both."""
    content = workspace(seed, preset)
    model = _load(content)
    nll, gradient = model.nll, model.grad_nll

    def order() -> list[int]:
        from firstlight.histfactory.spec import parse

        place = {name: index for index, name in enumerate(model.parameter_names())}
        return [place[name] for name in parse(content).parameter_names]

    def step(theta: Array) -> Array:
        return nll(theta), Arranged(gradient(theta), order)

    return step, (vector(seed, model.parameter_names()),)


def build_fit(compile: Compile, seed: int, preset: str) -> Built:
    """The minimum of -ln L without a covariance, by L-BFGS-B at its default tolerance."""
    model = _load(workspace(seed, preset))
    minimise = nextstat.MaximumLikelihoodEstimator().fit_minimum
    return (lambda: minimise(model).nll), ()


def build_q0(compile: Compile, seed: int, preset: str) -> Built:
    """q0 by a free and a conditional fit: NextStat has no function for it."""
    model = _load(workspace(seed, preset))
    minimise, poi = nextstat.MaximumLikelihoodEstimator().fit_minimum, model.poi_index()
    bounds, start = model.suggested_bounds(), model.suggested_init()
    bounds[poi], start[poi] = (0.0, 0.0), 0.0

    def step() -> Array:
        free = minimise(model)
        if free.bestfit[poi] <= 0.0:
            return 0.0
        conditional = minimise(model, init_pars=start, bounds=bounds)
        return max(0.0, 2.0 * (conditional.nll - free.nll))

    return step, ()


def build_toys(compile: Compile, seed: int, preset: str, toys: int) -> Built:
    """The minimum of every toy, in parallel over the cores."""
    import numpy as np

    content = workspace(seed, preset)
    model = _load(content)
    channels = [channel["channel_name"] for channel in model.observed_main_by_channel()]
    rows = side_by_side(toy_counts(seed, content, toys), channels).tolist()

    def step() -> Array:
        return np.array([found.nll for found in nextstat.fit_batch(model, rows)])

    return step, ()


def _load(content: dict[str, Array]) -> Array:
    return nextstat.from_pyhf(json.dumps(content))
