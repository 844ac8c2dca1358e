"""Claims about soft histograms, in JAX and in PyTorch: yields, mass, limits, gradients, bad input.

The oracle is the definition, in mpmath by plain loops: the yield of a bin is the sum over events of
weight times the integral of the kernel over the bin, whose outermost ends are at infinity unless
what lies outside is to leak.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, ndtr

from firstlight.losses import LossError, soft_histogram
from firstlight.torch import SoftHistogram

pytestmark = pytest.mark.slow

mp = mpmath.mp
EDGES = (-1.0, -0.25, 0.5, 1.5, 2.0)
#: None closer than 0.01 to an edge; two below all edges, one above.
SCORES = (-0.97, -0.6, -0.24, 0.1, 0.45, 0.51, 1.2, 1.9, -1.3, 2.4, -4.0)
WEIGHTS = (0.7, 1.3, 2.0, 0.4, -0.5, 1.1, 0.9, 3.0, 0.8, 1.7, 0.6)
BANDWIDTH = 0.3
KINDS = ("kde", "sigmoid")
OVERFLOW = ("drop", "clip", "leak")
WAYS = [(kind, overflow) for kind in KINDS for overflow in OVERFLOW]
every_way = pytest.mark.parametrize(("kind", "overflow"), WAYS)


def test_a_plain_call_compiles_one_program_and_a_second_none(compilations: Any) -> None:
    scores = np.linspace(-1, 2, 137)  # as many as in no other test
    compilations.reset()
    first = soft_histogram(scores, EDGES)
    assert compilations.count == 1
    np.testing.assert_array_equal(soft_histogram(scores, EDGES), first)
    assert compilations.count == 1


# --- the definition -------------------------------------------------------------------------------


def exact(
    scores: Any, edges: Any, weights: Any, bandwidth: Any, kind: str, overflow: str
) -> list[Any]:
    """Yields at the precision of mpmath."""

    def below(edge: Any, score: Any) -> Any:
        x = (mp.mpf(edge) - score) / bandwidth
        return mp.ncdf(x) if kind == "kde" else 1 / (1 + mp.exp(-x))

    yields = [mp.mpf(0)] * (len(edges) - 1)
    for score, weight in zip(scores, weights, strict=True):
        if overflow == "drop" and not edges[0] <= score <= edges[-1]:
            continue
        ends = [below(edge, score) for edge in edges]
        if overflow != "leak":
            ends[0], ends[-1] = mp.mpf(0), mp.mpf(1)
        for b in range(len(yields)):
            yields[b] += weight * (ends[b + 1] - ends[b])
    return yields


@cache
def exact_jacobian(kind: str, overflow: str) -> dict[str, np.ndarray]:
    """Derivatives [bin, argument] of all yields, by differences of 1e-15 at 50 digits."""
    with mpmath.workdps(50):
        start = {
            "scores": list(map(mp.mpf, SCORES)),
            "edges": list(map(mp.mpf, EDGES)),
            "weights": list(map(mp.mpf, WEIGHTS)),
            "bandwidth": [mp.mpf(BANDWIDTH)],
        }

        def at(name: str, place: int, shift: Any) -> list[Any]:
            moved = {k: list(v) for k, v in start.items()}
            moved[name][place] += shift
            return exact(
                moved["scores"],
                moved["edges"],
                moved["weights"],
                moved["bandwidth"][0],
                kind,
                overflow,
            )

        h, found = mp.mpf("1e-15"), {}
        for name, values in start.items():
            columns = []
            for place in range(len(values)):
                up, down = at(name, place, h), at(name, place, -h)
                columns.append([float((u - d) / (2 * h)) for u, d in zip(up, down, strict=True)])
            found[name] = np.array(columns).T
    return found


def plain(kind: str, overflow: str, scores: Any = SCORES, weights: Any = WEIGHTS) -> np.ndarray:
    with mpmath.workdps(40):
        return np.array(
            [float(y) for y in exact(scores, EDGES, weights, BANDWIDTH, kind, overflow)]
        )


def in_jax(
    scores: Any,
    edges: Any = EDGES,
    weights: Any = None,
    bandwidth: Any = "auto",
    kind: str = "kde",
    overflow: str = "drop",
) -> np.ndarray:
    return np.asarray(soft_histogram(scores, edges, weights, bandwidth, kind, overflow))


def in_torch(
    scores: Any,
    edges: Any = EDGES,
    weights: Any = None,
    bandwidth: Any = "auto",
    kind: str = "kde",
    overflow: str = "drop",
) -> np.ndarray:
    histogram = SoftHistogram(edges, bandwidth, kind, overflow=overflow)
    w = None if weights is None else torch.as_tensor(np.asarray(weights))
    return histogram(torch.as_tensor(np.asarray(scores)), w).numpy()


BOTH = pytest.mark.parametrize("histogram", [in_jax, in_torch])


# --- yields ---------------------------------------------------------------------------------------


@BOTH
@every_way
def test_yields_are_the_integrals_of_the_kernels_over_the_bins(
    histogram: Any, kind: str, overflow: str
) -> None:
    ours = histogram(SCORES, EDGES, WEIGHTS, BANDWIDTH, kind, overflow)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, plain(kind, overflow), rtol=1e-13, atol=1e-14)
    alone = histogram(SCORES, EDGES, None, BANDWIDTH, kind, overflow)
    np.testing.assert_allclose(alone, plain(kind, overflow, weights=[1.0] * 11), rtol=1e-13)


@every_way
def test_torch_and_jax_agree_to_1e_12(kind: str, overflow: str) -> None:
    rng = np.random.default_rng(5)
    scores, weights = rng.normal(0.5, 1.5, 1000), rng.uniform(0.1, 2.0, 1000)
    edges = (-1.5, -0.5, 0.0, 1.5, 2.5)
    for bandwidth in ("auto", 0.01, 3.0):
        one = in_jax(scores, edges, weights, bandwidth, kind, overflow)
        other = in_torch(scores, edges, weights, bandwidth, kind, overflow)
        np.testing.assert_allclose(other, one, rtol=1e-12)


@BOTH
def test_bandwidth_of_auto_is_half_the_mean_width_of_the_bins(histogram: Any) -> None:
    np.testing.assert_array_equal(histogram(SCORES), histogram(SCORES, bandwidth=0.5 * 3.0 / 4))
    wide = (-math.inf, *EDGES, math.inf)  # only bins with two ends have a width
    np.testing.assert_array_equal(
        histogram(SCORES, wide), histogram(SCORES, wide, bandwidth=0.5 * 3.0 / 4)
    )


@BOTH
def test_float32_scores_are_counted_in_float64(histogram: Any) -> None:
    scores, weights = np.float32(SCORES), np.float32(WEIGHTS)
    ours = histogram(scores, EDGES, weights, BANDWIDTH)
    assert ours.dtype == np.float64
    # The oracle sees the rounded numbers: nothing else is lost.
    inputs = [float(x) for x in scores], [float(w) for w in weights]
    np.testing.assert_allclose(ours, plain("kde", "drop", *inputs), rtol=1e-13, atol=1e-14)


@BOTH
def test_integers_and_plain_lists_are_scores_too(histogram: Any) -> None:
    whole = [0, 1, -1, 0, 0, 1, 2, 1, 1, 0, 2]
    as_numbers = histogram(np.array(whole, np.float64), EDGES)
    np.testing.assert_array_equal(histogram(np.array(whole), EDGES), as_numbers)
    np.testing.assert_array_equal(soft_histogram(whole, list(EDGES)), in_jax(np.float64(whole)))


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_infinite_outer_edges_hold_all_events_under_every_policy(histogram: Any, kind: str) -> None:
    open_ended = (-math.inf, *EDGES[1:-1], math.inf)
    wanted = plain(kind, "clip")
    for overflow in OVERFLOW:
        found = histogram(SCORES, open_ended, WEIGHTS, BANDWIDTH, kind, overflow)
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-14)


@BOTH
def test_an_infinite_score_is_in_the_unbounded_bin(histogram: Any) -> None:
    edges = (-math.inf, 0.0, 1.0, 2.0, math.inf)
    scores = np.array([math.inf, -math.inf, math.inf, 0.5, *[1.5] * 7])
    found = histogram(scores, edges, None, 1e-3)
    np.testing.assert_allclose(found, [1.0, 1.0, 7.0, 2.0], atol=1e-14)


# --- mass -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_counted_events_lose_no_weight(histogram: Any, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(0.5, 1.5, 1000).astype(dtype)
    weights = rng.uniform(0.1, 2.0, 1000).astype(dtype)
    inside = (scores >= EDGES[0]) & (scores <= EDGES[-1])
    assert 200 < inside.sum() < 900
    kept = math.fsum(map(float, weights[inside]))
    everything = math.fsum(map(float, weights))
    for bandwidth in ("auto", 1e-6, 10.0):
        drop = histogram(scores, EDGES, weights, bandwidth, kind, "drop")
        clip = histogram(scores, EDGES, weights, bandwidth, kind, "clip")
        assert math.fsum(drop) == pytest.approx(kept, rel=1e-12)
        assert math.fsum(clip) == pytest.approx(everything, rel=1e-12)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    """XLA rounds numbers below 2.2e-308 to zero, which may be on the other side of an edge."""
    return st.floats(low, high, allow_subnormal=False)


#: Fixed shapes, because JAX compiles its operations for every new one.
numbers = st.lists(floats(-1e3, 1e3), min_size=11, max_size=11).map(np.array)
signed = st.lists(floats(-1e2, 1e2), min_size=11, max_size=11).map(np.array)
bins = st.tuples(floats(-500, 500), st.lists(st.floats(1e-3, 300.0), min_size=4, max_size=4)).map(
    lambda drawn: np.concatenate([[drawn[0]], drawn[0] + np.cumsum(drawn[1])])
)


@BOTH
@settings(max_examples=60, deadline=None)
@given(
    scores=numbers,
    weights=signed,
    edges=bins,
    bandwidth=st.floats(1e-6, 1e3),
    kind=st.sampled_from(KINDS),
)
def test_mass_is_conserved_to_1e_12_for_any_scores_edges_weights_and_bandwidth(
    histogram: Any, scores: Any, weights: Any, edges: Any, bandwidth: float, kind: str
) -> None:
    scale = math.fsum(np.abs(weights)) + 1e-300
    clip = histogram(scores, edges, weights, bandwidth, kind, "clip")
    assert abs(math.fsum(clip) - math.fsum(weights)) <= 1e-12 * scale
    inside = (scores >= edges[0]) & (scores <= edges[-1])
    if inside.any():
        drop = histogram(scores, edges, weights, bandwidth, kind, "drop")
        assert abs(math.fsum(drop) - math.fsum(weights[inside])) <= 1e-12 * scale
    positive = histogram(scores, edges, np.abs(weights), bandwidth, kind, "leak")
    assert math.fsum(positive) <= scale * (1 + 1e-12)
    assert np.all(positive >= 0)


# --- the hard histogram ---------------------------------------------------------------------------


def hard(overflow: str, scores: Any, weights: Any) -> np.ndarray:
    counted = np.clip(scores, EDGES[0], EDGES[-1]) if overflow == "clip" else np.asarray(scores)
    return np.histogram(counted, EDGES, weights=weights)[0]


@BOTH
@every_way
def test_narrow_kernels_tend_to_the_hard_histogram(
    histogram: Any, kind: str, overflow: str
) -> None:
    wanted = hard(overflow, SCORES, WEIGHTS)
    distance = np.abs(np.subtract.outer(SCORES, EDGES)).min(axis=1)
    for width in (0.3, 0.1, 0.03, 0.01, 0.003):
        # What an event has in a wrong bin, or lacks in its own, is beyond one of two edges.
        tail = ndtr(-distance / width) if kind == "kde" else expit(-distance / width)
        bound = 2 * np.abs(WEIGHTS) @ tail
        ours = histogram(SCORES, EDGES, WEIGHTS, width, kind, overflow)
        assert np.abs(ours - wanted).max() <= bound + 1e-14
    ours = histogram(SCORES, EDGES, WEIGHTS, 1e-6, kind, overflow)
    np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-14)


@BOTH
def test_dropped_events_count_nowhere_and_clipped_ones_at_the_ends(histogram: Any) -> None:
    inside = np.array([0.1] * 11)
    scores = np.array([-9.0, 0.1, 7.0, 8.0, *inside[4:]])
    drop = histogram(scores, EDGES, None, BANDWIDTH, "kde", "drop")
    alone = histogram(inside, EDGES, None, BANDWIDTH, "kde", "drop")
    np.testing.assert_allclose(drop, 8 / 11 * alone, rtol=1e-13)
    clip = histogram(scores, EDGES, None, BANDWIDTH, "kde", "clip")
    np.testing.assert_allclose(clip - drop, [1.0, 0.0, 0.0, 2.0], atol=1e-12)
    leak = histogram(scores, EDGES, None, BANDWIDTH, "kde", "leak")
    assert leak.sum() < drop.sum()


@BOTH
@every_way
def test_a_nan_score_raises_wherever_it_is(histogram: Any, kind: str, overflow: str) -> None:
    for place in range(0, len(SCORES), 5):
        scores = np.array(SCORES)
        scores[place] = math.nan
        for edges in (EDGES, EDGES[:2]):
            with pytest.raises(LossError, match="scores: 1 of 11 are NaN"):
                histogram(scores, edges, WEIGHTS, BANDWIDTH, kind, overflow)


def test_a_nan_score_raises_under_derivatives_outside_jit() -> None:
    broken = np.array([math.nan, *SCORES])

    def second(x: Any) -> Any:
        return soft_histogram(x, EDGES, None, BANDWIDTH)[1]

    ways = (
        jax.grad(second),
        jax.value_and_grad(second),
        jax.grad(lambda x: jax.grad(second)(x)[1]),
    )
    for way in ways:
        with jax.enable_x64(True), pytest.raises(LossError, match="NaN"):
            way(broken)
    with pytest.raises(LossError, match="NaN"):
        jax.vmap(second)(np.stack([broken, np.nan_to_num(broken)]))


@every_way
def test_a_nan_score_makes_every_bin_nan_where_it_cannot_be_inspected(
    kind: str, overflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = np.array([0.25, math.nan, 0.375])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for edges in (EDGES, EDGES[1:3]):
        program = jax.jit(lambda x, e=edges: soft_histogram(x, e, None, BANDWIDTH, kind, overflow))
        assert np.all(np.isnan(program(broken)))
        compiled = in_torch(broken, edges, None, BANDWIDTH, kind, overflow)
        assert np.all(np.isnan(compiled))
        whole = in_torch(broken[::2], edges, None, BANDWIDTH, kind, overflow)
        np.testing.assert_allclose(whole, program(broken[::2]), rtol=1e-12, atol=1e-14)


@BOTH
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_and_weights_of_half_precision_are_counted_in_float64(
    histogram: Any, dtype: str
) -> None:
    make = jnp.asarray if histogram is in_jax else torch.tensor
    half = getattr(jnp if histogram is in_jax else torch, dtype)
    scores, weights = (make(v, dtype=half) for v in (SCORES, WEIGHTS))
    if histogram is in_jax:
        found = soft_histogram(scores, EDGES, weights, BANDWIDTH)
        same = [np.asarray(v, np.float64) for v in (scores, weights)]
    else:
        scores.requires_grad_()
        found = SoftHistogram(EDGES, BANDWIDTH)(scores, weights)
        found.sum().backward()
        assert scores.grad.dtype == half
        found, same = found.detach(), [v.detach().double().numpy() for v in (scores, weights)]
    assert found.dtype in (jnp.float64, torch.float64)
    np.testing.assert_allclose(found, plain("kde", "drop", *same), rtol=1e-12, atol=1e-14)


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "overflow", "wide"),
    [*((*way, True) for way in WAYS), ("kde", "drop", False), ("sigmoid", "leak", False)],
)
def test_jax_derivatives_match_differences_at_50_digits(
    kind: str, overflow: str, wide: bool
) -> None:
    with jax.enable_x64(True):  # 64-bit arrays, which a 32-bit program may be given
        inputs = [jnp.asarray(x, jnp.float64) for x in (SCORES, EDGES, WEIGHTS, BANDWIDTH)]
        units = list(jnp.eye(len(EDGES) - 1))

    def yields(scores: Any, edges: Any, weights: Any, bandwidth: Any) -> Any:
        return soft_histogram(scores, edges, weights, bandwidth, kind, overflow)

    with jax.enable_x64(wide):
        transpose = jax.vjp(yields, *inputs)[1]
        rows = [transpose(unit) for unit in units]
    wanted = exact_jacobian(kind, overflow)
    for k, name in enumerate(("scores", "edges", "weights", "bandwidth")):
        ours = np.stack([np.atleast_1d(np.asarray(row[k])) for row in rows])
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, wanted[name], rtol=1e-11, atol=1e-13, err_msg=name)


@every_way
def test_torch_derivatives_match_differences_at_50_digits(kind: str, overflow: str) -> None:
    histogram = SoftHistogram(EDGES, BANDWIDTH, kind, overflow=overflow)
    scores = torch.tensor(SCORES, dtype=torch.float64)
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    by_scores, by_weights = torch.autograd.functional.jacobian(histogram, (scores, weights))
    wanted = exact_jacobian(kind, overflow)
    np.testing.assert_allclose(by_scores, wanted["scores"], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(by_weights, wanted["weights"], rtol=1e-11, atol=1e-13)


@every_way
def test_torch_histogram_passes_gradcheck_and_gradgradcheck(kind: str, overflow: str) -> None:
    histogram = SoftHistogram(EDGES, BANDWIDTH, kind, overflow=overflow)
    scores = torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor(WEIGHTS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(histogram, (scores, weights))
    assert torch.autograd.gradgradcheck(histogram, (scores, weights))


def test_float32_scores_get_float32_gradients() -> None:
    x = jnp.asarray(SCORES, jnp.float32)
    gradient = jax.grad(lambda s: soft_histogram(s, EDGES)[1].astype(jnp.float32))(x)
    assert gradient.dtype == jnp.float32
    scores = torch.tensor(SCORES, dtype=torch.float32, requires_grad=True)
    SoftHistogram(EDGES)(scores)[1].backward()
    assert scores.grad.dtype == torch.float32
    np.testing.assert_allclose(scores.grad, gradient, rtol=1e-6, atol=1e-8)


def test_gradient_of_a_dropped_event_is_zero_and_of_the_others_unchanged() -> None:
    scores = np.array([-9.0, *SCORES])
    with jax.enable_x64(True):

        def second(x: Any) -> Any:
            return soft_histogram(x, EDGES, None, BANDWIDTH)[1]

        in_jax_ = np.asarray(jax.grad(second)(scores))
    leaf = torch.tensor(scores, requires_grad=True)
    SoftHistogram(EDGES, BANDWIDTH)(leaf)[1].backward()
    wanted = exact_jacobian("kde", "drop")["scores"][1] / np.array(WEIGHTS)
    for ours in (in_jax_, leaf.grad.numpy()):
        np.testing.assert_allclose(ours, [0.0, *wanted], rtol=1e-11, atol=1e-13)
        assert np.all(ours[[0, 9, 10, 11]] == 0)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jacfwd
@every_way
def test_torch_func_derivatives_match_differences_at_50_digits(kind: str, overflow: str) -> None:
    histogram = SoftHistogram(EDGES, BANDWIDTH, kind, overflow=overflow)
    given = tuple(torch.tensor(v, dtype=torch.float64) for v in (SCORES, WEIGHTS))
    wanted = exact_jacobian(kind, overflow)
    for way in (torch.func.jacrev, torch.func.jacfwd):
        for found, name in zip(way(histogram, (0, 1))(*given), ("scores", "weights"), strict=True):
            np.testing.assert_allclose(found, wanted[name], rtol=1e-11, atol=1e-13)


def test_torch_vmap_fills_one_histogram_per_row_and_inspects_each() -> None:
    histogram = SoftHistogram(EDGES, BANDWIDTH)
    rows, weights = torch.tensor([SCORES, SCORES[::-1]]), torch.tensor(WEIGHTS)
    found = torch.func.vmap(histogram, (0, None))(rows, weights)
    torch.testing.assert_close(found, torch.stack([histogram(row, weights) for row in rows]))
    with pytest.raises(LossError, match="1 of 11 are NaN"):
        torch.func.vmap(histogram)(torch.where(rows == rows[0, 0], math.nan, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_far_out_and_with_infinite_edges(kind: str) -> None:
    scores = np.array([-1e6, 0.3, 1e6, 0.7])
    open_ended = (-math.inf, 0.0, 1.0, math.inf)
    for edges, overflow in ((open_ended, "drop"), (open_ended, "leak"), (EDGES[:4], "clip")):
        with jax.enable_x64(True):
            by_scores = jax.jacrev(
                lambda x, e=edges, o=overflow: soft_histogram(x, e, None, 1e-3, kind, o)
            )(scores)
        leaf = torch.tensor(scores, requires_grad=True)
        found = SoftHistogram(edges, 1e-3, kind, overflow=overflow)(leaf)
        (by_torch,) = torch.autograd.grad(found @ torch.arange(1.0, len(edges)).double(), leaf)
        assert np.all(np.isfinite(by_scores))
        np.testing.assert_allclose(
            by_torch, np.arange(1.0, len(edges)) @ np.asarray(by_scores), atol=1e-12
        )


def test_histogram_goes_through_jit_and_vmap_of_a_32_bit_program() -> None:
    rng = np.random.default_rng(2)
    many = rng.normal(0.5, 1.0, (3, 11)).astype(np.float32)
    rows = jax.jit(jax.vmap(lambda s: soft_histogram(s, EDGES, None, BANDWIDTH)))(many)
    assert rows.dtype == jnp.float64
    for row, scores in zip(rows, many, strict=True):
        np.testing.assert_allclose(row, in_jax(scores, EDGES, None, BANDWIDTH), rtol=1e-13)


# --- the PyTorch module ---------------------------------------------------------------------------


def test_module_reports_its_bins_and_keeps_its_edges_when_cast() -> None:
    histogram = SoftHistogram(torch.tensor(EDGES, dtype=torch.float64), 0.25, "sigmoid")
    assert histogram.n_bins == 4
    np.testing.assert_array_equal(histogram.bin_edges, EDGES)
    np.testing.assert_allclose(histogram.bin_centers, [-0.625, 0.125, 1.0, 1.75], rtol=1e-15)
    assert "4 bins" in repr(histogram)
    thirds = (0.0, 1 / 3, 2 / 3, 1.0)  # not numbers of float32
    network = torch.nn.Sequential(torch.nn.Identity(), SoftHistogram(thirds, 0.01))
    scores = torch.linspace(0.01, 0.99, 7, dtype=torch.float64)
    before = network(scores)
    torch.testing.assert_close(network.float()(scores), before, rtol=0, atol=0)
    torch.testing.assert_close(network.half()(scores), before, rtol=0, atol=0)
    assert list(network.state_dict()) == []
    assert list(network.parameters()) == []


# --- bad input ------------------------------------------------------------------------------------

GOOD = np.array([0.1, 0.2, 0.3])
BAD = {
    "edges that stay": ((GOOD, (0.0, 0.5, 0.5, 1.0)), "edges.*increase"),
    "edges that fall": ((GOOD, (0.0, 1.0, 0.5)), r"edges\[1\] = 1, then 0.5"),
    "edges that are no numbers": ((GOOD, (0.0, math.nan, 1.0)), "edges.*increase"),
    "edges of words": ((GOOD, ("low", "high")), "edges must be numbers"),
    "one edge": ((GOOD, (0.0,)), "edges have shape"),
    "rows of edges": ((GOOD, ((0.0, 1.0), (1.0, 2.0))), "edges have shape"),
    "a bin without ends": ((GOOD, (-math.inf, math.inf)), "edges"),
    "all scores outside": ((GOOD + 9.0, EDGES), "scores.*outside.*clip"),
    "only scores that are no numbers": ((GOOD * math.nan, EDGES), "scores: 3 of 3 are NaN"),
    "an empty batch": ((np.zeros(0), EDGES), "scores are empty"),
    "one score without an axis": ((np.array(0.3), EDGES), r"scores have shape \(\)"),
    "a column of scores": ((GOOD[:, None], EDGES), r"scores have shape \(3, 1\).*scores\[:, 0\]"),
    "complex scores": ((GOOD.astype(complex), EDGES), "scores are complex"),
    "fewer weights": ((GOOD, EDGES, GOOD[:2]), r"weights have shape \(2,\), scores \(3,\)"),
    "a column of weights": ((GOOD, EDGES, GOOD[:, None]), "weights have shape"),
    "a bandwidth of zero": ((GOOD, EDGES, None, 0.0), "bandwidth is 0.0"),
    "a negative bandwidth": ((GOOD, EDGES, None, -0.1), "bandwidth is -0.1"),
    "a bandwidth that is no number": ((GOOD, EDGES, None, math.nan), "bandwidth"),
    "an infinite bandwidth": ((GOOD, EDGES, None, math.inf), "bandwidth"),
    "a bandwidth of nothing": ((GOOD, EDGES, None, None), "bandwidth is None"),
    "an unknown bandwidth": ((GOOD, EDGES, None, "silverman"), "bandwidth is 'silverman'.*auto"),
    "no width for auto": ((GOOD, (-math.inf, 0.0, math.inf)), 'bandwidth="auto"'),
    "an unknown policy": ((GOOD, EDGES, None, "auto", "kde", "wrap"), "overflow.*'drop', 'clip'"),
}


@BOTH
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_rejected_with_the_name_of_the_argument(histogram: Any, case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(LossError, match=message):
        histogram(*arguments)


def test_unknown_kernel_is_rejected_by_the_name_that_each_framework_gives_it() -> None:
    with pytest.raises(LossError, match=r"kind is 'box', not one of 'kde', 'sigmoid'"):
        soft_histogram(GOOD, EDGES, kind="box")
    with pytest.raises(LossError, match=r"mode is 'box', not one of 'kde', 'sigmoid'"):
        SoftHistogram(EDGES, mode="box")


def test_words_and_edges_without_a_bandwidth_are_rejected_in_jax() -> None:
    with pytest.raises(LossError, match="scores must be numbers"):
        soft_histogram(["high", "low"], EDGES)
    with pytest.raises(LossError, match="weights must be numbers"):
        soft_histogram(GOOD, EDGES, ["a", "b", "c"])
    with pytest.raises(LossError, match=r"bandwidth.*number"):
        jax.grad(lambda e: soft_histogram(GOOD, e)[0])(jnp.asarray(EDGES))


def test_lists_and_two_devices_are_rejected_in_torch() -> None:
    histogram = SoftHistogram(EDGES)
    with pytest.raises(LossError, match="scores must be a tensor, not list"):
        histogram([0.1, 0.2])
    with pytest.raises(LossError, match="weights must be a tensor, not list"):
        histogram(torch.tensor(GOOD), [1.0, 1.0, 1.0])
    with pytest.raises(LossError, match="weights are on meta, scores on cpu"):
        histogram(torch.tensor(GOOD), torch.ones(3, device="meta"))


def test_error_is_a_value_error() -> None:
    assert issubclass(LossError, ValueError)
