"""The real PyTorch: torch.compile's own cache, proven like JAX's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from needed_processes import timed_samples

from firstlight.measure.case_selection import select
from firstlight.measure.process import Outcome
from firstlight.measure.user_file import cases_in
from firstlight.records import Case, Sample, Settings
from firstlight.workloads.catalog import registered

pytestmark = pytest.mark.slow

BRIEF = Settings(1, 20, 5, 0.1, 2, 0.001, 280.0, None, 0)


def measured(cases: Sequence[Case]) -> dict[str, Sample]:
    """The timed sample of each policy."""
    return {case.rsplit("/")[-1]: one for case, one in timed_samples(cases, BRIEF).items()}


def test_eager_pytorch_has_no_compile_phases_and_no_cache() -> None:
    backends, workloads = registered()
    (case,) = select("matmul", workloads, backends, ["torch-eager"], ["warm"], "small")
    sample = measured([replace(case, reference=None)])["none"]
    assert sample.status == "ok" and sample.cold is not None and sample.cache is not None
    assert sample.cold.phases_seconds["compile"] is None
    assert sample.counts["compiles"] is None and sample.cache.requests is None


#: Products only, forwards and backwards: no C++ is generated, which takes most of the time.
TRAIN = """
import torch
from firstlight import bench

@bench
def train():
    product = torch.compile(lambda w, x: w @ x)
    def step(w):
        w = w.detach().requires_grad_()
        product(w, torch.eye(8)).backward(torch.eye(8))
        return w.grad
    return step, (torch.eye(8),)
"""


def found_in_train(*_: Any) -> Outcome:
    """What a process that imports `TRAIN` reports; `test_process` tests that it does."""
    benchmark = {"function": "train", "reference": False}
    report = {"benchmarks": [benchmark], "frameworks": ["torch"]}
    return Outcome(0, None, report, 0, False, False, "")


def test_every_policy_of_torch_compile_is_proven_and_no_phase_of_a_compiled_backward_is_negative(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    policies = ("none", "cold", "warm")
    found = measured(cases_in(path, registered()[0], None, policies, found_in_train))
    assert {policy: (s.status, s.reason) for policy, s in found.items()} == dict.fromkeys(
        policies, ("ok", None)
    )
    none, cold, warm = (found[policy].cache for policy in policies)
    assert none is not None and cold is not None and warm is not None
    assert none.requests == 0
    assert cold.entries_before == 0 and cold.entries_after and cold.hits == 0
    # Looked up twice: the forward graph and the backward one.
    assert warm.requests == warm.hits == 2 and warm.entries_after == warm.entries_before
    for sample in found.values():
        assert sample.cold is not None and sample.counts["compiles"] == 1
        phases = sample.cold.phases_seconds
        assert all(seconds is None or seconds >= 0 for seconds in phases.values()), phases
        for phase in ("trace", "lower", "compile"):
            seconds = phases[phase]
            assert seconds is not None and seconds < sample.cold.total_seconds
    assert found["none"].cold is not None
    phases = found["none"].cold.phases_seconds
    assert (phases["compile"] or 0) > (phases["first_execute"] or 0)
