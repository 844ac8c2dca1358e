"""Claims about the likelihood: pyhf's numbers, exact derivatives, and corner cases."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstlight import histfactory as hf
from firstlight.histfactory.array_slopes import array_slopes
from firstlight.histfactory.evaluation import small_likelihood
from firstlight.histfactory.internal_order import prepared
from firstlight.histfactory.layout import Sizes, natural_sizes, padded_sizes, shortages
from firstlight.histfactory.likelihood import nll
from firstlight.histfactory.programs import Program, compiler_options
from firstlight.histfactory.spec import parse
from firstlight.histfactory.synthetic import scaled

# pyhf 0.7.6 validates with a class that jsonschema has deprecated.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),
]

Plain = dict[str, Any]
CODES = [(n, h) for n in ("code1", "code4") for h in ("code0", "code2", "code4p")]
#: All models of this file are padded to these, so that they share their executables.
SIZES = Sizes(slots=3, bins=6, channels=3, alphas=5, factors=8, shapes=5, rates=5)
LUMI = {"name": "lumi", "inits": [1.0], "bounds": [[0.5, 1.5]], "auxdata": [1.02], "sigmas": [0.03]}


def every_modifier(make: Any, rng: np.random.Generator) -> Plain:
    """Three channels with all seven modifiers: names shared between kinds, samples, channels."""

    def near(nominal: Any, width: float) -> Any:
        return nominal * (1 + width * rng.uniform(-1, 1, len(nominal)))

    def norm(name: str) -> Plain:
        return make.normsys(name, rng.uniform(0.6, 1.1), rng.uniform(0.9, 1.6))

    def shape(name: str, nominal: Any) -> Plain:
        return make.histosys(name, near(nominal, 0.3), near(nominal, 0.3))

    def yields(bins: int) -> Any:
        return rng.uniform(5, 60, bins)

    def errors(nominal: Any) -> list[float]:
        return list(nominal * rng.uniform(0.05, 0.2, len(nominal)))

    s1, t1, w1 = yields(2), yields(2), yields(2)
    s2, t2, w2 = yields(2), yields(2), yields(2)
    mu = make.modifier("normfactor", "mu")
    lumi = make.modifier("lumi", "lumi")
    channels = [
        make.channel(
            "SR",
            make.sample("sig", s1, mu, lumi, norm("jes"), shape("jes", s1)),
            make.sample(
                "tt",
                t1,
                norm("tt_norm"),
                shape("jes", t1),
                shape("tag", t1),
                make.modifier("staterror", "stat_SR", errors(t1)),
                make.modifier("shapesys", "extra", errors(t1)),
            ),
            make.sample(
                "w",
                w1,
                lumi,
                make.modifier("normfactor", "k_w"),
                norm("tag"),
                make.modifier("staterror", "stat_SR", errors(w1)),
            ),
        ),
        make.channel(
            "CR",
            make.sample("sig", s2, mu, shape("tag", s2)),
            make.sample("tt", t2, norm("tt_norm"), make.modifier("shapefactor", "shape")),
            make.sample(
                "w",
                w2,
                make.modifier("normfactor", "k_w"),
                make.modifier("shapesys", "w_bins", errors(w2)),
            ),
        ),
        make.channel("VR", make.sample("tt", yields(2), make.modifier("shapefactor", "shape"))),
    ]
    data = [rng.integers(0, 150, 2) for _ in channels]
    return make.workspace(channels, data, parameters=[LUMI])


def single_modifier(make: Any, kind: str) -> Plain:
    """A small model that has `kind`, and nothing else but a signal strength."""
    nominal = [30.0, 41.5]
    modifier = {
        "normfactor": make.modifier("normfactor", "k"),
        "lumi": make.modifier("lumi", "lumi"),
        "normsys": make.normsys("a", 0.8, 1.35),
        "histosys": make.histosys("a", [25.0, 44.0], [37.5, 47.0]),
        "shapefactor": make.modifier("shapefactor", "f"),
        "shapesys": make.modifier("shapesys", "f", [3.0, 0.0]),
        "staterror": make.modifier("staterror", "f", [3.0, 5.5]),
    }[kind]
    parameters = [LUMI] if kind == "lumi" else []
    return make.counting([4.0, 7.0], nominal, [29, 0], modifier, parameters=parameters)


def random_points(model: hf.Model, rng: np.random.Generator, n: int) -> Any:
    """Parameter vectors, α inside and outside of ±1, factors and γ positive."""
    interpolated = [bool({"normsys", "histosys"} & set(types)) for types in model.about.types]
    alphas = rng.uniform(-2.6, 2.6, (n, model.n_parameters))
    factors = rng.uniform(0.3, 2.2, (n, model.n_parameters))
    return np.where(interpolated, alphas, factors)


def assert_agrees_with_pyhf(model: hf.Model, peer: Any, data: Any, points: Any) -> None:
    assert list(model.parameter_names) == peer.config.par_names
    nll = hf.nll(model, points)
    expected = hf.expected_data(model, points)
    for k, point in enumerate(points):
        assert nll[k] == pytest.approx(-float(peer.logpdf(point, data)[0]), rel=1e-12)
        np.testing.assert_allclose(expected[k], peer.expected_data(point), rtol=1e-12)


# --- against pyhf ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", CODES, ids="-".join)
def test_nll_and_expected_data_of_every_modifier_and_code_are_pyhfs_to_1e_12(
    make: Any,
    judge: Callable[..., Any],
    code2_of_pyhf_is_corrected: bool,
    codes: tuple[str, str],
) -> None:
    rng = np.random.default_rng(7)
    lowest = -1.0 if codes[1] == "code2" and not code2_of_pyhf_is_corrected else -np.inf
    kinds = ["normfactor", "lumi", "normsys", "histosys", "shapefactor", "shapesys", "staterror"]
    workspaces = [single_modifier(make, kind) for kind in kinds]
    workspaces += [every_modifier(make, rng) for _ in range(3)]
    for workspace in workspaces:
        model = hf.load(workspace, interpolation=codes, sizes=SIZES)
        points = np.maximum(random_points(model, rng, 8), lowest)
        # The edges of the pieces, where two formulas meet.
        points[0] = 1.0
        points[1] = np.where(points[2] < 0, -1.0, model.init)
        assert_agrees_with_pyhf(model, *judge(workspace, codes), points)


def test_one_point_of_a_small_model_agrees_with_pyhf_and_with_many_points(
    make: Any, judge: Callable[..., Any]
) -> None:
    """A small model computes one point in plain floats, and many points in NumPy."""
    rng = np.random.default_rng(11)
    kinds = ["normfactor", "lumi", "normsys", "histosys", "shapefactor", "shapesys", "staterror"]
    workspaces = [single_modifier(make, kind) for kind in kinds]
    for workspace in [*workspaces, *(every_modifier(make, rng) for _ in range(3))]:
        model, (peer, data) = hf.load(workspace, sizes=SIZES), judge(workspace)
        assert small_likelihood(model) is not None
        points = random_points(model, rng, 12)
        points[0] = 1.0  # where two formulas meet
        for point in points:
            expected = -float(peer.logpdf(point, data)[0])
            assert hf.nll(model, point) == pytest.approx(expected, rel=1e-12)
        # Also where there is no likelihood, or no slope of a logarithm.
        for value in (0.0, -0.0, -1.0, 1e-300, 40.0, 1e4, math.inf, -math.inf, math.nan):
            moved = points.copy()
            moved[np.arange(12), rng.integers(0, model.n_parameters, 12)] = value
            points = np.concatenate([points, moved[:4]])
        nll, gradient = hf.nll_and_gradient(model, points)
        for k, point in enumerate(points):
            with np.errstate(invalid="ignore"):
                alone, slopes = hf.nll_and_gradient(model, point)
            np.testing.assert_allclose([alone, hf.nll(model, point)], nll[k], rtol=1e-12)
            np.testing.assert_allclose(slopes, gradient[k], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("call", [hf.nll, hf.nll_and_gradient, hf.gradient])
def test_one_point_of_a_small_model_needs_neither_numpys_nor_jaxs_arithmetic(
    make: Any, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hf.load(single_modifier(make, "normsys"), sizes=SIZES)
    point = np.asarray(model.init) * 1.1

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was called")

    monkeypatch.setattr(Program, "__call__", refuse)
    call(model, point)
    with pytest.raises(AssertionError, match="program"):
        call(model, point, data=model.observed)


def test_given_data_are_used_as_in_pyhf_main_alone_and_with_auxiliary_data(
    make: Any, judge: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(3)
    workspace = every_modifier(make, rng)
    model, (peer, data) = hf.load(workspace, sizes=SIZES), judge(workspace)
    point = random_points(model, rng, 1)[0]
    full = np.array(data) * rng.uniform(0.5, 1.5, len(data))
    n = model.n_bins
    assert hf.nll(model, point, full) == pytest.approx(-float(peer.logpdf(point, full)[0]), 1e-12)
    main = np.concatenate([full[:n], data[n:]])
    assert hf.nll(model, point, full[:n]) == pytest.approx(
        -float(peer.logpdf(point, main)[0]), 1e-12
    )


#: How many parameters have a histosys alone, both, a normsys alone.
RUNS = [(0, 0, 0), (2, 0, 0), (0, 0, 2), (0, 2, 0), (1, 1, 1), (2, 0, 1)]


def with_runs(make: Any, shapes: int, both: int, rates: int) -> Any:
    def shape(name: str, i: int) -> Any:
        return make.histosys(name, [28.0 - i, 41.0], [33.0, 44.0 + 2 * i])

    def rate(name: str, i: int) -> Any:
        return make.normsys(name, 0.9 - 0.05 * i, 1.15 + 0.04 * i)

    modifiers = [shape(f"s{i}", i) for i in range(shapes)]
    # A name of the middle of the alphabet, so that the public order is not the internal one.
    modifiers += [kind(f"b{i}", i) for i in range(both) for kind in (shape, rate)]
    modifiers += [rate(f"a{i}", i) for i in range(rates)]
    return make.counting([4.0, 7.0], [30.0, 42.0], [36, 45], *modifiers)


@pytest.mark.parametrize("runs", RUNS, ids=str)
def test_a_parameter_needs_templates_only_of_the_kinds_it_has(
    make: Any, judge: Callable[..., Any], runs: tuple[int, int, int]
) -> None:
    workspace = with_runs(make, *runs)
    spec = parse(workspace)
    natural = natural_sizes(spec)
    assert (natural.shapes, natural.rates) == (
        runs[0] + runs[1],
        max(runs[1] + runs[2], 1 - sum(runs)),
    )
    assert not shortages(padded_sizes(spec), spec)
    # With a gap between the shapes and what has both.
    gap = natural._replace(alphas=natural.alphas + 2, shapes=natural.shapes + 2)
    full, peer = hf.load(workspace, sizes=SIZES), judge(workspace)
    points = random_points(full, np.random.default_rng(5), 4)
    for sizes in (natural, gap):
        model = hf.load(workspace, sizes=sizes)
        assert_agrees_with_pyhf(model, *peer, points)
        for point in points:
            for function in (hf.gradient, hf.hessian):
                np.testing.assert_allclose(
                    function(model, point), function(full, point), rtol=1e-12, atol=1e-12
                )


def test_sizes_without_room_for_parameters_of_both_kinds_are_refused(make: Any) -> None:
    workspace = with_runs(make, 0, 2, 0)
    small = SIZES._replace(alphas=4, shapes=3, rates=2)
    with pytest.raises(hf.ModelError, match=r"shapes \+ rates - alphas: 1 < 2"):
        hf.load(workspace, sizes=small)
    with pytest.raises(hf.ModelError, match="rates: 6 > alphas: 5"):
        hf.load(workspace, sizes=SIZES._replace(rates=6))


def test_golden_file_is_reproduced(shared_data: Path) -> None:
    goldens = json.loads((shared_data / "pyhf_model_zoo_goldens.json").read_text())
    assert len(goldens["cases"]) == 7
    models = [hf.load(c["workspace"], measurement=c["measurement"]) for c in goldens["cases"]]
    sizes = Sizes(*np.max([model.about.sizes for model in models], axis=0))
    for case in goldens["cases"]:
        model = hf.load(case["workspace"], measurement=case["measurement"], sizes=sizes)
        assert list(model.parameter_names) == case["par_names"]
        points = np.array([point["params"] for point in case["points"]])
        nll, expected = hf.nll(model, points), hf.expected_data(model, points)
        for k, point in enumerate(case["points"]):
            assert 2 * nll[k] == pytest.approx(point["twice_nll"], rel=1e-12), case["name"]
            np.testing.assert_allclose(expected[k], point["expected_full"], rtol=1e-12)


# --- derivatives ----------------------------------------------------------------------------------


def plain_nll(workspace: Plain, peer: Any, codes: tuple[str, str]) -> Callable[[Any, Any], Any]:
    """The NLL written down as the definition reads, cell by cell, for automatic differentiation."""
    sets = {name: peer.config.par_slice(name) for name in peer.config.par_order}

    def factor(modifier: Plain, theta: Any, bins: int) -> Any:
        value = theta[sets[modifier["name"]]]
        if modifier["type"] in ("normfactor", "lumi"):
            return value[0]
        if modifier["type"] == "normsys":
            return plain_normsys(codes[0], value[0], modifier["data"]["lo"], modifier["data"]["hi"])
        return value[:bins]

    def nll(theta: Any, data: Any) -> Any:
        total, begin = 0.0, 0
        for channel in sorted(workspace["channels"], key=lambda c: c["name"]):
            bins = len(channel["samples"][0]["data"])
            expected = 0.0
            for sample in channel["samples"]:
                nominal, scale = jnp.array(sample["data"]), 1.0
                shifted = nominal
                for modifier in sample["modifiers"]:
                    if modifier["type"] == "histosys":
                        alpha = theta[sets[modifier["name"]]][0]
                        lo = jnp.array(modifier["data"]["lo_data"])
                        hi = jnp.array(modifier["data"]["hi_data"])
                        shifted += plain_histosys(codes[1], alpha, lo, nominal, hi)
                    else:
                        scale *= factor(modifier, theta, bins)
                expected += shifted * scale
            counts = data[begin : begin + bins]
            total += jnp.sum(expected - counts * jnp.log(expected))
            total += jnp.sum(jax.scipy.special.gammaln(counts + 1))
            begin += bins
        for name in peer.config.auxdata_order:
            parameter_set = peer.config.param_set(name)
            n = parameter_set.n_parameters
            aux, value = data[begin : begin + n], theta[sets[name]]
            begin += n
            if parameter_set.pdf_type == "normal":
                sigma = jnp.array(getattr(parameter_set, "sigmas", [1.0] * n))
                pulls = ((aux - value) / sigma) ** 2
                total += jnp.sum(0.5 * pulls + jnp.log(sigma * math.sqrt(2 * math.pi)))
            else:
                rate = jnp.array(parameter_set.factors) * value
                total += jnp.sum(rate - aux * jnp.log(rate))
                total += jnp.sum(jax.scipy.special.gammaln(aux + 1))
        return total

    return nll


def plain_normsys(code: str, alpha: Any, lo: float, hi: float) -> Any:
    outside = jnp.where(alpha > 0, hi**alpha, lo**-alpha)
    if code == "code1":
        return outside
    # The polynomial through value, slope and curvature at ±1, by solving for its coefficients.
    powers = np.arange(1, 7)
    up, down = np.ones(6), (-1.0) ** powers
    matrix = np.stack(
        [
            up,
            down,
            powers * up,
            powers * -down,
            powers * (powers - 1) * up,
            powers * (powers - 1) * down,
        ]
    )
    log_hi, log_lo = math.log(hi), math.log(lo)
    right = [hi - 1, lo - 1, hi * log_hi, -lo * log_lo, hi * log_hi**2, lo * log_lo**2]
    coefficients = np.linalg.solve(matrix, right)
    inside = 1 + sum(c * alpha**k for k, c in zip(range(1, 7), coefficients, strict=True))
    return jnp.where(jnp.abs(alpha) < 1, inside, outside)


def plain_histosys(code: str, alpha: Any, lo: Any, nominal: Any, hi: Any) -> Any:
    up, down = hi - nominal, nominal - lo
    linear = jnp.where(alpha > 0, alpha * up, alpha * down)
    if code == "code0":
        return linear
    if code == "code4p":
        bent = 15 * alpha**2 - 10 * alpha**4 + 3 * alpha**6
        inside = (up + down) / 2 * alpha + (up - down) / 16 * bent
        return jnp.where(jnp.abs(alpha) < 1, inside, linear)
    a, b = (hi + lo) / 2 - nominal, (hi - lo) / 2
    above, below = (b + 2 * a) * (alpha - 1), (b - 2 * a) * (alpha + 1)
    middle = a * alpha**2 + b * alpha
    return jnp.where(alpha > 1, above, jnp.where(alpha < -1, below, middle))


@pytest.mark.parametrize("codes", [("code4", "code4p"), ("code1", "code2")], ids="-".join)
def test_gradient_and_hessian_are_those_of_a_plainly_written_nll(
    make: Any, judge: Callable[..., Any], codes: tuple[str, str]
) -> None:
    rng = np.random.default_rng(11)
    workspace = every_modifier(make, rng)
    model, (peer, data) = hf.load(workspace, interpolation=codes, sizes=SIZES), judge(workspace)
    points = random_points(model, rng, 12)
    values, gradients = hf.nll_and_gradient(model, points)
    hessians = hf.hessian(model, points)
    with jax.enable_x64(True):
        plain = plain_nll(workspace, peer, codes)
        both = jax.jit(
            lambda t, d: (plain(t, d), jax.grad(plain)(t, d), jax.hessian(plain)(t, d)),
            compiler_options=compiler_options(),
        )
        for k, point in enumerate(points):
            nll, gradient, hessian = map(np.asarray, both(point, np.array(data)))
            assert values[k] == pytest.approx(float(nll), rel=1e-12)
            scale = np.abs(gradient).max()
            np.testing.assert_allclose(gradients[k], gradient, rtol=1e-11, atol=1e-12 * scale)
            scale = np.abs(hessian).max()
            np.testing.assert_allclose(hessians[k], hessian, rtol=1e-11, atol=1e-12 * scale)


def code2_by_definition(alpha: Any, lo: float, nominal: float, hi: float) -> Any:
    """The change of a yield: a parabola inside |α| ≤ 1, and HistFactory's lines outside."""
    a, b = mpmath.mpf(hi + lo) / 2 - nominal, mpmath.mpf(hi - lo) / 2
    if alpha > 1:
        return (b + 2 * a) * (alpha - 1)
    return (b - 2 * a) * (alpha + 1) if alpha < -1 else a * alpha**2 + b * alpha


