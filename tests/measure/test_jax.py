"""The real JAX: phases, counts and cache labels of real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from needed_processes import timed_samples

from firstlight.measure.case_selection import select
from firstlight.measure.runner import Runner
from firstlight.measure.user_file import cases_in
from firstlight.records import Case, Sample, Settings
from firstlight.workloads.catalog import registered

pytestmark = pytest.mark.slow

Write = Callable[[str, str], Path]
BRIEF = Settings(1, 20, 5, 0.1, 2, 0.001, 120.0, None, 0)


def in_file(path: Path, *caches: str) -> dict[str, Sample]:
    return timed_samples(cases_in(path, registered()[0], None, caches), BRIEF)


def test_every_policy_is_proven_by_entries_hits_and_requests_and_the_users_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(users))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("FIRSTLIGHT_WARMSTART", "1")
    monkeypatch.setenv("FIRSTLIGHT_CACHE_DIR", str(users))
    backends, workloads = registered()
    cases = select("matmul", workloads, backends, ["jax-jit"], ["none", "cold", "warm"], "small")
    # Only the first has a check process, which computes the reference and the compiler's estimate.
    cases = [case if case.cache == "none" else replace(case, reference=None) for case in cases]
    samples = {case.rpartition("/")[2]: s for case, s in timed_samples(cases, BRIEF).items()}
    proofs = {policy: s.cache for policy, s in samples.items() if s.cache is not None}
    assert all(proof.proven for proof in proofs.values()), proofs
    assert not users.exists()
    none, cold, warm = proofs["none"], proofs["cold"], proofs["warm"]
    assert (none.entries_after, none.requests) == (0, 0)
    assert cold.entries_before == 0 and cold.entries_after and cold.hits == 0
    assert warm.hits == warm.requests and warm.entries_before == warm.entries_after
    for sample in samples.values():
        assert sample.cold is not None and sample.memory is not None
        assert all(v is not None and v >= 0 for v in sample.cold.phases_seconds.values())
        assert sample.counts["compiles"] == 1 and sample.counts["warm_compiles"] == 0
        peaks = [b for b in sample.memory.peak_host_bytes.values() if b is not None]
        assert len(peaks) == 8 and peaks == sorted(peaks)
    checked = samples["none"]
    assert checked.correctness is not None and checked.correctness.max_relative_error is not None
    assert checked.memory is not None and checked.memory.compiler_bytes is not None
    assert checked.memory.compiler_bytes["argument"] == 2 * 128 * 128 * 4


#: Programs that run under another policy than their label says, and one that is counted.
LABELS = """
import logging, os, jax, jax.numpy as jnp, numpy as np
from firstlight import bench

THREE = np.ones(3, np.float32)

@bench
def callback():
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    host = lambda x: np.asarray(x) * 2
    return jax.jit(lambda x: jax.pure_callback(host, shape, x)), (THREE,)

@bench
def threshold():
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 100.0)
    return jax.jit(lambda x: x + 1), (THREE,)

@bench
def address():
    constant = float(os.getpid())
    return jax.jit(lambda x: (x * constant).sum() * 0 + 1), (THREE,)

@bench
def off():
    x = jnp.linspace(0, 1, 7)
    jax.config.update("jax_enable_compilation_cache", False)
    from jax._src import compilation_cache
    compilation_cache.reset_cache()
    return jax.jit(lambda x: x + 1), (x,)

@bench
def sneaky():
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", __file__ + ".cache")
    return jax.jit(lambda x: x + 1), (THREE,)

lines = []

