"""Claims about fits: the true minimum, covariances there, and failures that are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import optimize

from firstlight import histfactory as hf
from firstlight.histfactory.layout import Sizes
from firstlight.histfactory.newton import EDM_TOLERANCE
from firstlight.histfactory.precision import float64_scope

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),
]

Plain = dict[str, Any]
#: All models of this file are padded to these: one executable.
SIZES = Sizes(slots=2, bins=6, channels=2, alphas=4, factors=3, shapes=4, rates=4)


#: With few events and a negative signal, a bin without events may expect fewer than none.
MINIMA = (hf.Status.CONVERGED, hf.Status.NEGATIVE_EXPECTATION)


def load(workspace: Plain, **options: Any) -> hf.Model:
    return hf.load(workspace, sizes=SIZES, **options)


def random_workspace(
    make: Any,
    seed: int,
    scale: float,
    size: float = 0.15,
    one_sided: float = 0.3,
    statistics: tuple[float, float] = (0.01, 0.2),
) -> Plain:
    """Two channels of three bins, `scale` events per bin, systematics up to `size`."""
    rng = np.random.default_rng([seed, int(scale)])

    def shape(name: str, nominal: Any) -> Plain:
        signs = (-1, 1) if rng.random() > one_sided else (rng.choice([0, 1]), 1)
        lo, hi = (nominal * (1 + sign * size * rng.uniform(0, 1, 3)) for sign in signs)
        return make.histosys(name, lo, hi)

    channels, data = [], []
    for name in ("a", "b"):
        signal = scale * rng.uniform(0.05, 0.3, 3)
        background = scale * rng.uniform(0.3, 2, 3)
        channels.append(
            make.channel(
                name,
                make.sample(
                    "sig",
                    signal,
                    make.modifier("normfactor", "mu"),
                    make.normsys("n0", 1 - 0.3 * rng.random(), 1 + 0.5 * rng.random()),
                ),
                make.sample(
                    "bkg",
                    background,
                    make.normsys("n1", 1 - size * rng.random(), 1 + size * rng.random()),
                    shape("h0", background),
                    shape("h1", background),
                    make.modifier(
                        "staterror", f"stat_{name}", list(background * rng.uniform(*statistics, 3))
                    ),
                ),
            )
        )
        data.append(rng.poisson(background + signal * rng.uniform(0, 2)))
    bounds = {"name": "mu", "inits": [1.0], "bounds": [[-20.0, 20.0]]}
    return make.workspace(channels, data, parameters=[bounds])


def independent_minimum(model: hf.Model, start: Any, peer: Any = None, data: Any = None) -> Any:
    """scipy's bounded minimum of pyhf's NLL (ours without a peer), from `start`."""
    bounds = list(zip(model.lower, model.upper, strict=True))

    def nll(x: Any) -> float:
        with np.errstate(all="ignore"):
            value = hf.nll(model, x) if peer is None else -float(peer.logpdf(x, data)[0])
        return value if np.isfinite(value) else 1e10

    found = optimize.minimize(
        nll,
        start,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 2000, "maxfun": 50000, "ftol": 1e-15, "gtol": 1e-9},
    )
    return found.fun


# --- the minimum ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2.0, 50.0, 1e4])
def test_no_independent_optimiser_finds_a_lower_minimum_than_a_converged_fit(
    make: Any, judge: Callable[..., Any], scale: float
) -> None:
    """From where the fit ended: local minima of two-sided systematics are not its fault."""
    for seed in range(3):
        workspace = random_workspace(make, seed, scale)
        model, (peer, data) = load(workspace), judge(workspace)
        found = hf.fit(model)
        assert found.converged, found.status.message
        assert found.edm < EDM_TOLERANCE
        # pyhf adds and subtracts n ln n: its last digit is this many times larger than ours.
        rounding = 1e-15 * np.sum(np.array(data) * np.log(np.maximum(np.abs(data), 2.0)))
        theirs = -float(peer.logpdf(found.values, data)[0])
        assert found.nll == pytest.approx(theirs, rel=1e-12, abs=rounding)
        rng = np.random.default_rng(seed)
        near = found.values * (1 + 0.02 * rng.normal(size=model.n_parameters))
        for start in (found.values, near):
            lower = independent_minimum(model, start, peer, data)
            assert lower > found.nll - 1e-6


def test_minimum_of_an_on_off_measurement_is_the_closed_form(make: Any) -> None:
    """n = 61 on, b = 50 ± 7 off: μ̂ s = n - b, γ̂ = 1; σ² of μ s is n + 7²."""
    model = load(make.counting([10.0], [50.0], [61], make.modifier("shapesys", "g", [7.0])))
    found = hf.fit(model)
    assert found.converged
    assert found.parameters == pytest.approx({"mu": 1.1, "g[0]": 1.0}, rel=1e-12)
    assert found.uncertainties["mu"] == pytest.approx(np.sqrt(61 + 49) / 10, rel=1e-12)
    assert found.uncertainties["g[0]"] == pytest.approx(7 / 50, rel=1e-12)
    # cov(μ, γ) = -b σ_γ² / s
    expected = -50 / 10 * (7 / 50) ** 2 / (found.uncertainties["mu"] * found.uncertainties["g[0]"])
    mu, gamma = found.names.index("mu"), found.names.index("g[0]")
    assert found.correlation[mu, gamma] == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(np.diag(found.correlation), 1, rtol=1e-13)


def test_covariance_is_the_inverse_of_the_numerical_hessian_of_pyhfs_nll(
    make: Any, judge: Callable[..., Any]
) -> None:
    workspace = random_workspace(make, 5, 80.0)
    model, (peer, data) = load(workspace), judge(workspace)
    found = hf.fit(model)
    n = model.n_parameters
    steps = 2e-3 * np.array(list(found.uncertainties.values()))

    def nll(x: Any) -> float:
        return -float(peer.logpdf(x, data)[0])

    def second(i: int, j: int, h: float) -> float:
        a, b = np.eye(n)[i] * steps[i] * h, np.eye(n)[j] * steps[j] * h
        x = found.values
        total = nll(x + a + b) - nll(x + a - b) - nll(x - a + b) + nll(x - a - b)
        return total / (4 * steps[i] * steps[j] * h * h)

    hessian = np.array(
        [
            [(16 * second(i, j, 2) - second(i, j, 8)) / 15 for i in range(n)]  # Richardson
            for j in range(n)
        ]
    )
    scale = np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose(
        found.covariance / np.outer(scale, scale),
        np.linalg.inv(hessian) / np.outer(scale, scale),
        atol=3e-5,
    )


def test_covariance_of_numpy_and_of_the_compiled_program_agree(make: Any, computing: Any) -> None:
    computing.by_numpy()
    found = hf.fit(load(random_workspace(make, 5, 80.0)), fixed=["mu"])
    first = found.covariance
    computing.by_programs()
    last = found.covariance
    np.testing.assert_allclose(last, first, rtol=1e-11, atol=1e-15)
    assert not first[found.names.index("mu")].any()
    with float64_scope():
        in_a_program = jax.jit(lambda result: result.covariance)(found)
    np.testing.assert_allclose(in_a_program, first, rtol=1e-11, atol=1e-15)


def test_covariance_of_a_fit_inside_of_a_test_in_a_program_is_refused(make: Any) -> None:
    model = load(random_workspace(make, 5, 80.0))
    with pytest.raises(hf.ModelError, match=r"have no covariance.*Call fit there"):
        jax.eval_shape(lambda m: hf.discovery(m).free.covariance, model)


def test_thu_reaches_its_minimum_with_the_luminosity_held_and_free(shared_data: Path) -> None:
    """pyhf and NextStat stop at 179.4853, where the workspace's fixed luminosity holds them."""
    model = hf.load(shared_data / "workspace_tHu.json")
    held, free = hf.fit(model), hf.fit(model, fixed={"lumi": False})
    assert held.converged
    assert held.nll == pytest.approx(179.4853, abs=5e-5)
    assert free.converged
    assert free.nll == pytest.approx(179.40433, abs=5e-6)


