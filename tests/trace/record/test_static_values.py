"""Differences in static values have the user's names, and a remedy that fits the object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import firstlight.trace
from firstlight.trace.read.model import Finding, Function
from firstlight.trace.session import Recording
from firstlight.trace.wording import why_again

pytestmark = pytest.mark.slow

X = np.ones(3, np.float32)


class Transformation(NamedTuple):
    init: Callable[..., Any]
    update: Callable[..., Any]


class Optimiser(Transformation):
    """Like optax.GradientTransformationExtraArgs: it inherits its fields."""


def make_optimiser(rate: float) -> Optimiser:
    def init(x: Any) -> Any:
        return x

    def update(x: Any) -> Any:
        return x * rate

    return Optimiser(init, update)


@dataclass(frozen=True)
class Network:
    """Like a module of flax: equal if the fields are equal."""

    width: int

    def apply(self, x: Any) -> Any:
        return x * self.width


@partial(jax.tree_util.register_dataclass, data_fields=["weights"], meta_fields=["apply", "tx"])
@dataclass
class TrainState:
    weights: Any
    apply: Any
    tx: Any


def function_of(t: Recording) -> Function:
    (found,) = [f for f in t.functions if not f.library]
    return found


def finding_of(t: Recording) -> Finding:
    (found,) = [f for f in t.findings if f.kind.endswith("recompiles")]
    return found


def details(t: Recording) -> list[str | None]:
    return [why_again(c) for c in function_of(t).compiles[1:]]


def again(make: Callable[[int], Any]) -> Recording:
    """A function called three times, each with a new static argument."""
    step = jax.jit(lambda x, given: x + 1, static_argnums=1)
    with firstlight.trace.recording() as t:
        for number in range(3):
            step(X, make(number))
    return t


def test_fields_of_a_class_derived_from_a_named_tuple_are_named() -> None:
    t = again(lambda n: make_optimiser(0.1))
    assert details(t)[0] == (
        "given.init: another function object of the same definition (<function make_optimiser."
        "<locals>.init>); given.update: another function object of the same definition "
        "(<function make_optimiser.<locals>.update>)"
    )
    found = finding_of(t)
    assert found.kind == "static-recompiles"
    assert found.title.endswith(
        "is compiled again twice: given.init, given.update are new objects each time, of the same "
        "code."
    )
    assert "JAX compares given.init, given.update by identity" in found.remedy
    assert "dataclass" not in found.remedy


@pytest.mark.parametrize(
    ("make", "words", "cure"),
    [
        (lambda n: lambda y: y, "another function object", "a lambda in the call is a new one"),
        (lambda n: partial(max, 1), "another functools.partial", "new functools.partial"),
        (
            lambda n: Network(2).apply,
            "the same method, of another object",
            "method of a new object",
        ),
        (lambda n: Plain(), "another object of the same class", "@dataclass(frozen=True)"),
    ],
)
def test_the_remedy_fits_the_kind_of_object_that_equals_only_itself(
    make: Callable[[int], Any], words: str, cure: str
) -> None:
    t = again(make)
    assert [words in str(told) for told in details(t)] == [True, True]
    found = finding_of(t)
    assert cure in found.remedy
    assert ("dataclass" in found.remedy) == (words.endswith("class"))


class Plain:
    """Equal only to itself, and not from a package."""


def test_the_static_part_of_a_pytree_is_shown_by_its_fields() -> None:
    step = jax.jit(lambda state: state.apply(state.weights))
    with firstlight.trace.recording() as t:
        for width in (2, 2, 3):
            step(TrainState(X, Network(2).apply, Network(width)))
    told = "state.apply: the same method, of another object (<method Network.apply of <Network>>)"
    assert details(t) == [told, f"{told}; state.tx.width: 2 → 3"]


def test_the_same_object_is_not_a_difference() -> None:
    """Every access makes another bound method, equal to the one before."""
    step = jax.jit(lambda x, f, tx: x, static_argnums=(1, 2))
    network, optimiser = Network(2), make_optimiser(0.1)
    with firstlight.trace.recording() as t:
        step(X, network.apply, optimiser)
        step(X[:2], network.apply, optimiser)
    assert details(t) == ["x: f32[3] → f32[2]"]


def test_the_remedy_for_numbers_is_given_only_if_a_number_differs() -> None:
    """A module has numbers in it, even if something else differs."""
    step = jax.jit(lambda state: state.weights)
    with firstlight.trace.recording() as t:
        for name in ("relu", "tanh", "gelu"):
            step(TrainState(X, name, Network(2)))
    found = finding_of(t)
    assert "for other values of static arguments: state.apply: 'relu' → 'tanh'" in found.title
    assert "static_argnames" not in found.remedy
    assert "Each value of state.apply makes its own program" in found.remedy


# --- functions that are given, and make other programs with good reason ---------------------------


class Kernel:
    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model


def test_a_function_that_is_given_two_models_is_compiled_for_each_and_not_again() -> None:
    """Like NumPyro's loop: the function that it runs closes over the kernel of the model."""

    def body_of(kernel: Kernel) -> Callable[..., Any]:
        return lambda x: kernel.model(x) + 1

    loop = jax.jit(lambda body, x: body(x), static_argnums=0)
    with firstlight.trace.recording() as t:
        for model in (lambda x: x + 1, lambda x: x * 2):
            loop(body_of(Kernel(model)), X)
    assert (t.compile_count, t.recompiles) == (2, 0)
    with firstlight.trace.recording() as of_other_code:
        for function in (sine, cosine):
            loop(function, X)
    assert (of_other_code.compile_count, of_other_code.recompiles) == (2, 0)


