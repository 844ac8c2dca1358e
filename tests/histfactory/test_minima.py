"""Claims about the lowest minimum: found or said not to be proven; and flat directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_models import Likelihood, random_workspace

from firstlight import histfactory as hf
from firstlight.histfactory import branches

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),
]

#: Models in which a single search ends above the lowest minimum: two-sided systematics, factors
#: that trade places, one at a bound, a sample below zero.
HARD = (49, 164, 220, 453, 491, 540)


def lowest(seed: int, fixed: dict[str, float] | None = None) -> tuple[hf.Model, Likelihood, float]:
    workspace = random_workspace(seed)
    judge = Likelihood(workspace)
    height, _ = judge.lowest(judge.starts(np.random.default_rng(seed), 8), fixed)
    return hf.load(workspace), judge, height


@pytest.mark.parametrize("seed", range(900, 906))
def test_the_judge_has_the_same_likelihood(seed: int) -> None:
    workspace = random_workspace(seed)
    model, judge = hf.load(workspace), Likelihood(workspace)
    rng = np.random.default_rng(seed)
    differences = []
    for _ in range(4):
        theta = judge.start + 0.3 * judge.width * rng.normal(size=judge.n)
        ours = dict(zip(judge.names, theta, strict=True))
        values = [ours.get(name, ours.get(f"{name}[0]")) for name in model.parameter_names]
        differences.append(hf.nll(model, np.array(values)) - float(judge.nll(theta)))
    assert np.ptp(differences) < 1e-9 * max(1.0, abs(differences[0]))


@pytest.mark.parametrize("seed", [*HARD, 901, 902, 903, 904])
def test_no_fit_is_above_the_best_of_eight_starts_unless_it_says_so(
    seed: int, computing: Any
) -> None:
    computing.by_numpy()
    model, judge, best = lowest(seed)
    found = hf.fit(model)
    height = float(judge.nll(judge.in_order(found.names, found.values)))
    assert height <= best + 1e-6 or found.status is hf.Status.NOT_PROVEN_LOWEST


@pytest.mark.parametrize("seed", HARD[:4])
def test_all_functions_agree_on_the_free_minimum(seed: int, computing: Any) -> None:
    computing.by_numpy()
    model = hf.load(random_workspace(seed))
    best, found = hf.fit(model), hf.discovery(model)
    assert found.q0 >= 0
    assert found.conditional.nll >= found.free.nll - 1e-9
    scan = hf.scan(model, "mu", values=[0.0, 0.5, 1.0, 2.0])
    ranked = hf.impacts(model, parameters=[n for n in model.parameter_names if n != "mu"][:2])
    within = [best.nll, scan.best.nll, ranked.best.nll]
    if found.muhat < 10.0:  # its upper bound, which holds a fit but not a test
        within.append(found.free.nll)
    np.testing.assert_allclose(within, best.nll, rtol=0, atol=1e-9)
    assert np.nanmin(scan.twice_delta_nll) >= -2e-9


def test_the_smallest_model_with_a_minimum_below_zero_ends_there(make: Any) -> None:
    """At μ = 10 and α = 2.75 the signal is below zero; from the start one ends 0.55 above."""
    signal = make.sample(
        "signal",
        [211.0],
        make.modifier("normfactor", "mu"),
        make.histosys("sys0", [277.0], [133.0]),
        make.modifier("staterror", "stat", [4.51]),
    )
    background = make.sample("background", [162.0])
    model = hf.load(make.workspace([make.channel("SR", signal, background)], [[126.0]]))
    found = hf.fit(model)
    # In closed form but for α: ν = 162 + 10 (211 - 78 α) at the bound of μ.
    alpha = np.linspace(2.6, 2.9, 300001)
    nu = 162 + 10 * (211 - 78 * alpha)
    heights = nu - 126 * np.log(np.maximum(nu, 1e-9)) + 0.5 * alpha**2
    start = 162 - 126 * np.log(162)
    drop = hf.nll(model, {"mu": 0.0}) - found.nll
    assert drop == pytest.approx(start - heights[nu > 0].min(), abs=1e-4)  # γ moves a little
    assert found.parameters["mu"] == 10.0
    # A test may go beyond the bound, where the signal fits ever better: nothing is excluded.
    assert hf.cls(model, 50.0).observed > 0.5
    limit = hf.upper_limit(model)
    assert np.isnan(limit.observed) and not limit.converged


def test_a_fit_whose_searches_settle_nothing_says_so(
    computing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    computing.by_numpy()
    monkeypatch.setattr(branches, "MAX_STARTS", 3)
    found = hf.fit(hf.load(random_workspace(49)))
    assert found.status is hf.Status.NOT_PROVEN_LOWEST
    assert not found.converged and "lower" in found.status.message


# --- flat directions ------------------------------------------------------------------------------


def factor(name: str) -> dict[str, Any]:
    return {"name": name, "type": "normfactor", "data": None}


def flat_models(make: Any) -> dict[str, tuple[Any, set[str], str]]:
    """Workspaces, the parameters in their flat directions, and one that fixes the direction."""
    normsys = make.normsys("a", 0.9, 1.1)
    stat = make.modifier("staterror", "stat", [3.0, 4.0])

    def of(*samples: Any) -> Any:
        return make.workspace([make.channel("SR", *samples)], [[83.0, 76.0]])

    return {
        "a product": (
            of(
                make.sample("s", [10.0, 5.0], factor("mu"), factor("k")),
                make.sample("b", [50.0, 60.0], normsys, stat),
            ),
            {"mu", "k"},
            "k",
        ),
        "proportional samples": (
            of(
                make.sample("s", [10.0, 5.0], factor("mu")),
                make.sample("t", [20.0, 10.0], factor("k")),
                make.sample("b", [50.0, 60.0], normsys, stat),
            ),
            {"mu", "k"},
            "k",
        ),
        "a shapefactor": (
            of(
                make.sample("s", [10.0, 5.0], factor("mu"), normsys),
                make.sample("b", [50.0, 60.0], make.modifier("shapefactor", "free")),
            ),
            {"mu", "free[0]", "free[1]"},
            "mu",
        ),
    }


@pytest.mark.parametrize("name", ["a product", "proportional samples", "a shapefactor"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_flat_direction_is_found_named_and_leaves_the_rest_determined(
    make: Any, computing: Any, name: str, compiled: bool
) -> None:
    (computing.by_programs if compiled else computing.by_numpy)()
    workspace, moving, held = flat_models(make)[name]
    model = hf.load(workspace)
    found = hf.fit(model)
    assert found.status is hf.Status.NOT_DETERMINED
    assert found.iterations <= 10
    assert set(found.undetermined) == moving
    # The same fit where the direction is closed: everything else is as determined there.
    fixed = hf.fit(model, fixed={held: found.parameters[held]})
    assert fixed.converged
    assert found.nll == pytest.approx(fixed.nll, abs=1e-9)
    for parameter, sigma in found.uncertainties.items():
        if parameter in moving:
            assert np.isnan(sigma)
        else:
            assert sigma == pytest.approx(fixed.uncertainties[parameter], rel=1e-6)


def test_tests_of_a_model_with_a_flat_direction_are_those_of_pyhf(make: Any, judge: Any) -> None:
    import pyhf

    for workspace, *_ in flat_models(make).values():
        model, (peer, data) = hf.load(workspace), judge(workspace)
        found = hf.cls(model, 1.0)
        assert found.converged
        theirs, expected = pyhf.infer.hypotest(1.0, data, peer, return_expected=True)
        assert found.observed == pytest.approx(float(theirs), abs=1e-4)
        assert found.expected[2] == pytest.approx(float(expected), abs=1e-4)
