"""Policies of Firstlight's own: what a real process shows of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from firstlight.measure.case_selection import SAMPLING, SelectionError, select
from firstlight.measure.runner import Runner
from firstlight.measure.user_file import UserFileError, cases_in
from firstlight.records import CacheProof, Sample, jobs
from firstlight.snapshot.plausibility import unproven_labels
from firstlight.workloads.catalog import registered

POLICIES = ("shared", "frozen", "tiered")


@pytest.mark.slow
def test_processes_prove_the_policies_shared_frozen_and_tiered() -> None:
    backends, workloads = registered()
    cases = select("matmul", workloads, backends, ["jax-jit"], POLICIES, "small")
    # Without the check process, which computes the reference: that is the same for all policies.
    cases = [replace(case, reference=None) for case in cases]
    settings = replace(SAMPLING["quick"], processes=1, warm_seconds=0.01, batches=1)
    kept: list[Sample] = []
    with Runner(cases, settings, kept.append) as runner:
        for job in jobs(cases, settings):
            if job[1] != "check":
                runner.take(*job)
    timed = {s.case.rpartition("/")[2]: s for s in kept if s.kind == "timed"}
    assert {policy: (s.status, s.reason) for policy, s in timed.items()} == dict.fromkeys(
        POLICIES, ("ok", None)
    )
    by_policy = {case.cache: case for case in cases}
    for policy, sample in timed.items():
        assert unproven_labels(by_policy[policy], [sample]) == []
    shared, frozen, tiered = (timed[policy] for policy in POLICIES)
    assert shared.cache is not None and shared.cache.requests == shared.cache.hits == 1
    assert [frozen.counts[n] for n in ("traces", "lowerings", "compiles", "warm_compiles")] == [
        0
    ] * 4
    assert tiered.counts["signatures_begun_in_numpy"] == tiered.counts["signatures_switched"] == 1
    assert (tiered.counts["compiles"], tiered.counts["warm_compiles"]) == (0, 1)
    assert (tiered.counts["numpy_break_even_calls"] or 0) > 1  # NumPy needs less than XLA's compile


def test_a_label_that_contradicts_the_counts_is_unproven() -> None:
    backends, workloads = registered()
    cases = select("matmul", workloads, backends, ["jax-jit"], ("frozen", "tiered"), "small")
    for case in cases:
        proof = CacheProof(case.cache, True, None, 0, 0, 0, 0)
        sample = Sample(case.id, "timed", 0, 0, "", "ok", cache=proof, counts={"compiles": 1})
        assert len(unproven_labels(case, [sample])) == 1


def test_a_backend_has_only_the_policies_that_it_supports(tmp_path: Path) -> None:
    backends, workloads = registered()
    names = {c.id for c in select("matmul", workloads, backends, None, POLICIES, "small")}
    assert {name for name in names if not name.endswith("/none")} == {
        *(f"matmul[small]/jax-jit/{policy}" for policy in POLICIES),
        "matmul[small]/jax-eager/shared",
    }
    with pytest.raises(SelectionError, match="frozen and tiered are for jax-jit"):
        select("matmul", workloads, backends, ["torch-compile"], ["frozen"])
    path = tmp_path / "mine.py"
    path.write_text("import firstlight\n@firstlight.bench\ndef f():\n    return lambda: None\n")
    with pytest.raises(UserFileError, match=r"call firstlight\.warmstart yourself"):
        cases_in(path, backends, None, ["tiered"])
