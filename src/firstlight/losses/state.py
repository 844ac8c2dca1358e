"""The state of the fits behind a loss, passed from one training step to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from firstlight.histfactory import templates
from firstlight.histfactory.array_types import ArrayLike, Count, Number, Numpy, Truth
from firstlight.histfactory.inference import Ratio, warm_start_of
from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import WarmStart
from firstlight.histfactory.precision import float64_scope, is_traced

#: Names and values of the templates that a network produces.
Keys = tuple[templates.Key, ...]
Values = tuple[ArrayLike, ...]


@pytree
@dataclass(frozen=True)
class State:
    """The outcome of the fits behind a result, and a start for the next ones."""

    warm_start: WarmStart
    muhat: Number
    status_code: Count  # of the free and the conditional fit; see `histfactory.Status`
    iterations: Count  # steps of both fits

    @property
    def converged(self) -> Truth:
        """Whether both fits converged."""
        return self.warm_start.known


def state_of(found: Ratio) -> State:
    """The state after a statistic. Shapes and types never change: programs take and return it."""
    xp: Numpy = jnp if is_traced(found) else np
    fits = [fit for fit in (found.free, found.conditional) if fit is not None]
    warm_start = warm_start_of(found.free, found.conditional)
    return State(
        warm_start=replace(warm_start, known=xp.asarray(warm_start.known, bool)),
        muhat=xp.asarray(found.muhat, np.float64),
        status_code=xp.stack([xp.asarray(fits[i].status_code, np.int32) for i in (0, -1)]),
        iterations=xp.asarray(sum(fit.iterations for fit in fits), np.int32),
    )


def initial_state(model: Model) -> State:
    """An empty state for the first step, so that it runs the same program as all others."""
    with float64_scope(), jax.ensure_compile_time_eval():
        n = model.n_parameters
        return State(
            # Two separate arrays, so that a training step can donate both.
            warm_start=WarmStart(jnp.zeros(n), jnp.zeros(n), jnp.zeros((), bool)),
            muhat=jnp.zeros(()),
            status_code=jnp.zeros(2, jnp.int32),
            iterations=jnp.zeros((), jnp.int32),
        )
