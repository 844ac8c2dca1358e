"""Claims about derivatives of results: differences at 50 digits, and exact zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from firstlight import histfactory as hf
from firstlight.histfactory.layout import Sizes
from firstlight.histfactory.programs import compiler_options
from firstlight.histfactory.templates import exchange, with_arrays

pytestmark = pytest.mark.slow

mp = mpmath.mp
#: All models of this file are padded to these: programs are shared.
SIZES = Sizes(slots=2, bins=2, channels=1, alphas=2, factors=1, shapes=2, rates=2)
MU_TEST = 3.1
#: One of each kind, where all would take long.
SOME = ("s0", "b1", "lo", "hi0", "sigma", "tau1", "n0", "aux_h", "aux_g0")
PARAMETERS = ("mu", "n", "h", "g[0]", "g[1]")
START = (1.0, 0.0, 0.0, 1.0, 1.0)
NUMBERS = {
    **{"s0": 9.0, "s1": 4.0, "b0": 50.0, "b1": 52.0, "lo": 0.93, "hi": 1.09},
    **{"lo0": 47.0, "lo1": 53.5, "hi0": 54.0, "hi1": 51.0, "sigma": 1.0},
    **{"tau0": 156.25, "tau1": 108.16, "n0": 66.0, "n1": 57.0},
    **{"aux_n": 0.1, "aux_h": -0.2, "aux_g0": 155.0, "aux_g1": 110.0},
}


def workspace(make: Any) -> dict[str, Any]:
    """Two bins; on the background a normsys, a histosys and a shapesys."""
    x = NUMBERS
    return make.counting(
        [x["s0"], x["s1"]],
        [x["b0"], x["b1"]],
        [x["n0"], x["n1"]],
        make.normsys("n", x["lo"], x["hi"]),
        make.histosys("h", [x["lo0"], x["lo1"]], [x["hi0"], x["hi1"]]),
        make.modifier("shapesys", "g", [4.0, 5.0]),
    )


def load(make: Any, observed: Any = None) -> hf.Model:
    """The model with the auxiliary data of NUMBERS, which a workspace cannot hold."""
    model = hf.load(workspace(make), sizes=SIZES)
    auxdata = np.array(model.arrays.auxdata)
    for name, place in places(model).items():
        if name.startswith("aux"):
            auxdata[place[1]] = NUMBERS[name]
    changes = {"auxdata": auxdata}
    if observed is not None:
        changes["observed"] = np.array(observed, dtype=np.float64)
    return with_arrays(model, **changes)


def places(model: hf.Model) -> dict[str, tuple[str, Any]]:
    """Where each of NUMBERS stands in the arrays of the model."""
    slot = {sample: k for _, sample, k in model.about.slots}
    at = {name: int(model.about.structure.positions[model.index(name)]) for name in PARAMETERS}
    found: dict[str, tuple[str, Any]] = {
        "lo": ("normsys_lo", (at["n"], slot["background"], 0)),
        "hi": ("normsys_hi", (at["n"], slot["background"], 0)),
        "sigma": ("sigma", at["n"]),
        "aux_n": ("auxdata", at["n"]),
        "aux_h": ("auxdata", at["h"]),
    }
    for i in range(2):
        found[f"s{i}"] = ("nominal", (slot["signal"], i))
        found[f"b{i}"] = ("nominal", (slot["background"], i))
        found[f"lo{i}"] = ("histosys_lo", (at["h"], slot["background"], i))
        found[f"hi{i}"] = ("histosys_hi", (at["h"], slot["background"], i))
        found[f"n{i}"] = ("observed", i)
        found[f"tau{i}"] = ("tau", at[f"g[{i}]"])
        found[f"aux_g{i}"] = ("auxdata", at[f"g[{i}]"])
    return found


def derivatives(model: hf.Model, gradient: hf.Model) -> dict[str, Any]:
    """A derivative with respect to the model, by the names of NUMBERS; leading axes stay."""
    found = {}
    for name, (array, place) in places(model).items():
        index = place if isinstance(place, tuple) else (place,)
        found[name] = np.asarray(getattr(gradient.arrays, array))[(..., *index)]
    return found


# --- the same statistics at 50 digits -------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    """The likelihood of `workspace` and its inference in mpmath, as the definitions read."""

    x: dict[str, Any]
    #: Minima of nearby numbers with an inverse Hessian, from which these are 1e-11 away.
    known: dict[str, Any] = field(default_factory=dict)
    #: Minima of these numbers.
    found: dict[tuple[str, Any], Any] = field(default_factory=dict)

    @property
    def data(self) -> list[Any]:
        return [self.x[k] for k in ("n0", "n1", "aux_n", "aux_h", "aux_g0", "aux_g1")]

    def expected(self, theta: Any) -> list[Any]:
        mu, n, h, g0, g1 = theta
        x, norm = self.x, _code4(n, self.x["lo"], self.x["hi"])
        main = [
            mu * x[f"s{i}"]
            + g * norm * (x[f"b{i}"] + _code4p(h, x[f"lo{i}"], x[f"b{i}"], x[f"hi{i}"]))
            for i, g in enumerate((g0, g1))
        ]
        return [*main, n, h, x["tau0"] * g0, x["tau1"] * g1]

    def nll(self, theta: Any, data: Any) -> Any:
        expected = self.expected(theta)
        counts = ((0, 0), (1, 1), (4, 4), (5, 5))
        poisson = sum(expected[i] - data[j] * mp.log(expected[i]) for i, j in counts)
        pull_n, pull_h = (data[2] - theta[1]) / self.x["sigma"], data[3] - theta[2]
        return poisson + (pull_n**2 + pull_h**2) / 2 + mp.log(self.x["sigma"])

    def minimum(self, what: str, data: Any, mu: Any = None) -> Any:
        """Newton's method with one Hessian for all minima of a kind: eight digits per step."""
        if (what, mu) in self.found:
            return self.found[what, mu]
        free = list(range(5)) if mu is None else list(range(1, 5))
        if what not in self.known:
            self.known[what] = self._approach([mp.mpf(v) for v in START], data, mu, free)
        theta, inverse = self.known[what]
        theta = [mp.mpf(mu), *theta[1:]] if mu is not None else list(theta)
        for _ in range(8):
            step = inverse * self._gradient(theta, data, free)
            for a, i in enumerate(free):
                theta[i] -= step[a]
            if mp.norm(step) < mp.mpf("1e-25"):
                self.found[what, mu] = theta
                return theta
        raise ArithmeticError(f"{what}: no minimum at 50 digits")

    def _approach(self, theta: Any, data: Any, mu: Any, free: list[int]) -> Any:
        theta = [mp.mpf(mu), *theta[1:]] if mu is not None else theta
        for _ in range(12):
            h = mp.mpf("1e-10")
            rows = []
            for i in free:
                up, down = list(theta), list(theta)
                up[i] += h
                down[i] -= h
                slopes = self._gradient(up, data, free) - self._gradient(down, data, free)
                rows.append([s / (2 * h) for s in slopes])
            inverse = mp.matrix(rows) ** -1
            step = inverse * self._gradient(theta, data, free)
            for a, i in enumerate(free):
                theta[i] -= step[a]
            if mp.norm(step) < mp.mpf("1e-9"):
                break
        return theta, inverse

    def _gradient(self, theta: Any, data: Any, free: list[int]) -> Any:
        h, slopes = mp.mpf("1e-17"), []
        for i in free:
            up, down = list(theta), list(theta)
            up[i] += h
            down[i] -= h
            slopes.append((self.nll(up, data) - self.nll(down, data)) / (2 * h))
        return mp.matrix(slopes)

    def q(self, what: str, data: Any, mu: Any) -> Any:
        free, held = self.minimum(what, data), self.minimum(f"{what} at {mu}", data, mu)
        return 2 * (self.nll(held, data) - self.nll(free, data))

    def discovery(self) -> dict[str, Any]:
        q0 = self.q("observed", self.data, 0)
        q0_asimov = self.q("asimov", self.expected([mp.mpf(1), 0, 0, 1, 1]), 0)
        found = {"q0": q0, "z0": mp.sqrt(q0), "p0": _tail(mp.sqrt(q0))}
        found["asimov z0"] = mp.sqrt(q0_asimov)
        return found | dict(zip(PARAMETERS, self.minimum("observed", self.data), strict=True))

    def cls(self, mu: Any) -> dict[str, Any]:
        null = self.minimum("observed at 0", self.data, 0)
        data = self.expected(null)
        held = self.minimum(f"background at {mp.nstr(mu, 6)}", data, mu)
        q_asimov = 2 * (self.nll(held, data) - self.nll(null, data))
        at_mu = self.minimum(f"observed at {mp.nstr(mu, 6)}", self.data, mu)
        best = self.minimum("observed", self.data)
        q = 2 * (self.nll(at_mu, self.data) - self.nll(best, self.data))
        root, root_asimov = mp.sqrt(q), mp.sqrt(q_asimov)
        return {
            "observed": _tail(root) / _tail(root - root_asimov),
            "expected": _tail(root_asimov) * 2,
        }

    def with_(self, name: str, value: Any) -> Exact:
        return Exact({**self.x, name: value}, self.known)

    def cls_of_all(self, mus: Sequence[Any]) -> dict[tuple[int, str], Any]:
        """`cls` at several signal strengths, by their number and the name of the result."""
        results = map(self.cls, mus)
        return {(i, name): v for i, all_ in enumerate(results) for name, v in all_.items()}


