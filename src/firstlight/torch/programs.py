"""The compiled programs behind the PyTorch losses: JAX only, no torch.

A program computes a number together with its gradient with respect to all templates, so that
backward runs no program, and packs both into one array, so that only one array is exchanged:

    [value, status of the free fit, of the conditional fit, steps, invalid, gradient …]

Programs take the numbers of a model as arguments, so models of equal structure share them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

from firstlight.histfactory import templates
from firstlight.histfactory.array_types import Number, Numpy
from firstlight.histfactory.evaluation import expected_data, nll
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.model import Description, Model
from firstlight.histfactory.newton import WarmStart
from firstlight.histfactory.programs import compiler_options
from firstlight.losses.objectives import unchecked_statistic
from firstlight.losses.state import State

Tree: TypeAlias = Any  # of JAX arrays
Program: TypeAlias = Any  # a compiled function
#: Where the gradient begins in a program's result.
HEADER = 5
VALUE, FREE, CONDITIONAL, STEPS, INVALID = range(HEADER)


@dataclass(frozen=True)
class Statistic:
    """What to compute: everything that is fixed at compile time."""

    about: Description
    keys: tuple[templates.Key, ...]
    objective: str = "observed"
    fixed: tuple[tuple[str, Number], ...] = ()
    variations: str = "absolute"
    tests_mu: bool = False  # qμ of a signal strength; otherwise q0


def _number(
    spec: Statistic, arrays: Tree, data: Tree, request: Tree, near: Tree, values: Tree
) -> tuple[Number, State]:
    """The statistic, transformed as `request` says.

    request: [μ, whether √(q + eps), eps, sign, whether to start near]; near: [free fit, conditional
    fit, whether both are known].
    """
    mu, rooted, eps, sign, nearby = request
    free, conditional, known = jnp.split(near, [(len(near) - 1) // 2, len(near) - 1])
    value, state = unchecked_statistic(
        Model(arrays, spec.about),
        spec.keys,
        values,
        objective=spec.objective,
        mu=mu if spec.tests_mu else None,
        test_statistic="qtilde" if spec.tests_mu else "q0",
        data=data,
        fixed=dict(spec.fixed),
        variations=spec.variations,
        warm_start=WarmStart(free, conditional, (known * nearby)[0]),
        root=False,
    )
    root = jnp.sqrt(jnp.where(rooted > 0, value + eps, 1.0))
    return sign * jnp.where(rooted > 0, root, value), state


def _packed(
    spec: Statistic, arrays: Tree, data: Tree, request: Tree, near: Tree, values: Tree
) -> tuple[Tree, Tree]:
    number = partial(_number, spec, arrays, data, request, near)
    (value, state), gradient = jax.value_and_grad(number, has_aux=True)(values)
    header = [value, state.status_code[0], state.status_code[-1], state.iterations]
    after = state.warm_start
    known = jnp.asarray(after.known, jnp.float64)[None]
    near = jnp.concatenate([after.free, after.conditional, known])
    return _pack(spec, header, values, gradient), near


def _pack(spec: Statistic, header: list[Tree], values: Tree, gradient: Tree) -> Tree:
    header = [*header, invalid(spec, values)]
    numbers = jnp.stack([jnp.asarray(x, jnp.float64) for x in header])
    return jnp.concatenate([numbers, *(g.reshape(-1) for g in gradient)])


def invalid(spec: Statistic, values: Tree, xp: Numpy = jnp) -> Tree:
    """1 + the index of a template with impossible values; zero if there is none."""
    found = xp.zeros(())
    for i, (key, value) in enumerate(zip(spec.keys, values, strict=True)):
        if value.ndim == 0:  # a factor
            usable = value > 0
        elif isinstance(key, tuple) and len(key) == 4:  # varied yields
            usable = value > -xp.inf
        else:
            usable = value >= 0
        possible = xp.all(usable & xp.isfinite(value))
        found = xp.where((found == 0) & ~possible, i + 1.0, found)
    return found


@cache
def _options() -> Mapping[str, str | int] | None:
    """XLA options that make branches part of a GPU's graph, so that the host does not wait for
    them. None for an XLA without these options."""
    if jax.default_backend() == "cpu":
        return compiler_options()
    options: dict[str, str | int] = {
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
        # Not WHILE: with JAX 0.11.2, fits of small models in a graph's loop end at their start.
        "DYNAMIC_SLICE_FUSION,CONDITIONAL",
        "xla_gpu_graph_min_graph_size": 1,
    }
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except Exception:  # another XLA
        return None
    return options


@cache
def statistic(spec: Statistic) -> Program:
    """(arrays, data, request, near, values) → packed, and where the next fits can start.

    The latter overwrites `near` in memory: on a GPU a program is a graph recorded for the addresses
    of its arguments, and recording it again takes as long as running it.
    """
    return jax.jit(partial(_packed, spec), compiler_options=_options(), donate_argnums=3)


@cache
def batch(spec: Statistic) -> Program:
    """Like `statistic`, for rows of `request`, `near` and `values`."""

    def many(arrays: Tree, data: Tree, *rows: Tree) -> Tree:
        def one(row: Tree) -> Tree:
            return _packed(spec, arrays, data, *row)

        # On a CPU a sequential loop is faster, because no fit waits for the slowest.
        return jax.lax.map(one, rows) if jax.default_backend() == "cpu" else jax.vmap(one)(rows)

    return jax.jit(many, compiler_options=_options(), donate_argnums=3)


@cache
def hessian_product(spec: Statistic) -> Program:
    """(arrays, data, request, near, values, vectors) → the Hessian times the vectors."""

    def product(
        arrays: Tree, data: Tree, request: Tree, near: Tree, values: Tree, vectors: Tree
    ) -> Tree:
        def along(values: Tree) -> Tree:
            number = partial(_number, spec, arrays, data, request, near)
            gradient, _ = jax.grad(number, has_aux=True)(values)
            return sum(jnp.vdot(g, v) for g, v in zip(gradient, vectors, strict=True))

        return jnp.concatenate([g.reshape(-1) for g in jax.grad(along)(values)])

    return jax.jit(product, compiler_options=compiler_options())


def _exchanged(spec: Statistic, arrays: Tree, values: Iterable[Tree]) -> Model:
    given = dict(zip(spec.keys, values, strict=True))
    return templates.exchange(Model(arrays, spec.about), given, spec.variations)


@cache
def likelihood(spec: Statistic) -> Program:
    """(arrays, data, parameters, values) → packed: the negative log-likelihood.

    The gradient is with respect to the templates, then the parameters.
    """

    def one(arrays: Tree, data: Tree, parameters: Tree, values: Tree) -> Tree:
        def number(values: Tree, parameters: Tree) -> Number:
            return nll(_exchanged(spec, arrays, values), parameters, data)

        value, gradient = jax.value_and_grad(number, (0, 1))(values, parameters)
        return _pack(spec, [value, 0.0, 0.0, 0.0], values, [*gradient[0], gradient[1]])

    return jax.jit(one, compiler_options=compiler_options())


@cache
def response(spec: Statistic) -> Program:
    """(arrays, data, parameters, values) → the likelihood at fixed parameters, as parts.

    Expected counts are linear in all yields, nominal and varied. Returns the counts expected
    without the templates, their derivative with respect to all templates [bin, value], the observed
    counts, and the negative log-likelihood without Σ ν - n ln ν.
    """

    def one(arrays: Tree, data: Tree, parameters: Tree, values: Tree) -> Tree:
        ends = list(itertools.accumulate(v.size for v in values))[:-1]

        def expected(joined: Tree) -> Tree:
            model = _exchanged(spec, arrays, jnp.split(joined, ends))
            return expected_data(model, parameters, include_auxdata=False)

        joined = jnp.concatenate(values)
        slope, counts = jax.jacrev(expected)(joined), expected(joined)
        model = _exchanged(spec, arrays, values)
        observed = (model.observed if data is None else data)[: model.n_bins]
        log = jnp.log(jnp.where(counts > 0, counts, 1.0))
        rest = nll(model, parameters, data) - jnp.sum(counts - observed * log)
        return counts - slope @ joined, slope, observed, rest

    return jax.jit(one, compiler_options=compiler_options())