@pytest.mark.parametrize("compiled", [False, True], ids=["NumPy", "JAX"])
def test_code_2_has_the_values_and_derivatives_of_its_definition(
    make: Any, computing: Any, compiled: bool
) -> None:
    """Compared with 40 digits of mpmath, because pyhf 0.7.6 deviates for α < -1."""
    computing.by_programs() if compiled else computing.by_numpy()
    background, lo, hi, observed = [50.0, 40.0], [44.0, 46.0], [60.0, 38.0], [57, 31]
    workspace = make.counting([5.0, 8.0], background, observed, make.histosys("a", lo, hi))
    model = hf.load(workspace, interpolation=("code4", "code2"), sizes=SIZES)
    mu, alpha = model.index("mu"), model.index("a")

    def expected(m: Any, a: Any) -> list[Any]:
        bins = zip([5, 8], lo, background, hi, strict=True)
        return [s * m + b + code2_by_definition(a, low, b, high) for s, low, b, high in bins]

    def nll(m: Any, a: Any) -> Any:
        terms = zip(expected(m, a), observed, strict=True)
        main = sum(v - n * mpmath.log(v) + mpmath.loggamma(n + 1) for v, n in terms)
        return main + a**2 / 2 + mpmath.log(2 * mpmath.pi) / 2

    for value in (-3.0, -2.0, -1.25, -0.5, 0.75, 1.5, 3.0):
        point = np.zeros(2)
        point[[mu, alpha]] = 1.5, value
        with mpmath.workdps(40):
            main = [float(v) for v in expected(1.5, mpmath.mpf(value))]
            at = (mpmath.mpf("1.5"), mpmath.mpf(value))
            exact = float(nll(*at))
            slopes = [float(mpmath.diff(nll, at, order)) for order in ((1, 0), (0, 1))]
            bends = [float(mpmath.diff(nll, at, order)) for order in ((2, 0), (1, 1), (0, 2))]
        np.testing.assert_allclose(hf.expected_data(model, point)[:2], main, rtol=1e-14)
        given, gradient = hf.nll_and_gradient(model, point)
        assert [given, hf.nll(model, point)] == pytest.approx([exact, exact], rel=1e-13)
        np.testing.assert_allclose(gradient[[mu, alpha]], slopes, rtol=1e-11)
        hessian = hf.hessian(model, point)[[mu, mu, alpha], [mu, alpha, alpha]]
        np.testing.assert_allclose(hessian, bends, rtol=1e-11)


