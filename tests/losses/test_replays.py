"""Replays on a CPU; on a GPU `benchmarks/losses_gpu.py` holds them against the CPU's numbers."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.slow


def test_functions_on_a_cpu_run_unrecorded_and_keep_their_derivatives():
    from firstlight.torch.replays import Replays

    replays, x = Replays(), torch.ones(3, requires_grad=True)
    for _ in range(3):
        value, nothing = replays.run(lambda t, none: ((t**2).sum(), none), x, None)
        assert nothing is None
        (slope,) = torch.autograd.grad(value, x)
        assert torch.equal(slope, 2 * x)


def test_a_used_histogram_can_be_copied_and_saved():
    from firstlight.torch import SoftHistogram

    histogram = SoftHistogram(np.linspace(0, 1, 5))
    scores = torch.linspace(0.1, 0.9, 7)
    wanted = histogram(scores)
    for other in (copy.deepcopy(histogram), pickle.loads(pickle.dumps(histogram))):
        assert torch.equal(other(scores), wanted)


def test_a_session_continues_after_its_last_fits_were_lost():
    """The program writes over the memory of the last fits: a call that broke off leaves none."""
    from firstlight.histfactory import synthetic
    from firstlight.torch import create_profiled_session, from_pyhf, profiled_q0_loss

    session = create_profiled_session(from_pyhf(synthetic.preset("complex-8p")))
    histogram = torch.full((session.signal_n_bins(),), 5.0, dtype=torch.float64)
    first = profiled_q0_loss(histogram, session)
    session._near.clear()
    again = profiled_q0_loss(histogram, session)
    assert float(again) == pytest.approx(float(first), rel=1e-12)
    assert session._near


def test_loops_are_not_part_of_gpu_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's graphs of loops gave wrong fits; `benchmarks/losses_gpu.py` sees that on a GPU."""
    from firstlight.torch import programs

    asked: list[dict[str, object]] = []

    def jit(function: object, compiler_options: dict[str, object]) -> object:
        asked.append(compiler_options)
        return function

    monkeypatch.setattr(programs.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(programs.jax, "jit", jit)
    programs._options.__wrapped__()
    (options,) = asked
    assert "WHILE" not in str(options["xla_gpu_enable_command_buffer"]).split(",")
