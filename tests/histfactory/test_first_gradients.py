"""Claims about the first gradients, which NumPy computes: every argument, and nothing compiled.

The derivatives with respect to a model match 50 digits in `test_derivatives`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from firstlight import histfactory as hf
from firstlight.histfactory import linear_results, synthetic
from firstlight.histfactory.dimensions import PRESETS
from firstlight.histfactory.internal_order import prepared
from firstlight.histfactory.templates import with_arrays


@pytest.fixture(autouse=True)
def numpy_only(computing: Any) -> None:
    computing.by_numpy()


def load(rates: str = "code4", shapes: str = "code4p") -> hf.Model:
    return hf.load(synthetic.preset("complex-8p"), interpolation=(rates, shapes))


def difference(function: Callable[[float], float], at: float) -> float:
    """Results have thirteen digits, so a narrow difference has eight."""
    h = 1e-4 * abs(at)
    return (function(at + h) - function(at - h)) / (2 * h)


def richardson(function: Callable[[float], float], at: float) -> float:
    """Two wide differences, whose errors of second order cancel."""
    wide, narrow = (
        (function(at + h) - function(at - h)) / (2 * h) for h in (2e-3 * abs(at), 1e-3 * abs(at))
    )
    return (4 * narrow - wide) / 3


def results(model: hf.Model, mu: Any, level: Any, data: Any, **options: Any) -> Any:
    """All that has a derivative, in one number."""
    found, ratio = hf.discovery(model, data, **options), hf.qmu(model, mu, data, **options)
    at, limit = hf.cls(model, mu, data, **options), hf.upper_limit(model, level, data, **options)
    total = found.q0 + 2 * found.z0 + 3 * found.p0 + 0.1 * found.free.nll
    total += 0.2 * found.conditional.nll + ratio + at.observed + at.expected @ np.arange(1.0, 6.0)
    total += 2 * at.clsb + 3 * at.clb + 0.3 * at.q + 0.4 * at.q_asimov + at.mu
    return total + limit.observed + limit.expected @ np.arange(2.0, 7.0) + limit.level


@pytest.mark.parametrize(
    ("codes", "options"),
    [(("code4", "code4p"), {}), (("code1", "code0"), {"fixed": {"lumi": 1.01}})],
    ids=["free", "fixed"],
)
def test_derivatives_with_respect_to_strength_level_and_data_match_differences(
    codes: Any, options: Any
) -> None:
    model = load(*codes)
    data = np.asarray(hf.asimov(model, parameters={"mu": 1.3}))
    data = data * np.linspace(0.97, 1.04, len(data))
    arguments = (2.5, 0.06, data)
    with jax.enable_x64(True):
        by_mu, by_level, by_data = jax.grad(
            lambda *given: results(model, *given, **options), (0, 1, 2)
        )(*arguments)

    def at(index: int, value: float, cell: Any = ...) -> float:
        given = [np.array(a, np.float64) for a in arguments]
        given[index][cell] = value
        return float(results(model, float(given[0]), float(given[1]), given[2], **options))

    assert by_mu == pytest.approx(difference(lambda v: at(0, v), 2.5), rel=1e-6)
    assert by_level == pytest.approx(difference(lambda v: at(1, v), 0.06), rel=1e-6)
    for i in (0, len(data) - 1):  # a main count, an auxiliary one
        slope = difference(lambda v, i=i: at(2, v, i), data[i])
        assert by_data[i] == pytest.approx(slope, rel=1e-6)


def test_derivatives_with_respect_to_fixed_values_match_differences() -> None:
    """Parameters that are fixed without a value stand at the model's `init`."""
    model = load("code4", "code2")
    place = int(model.about.structure.positions[model.index("lumi")])

    def q0(init: Any) -> Any:
        return hf.discovery(with_arrays(model, init=init), fixed=["lumi"]).q0

    start = np.array(model.arrays.init, np.float64)
    with jax.enable_x64(True):
        slope = jax.grad(q0)(start)[place]

    def moved(value: float) -> float:
        changed = start.copy()
        changed[place] = value
        return float(q0(changed))

    assert slope == pytest.approx(difference(moved, start[place]), rel=1e-7)


@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_first_gradients_compile_nothing(wide: bool, compilations: Any) -> None:
    model = load()
    functions = [
        lambda m: hf.discovery(model=m).q0,
        lambda m: hf.cls(m, 1.0).observed,
        lambda m: hf.upper_limit(m).observed,
        lambda m: hf.fit(m).values[0],
        lambda m: hf.asimov(m, 1.0)[0],
        hf.nll,
    ]
    with jax.enable_x64(wide):
        for function in functions:
            jax.grad(function)(model)  # small operations of JAX's own
            compilations.reset()
            jax.grad(function)(model.with_nominal({}))
            assert compilations.count == 0


def test_every_rule_exists_and_takes_the_arguments_of_its_function() -> None:
    """Functions name their rules by strings, which no import checks."""
    for name in hf.__all__:
        getattr(hf, name)
    functions = [f for f in linear_results._RULES if f.__module__.startswith(hf.__name__)]
    assert len(functions) == 7
    for function in functions:
        rule = linear_results._rule_of(function)
        assert rule is not None
        theirs = list(inspect.signature(rule.compute).parameters)
        assert list(inspect.signature(function).parameters)[: len(theirs)] == theirs


def test_the_kind_of_a_model_is_known_while_its_arrays_are_traced() -> None:
    for preset in PRESETS:
        model = hf.load(synthetic.preset(preset))
        ready = prepared(model)
        assert (model.about.kind, model.about.cells) == (ready.kind, ready.cells)


