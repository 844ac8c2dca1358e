"""Cache policies, and the proof that a process ran under the policy in its label.

- `none`: persistent caches are off, and no compilation looked one up.
- `cold`: on, empty before the process and filled by it. A cache that stores nothing is not on.
- `warm`: filled by a priming process; every compilation is a hit, and nothing is added.
- `shared`: like `warm`, with Firstlight's own cache (`firstlight exec`) instead of JAX's.
- `frozen`: a priming process froze the functions; nothing is traced, lowered or compiled.
- `tiered`: caches are off; NumPy answers the first call of each function while a thread compiles.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from firstlight.records import CacheProof, JsonObject

POLICIES = ("none", "cold", "warm", "shared", "frozen", "tiered")

#: Variables removed from the environment: a user's own cache would falsify every label.
INHERITED = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES",
    "JAX_COMPILATION_CACHE_MAX_SIZE",
    "FIRSTLIGHT_WARMSTART",
    "FIRSTLIGHT_CACHE",
    "FIRSTLIGHT_CACHE_DIR",
    "FIRSTLIGHT_CACHE_MAX_BYTES",
    "FIRSTLIGHT_FROZEN",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_CACHE",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "CUDA_CACHE_DISABLE",
)

_NOT_ENTRIES = (".lock", ".lockfile", "-atime", ".lease", ".unfinished")
#: Prefix of the entries of Firstlight's own cache.
_FIRSTLIGHT_PREFIX = "compiled-"


def files(directory: Path) -> frozenset[str]:
    """All files in a cache directory except locks and access times."""
    if not directory.is_dir():
        return frozenset()
    return frozenset(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and not path.name.endswith(_NOT_ENTRIES)
    )


def entries(directory: Path, kind: str | None) -> frozenset[str]:
    """The cached results, without the sources and libraries that Inductor keeps beside them."""
    found = files(directory)
    if kind != "torch":
        return found
    return frozenset(name for name in found if name.startswith(("fxgraph/", "aotautograd/")))


def empty(directory: Path) -> None:
    """Empty a directory but keep its path, which is part of JAX's cache key."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def restore(directory: Path, stored: frozenset[str]) -> None:
    """Remove what a process added to the entries `stored` by the priming process."""
    for name in files(directory) - stored:
        (directory / name).unlink(missing_ok=True)


def prove(
    policy: str,
    kind: str | None,
    before: frozenset[str],
    after: frozenset[str],
    counts: JsonObject,
    refusals: Sequence[str] = (),
) -> CacheProof:
    """Check whether a process ran under the policy that its label claims.

    `before` and `after` are the entries that the parent found on disk, `counts` what the framework
    reported in the process, and `refusals` the reasons why the priming process did not store
    some results.
    """
    if kind is None:
        return CacheProof(policy, True, "this backend has no persistent cache", 0, 0, None, None)
    reason = _objection(policy, before, after, counts, refusals)
    requests, hits = counts.get("requests"), counts.get("hits")
    return CacheProof(policy, reason is None, reason, len(before), len(after), requests, hits)


def _objection(
    policy: str,
    before: frozenset[str],
    after: frozenset[str],
    counts: JsonObject,
    refusals: Sequence[str],
) -> str | None:
    requests = counts.get("requests") or 0
    missed = requests - (counts.get("hits") or 0)
    compiles = (counts.get("compiles") or 0) + (counts.get("warm_compiles") or 0)
    if policy in ("none", "frozen", "tiered") and (counts.get("enabled") or requests):
        return _SWITCHED_ON.format(policy)
    if policy == "none":
        return None
    if policy == "frozen":
        return _compiled_after_all(counts)
    if policy == "tiered":
        return _not_in_tiers(counts)
    if before and policy == "cold":
        return f"the cache held {len(before)} entries before the process: it was not cold."
    if not requests and not compiles:
        return "the process compiled nothing, so there was nothing to cache. Use --cache none."
    if not requests:
        return "the process never asked the cache: the program switched it off."
    if policy == "cold":
        why = _why_not_stored(refusals)
        lost = f"the cache did not store what was compiled, so it was not on in effect: {why}"
        return None if after and not counts.get("bypassed") else lost
    if compiles > requests:
        unasked = f"{compiles - requests} of {compiles} compilations never asked the cache"
        return f"{unasked}: the program switched it off."
    if policy == "shared" and not all(name.startswith(_FIRSTLIGHT_PREFIX) for name in before):
        return "the processes did not use Firstlight's cache: the program sets another directory."
    if missed > 0 or after - before:
        return f"{missed} of {requests} requests missed: {_why_missed(before, after, refusals)}"
    return None


def _compiled_after_all(counts: JsonObject) -> str | None:
    done = {name: counts.get(name) or 0 for name in ("traces", "lowerings", "compiles")}
    done["compiles"] += counts.get("warm_compiles") or 0
    if not any(done.values()):
        return None
    counted = ", ".join(f"{number} {name}" for name, number in done.items())
    return f"{counted} in a process that should need none: not everything it compiles was frozen."


def _not_in_tiers(counts: JsonObject) -> str | None:
    known, begun = (counts.get(n) or 0 for n in ("signatures", "signatures_begun_in_numpy"))
    switched = counts.get("signatures_switched") or 0
    if not known:
        return "no function of the program ran in tiers: it never applies the harness's transform."
    if begun < known:
        return f"{known - begun} of {known} signatures were compiled before they answered."
    if switched < known:
        return f"{known - switched} of {known} signatures never switched to the compiled program."
    return None


_SWITCHED_ON = (
    "the program switched the persistent cache on, although the policy is {}. Take the cache "
    "settings out of the program: the harness sets them."
)
#: Parts of JAX's messages about results that it does not store: what they mean and what to do.
_NOT_STORED = {
    "host callbacks": "results that use host callbacks (pure_callback, io_callback, debug.print) "
    "are never stored. Take the callback out of the compiled function, or measure with --cache "
    "none.",
    "seconds to compile": "compilation was under the time threshold "
    "(jax_persistent_cache_min_compile_time_secs), which the program sets itself. Set it to 0 or "
    "leave it to the harness.",
    "less than threshold": "the results were under the size threshold "
    "(jax_persistent_cache_min_entry_size_bytes), which the program sets itself.",
    "process_id": "only process 0 of a distributed program writes the cache.",
}


def _why_not_stored(refusals: Sequence[str]) -> str:
    text = " ".join(refusals)
    for words, meaning in _NOT_STORED.items():
        if words in text:
            return meaning
    if "Bypassing" in text:
        quoted = text.split("because", 1)[-1].split("due to:", 1)[-1].strip(" '")
        return f"torch does not store such a graph: {quoted}."
    return refusals[0] if refusals else "the framework gave no reason."


def _why_missed(before: frozenset[str], after: frozenset[str], refusals: Sequence[str]) -> str:
    if refusals:
        return "the priming process could not store them, because " + _why_not_stored(refusals)
    if not before:
        return "the priming process stored nothing."
    stored, added = ({name.split("-")[0] for name in names} for names in (before, after - before))
    if changed := sorted(stored & added):
        return (
            f"the key of {changed[0]} differs from process to process: the program or its flags "
            "contain something that changes (an address, a random constant, a path)."
        )
    return "the priming process did not compile the same programs as this one."