# --- bounds, fixing, starting ---------------------------------------------------------------------


def test_negative_signal_is_found_where_bounds_allow_it_and_held_where_not(make: Any) -> None:
    shapesys = make.modifier("shapesys", "g", [7.0])
    free = {"name": "mu", "inits": [1.0], "bounds": [[-5.0, 10.0]]}
    deficit = make.counting([10.0], [50.0], [39], shapesys, parameters=[free])
    assert hf.fit(load(deficit)).parameters["mu"] == pytest.approx(-1.1, rel=1e-12)
    held = hf.fit(load(make.counting([10.0], [50.0], [39], shapesys)))
    assert held.converged
    assert held.parameters["mu"] == 0.0
    # At μ = 0: (39 + τ) / (50 + τ) with τ = (50/7)².
    tau = (50 / 7) ** 2
    assert held.parameters["g[0]"] == pytest.approx((39 + tau) / (50 + tau), rel=1e-12)
    assert dict(zip(held.names, held.at_bound, strict=True)) == {"mu": True, "g[0]": False}
    assert held.uncertainties["mu"] == 0.0
    upper = {"name": "mu", "inits": [0.1], "bounds": [[0.0, 0.4]]}
    above = hf.fit(load(make.counting([10.0], [50.0], [61], shapesys, parameters=[upper])))
    assert above.converged
    assert above.parameters["mu"] == 0.4