def test_leading_axes_of_parameters_equal_a_loop(make: Any) -> None:
    rng = np.random.default_rng(5)
    model = hf.load(every_modifier(make, rng), sizes=SIZES)
    points = random_points(model, rng, 6).reshape(2, 3, -1)
    value, gradient = hf.nll_and_gradient(model, points)
    hessian, expected = hf.hessian(model, points), hf.expected_data(model, points)
    assert value.shape == (2, 3)
    assert hessian.shape == (2, 3, model.n_parameters, model.n_parameters)
    np.testing.assert_array_equal(hf.gradient(model, points), gradient)
    for i in range(2):
        for j in range(3):
            point = points[i, j]
            alone = hf.nll_and_gradient(model, point)
            assert value[i, j] == pytest.approx(alone[0], rel=1e-14)
            np.testing.assert_allclose(gradient[i, j], alone[1], rtol=1e-11, atol=1e-9)
            np.testing.assert_allclose(
                hessian[i, j], hf.hessian(model, point), rtol=1e-10, atol=1e-9
            )
            np.testing.assert_allclose(
                expected[i, j], hf.expected_data(model, point), rtol=1e-14, atol=0
            )


def test_leading_axes_of_data_are_a_batch_or_an_error_but_never_summed(make: Any) -> None:
    model = hf.load(single_modifier(make, "shapesys"), sizes=SIZES)
    data = np.array([[29.0, 3.0], [31.0, 4.0]])
    try:
        together = hf.nll(model, data=data)
    except hf.ModelError:
        return
    np.testing.assert_allclose(together, [hf.nll(model, data=one) for one in data], rtol=1e-14)


