"""The compiled programs behind the PyTorch losses: JAX only, no torch.

A program computes a number together with its gradient with respect to all templates, so that
backward runs no program, and packs both into one array, so that only one array is exchanged:

    [value, status of the free fit, of the conditional fit, steps, invalid, gradient …]

Programs take the numbers of a model as arguments, so models of equal structure share them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from firstlight.histfactory import templates
from firstlight.histfactory.evaluation import expected_data, nll
from firstlight.histfactory.model import Description, Model
from firstlight.histfactory.newton import WarmStart
from firstlight.histfactory.programs import compiler_options
from firstlight.losses.objectives import tested

#: Where the gradient begins in a program's result.
HEADER = 5
VALUE, FREE, CONDITIONAL, STEPS, INVALID = range(HEADER)


@dataclass(frozen=True)
class Statistic:
    """What to compute: everything that is fixed at compile time."""

    about: Description
    keys: tuple[templates.Key, ...]
    objective: str = "observed"
    fixed: tuple[tuple[str, Any], ...] = ()
    variations: str = "absolute"
    tests_mu: bool = False  # qμ of a signal strength; otherwise q0


def _number(spec: Statistic, arrays: Any, data: Any, request: Any, near: Any, values: Any) -> Any:
    """The number.

    request: [μ, whether √(q + eps), eps, sign, whether to start near]; near: [free fit, conditional
    fit, whether both are known].
    """
    mu, rooted, eps, sign, nearby = request
    free, conditional, known = jnp.split(near, [(len(near) - 1) // 2, len(near) - 1])
    known = known * nearby
    value, state = tested(
        Model(arrays, spec.about),
        spec.keys,
        values,
        objective=spec.objective,
        mu=mu if spec.tests_mu else None,
        test_statistic="qtilde" if spec.tests_mu else "q0",
        data=data,
        fixed=dict(spec.fixed),
        variations=spec.variations,
        warm_start=WarmStart(free, conditional, known[0]),
        root=False,
    )
    root = jnp.sqrt(jnp.where(rooted > 0, value + eps, 1.0))
    return sign * jnp.where(rooted > 0, root, value), state


def _packed(spec: Statistic, arrays: Any, data: Any, request: Any, near: Any, values: Any) -> Any:
    def number(values: Any) -> Any:
        return _number(spec, arrays, data, request, near, values)

    (value, state), gradient = jax.value_and_grad(number, has_aux=True)(values)
    header = [value, state.status_code[0], state.status_code[-1], state.iterations]
    after = state.warm_start
    known = jnp.asarray(after.known, jnp.float64)[None]
    near = jnp.concatenate([after.free, after.conditional, known])
    return _pack(spec, header, values, gradient), near


def _pack(spec: Statistic, header: list[Any], values: Any, gradient: Any) -> Any:
    header = [*header, _invalid(spec, values)]
    numbers = jnp.stack([jnp.asarray(x, jnp.float64) for x in header])
    return jnp.concatenate([numbers, *(g.reshape(-1) for g in gradient)])


def _invalid(spec: Statistic, values: Any) -> Any:
    """1 + the index of a template with impossible values; zero if there is none."""
    found = jnp.zeros(())
    for i, (key, value) in enumerate(zip(spec.keys, values, strict=True)):
        if value.ndim == 0:  # a factor
            usable = value > 0
        elif isinstance(key, tuple) and len(key) == 4:  # varied yields
            usable = value > -jnp.inf
        else:
            usable = value >= 0
        possible = jnp.all(usable & jnp.isfinite(value))
        found = jnp.where((found == 0) & ~possible, i + 1.0, found)
    return found


@cache
def _options() -> dict[str, Any] | None:
    """XLA options that make loops and branches part of a GPU's graph, so that the host does not
    wait for them and goes on while the fits run. None for an XLA without these options."""
    if jax.default_backend() == "cpu":
        return compiler_options()
    options = {
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
        "DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
        "xla_gpu_graph_min_graph_size": 1,
    }
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except Exception:  # another XLA
        return None
    return options


@cache
def statistic(spec: Statistic) -> Any:
    """(arrays, data, request, near, values) → packed, and where the next fits can start.

    The latter overwrites `near` in memory: on a GPU a program is a graph recorded for the addresses
    of its arguments, and recording it again takes as long as running it.
    """

    def one(arrays: Any, data: Any, request: Any, near: Any, values: Any) -> Any:
        return _packed(spec, arrays, data, request, near, values)

    return jax.jit(one, compiler_options=_options(), donate_argnames="near")


@cache
def batch(spec: Statistic) -> Any:
    """The same for rows of `request`, `near` and `values`."""

    def many(arrays: Any, data: Any, request: Any, near: Any, values: Any) -> Any:
        def one(row: Any) -> Any:
            return _packed(spec, arrays, data, *row)

        rows = (request, near, values)
        # On a CPU a sequential loop is faster, because no fit waits for the slowest.
        return jax.lax.map(one, rows) if jax.default_backend() == "cpu" else jax.vmap(one)(rows)

    return jax.jit(many, compiler_options=_options(), donate_argnames="near")


@cache
def hessian_product(spec: Statistic) -> Any:
    """(arrays, data, request, near, values, vectors) → the Hessian times the vectors."""

    def product(arrays: Any, data: Any, request: Any, near: Any, values: Any, vectors: Any) -> Any:
        def number(values: Any) -> Any:
            return _number(spec, arrays, data, request, near, values)[0]

        def along(values: Any) -> Any:
            gradient = jax.grad(number)(values)
            return sum(jnp.vdot(g, v) for g, v in zip(gradient, vectors, strict=True))

        found = jax.grad(along)(values)
        return jnp.concatenate([g.reshape(-1) for g in found])

    return jax.jit(product, compiler_options=compiler_options())


@cache
def likelihood(spec: Statistic) -> Any:
    """(arrays, data, parameters, values) → packed: the negative log-likelihood.

    The gradient is with respect to the templates, then the parameters.
    """

    def one(arrays: Any, data: Any, parameters: Any, values: Any) -> Any:
        def number(values: Any, parameters: Any) -> Any:
            given = dict(zip(spec.keys, values, strict=True))
            model = templates.exchange(Model(arrays, spec.about), given, spec.variations)
            return nll(model, parameters, data)

        value, gradient = jax.value_and_grad(number, (0, 1))(values, parameters)
        return _pack(spec, [value, 0.0, 0.0, 0.0], values, [*gradient[0], gradient[1]])

    return jax.jit(one, compiler_options=compiler_options())


@cache
def response(spec: Statistic) -> Any:
    """(arrays, data, parameters, values) → the likelihood at fixed parameters, as parts.

    Expected counts are linear in all yields, nominal and varied. Returns the counts expected
    without the templates, their derivative with respect to all templates [bin, value], the observed
    counts, and the negative log-likelihood without Σ ν - n ln ν.
    """

    def one(arrays: Any, data: Any, parameters: Any, values: Any) -> Any:
        sizes = [v.size for v in values]

        def model_of(joined: Any) -> Model:
            parts = jnp.split(joined, list(itertools.accumulate(sizes))[:-1])
            given = dict(zip(spec.keys, parts, strict=True))
            return templates.exchange(Model(arrays, spec.about), given, spec.variations)

        def expected(joined: Any) -> Any:
            return expected_data(model_of(joined), parameters, include_auxdata=False)

        joined = jnp.concatenate(values)
        slope = jax.jacrev(expected)(joined)
        counts = expected(joined)
        model = model_of(joined)
        observed = (model.observed if data is None else data)[: model.n_bins]
        usable = counts > 0
        log = jnp.log(jnp.where(usable, counts, 1.0))
        rest = nll(model, parameters, data) - jnp.sum(counts - observed * log)
        return counts - slope @ joined, slope, observed, rest

    return jax.jit(one, compiler_options=compiler_options())
