"""The real PyTorch: torch.compile's own cache, proven like JAX's."""

from __future__ import annotations

import pytest

from firstlight.measure.plan import Settings, select
from firstlight.measure.runner import Runner
from firstlight.records import Sample
from firstlight.workloads.catalog import registered

pytest.importorskip("torch")
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


@pytest.mark.slow
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