@pytest.mark.parametrize("codes", [("code4", "code4p"), ("code1", "code0"), ("code4", "code2")])
def test_slopes_of_every_number_are_those_of_automatic_differentiation(
    make: Any, codes: tuple[str, str]
) -> None:
    rng = np.random.default_rng(11)
    model = hf.load(every_modifier(make, rng), interpolation=codes, sizes=SIZES)
    prepared, data = model._prepared, model._observed_data
    automatic = jax.jit(jax.grad(nll, (0, 1)), compiler_options=compiler_options())
    closed = jax.jit(array_slopes, compiler_options=compiler_options())
    for widest in (0.9, 3.0):  # inside |α| = 1, and beyond for most
        near = rng.normal(0.0, 0.1, model.about.sizes.parameters)
        alphas = model.about.sizes.alphas
        near[:alphas] = widest * rng.uniform(0.5, 1.0, alphas) * rng.choice([-1, 1], alphas)
        with jax.enable_x64(True):
            theta = jnp.asarray(model._settings.init + near)
            expected = jax.device_get(automatic(prepared.on_device, data, theta))
            _, *slopes = jax.device_get(closed(prepared.on_device, data, theta))
        pairs = zip(jax.tree.leaves(tuple(slopes)), jax.tree.leaves(expected), strict=True)
        for ours, theirs in pairs:
            scale = 1 + np.abs(theirs).max(initial=0.0)
            np.testing.assert_allclose(ours / scale, theirs / scale, rtol=1e-11, atol=1e-12)


