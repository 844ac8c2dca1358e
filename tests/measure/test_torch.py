"""The real PyTorch: torch.compile's own cache, proven like JAX's."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstlight.measure.case_selection import select
from firstlight.measure.runner import Runner
from firstlight.measure.user_file import cases_in
from firstlight.records import Sample, Settings
from firstlight.workloads.catalog import registered

pytestmark = pytest.mark.slow

BRIEF = Settings(1, 20, 5, 0.1, 2, 0.001, 280.0, None, 0)


def measured(backend: str, *caches: str) -> dict[str, Sample]:
    """The timed sample of each policy."""
    backends, workloads = registered()
    cases = select("matmul", workloads, backends, [backend], caches, "small")
    samples: list[Sample] = []
    with Runner(cases, BRIEF, samples.append) as runner:
        runner.run(lambda *_: None)
    return {s.case.rsplit("/")[-1]: s for s in samples if s.kind == "timed"}


def test_eager_pytorch_has_no_compile_phases_and_no_cache() -> None:
    sample = measured("torch-eager", "warm")["none"]
    assert sample.status == "ok" and sample.cold is not None and sample.cache is not None
    assert sample.cold.phases_seconds["compile"] is None
    assert sample.counts["compiles"] is None and sample.cache.requests is None


def test_a_backward_that_is_compiled_by_itself_leaves_no_phase_negative(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "from firstlight import bench\n"
        "@bench\n"
        "def train():\n"
        # Products only, forwards and backwards: no C++ is generated, which takes most of the time.
        "    product = torch.compile(lambda w, x: w @ x)\n"
        "    def step(w):\n"
        "        w = w.detach().requires_grad_()\n"
        "        product(w, torch.eye(8)).backward(torch.eye(8))\n"
        "        return w.grad\n"
        "    return step, (torch.eye(8),)\n"
    )
    samples: list[Sample] = []
    with Runner(cases_in(path, registered()[0], None, None), BRIEF, samples.append) as runner:
        runner.run(lambda *_: None)
    timed = samples[-1]
    assert timed.status == "ok", timed.reason
    assert timed.cold is not None
    phases = timed.cold.phases_seconds
    assert all(seconds is None or seconds >= 0 for seconds in phases.values()), phases
    compile_seconds = phases["compile"]
    assert compile_seconds is not None
    assert compile_seconds > (phases["first_execute"] or 0)


def test_every_policy_of_torch_compile_is_proven() -> None:
    samples = measured("torch-compile", "none", "cold", "warm")
    assert {name: (s.status, s.reason) for name, s in samples.items()} == dict.fromkeys(
        ("none", "cold", "warm"), ("ok", None)
    )
    none, cold, warm = (samples[name].cache for name in ("none", "cold", "warm"))
    assert none is not None and cold is not None and warm is not None
    assert none.requests == 0
    assert cold.entries_before == 0 and cold.entries_after and cold.hits == 0
    assert warm.requests == warm.hits == 1 and warm.entries_after == warm.entries_before
    for sample in samples.values():
        assert sample.cold is not None and sample.counts["compiles"] == 1
        for phase in ("trace", "lower", "compile"):
            seconds = sample.cold.phases_seconds[phase]
            assert seconds is not None and 0 <= seconds < sample.cold.total_seconds
