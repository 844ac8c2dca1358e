"""Claims about the edges of the losses: unequal templates, infinities, factors, failed steps."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from firstlight import histfactory as hf
from firstlight import losses
from firstlight import torch as ft
from firstlight.histfactory.programs import compiler_options
from firstlight.losses import LossError, soft_histogram

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(make: Any) -> hf.Model:
    xs = make.normsys("xs", 0.9, 1.1)
    sig = make.sample("signal", [6.0, 9.0], make.modifier("normfactor", "mu"))
    sr = make.channel("SR", sig, make.sample("background", [50.0, 40.0], xs))
    cr = make.channel("CR", make.sample("background", [100.0], xs))
    return hf.load(make.workspace([sr, cr], [[60.0, 55.0], [104.0]]))


#: Of two bins, of three, and a number.
UNEQUAL: dict[Any, Any] = {
    "signal": np.array([6.0, 9.0]),
    "background": np.array([100.0, 50.0, 40.0]),
    ("SR", "background", "xs", "hi"): np.array(1.1),
}


def test_templates_of_different_lengths_have_gradients_together(model: hf.Model) -> None:
    value, slopes = jax.value_and_grad(
        lambda *given: losses.q0(model, dict(zip(UNEQUAL, given, strict=True))), (0, 1, 2)
    )(*map(jnp.asarray, UNEQUAL.values()))
    assert float(value) == pytest.approx(losses.q0(model, UNEQUAL), rel=1e-6)
    assert [slope.shape for slope in slopes] == [(2,), (3,), ()]


def test_templates_of_different_lengths_go_into_the_torch_loss(model: hf.Model) -> None:
    given = {key: torch.tensor(values) for key, values in UNEQUAL.items()}
    found = float(ft.profiled_q0_loss(given, ft.Session(model)))
    assert found == pytest.approx(losses.q0(model, UNEQUAL), rel=1e-12)


def test_infinite_yields_are_rejected_by_the_nll(model: hf.Model) -> None:
    with pytest.raises(LossError, match="infinite"):
        ft.nll_loss(torch.tensor([1.0, math.inf], dtype=torch.float64), ft.Session(model))


def test_gradient_with_respect_to_bandwidth_is_finite_with_infinite_edges_that_leak() -> None:
    edges = (-math.inf, 0.0, 1.0, math.inf)
    with jax.enable_x64(True):
        slope = jax.jacrev(
            lambda b: soft_histogram(np.array([0.3, 0.5]), edges, None, b, "kde", "leak")
        )(0.1)
        same = jax.jacrev(
            lambda b: soft_histogram(np.array([0.3, 0.5]), edges, None, b, "kde", "clip")
        )(0.1)
    np.testing.assert_allclose(slope, same)


@pytest.mark.parametrize("factor", [0.0, -0.1])
def test_a_rate_at_or_below_zero_is_rejected(model: hf.Model, factor: float) -> None:  # both
    key = ("SR", "background", "xs", "hi")
    with pytest.raises(LossError, match="xs"):
        losses.q0(model, {key: factor})
    with pytest.raises(LossError, match="xs"):
        ft.profiled_q0_loss({key: torch.tensor(factor, dtype=torch.float64)}, ft.Session(model))


def test_a_function_of_a_skipped_step_has_zero_gradient(make: Any) -> None:
    sig = make.sample("signal", [5.0, 3.0], make.modifier("normfactor", "mu"))
    model = hf.load(
        make.workspace(
            [make.channel("SR", sig, make.sample("background", [20.0, 10.0]))], [[27.0, 14.0]]
        )
    )
    loss = ft.SignificanceLoss(model, ["signal", "background"], on_failure="skip")
    h = torch.tensor([5.0, 3.0, 20.0, 0.0], dtype=torch.float64, requires_grad=True)
    with pytest.warns(RuntimeWarning):
        (loss(h) ** 2).backward()
    assert np.all(h.grad.numpy() == 0)


def test_a_factor_of_a_sample_that_has_no_such_normsys_is_rejected(make: Any) -> None:
    only = make.normsys("only", 0.9, 1.1)
    signal = make.sample("signal", [6.0], make.modifier("normfactor", "mu"), only)
    channel = make.channel("SR", signal, make.sample("background", [50.0]))
    model = hf.load(make.workspace([channel], [[60.0]]))
    with pytest.raises(
        hf.ModelError, match="sample 'background' has no normsys or histosys 'only'"
    ):
        losses.q0(model, {("SR", "background", "only", "hi"): 1.2})


def test_a_histogram_first_used_for_inference_can_be_used_in_training() -> None:
    histogram = ft.SoftHistogram([0.0, 0.5, 1.0])
    with torch.inference_mode():
        histogram(torch.tensor([0.2, 0.7]))
    scores = torch.tensor([0.2, 0.7], requires_grad=True)
    histogram(scores)[0].backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()


def test_a_used_loss_can_be_copied_and_pickled(model: hf.Model) -> None:
    loss = ft.SignificanceLoss(model)
    signal = torch.tensor([6.0, 9.0], dtype=torch.float64)
    value = loss(signal)
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert float(other(signal)) == pytest.approx(float(value), rel=1e-12)


def test_arrays_of_any_stride_become_tensors() -> None:
    assert ft.as_tensor(np.arange(3.0)[::-1]).tolist() == [2.0, 1.0, 0.0]


def test_negative_yields_inside_jit_give_nan_and_not_converged(model: hf.Model) -> None:
    def both(signal: Any) -> Any:
        return losses.statistic_and_state(model, {"signal": signal}, objective="asimov")

    compiled = jax.jit(both, compiler_options=compiler_options())
    value, state = compiled(jnp.array([-40.0, 30.0]))
    assert math.isnan(float(value)) and not bool(state.converged)
    value, state = compiled(jnp.array([4.0, 30.0]))
    assert float(value) > 0 and bool(state.converged)


def test_a_bandwidth_below_the_resolution_of_float64_is_rejected() -> None:
    for make_one in (ft.SoftHistogram, lambda e, b: soft_histogram([0.1], e, None, b)):
        with pytest.raises(LossError, match="bandwidth"):
            make_one([0.0, 0.1, 0.2], 1e-17)