# --- corners --------------------------------------------------------------------------------------


def test_bin_without_expectation_and_without_events_costs_nothing(
    make: Any, judge: Callable[..., Any]
) -> None:
    workspace = make.counting([4.0, 0.0], [30.0, 0.0], [29, 0], make.normsys("a", 0.8, 1.2))
    model, (peer, data) = hf.load(workspace, sizes=SIZES), judge(workspace)
    value, gradient = hf.nll_and_gradient(model)
    assert value == pytest.approx(-float(peer.logpdf(model.init, data)[0]), rel=1e-12)
    assert np.all(np.isfinite(gradient))
    assert np.all(np.isfinite(hf.hessian(model)))
    by_yield = jax.grad(hf.nll)(model).arrays.nominal
    # Every expected event costs one where none is observed.
    signal, background = np.asarray(by_yield)[:, 1][:2]
    assert sorted([signal, background]) == pytest.approx([1.0, 1.0], rel=1e-14)


def test_events_where_none_are_expected_are_impossible(make: Any) -> None:
    workspace = make.counting([4.0, 0.0], [30.0, 0.0], [29, 1], make.normsys("a", 0.8, 1.2))
    assert hf.nll(hf.load(workspace, sizes=SIZES)) == math.inf


def test_negative_expectation_is_pyhfs_value_without_events_and_impossible_with(
    make: Any, judge: Callable[..., Any]
) -> None:
    systematic = make.normsys("a", 0.8, 1.2)
    workspace = make.counting([4.0, -9.0], [30.0, 5.0], [29, 0], systematic)
    model, (peer, data) = hf.load(workspace, sizes=SIZES), judge(workspace)
    assert hf.expected_data(model)[1] == -4.0
    assert hf.nll(model) == pytest.approx(-float(peer.logpdf(model.init, data)[0]), rel=1e-12)
    assert hf.nll(model, data=[29, 1]) == math.inf