def test_fixed_takes_names_values_and_false(make: Any) -> None:
    held = {"name": "k", "inits": [1.2], "fixed": True}
    systematics = [make.modifier("normfactor", "k"), make.normsys("a", 0.9, 1.1)]
    workspace = make.counting([10.0, 1], [50.0, 60.0], [61, 70], *systematics, parameters=[held])
    model = load(workspace)
    assert hf.fit(model).parameters["k"] == 1.2
    released = hf.fit(model, fixed={"k": False})
    assert released.converged
    assert released.parameters["k"] != 1.2
    by_names = hf.fit(model, fixed=["mu"])
    assert by_names.parameters["mu"] == 1.0
    assert hf.fit(model, fixed="mu").parameters == by_names.parameters
    assert hf.fit(model, fixed={"mu": True}).parameters == by_names.parameters
    at_value = hf.fit(model, fixed={"mu": 0.25, "k": False})
    assert at_value.parameters["mu"] == 0.25
    assert at_value.uncertainties["mu"] == 0.0
    assert at_value.nll > released.nll
    elsewhere = hf.fit(model, init={"mu": 3.0, "a": -1.0})
    assert elsewhere.nll == pytest.approx(hf.fit(model).nll, rel=1e-13)


def test_fixed_value_beyond_the_bounds_is_kept_or_refused(make: Any) -> None:
    """A limit may lie beyond the bounds of the signal strength; so may a scan."""
    model = load(make.counting([10.0], [50.0], [61], make.modifier("shapesys", "g", [7.0])))
    try:
        found = hf.fit(model, fixed={"mu": 20.0})
    except hf.ModelError:
        return
    assert found.parameters["mu"] == 20.0


# --- honesty --------------------------------------------------------------------------------------


def test_an_impossible_start_is_reported(make: Any) -> None:
    found = hf.fit(load(make.counting([10.0, 0.0], [50.0, 0.0], [61, 2])))
    assert found.status is hf.Status.IMPOSSIBLE_START
    assert "expects none" in found.status.message
    assert found.nll == np.inf


def with_an_empty_bin(make: Any, seed: int) -> tuple[Plain, float, float]:
    """A model whose second bin has no events, its μ̂, and what is then expected of this bin.

    The likelihood s₁μ + b₁ - n ln(s₁μ + b₁) + s₂μ + b₂ falls with the second bin for ever.
    """
    rng = np.random.default_rng(seed)
    s1, b1, b2, n = rng.uniform(2, 9), rng.uniform(2, 30), rng.uniform(0.1, 5), rng.integers(1, 40)
    s2 = rng.uniform(-1.3, 3) * s1
    bounds = {"name": "mu", "inits": [0.0], "bounds": [[-20.0, 20.0]]}
    # Without slope of the first bin, the upper bound holds μ.
    muhat = min(n / (s1 + s2) - b1 / s1, 20.0) if s1 + s2 > 0 else 20.0
    workspace = make.counting([s1, s2], [b1, b2], [n, 0], parameters=[bounds])
    return workspace, muhat, s2 * muhat + b2


@pytest.mark.parametrize("compiled", [False, True], ids=["NumPy", "JAX"])
def test_a_negative_expectation_of_a_bin_without_events_is_a_status_that_names_the_bin(
    make: Any, computing: Any, compiled: bool
) -> None:
    computing.by_programs() if compiled else computing.by_numpy()
    negative = 0
    for seed in range(30):
        workspace, muhat, expected = with_an_empty_bin(make, seed)
        found = hf.fit(load(workspace))
        assert found.parameters["mu"] == pytest.approx(muhat, rel=1e-7)
        if expected > 0:
            assert found.status is hf.Status.CONVERGED and not found.negative_bins
            continue
        negative += 1
        assert found.status is hf.Status.NEGATIVE_EXPECTATION and not found.converged
        ((channel, index, observed, given),) = found.negative_bins
        assert (channel, index, observed) == ("SR", 1, 0.0)
        assert given == pytest.approx(expected, rel=1e-6)
    assert 5 < negative < 25


