"""Claims about compiling: one executable serves every model of a size, and every inference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firstlight import histfactory as hf
from firstlight.histfactory.internal_order import data_of
from firstlight.histfactory.layout import Sizes

#: No other file uses these, so that what is compiled here was not compiled before.
SIZES = Sizes(slots=2, bins=5, channels=3, alphas=3, factors=2, shapes=3, rates=3)


def two_bins(make: Any) -> dict[str, Any]:
    systematics = [make.normsys("n", 0.93, 1.08), make.modifier("shapesys", "g", [4.0, 5.0])]
    return make.counting([9.0, 4.0], [50.0, 52.0], [62, 55], *systematics)


def other_structure(make: Any) -> dict[str, Any]:
    """Two channels, other modifiers, other names, other observables."""
    signal = make.sample("s", [5.0, 6.0, 7.0], make.modifier("normfactor", "strength"))
    background = make.sample(
        "b",
        [30.0, 20.0, 10.0],
        make.histosys("h", [28, 19, 9], [33, 22, 10]),
        make.modifier("staterror", "stat", [3.0, 2.0, 1.0]),
    )
    control = make.sample("b", [200.0], make.modifier("normfactor", "k"))
    channels = [make.channel("SR", signal, background), make.channel("CR", control)]
    return make.workspace(channels, [[36, 27, 18], [211]], poi="strength")


@pytest.fixture(scope="module")
def used(make: Any) -> hf.Model:
    """A model whose programs are compiled."""
    model = hf.load(two_bins(make), sizes=SIZES)
    hf.precompile(model)
    _ = hf.fit(model).covariance
    return model


def test_one_compilation_serves_every_fit_of_a_size(make: Any, compilations: Any) -> None:
    first = hf.load(two_bins(make), sizes=SIZES)
    compilations.reset()
    hf.precompile(first)
    # One search, several searches, expected yields, and a tiny one that asks for an option.
    assert compilations.count <= 4
    compilations.reset()
    second = hf.load(other_structure(make), sizes=SIZES)
    hf.fit(second)
    hf.fit(first, data=[40, 71])
    hf.fit(first, data=np.array([40.0, 71.0, 0.3, 150.0, 100.0]))
    hf.fit(first, fixed={"mu": 0.5})
    hf.fit(first, fixed=["n", "g[1]"])
    hf.fit(first, init={"mu": 2.0, "n": -1})
    hf.fit(first.with_nominal({("SR", "signal"): [3.0, 3.0]}))
    assert compilations.count == 0


@pytest.mark.parametrize(
    "statistic",
    [
        lambda model: hf.discovery(model).q0,
        lambda model: hf.cls(model, 1.0).observed,
        lambda model: hf.upper_limit(model).observed,
    ],
)
def test_a_gradient_in_a_program_has_one_loop_over_searches_and_one_over_steps(
    make: Any, statistic: Any
) -> None:
    """For all fits together: loops decide how long the program compiles."""
    model = hf.load(two_bins(make), sizes=SIZES)

    def of_signal(signal: Any) -> Any:
        return statistic(model.with_nominal({("SR", "signal"): signal}))

    with jax.enable_x64(True):
        lowered = jax.jit(jax.grad(of_signal)).lower(jnp.array([9.0, 4.0]))
    assert lowered.as_text().count("stablehlo.while") == 2


def test_inference_compiles_no_more_fits(make: Any, used: hf.Model, compilations: Any) -> None:
    compilations.reset()
    hf.discovery(used)
    hf.qmu_tilde(used, 1.0)
    hf.cls(used, 1.0)
    hf.upper_limit(used)
    hf.scan(used, points=5)
    hf.impacts(used)
    hf.toys(used, 4)
    hf.toy_cls(used, 1.0, 3)
    hf.asimov(used, mu=0.0)
    assert compilations.count == 0
    other = hf.load(other_structure(make), sizes=SIZES)
    hf.discovery(other)
    hf.cls(other, 1.0)
    hf.upper_limit(other, level=0.1)
    hf.scan(other, points=5)
    hf.impacts(other)
    hf.toys(other, 4)
    hf.toy_cls(other, 1.0, 3, test_statistic="q")
    _ = hf.fit(other).correlation
    assert compilations.count == 0


def test_evaluation_compiles_once_per_function_and_number_of_axes(
    make: Any, used: hf.Model, compilations: Any
) -> None:
    functions = (hf.nll, hf.nll_and_gradient, hf.hessian, hf.expected_data)
    for function in functions:
        function(used)
    other = hf.load(other_structure(make), sizes=SIZES)
    compilations.reset()
    for function in functions:
        function(used, {"mu": 0.3})
        function(other)
        function(other, {"strength": 2.0})
    hf.nll(other, data=[1, 2, 3, 4])
    hf.gradient(other)
    assert compilations.count == 0


def test_loading_compiles_nothing(make: Any, compilations: Any) -> None:
    compilations.reset()
    model = hf.load(two_bins(make))
    repr(model)
    model.with_nominal({("SR", "signal"): [1.0, 2.0]})
    data_of(model, [3.0, 4.0])
    assert compilations.count == 0