def test_factors_at_zero_have_the_gradient_of_their_neighbourhood(make: Any) -> None:
    """μ = 0 and γ at its bound: the closed form divides by a factor, the limit does not."""
    shapesys = make.modifier("shapesys", "f", [3.0, 5.0])
    model = hf.load(make.counting([4.0, 7.0], [30.0, 40.0], [29, 50], shapesys), sizes=SIZES)
    at = {"mu": 0.0, "f[0]": 1.1, "f[1]": 0.9}
    mu = model.index("mu")
    gradient, hessian = hf.gradient(model, at), hf.hessian(model, at)
    # ∂NLL/∂μ = Σ s (1 - n/ν), ∂²NLL/∂μ² = Σ s² n/ν².
    s, n, nu = np.array([4.0, 7.0]), np.array([29.0, 50.0]), np.array([33.0, 36.0])
    assert gradient[mu] == pytest.approx(np.sum(s * (1 - n / nu)), rel=1e-13)
    assert hessian[mu, mu] == pytest.approx(np.sum(s**2 * n / nu**2), rel=1e-13)
    b, f = np.array([30.0, 40.0]), [model.index("f[0]"), model.index("f[1]")]
    np.testing.assert_allclose(hessian[mu, f], s * b * n / nu**2, rtol=1e-13)


