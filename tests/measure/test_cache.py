from __future__ import annotations

from pathlib import Path

import pytest

from firstlight.measure.cache import empty, entries, files, prove, restore
from firstlight.records import cache_variables

ONE, TWO = frozenset({"jit_f-aa-cache"}), frozenset({"jit_f-aa-cache", "jit_f-bb-cache"})
NONE: frozenset[str] = frozenset()
OURS = frozenset({"compiled-2/kind/aa/bb"})
FROZEN = frozenset({"0.frozen"})


def off(**seen: int) -> dict[str, object]:
    return {"requests": 0, "hits": 0, "enabled": False, "refusals": [], **seen}


def tiers(begun: int, switched: int) -> dict[str, object]:
    about = {"signatures_begun_in_numpy": begun, "signatures_switched": switched}
    return off(signatures=2, traces=2, compiles=0, warm_compiles=2, **about)


def counts(requests: int = 0, hits: int = 0, enabled: bool = True) -> dict[str, object]:
    return {"requests": requests, "hits": hits, "enabled": enabled, "compiles": 1, "refusals": []}


@pytest.mark.parametrize(
    ("policy", "before", "after", "seen"),
    [
        ("none", NONE, NONE, counts(enabled=False)),
        ("cold", NONE, ONE, counts(1, 0)),
        ("cold", NONE, ONE, counts(2, 1)),  # the second request found what the first one stored
        ("warm", ONE, ONE, counts(1, 1)),
        ("shared", OURS, OURS, counts(1, 1)),
        ("frozen", FROZEN, FROZEN, off(traces=0, lowerings=0, compiles=0, warm_compiles=0)),
        ("tiered", NONE, NONE, tiers(2, 2)),
    ],
)
def test_a_true_label_is_proven(policy, before, after, seen) -> None:  # type: ignore[no-untyped-def]
    proof = prove(policy, "jax", before, after, seen)
    assert proof.proven and proof.reason is None
    assert (proof.entries_before, proof.entries_after) == (len(before), len(after))


@pytest.mark.parametrize(
    ("policy", "before", "after", "seen", "refusals", "words"),
    [
        ("none", NONE, NONE, counts(1, 0), (), "switched the persistent cache on"),
        ("cold", ONE, TWO, counts(1, 0), (), "not cold"),
        ("cold", NONE, NONE, counts(1, 0), (), "did not store"),
        ("cold", NONE, ONE, {**counts(2, 0), "bypassed": 1}, (), "did not store"),
        ("warm", ONE, ONE, {**counts(1, 1), "compiles": 2}, (), "1 of 2 compilations never asked"),
        ("warm", ONE, ONE, {**counts(1, 1), "warm_compiles": 1}, (), "never asked the cache"),
        ("cold", NONE, NONE, counts(0, 0), (), "never asked the cache"),
        ("warm", ONE, TWO, counts(1, 0), (), "key of jit_f differs from process to process"),
        ("warm", NONE, ONE, counts(1, 0), (), "stored nothing"),
        ("shared", ONE, ONE, counts(1, 1), (), "did not use Firstlight's cache"),
        ("shared", OURS, OURS, counts(2, 1), (), "1 of 2 requests missed"),
        ("frozen", FROZEN, FROZEN, off(traces=1, lowerings=0, compiles=0), (), "1 traces"),
        ("frozen", FROZEN, FROZEN, off(compiles=0, warm_compiles=3), (), "3 compiles in a process"),
        ("frozen", FROZEN, FROZEN, counts(1, 1), (), "although the policy is frozen"),
        ("tiered", NONE, NONE, tiers(1, 2), (), "1 of 2 signatures were compiled before"),
        ("tiered", NONE, NONE, tiers(2, 0), (), "2 of 2 signatures never switched"),
        ("tiered", NONE, NONE, off(compiles=1), (), "no function of the program ran in tiers"),
        (
            "warm",
            NONE,
            NONE,
            counts(1, 0),
            ("Not writing persistent cache entry for 'jit_f' because it uses host callbacks",),
            "host callbacks",
        ),
        (
            "warm",
            NONE,
            NONE,
            counts(1, 0),
            ("Not writing … because it took < 1.00 seconds to compile (0.10s)",),
            "under the time threshold",
        ),
    ],
)
def test_a_false_label_is_rejected_with_its_reason(
    policy, before, after, seen, refusals, words
) -> None:  # type: ignore[no-untyped-def]
    proof = prove(policy, "jax", before, after, seen, refusals)
    assert not proof.proven
    assert proof.reason is not None and words in proof.reason


def test_a_process_that_compiles_nothing_cannot_prove_a_cache() -> None:
    seen = {**counts(0, 0), "compiles": 0}
    reason = prove("warm", "jax", ONE, ONE, seen).reason
    assert reason is not None and "compiled nothing" in reason


def test_a_backend_without_a_cache_needs_no_proof() -> None:
    assert prove("none", None, NONE, NONE, {}).proven


def test_entries_do_not_count_locks_and_access_times(tmp_path: Path) -> None:
    for name in ("jit_f-aa-cache", "jit_f-aa-atime", ".lockfile", ".lock", "x.lock"):
        (tmp_path / name).touch()
    (tmp_path / "fxgraph").mkdir()
    (tmp_path / "fxgraph" / "entry").touch()
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "generated.cpp").touch()
    assert files(tmp_path) == {"jit_f-aa-cache", "fxgraph/entry", "ab/generated.cpp"}
    assert entries(tmp_path, "jax") == files(tmp_path)
    assert entries(tmp_path, "torch") == {"fxgraph/entry"}


def test_restoring_removes_only_what_a_process_added(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    stored = files(tmp_path)
    (tmp_path / "b").touch()
    restore(tmp_path, stored)
    assert files(tmp_path) == {"a"}
    empty(tmp_path)
    assert files(tmp_path) == frozenset()


def test_an_enabled_cache_has_no_thresholds(tmp_path: Path) -> None:
    for policy in ("cold", "warm"):
        variables = cache_variables(policy, "jax", tmp_path)
        assert variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
        assert variables["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] == "-1"
    off = cache_variables("none", "jax", tmp_path)
    assert off["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert "JAX_COMPILATION_CACHE_DIR" not in off


def test_the_reason_why_torch_stores_nothing_is_quoted() -> None:
    refusal = "Bypassing FX Graph Cache because 'Can't cache HigherOrderOperator: with_effects'"
    reason = prove("warm", "torch", NONE, NONE, counts(1, 0), (refusal,)).reason
    assert reason is not None
    assert "torch does not store such a graph: Can't cache HigherOrderOperator" in reason