def _tail(z: Any) -> Any:
    return mp.erfc(z / mp.sqrt(2)) / 2


def _code4(alpha: Any, lo: Any, hi: Any) -> Any:
    if abs(alpha) >= 1:
        return hi**alpha if alpha > 0 else lo**-alpha
    rows, right = [], []
    for sign, value in ((1, hi), (-1, lo)):
        log = mp.log(value)
        rows.append([mp.mpf(sign) ** k for k in range(1, 7)])
        rows.append([k * mp.mpf(sign) ** (k - 1) for k in range(1, 7)])
        rows.append([k * (k - 1) * mp.mpf(sign) ** k for k in range(1, 7)])
        right += [value - 1, sign * value * log, value * log**2]
    key = (str(lo), str(hi))
    if key not in _CODE4:
        _CODE4[key] = mp.lu_solve(mp.matrix(rows), mp.matrix(right))
    return 1 + sum(a * alpha**k for k, a in enumerate(_CODE4[key], 1))


_CODE4: dict[tuple[str, str], Any] = {}


def _code4p(alpha: Any, lo: Any, nominal: Any, hi: Any) -> Any:
    up, down = hi - nominal, nominal - lo
    if abs(alpha) >= 1:
        return alpha * (up if alpha > 0 else down)
    bent = 15 * alpha**2 - 10 * alpha**4 + 3 * alpha**6
    return (up + down) / 2 * alpha + (up - down) / 16 * bent