@pytest.mark.parametrize("count", [1e-3, 0.5, 1, 3.25, 15.9, 16, 16.1, 40, 1234.5, 1e6, 1e8])
def test_constant_of_the_saturated_model_is_the_gamma_functions(make: Any, count: float) -> None:
    """At ν = n the NLL is n - n ln n + ln Γ(n+1), which cancels twenty digits at n = 10⁸."""
    model = hf.load(make.counting([1.0], [0.0], [count]), sizes=SIZES)
    with mpmath.workdps(50):
        n = mpmath.mpf(count)
        exact = n - n * mpmath.log(n) + mpmath.loggamma(n + 1)
        assert float(exact) == pytest.approx(hf.nll(model, {"mu": count}), rel=1e-12, abs=1e-13)


def test_a_sigma_of_1e_6_loses_no_digits(make: Any, judge: Callable[..., Any]) -> None:
    lumi = {**LUMI, "sigmas": [1e-6], "auxdata": [1.0]}
    modifier = make.modifier("lumi", "lumi")
    workspace = make.counting([4.0, 7.0], [30.0, 40.0], [29, 50], modifier, parameters=[lumi])
    model, (peer, data) = hf.load(workspace, sizes=SIZES), judge(workspace)
    point = model.vector({"mu": 0.7, "lumi": 1.0000021})
    assert hf.nll(model, point) == pytest.approx(-float(peer.logpdf(point, data)[0]), rel=1e-12)


def test_three_hundred_channels_agree_with_pyhf(judge: Callable[..., Any]) -> None:
    workspace = scaled(60, bins=600, channels=300, samples=3, seed=1)
    model, (peer, data) = hf.load(workspace), judge(workspace)
    points = random_points(model, np.random.default_rng(2), 2) * 0.5 + 0.5 * model.init
    assert_agrees_with_pyhf(model, peer, data, points)


# --- properties -----------------------------------------------------------------------------------