def sine(x: Any) -> Any:
    return x


def cosine(x: Any) -> Any:
    return -x


def test_three_kernels_created_for_three_calls_are_one_recreated_function() -> None:
    t = again(lambda n: partial(run, Kernel(sine)))
    assert t.recompiles == 2


def run(kernel: Kernel, x: Any) -> Any:
    return kernel.model(x)


# --- names under packages that call for the user --------------------------------------------------

FILTER_JIT = """
import jax
from functools import partial

def parted(tree):
    leaves, structure = jax.tree_util.tree_flatten(tree)
    arrays = tuple(x if hasattr(x, "shape") else None for x in leaves)
    return arrays, (tuple(None if hasattr(x, "shape") else x for x in leaves), structure)

def fun_wrapped(dynamic_donate, dynamic_nodonate, static):
    return dynamic_nodonate["first"][1] * 2

jitted = jax.jit(fun_wrapped, static_argnums=2)

def call(fun, *args, **kwargs):
    first, *rest = (*args, None)
    (f, static_f), (a, static_a), (r, static_r) = map(parted, (fun, first, (tuple(rest), kwargs)))
    return jitted({}, {"fun": f, "first": a, "rest": r}, (static_f, static_a, static_r))
"""


def test_arguments_under_filter_jit_have_the_names_of_the_user() -> None:
    """A minimal equinox.filter_jit."""
    module: dict[str, Any] = {}
    exec(compile(FILTER_JIT, "/v/site-packages/equinox/_jit.py", "exec"), module)

    def make_step(model: Any, batch: Any, *, rate: Any) -> Any: ...

    with firstlight.trace.recording() as t:
        for rate in (np.float32(0.1), 0.1, 0.2):
            module["call"](make_step, {"w": X, "act": sine}, (X, X), rate=rate)
        module["call"](make_step, {"w": X[:2], "act": sine}, (X, X), rate=0.2)
    (function,) = [f for f in t.functions if f.name.endswith("make_step")]
    first = function.compiles[0].signature
    assert first is not None
    assert [a.path for a in first.arguments] == ["model['w']", "batch[0]", "batch[1]", "rate"]
    assert [why_again(c) for c in function.compiles[1:]] == [
        "rate: f32[] → 0.1",
        "rate: 0.1 → 0.2",
        "model['w']: f32[3] → f32[2]",
    ]
    found = next(f for f in t.findings if f.kind == "static-recompiles")
    assert (
        "Under equinox.filter_jit a Python number is static: give rate as an array" in found.remedy
    )


@dataclass(frozen=True)
class NodeDef:
    num_attributes: int


@dataclass(frozen=True)
class VariableDef:
    type: str


@dataclass(frozen=True)
class NodeAttr: ...


@dataclass(frozen=True)
class Static:
    value: Any


@jax.tree_util.register_static
@dataclass(frozen=True)
class GraphDef:
    nodes: tuple[Any, ...]
    attributes: tuple[Any, ...]


@partial(jax.tree_util.register_dataclass, data_fields=["_graphdef", "states"], meta_fields=[])
@dataclass
class NodeStates:
    _graphdef: Any
    states: Any


def test_arrays_of_a_module_of_nnx_have_the_names_of_its_attributes() -> None:
    """nnx.jit passes the graph, and all its arrays in one list."""

    def split(rate: float) -> NodeStates:
        nodes = (NodeDef(2), NodeDef(2), VariableDef("Param"), VariableDef("Param"))
        attributes = (
            *(("linear", NodeAttr()), ("bias", NodeAttr()), ("kernel", NodeAttr())),
            ("rate", Static(rate)),
        )
        return NodeStates(GraphDef(nodes, attributes), ([X, X],))

    step = jax.jit(lambda model: model.states[0][0])
    with firstlight.trace.recording() as t:
        step(split(0.1))
        step(split(0.5))
    first = function_of(t).compiles[0].signature
    assert first is not None
    assert [a.path for a in first.arguments] == ["model.linear.bias", "model.linear.kernel"]
    assert details(t) == ["model.rate: 0.1 → 0.5"]