def slopes(function: Any, names: Any = tuple(NUMBERS)) -> dict[Any, dict[str, float]]:
    """Central differences with respect to each of NUMBERS, with steps of 1e-11: exact to 1e-20."""
    with mpmath.workdps(50):
        exact = Exact({k: mp.mpf(v) for k, v in NUMBERS.items()})
        found: dict[Any, dict[str, float]] = {}
        for name in names:
            h = mp.mpf("1e-11")
            up = function(exact.with_(name, exact.x[name] + h))
            down = function(exact.with_(name, exact.x[name] - h))
            for result in up:
                found.setdefault(result, {})[name] = float((up[result] - down[result]) / (2 * h))
    return found


def assert_agree(ours: dict[str, Any], exact: dict[str, float], what: str) -> None:
    scale = max(abs(v) for v in exact.values())
    for name, value in exact.items():
        assert float(ours[name]) == pytest.approx(value, rel=1e-9, abs=1e-11 * scale), (what, name)


# --- first derivatives ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact_slopes() -> dict[str, dict[str, float]]:
    return slopes(lambda exact: exact.discovery())


@cache
def jacobian(function: Any, results: int = 4) -> Any:
    """The Jacobian of so many results, row by row from one program for all models of this file."""

    @partial(jax.jit, compiler_options=compiler_options())
    def row(model: hf.Model, weights: Any) -> hf.Model:
        (by_model,) = jax.vjp(function, model)[1](weights)
        return by_model

    def rows(model: hf.Model) -> hf.Model:
        return jax.tree.map(lambda *r: np.stack(r), *[row(model, w) for w in np.eye(results)])

    return rows


def both_jacobians(function: Any, computing: Any) -> list[Any]:
    """One from a program, and without `jit` one from NumPy."""
    computing.by_numpy()
    return [jacobian(function), jax.jacrev(function)]


def discovery_results(model: hf.Model) -> Any:
    found = hf.discovery(model)
    data = hf.asimov(model, parameters={"mu": 1.0})
    return jnp.stack([found.q0, found.z0, found.p0, hf.discovery(model, data).z0])