def test_a_negative_expectation_has_the_same_status_in_batches_and_in_programs(make: Any) -> None:
    # s = (5, 2) over b = (20, 3): μ̂ = n/7 - 4, so the empty bin expects 3 + 2μ̂ < 0 for n < 17.5.
    bounds = {"name": "mu", "inits": [0.0], "bounds": [[-20.0, 20.0]]}
    workspace = make.counting([5.0, 2.0], [20.0, 3.0], [25, 0], parameters=[bounds])
    data = np.array([[n, m] for n in (4, 17, 18, 30) for m in (0, 2)], np.float64)
    wanted = [6, 0, 6, 0, 0, 0, 0, 0]
    model = load(workspace)
    assert [int(hf.fit(model, d).status_code) for d in data] == wanted
    assert hf.toys(model, data=data).status_code.tolist() == wanted
    with float64_scope():
        together = jax.jit(jax.vmap(lambda d: hf.fit(model, d).status_code))(data)
    assert together.tolist() == wanted
    assert not hf.discovery(model, data[0]).converged
    assert hf.cls(model, 1.0, data[0]).converged  # its fits keep μ ≥ 0
    assert not hf.cls(model, 1.0, data[0], test_statistic="q").converged


def test_an_expectation_without_limit_below_is_a_status(make: Any) -> None:
    """A test has no upper bound on the strength, and a negative signal in an empty bin."""
    found = hf.discovery(load(make.counting([5.0, -8.0], [20.0, 3.0], [25, 0])))
    assert found.free.status is hf.Status.NEGATIVE_EXPECTATION
    assert [(b.channel, b.bin) for b in found.free.negative_bins] == [("SR", 1)]


def test_status_of_random_models_with_empty_bins_follows_their_expectation(
    make: Any, computing: Any
) -> None:
    computing.by_numpy()
    seen = set()
    for seed in range(60):
        model = load(random_workspace(make, seed, 2.0, size=0.9))
        found = hf.fit(model)
        expected = hf.expected_data(model, found.values)[: model.n_bins]
        places = np.array([(name, i) for name in ("a", "b") for i in range(3)], object)
        below = [tuple(p) for p in places[(model.observed == 0) & (expected < -1e-8)]]
        assert [(b.channel, b.bin) for b in found.negative_bins] == below
        assert (found.status is hf.Status.NEGATIVE_EXPECTATION) == bool(below)
        seen.add(bool(below))
    assert seen == {False, True}


def test_parameter_without_effect_is_held_and_the_others_are_fitted(make: Any) -> None:
    nothing = make.sample("none", [0.0, 0.0], make.modifier("normfactor", "idle"))
    signal = make.sample("s", [10.0, 1.0], make.modifier("normfactor", "mu"))
    found = hf.fit(load(make.workspace([make.channel("SR", signal, nothing)], [[6, 7]])))
    assert found.converged
    assert found.is_free.tolist() == [0.0, 1.0]
    assert found.parameters["idle"] == 1.0
    assert found.parameters["mu"] == pytest.approx(13 / 11, rel=1e-12)


def test_two_factors_of_one_sample_are_not_reported_as_measured(make: Any) -> None:
    """Only their product is known: no fit may give both a value and a finite uncertainty."""
    both = [make.modifier("normfactor", "k1"), make.modifier("normfactor", "k2")]
    model = load(make.counting([10.0, 1.0], [50.0, 60.0], [61, 70], *both))
    measured = []
    for data in ([61, 70], [63, 41], [62, 62], [68, 71], [65, 71], [55, 65]):
        found = hf.fit(model, data)
        if found.converged and np.isfinite(found.uncertainties["k1"]):
            measured.append((data, found.parameters["k1"], found.uncertainties["k1"]))
    assert not measured


@pytest.mark.parametrize("codes", [("code4", "code4p"), ("code1", "code0"), ("code1", "code2")])
@pytest.mark.parametrize("kind", ["normsys", "histosys"])
def test_a_start_at_a_maximum_is_not_reported_as_a_minimum(
    make: Any, kind: str, codes: tuple[str, str]
) -> None:
    """Up and down variation equal: α = 0, where every fit starts, is stationary but no minimum."""
    systematic = (
        make.normsys("a", 1.3, 1.3)
        if kind == "normsys"
        else make.histosys("a", [70.0, 80.0], [70.0, 80.0])
    )
    model = load(make.counting([0.1, 0.0], [50.0, 60.0], [80, 90], systematic), interpolation=codes)
    found = hf.fit(model, fixed={"mu": 0.0})
    grid = [hf.nll(model, {"mu": 0.0, "a": a}) for a in np.linspace(-3, 3, 61)]
    assert found.converged
    assert found.nll <= min(grid) + 1e-9