class Count(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("Finished XLA compilation"):
            lines.append(1)
            open(__file__ + ".count", "w").write(str(len(lines)))

@bench
def shapes():
    jax.config.update("jax_log_compiles", True)
    for name in ("jax._src.dispatch", "jax._src.interpreters.pxla"):
        logging.getLogger(name).addHandler(Count())
    f = jax.jit(lambda x: (x * 2).sum())
    return (lambda: [f(np.ones(n, np.float32)) for n in (3, 4, 5, 3)]), ()
"""


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Case]]:
    """The file, and its cases by name: the file is imported once to find them all."""
    path = tmp_path_factory.mktemp("labels") / "labels.py"
    path.write_text(LABELS)
    return path, {case.id: case for case in cases_in(path, registered()[0], None, ("none", "warm"))}


@pytest.fixture
def timed(labels: tuple[Path, dict[str, Case]]) -> Callable[[str, str], Sample]:
    def measure(function: str, policy: str) -> Sample:
        case = labels[1][f"{function}[default]/jax/{policy}"]
        return timed_samples([case], BRIEF)[case.id]

    return measure


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        pytest.param(
            *("callback", "host callbacks"),
            marks=pytest.mark.skipif(
                jax.__version_info__ >= (0, 11), reason="JAX 0.11 caches host callbacks too"
            ),
            id="because a host callback compiles anyway",
        ),
        pytest.param("threshold", "time threshold", id="under the program's own time threshold"),
        pytest.param("address", "differs from process to process", id="because the key changes"),
        pytest.param("off", "never asked the cache", id="because the step switches the cache off"),
    ],
)
def test_a_warm_label_is_rejected(
    timed: Callable[[str, str], Sample], function: str, reason: str
) -> None:
    sample = timed(function, "warm")
    assert sample.status == "unproven" and sample.reason is not None
    assert reason in sample.reason


def test_a_none_label_is_rejected_when_the_program_switches_the_cache_on(
    timed: Callable[[str, str], Sample],
) -> None:
    sample = timed("sneaky", "none")
    assert sample.status == "unproven" and sample.reason is not None
    assert "switched the persistent cache on" in sample.reason


def test_compilations_are_counted_as_jax_counts_them(
    timed: Callable[[str, str], Sample], labels: tuple[Path, dict[str, Case]]
) -> None:
    """Oracle: the lines that `jax_log_compiles` writes for the same calls."""
    sample = timed("shapes", "none")
    assert sample.status == "ok", sample.reason
    assert sample.counts["compiles"] == 3 == int(Path(f"{labels[0]}.count").read_text())
    assert sample.counts["warm_compiles"] == 0


def test_a_none_label_is_rejected_when_the_cache_was_used_during_the_import(
    write: Write, tmp_path: Path
) -> None:
    path = write(
        "early.py",
        f"""
        import jax, jax.numpy as jnp, numpy as np
        from firstlight import bench
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", {str(tmp_path / "mine")!r})
        TABLE = np.asarray(jnp.sin(jnp.arange(5.0)))
        @bench
        def early():
            return jax.jit(lambda x: x + 1), (TABLE,)
        """,
    )
    timed = in_file(path, "none")["early[default]/jax/none"]
    assert timed.status == "unproven"


def test_a_result_that_drifts_after_the_first_call_is_found(write: Write) -> None:
    path = write(
        "drift.py",
        """
        import numpy as np
        from firstlight import bench
        state = [0.0]
        @bench(reference=lambda: np.zeros(2))
        def drift():
            def step():
                state[0] += 1e-3
                return np.full(2, state[0] - 1e-3)
            return step
        """,
    )
    timed = in_file(path)["drift[default]/numpy/none"]
    assert timed.status == "failed" and timed.reason is not None
    assert "after warm calls" in timed.reason and timed.warm is None


def test_this_jax_defines_the_event_names() -> None:
    """If JAX renames an event, this says so before a phase silently becomes null."""
    from jax._src import dispatch

    from firstlight.measure.adapters.jax import _PHASE_OF_EVENT

    known = {v for k, v in vars(dispatch).items() if k.endswith("_EVENT") and isinstance(v, str)}
    assert set(_PHASE_OF_EVENT) <= known


def test_the_worker_listens_to_the_events_of_the_telemetry() -> None:
    """The worker may import nothing of ours early, so it has the names a second time."""
    from firstlight.measure.adapters.jax import _CACHE_EVENTS, _PHASE_OF_EVENT
    from firstlight.telemetry.events import CACHE, STAGES

    assert _PHASE_OF_EVENT == STAGES
    assert {*_CACHE_EVENTS} < {*CACHE}


def test_json_of_a_sample_is_plain(write: Write) -> None:
    from firstlight.records import to_json

    path = write("p.py", "import numpy\nfrom firstlight import bench\n@bench\n"
                         "def p(): return lambda: numpy.ones(1)\n")  # fmt: skip
    samples: list[Sample] = []
    with Runner(cases_in(path, registered()[0], None, ()), BRIEF, samples.append) as runner:
        runner.run(lambda *_: None)
    assert [sample.kind for sample in samples] == ["check", "timed"]
    for sample in samples:
        assert json.loads(json.dumps(to_json(sample), allow_nan=False))