def fitted(model: hf.Model) -> Any:
    return hf.fit(model).values


def test_derivatives_of_q0_z0_p0_asimov_z0_and_every_fitted_parameter_match_50_digits(
    make: Any, exact_slopes: dict[str, dict[str, float]], computing: Any
) -> None:
    model = load(make)
    with jax.enable_x64(True):
        for by_model in both_jacobians(discovery_results, computing):
            ours = derivatives(model, by_model(model))
            for k, name in enumerate(("q0", "z0", "p0", "asimov z0")):
                assert_agree({n: v[k] for n, v in ours.items()}, exact_slopes[name], name)
        by_fit = derivatives(model, jacobian(fitted, len(PARAMETERS))(model))
    for name in PARAMETERS:
        k = model.index(name)
        assert_agree({n: v[k] for n, v in by_fit.items()}, exact_slopes[name], name)


@pytest.mark.parametrize("by", ["by_numpy", "by_programs"])
def test_derivative_by_a_model_has_the_same_digits_in_a_32_bit_program(
    make: Any, exact_slopes: dict[str, dict[str, float]], by: str, computing: Any
) -> None:
    getattr(computing, by)()
    model = load(make)
    gradient = jax.grad(lambda m: hf.discovery(m).z0)(model)
    assert np.asarray(gradient.arrays.nominal).dtype == np.float64
    assert_agree(derivatives(model, gradient), exact_slopes["z0"], "z0")


def test_derivatives_of_cls_and_of_the_limit_at_any_level_match_50_digits(
    make: Any, computing: Any
) -> None:
    """The slopes are taken at our limits, so they agree only if the limits do, too."""
    model = load(make)

    def results(m: hf.Model) -> Any:
        at, limit = hf.cls(m, MU_TEST), hf.upper_limit(m, level=0.1)
        return jnp.stack([at.observed, at.expected[2], limit.observed, limit.expected[2]])

    with jax.enable_x64(True):
        both = [derivatives(model, by(model)) for by in both_jacobians(results, computing)]
    limit = hf.upper_limit(model, level=0.1)
    mus = (MU_TEST, limit.observed, float(limit.expected[2]))
    exact = slopes(lambda e: e.cls_of_all(mus), SOME)
    for (k, name), ours in product(enumerate(("observed", "expected")), both):
        assert_agree({n: v[k] for n, v in ours.items()}, exact[0, name], f"CLs {name}")
    for k, name in enumerate(("observed", "expected")):
        at, by_number = mus[k + 1], exact[k + 1, name]
        with mpmath.workdps(50):
            one, h = Exact({n: mp.mpf(v) for n, v in NUMBERS.items()}), mp.mpf("1e-11")
            by_mu = float((one.cls(at + h)[name] - one.cls(at - h)[name]) / (2 * h))
        implicit = {n: -slope / by_mu for n, slope in by_number.items()}
        for ours in both:
            assert_agree({n: v[k + 2] for n, v in ours.items()}, implicit, f"limit {name}")


# --- corners --------------------------------------------------------------------------------------


def test_derivatives_are_zero_without_an_excess_and_finite_in_every_corner_case(
    make: Any, computing: Any
) -> None:
    excess = load(make)
    counts = ((38.0, 41.0), (0.0, 0.0), (0.0, 90.0), (50.0, 0.0))
    for observed, by in product(counts, both_jacobians(discovery_results, computing)):
        model = load(make, observed)
        found = hf.discovery(model)
        with jax.enable_x64(True):
            by_model = by(model).arrays
        for name in ("nominal", "normsys_lo", "histosys_hi", "observed", "tau", "sigma"):
            values = np.asarray(getattr(by_model, name))
            assert np.all(np.isfinite(values)), (observed, name)
            if found.muhat <= 0:
                assert np.all(values[:3] == 0), (observed, name)
    # Data exactly as expected without signal: q0 = 0 is its minimum, and rounding decides.
    nothing = hf.asimov(excess, parameters={"mu": 0.0})
    at_zero = with_arrays(excess, observed=nothing[:2])
    with jax.enable_x64(True):
        by_model = jacobian(discovery_results)(at_zero).arrays
    assert np.all(np.isfinite(np.asarray(by_model.nominal)))