def test_a_minimum_on_a_kink_is_found_or_reported_as_not_converged(make: Any) -> None:
    """Code 0 with a deficit: both directions of α add events, so the minimum is the kink itself."""
    systematic = make.histosys("a", [60.0, 75.0], [70.0, 80.0])
    workspace = make.counting([0.1, 0.0], [50.0, 60.0], [40, 50], systematic)
    model = load(workspace, interpolation=("code1", "code0"))
    found = hf.fit(model, fixed={"mu": 0.0}, init={"a": 0.7})
    lowest = hf.nll(model, {"mu": 0.0, "a": 0.0})
    assert not found.converged or found.nll <= lowest + 1e-9


@pytest.mark.parametrize(
    ("scale", "size", "statistics"),
    [
        (1.0, 0.8, (0.01, 0.3)),
        (50.0, 0.8, (0.01, 0.3)),
        (1e6, 0.1, (0.01, 0.3)),
        (1e6, 0.8, (0.01, 0.3)),
        (50.0, 0.2, (1e-6, 1e-6)),
    ],
    ids=["low-counts", "large-systematics", "1e6-counts", "1e6-counts-large", "tiny-sigma"],
)
def test_fifty_nasty_models_all_converge_and_none_to_a_false_minimum(
    make: Any, scale: float, size: float, statistics: tuple[float, float]
) -> None:
    unfinished, false_minima = [], []
    for seed in range(50):
        model = load(random_workspace(make, seed, scale, size, statistics=statistics))
        found = hf.fit(model)
        if found.status not in MINIMA:
            unfinished.append((seed, found.status.name, found.edm))
            continue
        # A minimum in the free directions, and no way down from the bounds.
        gradient, hessian = hf.gradient(model, found.values), hf.hessian(model, found.values)
        free = found.is_free > 0
        sigma = 1 / np.sqrt(np.diag(hessian)[free])
        slope = np.abs(gradient[free] * sigma).max()
        lowest = np.linalg.eigvalsh(hessian[np.ix_(free, free)] * np.outer(sigma, sigma))[0]
        downhill = np.where(found.values <= model.lower, -gradient, gradient)[found.at_bound]
        if slope > 1e-3 or lowest <= 0 or np.any(downhill > 0):
            false_minima.append((seed, slope, lowest, downhill))
    assert not false_minima
    assert not unfinished


@pytest.mark.parametrize("scale", [2.0, 60.0])
def test_three_hundred_toys_of_small_models_all_converge(make: Any, scale: float) -> None:
    stuck = []
    for seed in range(6):
        model = load(random_workspace(make, 100 + seed, scale))
        drawn = hf.toys(model, 25, key=seed, parameters={"mu": 1.0})
        failed = ~np.isin(drawn.status_code, MINIMA)
        stuck += [(seed, int(k), drawn.edm[k]) for k in np.flatnonzero(failed)]
        refitted = hf.fit(model, drawn.data[3], init=drawn.values[3])
        assert drawn.nll[3] == pytest.approx(refitted.nll, rel=1e-12)
    assert not stuck


def test_a_factor_of_a_bin_without_events_can_be_fitted(make: Any) -> None:
    """A shapefactor of an empty bin goes to its bound: nothing is expected there."""
    factor = make.modifier("shapefactor", "k")
    found = hf.fit(
        load(make.counting([0.1, 0.0], [50.0, 60.0], [40, 0], factor)), fixed={"mu": 0.0}
    )
    assert found.converged
    assert found.parameters["k[0]"] == pytest.approx(0.8, rel=1e-9)
    assert found.parameters["k[1]"] == pytest.approx(0.0, abs=1e-9)


def test_the_name_of_a_set_fixes_all_of_it_and_flags_may_be_numpy_bools(make: Any) -> None:
    model = load(
        make.counting(
            [9.0, 4.0], [50.0, 52.0], [62, 55], make.modifier("shapesys", "g", [4.0, 5.0])
        )
    )
    found = hf.fit(model, fixed=iter(["g"]))
    assert found.is_free.tolist() == [1.0 if name == "mu" else 0.0 for name in found.names]
    freed = hf.fit(model, fixed={"mu": np.False_})
    assert freed.values == pytest.approx(hf.fit(model).values)


def test_a_start_outside_the_bounds_is_moved_inside(make: Any) -> None:
    model = load(make.counting([9.0, 4.0], [50.0, 52.0], [62, 55]))
    assert hf.fit(model, init={"mu": -3.0}).values == pytest.approx(hf.fit(model).values)