QUICK = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(seed=st.integers(0, 2**32 - 1))
def test_order_of_channels_samples_and_modifiers_does_not_change_the_nll(
    make: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    workspace = every_modifier(make, rng)
    model = hf.load(workspace, sizes=SIZES)
    values = dict(zip(model.parameter_names, random_points(model, rng, 1)[0], strict=True))
    shuffled = json.loads(json.dumps(workspace))
    rng.shuffle(shuffled["channels"])
    rng.shuffle(shuffled["observations"])
    for channel in shuffled["channels"]:
        rng.shuffle(channel["samples"])
        for sample in channel["samples"]:
            rng.shuffle(sample["modifiers"])
    other = hf.load(shuffled, sizes=SIZES)
    assert hf.nll(other, values) == pytest.approx(hf.nll(model, values), rel=1e-13)


@QUICK
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 3))
def test_splitting_a_channel_in_two_does_not_change_the_nll(make: Any, seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    signal, background = rng.uniform(1, 9, 4), rng.uniform(20, 60, 4)
    lo, hi = background * rng.uniform(0.7, 1, 4), background * rng.uniform(0.9, 1.4, 4)
    errors, observed = background * 0.1, rng.integers(0, 80, 4)

    def channel(name: str, here: slice) -> Plain:
        return make.channel(
            name,
            make.sample("s", signal[here], make.modifier("normfactor", "mu")),
            make.sample(
                "b",
                background[here],
                make.normsys("n", 0.8, 1.3),
                make.histosys("h", lo[here], hi[here]),
                make.modifier("staterror", f"stat_{name}", list(errors[here])),
            ),
        )

    left, right = slice(0, cut), slice(cut, 4)
    whole = make.workspace([channel("all", slice(0, 4))], [observed])
    parts = make.workspace(
        [channel("a", left), channel("b", right)], [observed[left], observed[right]]
    )
    gammas = rng.uniform(0.7, 1.3, 4)
    common = {"mu": rng.uniform(0, 2), "n": rng.uniform(-2, 2), "h": rng.uniform(-2, 2)}
    of_whole = {f"stat_all[{i}]": g for i, g in enumerate(gammas)}
    of_parts = {f"stat_a[{i}]": g for i, g in enumerate(gammas[left])}
    of_parts |= {f"stat_b[{i}]": g for i, g in enumerate(gammas[right])}
    together = hf.nll(hf.load(whole, sizes=SIZES), {**common, **of_whole})
    apart = hf.nll(hf.load(parts, sizes=SIZES), {**common, **of_parts})
    assert apart == pytest.approx(together, rel=1e-13)


# --- precision ------------------------------------------------------------------------------------


def test_a_32_bit_program_gets_64_bit_results_and_keeps_its_setting(make: Any) -> None:
    model = hf.load(every_modifier(make, np.random.default_rng(1)), sizes=SIZES)
    assert not jax.config.jax_enable_x64
    value, gradient = hf.nll_and_gradient(model)
    inside = jax.jit(hf.nll)(model)
    by_model = jax.grad(hf.nll)(model)
    mu = model.index("mu")
    by_mu = jax.grad(lambda x: hf.nll(model, {"mu": x}))(1.0)
    strengths = np.array([0.5, 1.0, 1.5], dtype=np.float32)
    many = jax.vmap(lambda x: hf.nll(model, {"mu": x}))(strengths)
    assert not jax.config.jax_enable_x64
    assert float(inside) == pytest.approx(value, rel=1e-14)
    # The gradient by a float32 argument is a float32, as JAX wants it, but a correct one.
    assert float(by_mu) == pytest.approx(gradient[mu], rel=1e-6)
    assert np.asarray(many, np.float64) == pytest.approx(
        [hf.nll(model, {"mu": x}) for x in (0.5, 1.0, 1.5)], rel=1e-14
    )
    with jax.enable_x64(True):
        wide = jax.jit(jax.grad(hf.nll), compiler_options=compiler_options())(model)
    for name in ("nominal", "normsys_lo", "histosys_hi", "observed", "sigma", "tau", "auxdata"):
        narrow_values = np.asarray(getattr(by_model.arrays, name))
        assert narrow_values.dtype == np.float64, name
        np.testing.assert_allclose(
            narrow_values, np.asarray(getattr(wide.arrays, name)), rtol=1e-12, atol=1e-12
        )


def test_forward_mode_and_second_derivatives_work_in_64_bits(make: Any) -> None:
    model = hf.load(every_modifier(make, np.random.default_rng(4)), sizes=SIZES)
    point = random_points(model, np.random.default_rng(4), 1)[0]
    with jax.enable_x64(True):

        def nll(x: Any) -> Any:
            return hf.nll(model, x)

        direction = np.linspace(-1, 1, len(point))

        @partial(jax.jit, compiler_options=compiler_options())
        def both(x: Any) -> Any:
            return jax.jvp(nll, (x,), (jnp.asarray(direction),))[1], jax.hessian(nll)(x)

        along, second = both(jnp.asarray(point))
    assert float(along) == pytest.approx(float(hf.gradient(model, point) @ direction), rel=1e-11)
    np.testing.assert_allclose(second, hf.hessian(model, point), rtol=1e-10, atol=1e-8)


def test_the_pickle_of_a_prepared_model_contains_no_device_arrays(make: Any) -> None:
    """Otherwise unpickling would import JAX, as in a worker that runs frozen fits."""
    model = hf.load(make.counting([5.0], [50.0], [52.0], make.normsys("xsec", 0.9, 1.1)))
    ready = prepared(model)
    assert "jax" in type(ready.on_device.nominal).__module__
    sent = pickle.dumps(ready)
    assert b"jax" not in sent
    assert np.array_equal(pickle.loads(sent).nominal, ready.nominal)