def test_parameter_at_its_bound_does_not_move(make: Any) -> None:
    model = load(make, (38.0, 41.0))
    with jax.enable_x64(True):
        by_model = jacobian(fitted, len(PARAMETERS))(model)
    assert hf.fit(model).parameters["mu"] == 0.0
    by_nominal = np.asarray(by_model.arrays.nominal)
    assert np.all(by_nominal[model.index("mu")] == 0)
    assert np.any(by_nominal[model.index("n")] != 0)


# --- by name --------------------------------------------------------------------------------------


def test_templates_and_their_derivatives_are_read_by_name(make: Any) -> None:
    model = load(make)
    names = [("SR", "signal"), ("SR", "background")]
    names += [("SR", "background", m, side) for m in ("n", "h") for side in ("lo", "hi")]
    x = NUMBERS
    given = [[x["s0"], x["s1"]], [x["b0"], x["b1"]], x["lo"], x["hi"]]
    given += [[x["lo0"], x["lo1"]], [x["hi0"], x["hi1"]]]
    at = {"mu": 1.2, "n": 0.4, "h": -0.7}
    slopes = jax.grad(lambda m: hf.nll(m, at))(model)
    for name, expected in zip(names, given, strict=True):
        value = model.template(*name)
        np.testing.assert_array_equal(value, expected)
        step = 1e-4 * np.ones_like(value)
        ends = [hf.nll(exchange(model, {name: value + s * step}), at) for s in (1, -1)]
        slope = np.sum(slopes.template(*name))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-6, abs=1e-8)
    assert slopes.template("SR", "background", "n", "hi") != 0
    np.testing.assert_array_equal(model.template("signal"), model.template("SR", "signal"))
    with pytest.raises(hf.ModelError, match="no normsys or histosys 'mu'"):
        model.template("SR", "signal", "mu", "hi")


# --- transformations ------------------------------------------------------------------------------


def test_vmap_over_signals_with_gradients_equals_a_loop(make: Any) -> None:
    model = load(make)
    signals = np.array([[9.0, 4.0], [3.0, 8.0], [0.5, 0.25]], dtype=np.float32)

    def z0(signal: Any) -> Any:
        return hf.discovery(model.with_nominal({("SR", "signal"): signal})).z0

    alone = [z0(np.asarray(signal, np.float64)) for signal in signals]
    together, each = jax.vmap(jax.value_and_grad(z0))(signals)
    np.testing.assert_allclose(np.asarray(together), alone, rtol=1e-12)
    assert each.dtype == np.float32
    for signal, gradient in zip(signals.astype(np.float64), each, strict=True):
        for i, unit in enumerate(1e-4 * np.eye(2)):
            slope = (z0(signal + unit) - z0(signal - unit)) / 2e-4
            assert float(gradient[i]) == pytest.approx(slope, rel=1e-5)


def test_results_can_be_used_in_a_32_bit_program_without_warnings(make: Any) -> None:
    """As in a training loop: the loss is the mean over a batch, differentiated by the signals."""
    model = load(make)
    signals = jnp.array([[9.0, 4.0], [3.0, 8.0], [0.5, 0.25]])

    def loss(many: Any) -> Any:
        def nll(signal: Any) -> Any:
            # Results have 64 bits; what goes on in 32 says so, or JAX warns at its first sum.
            value = hf.nll(model.with_nominal({("SR", "signal"): signal}))
            return value.astype(jnp.float32)

        return jnp.mean(jax.vmap(nll)(many))

    assert jax.grad(loss)(signals).dtype == jnp.float32


def test_second_derivatives_of_q0_match_differences_of_first_ones(make: Any) -> None:
    model = load(make)
    with jax.enable_x64(True):

        def q0(signal: Any) -> Any:
            return hf.discovery(model.with_nominal({("SR", "signal"): signal})).q0

        @partial(jax.jit, compiler_options=compiler_options())
        def both(signal: Any, along: Any) -> Any:
            return jax.jvp(jax.grad(q0), (signal,), (along,))

        at, second = np.array([9.0, 4.0]), np.zeros((2, 2))
        for i, unit in enumerate(np.eye(2)):
            second[:, i] = both(at, unit)[1]
            near, far = (
                np.asarray(both(at + h * unit, unit)[0] - both(at - h * unit, unit)[0]) / (2 * h)
                for h in (1e-3, 2e-3)
            )
            np.testing.assert_allclose(second[:, i], (4 * near - far) / 3, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(second, second.T, rtol=1e-10)