def test_forward_mode_linearize_and_vmap_of_known_derivatives_agree_with_reverse_mode() -> None:
    model = load()
    with jax.enable_x64(True):
        function = lambda mu: hf.cls(model, mu).expected  # noqa: E731
        forward, reverse = jax.jacfwd(function)(1.5), jax.jacrev(function)(1.5)
        np.testing.assert_allclose(forward, reverse, rtol=1e-13)
        value, push = jax.linearize(function, 1.5)
        np.testing.assert_allclose(push(2.0), 2 * reverse, rtol=1e-13)
        np.testing.assert_allclose(value, hf.cls(model, 1.5).expected, rtol=1e-12)


def of_fit(model: hf.Model, data: Any, mu: Any, **options: Any) -> Any:
    """All of fits that has a derivative, and the likelihood elsewhere, in one number."""
    found, other = hf.fit(model, data, **options), {"mu": 0.7, "lumi": 1.02}
    weights = np.linspace(1.0, 2.0, model.n_parameters)
    total = found.values @ weights + 0.1 * found.nll + 0.01 * hf.nll(model, other, data)
    counts = hf.asimov(model, mu, data, **options)
    return total + counts @ np.linspace(0.5, 1.0, len(counts))


@pytest.mark.parametrize("fixed", [None, ["lumi"]], ids=["free", "fixed"])
def test_derivatives_of_fits_asimov_data_and_likelihoods_match_differences(fixed: Any) -> None:
    model = load()
    data = np.asarray(hf.asimov(model, parameters={"mu": 1.3})) * 1.02
    arrays = ("nominal", "histosys_hi", "histosys_lo", "normsys_hi", "normsys_lo", "sigma", "init")
    given = {name: np.array(getattr(model.arrays, name), np.float64) for name in arrays}
    given |= {"data": data, "mu": np.array(0.8)}

    def total(data: Any, mu: Any, **arrays: Any) -> Any:
        return of_fit(with_arrays(model, **arrays), data, mu, fixed=fixed)

    with jax.enable_x64(True):
        slopes = jax.grad(lambda given: total(**given))(given)
    for name, array in given.items():
        # The largest derivatives of each; of the data also the last one, an auxiliary count.
        found = np.asarray(slopes[name])
        for cell in {int(np.argmax(np.abs(found))), found.size - 1 if name == "data" else 0}:
            where = np.unravel_index(cell, found.shape)

            def moved(value: float, name: str = name, where: Any = where) -> float:
                changed = given | {name: given[name].copy()}
                changed[name][where] = value
                return float(total(**changed))

            if array[where]:
                expected = richardson(moved, array[where])
                assert found[where] == pytest.approx(expected, rel=1e-7, abs=1e-7), (name, where)


def test_derivatives_of_the_likelihood_with_respect_to_parameters_are_its_gradient() -> None:
    model = load()
    at = np.asarray(model.init) * 1.01 + 0.02
    with jax.enable_x64(True):
        by_vector = jax.grad(lambda v: hf.nll(model, v))(at)
        by_name = jax.grad(lambda named: hf.nll(model, named))({"mu": 1.2, "lumi": 0.99})
    np.testing.assert_allclose(by_vector, hf.gradient(model, at), rtol=1e-12)
    expected = hf.gradient(model, {"mu": 1.2, "lumi": 0.99})
    for name, slope in by_name.items():
        assert slope == pytest.approx(expected[model.index(name)], rel=1e-12)


# --- how a gradient looks -------------------------------------------------------------------------

KINDS_OF_MODELS = {
    "all kinds of modifiers": lambda make: synthetic.preset("complex-8p"),
    "a signal alone": lambda make: make.counting([5.0], [50.0], [53.0]),
    "a width of each parameter": lambda make: make.counting(
        [5.0, 2.0],
        [50.0, 40.0],
        [53.0, 44.0],
        make.modifier("shapesys", "mc", [3.0, 2.0]),
        make.normsys("xs", 0.9, 1.1),
    ),
}


@pytest.mark.parametrize("case", KINDS_OF_MODELS)
@pytest.mark.parametrize("number", ["z0", "without an excess", "nll"])
def test_a_gradient_says_that_it_is_one_and_a_model_that_it_is_one(
    make: Any, case: str, number: str
) -> None:
    model = hf.load(KINDS_OF_MODELS[case](make))
    functions = {
        "z0": lambda m: hf.discovery(m).z0,
        "without an excess": lambda m: hf.discovery(m, 0.5 * model.observed).z0,
        "nll": hf.nll,
    }
    with jax.enable_x64(True):
        gradient = jax.grad(functions[number])(model)
        stepped = jax.tree.map(lambda a, g: a - 1e-6 * g, model, gradient)
    assert repr(gradient).startswith("ModelGradient(")
    assert str(model).startswith("Model(") and repr(stepped) == repr(model)
    # What it says can be typed.
    (example,) = re.findall(r'template\("(.+)", "(.+)"\)', repr(gradient))
    assert example[1] == "signal"
    assert gradient.template(*example).shape == model.template(*example).shape


@pytest.mark.parametrize("leaf", [None, "words", (3,), jax.ShapeDtypeStruct((3,), np.float64)])
def test_a_tree_of_anything_has_a_repr(leaf: Any) -> None:
    model = load()
    assert repr(jax.tree.map(lambda _: leaf, model)).startswith("Model")
    shown = []
    jax.eval_shape(lambda m: shown.append(repr(m)), model)
    assert shown == [repr(model)]
