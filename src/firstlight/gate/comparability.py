"""May two numbers be compared at all? What must be equal, and what the difference is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from firstlight.records import CaseSummary, Protocol, Run, Sample, noisy_share, to_json

#: Parts of a protocol that belong to the data, those that say how it was measured, and in words
#: what they are. `environment` holds flags: a flag that was changed is a change of the experiment.
_DATA = ("parameters", "data", "data_bytes", "seed")
_PROTOCOL = (
    *("cache", "cold_process", "cold_window", "warm_process", "warm_window", "warm_up", "sync"),
    *("threads", "precision", "environment", "bytecode"),
)
#: So much of the CPU in the hands of others, and times are no longer those of the case. One rule
#: for `compare`, the site and `replicate`.
BUSY = 0.5
#: How much was sampled of a process; the number of processes may differ.
_SETTINGS = ("warm_calls", "warm_calls_least", "warm_seconds", "affinity")


def machine_class(host: Mapping[str, Any]) -> str:
    """A short key for "the same kind of machine": CPU, cores, memory, GPUs, operating system.

    Versions of kernel, driver and Python are left out: they are what people want to compare.
    """
    cpu = _part(host, "cpu")
    quota = _number(_part(host, "container").get("cpu_quota"))
    cores = f"{cpu.get('usable_cores') or '?'} cores"
    parts = [
        " ".join(str(cpu.get("model") or "unknown CPU").split()),
        cores if quota is None else f"{cores} at {quota:g} CPUs",
        _memory(host),
        *_gpus(host),
        f"{_part(host, 'os').get('system') or 'unknown OS'} {cpu.get('architecture') or ''}",
    ]
    return " / ".join(part.strip() for part in parts)


def busy_share(host: Mapping[str, Any]) -> float | None:
    """How much of the CPU other programs used when a run began; None where its times may decide."""
    share = noisy_share(host)
    return share if share is not None and BUSY <= share < 1e6 else None


def disturbance(share: float, where: str) -> str:
    """What a reader is told of a run whose times decide nothing."""
    return (
        f"other programs were using {share:.0%} of the CPU when the run {where} began: its times "
        "decide nothing"
    )


def _part(host: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A stranger's record may hold anything there."""
    found = host.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value if known and math.isfinite(value) else None


def _memory(host: Mapping[str, Any]) -> str:
    """To two bits: what a kernel keeps for itself makes no other machine, 24 GiB are not 32."""
    known = [host.get("memory_bytes"), _part(host, "container").get("memory_limit_bytes")]
    sizes = [size for size in map(_number, known) if size]
    if not sizes:
        return "unknown memory"
    gibibytes = max(min(sizes) / 2**30, 1.0)
    step = 2.0 ** (math.floor(math.log2(gibibytes)) - 2)
    return f"about {round(gibibytes / step) * step:g} GiB"


def _gpus(host: Mapping[str, Any]) -> list[str]:
    found = host.get("gpus")
    gpus = found if isinstance(found, list | tuple) else []
    names = [str(gpu.get("name") if isinstance(gpu, Mapping) else gpu) for gpu in gpus]
    return [f"{names.count(name)} × {name}" for name in sorted(set(names))]


def differences(
    base: Run,
    head: Run,
    case: str,
    samples: tuple[Sequence[Sample], Sequence[Sample]] | None = None,
) -> list[str]:
    """What forbids comparing a case of two runs, as sentences; nothing if they are comparable.

    With the `samples` of both, the contents of the data are compared too.
    """
    found = [*machine_differences(base, head), *case_differences(base, head, case)]
    return found if samples is None else [*found, *data_differences(*samples, case)]


def machine_differences(base: Run, head: Run) -> list[str]:
    """What is not the same for all cases: the machine, and how long a process was watched."""
    found = list(_differences("machine", machine_class(base.host), machine_class(head.host)))
    for name in _SETTINGS:
        found += _differences(f"setting {name}", base.settings.get(name), head.settings.get(name))
    return [*found, *_differences("environment", _environment(base), _environment(head))]


def _environment(run: Run) -> dict[str, Any]:
    """Variables that steer a framework; where modules lie is no property of a measurement."""
    recorded = run.host.get("environment") or {}
    return {k: v for k, v in recorded.items() if not k.startswith("PYTHON") and k != "CI"}


def case_differences(base: Run, head: Run, case: str) -> list[str]:
    """What is not the same for this case: its data or its protocol."""
    one, other = _find(base, case), _find(head, case)
    if one is None or other is None:
        return [f"{case} was measured by the {'head' if one is None else 'base'} alone"]
    if one.protocol is None or other.protocol is None:
        missing = "base" if one.protocol is None else "head"
        return [f"the {missing} has no protocol of {case}: it did not get far enough to have one"]
    return list(_protocol_differences(one.protocol, other.protocol))


def data_differences(base: Sequence[Sample], head: Sequence[Sample], case: str) -> list[str]:
    """Whether the checking processes hashed other input data; where one could not, nothing."""
    one, other = (_data_hashes(side, case) for side in (base, head))
    if one is None or other is None:
        return []
    pairs = enumerate(zip_longest(one, other))
    return [
        f"data: input {number} has other contents (SHA-256 {str(a)[:12]}… in the base, "
        f"{str(b)[:12]}… in the head; random data need a seed)"
        for number, (a, b) in pairs
        if a != b
    ][:1]


def _data_hashes(samples: Sequence[Sample], case: str) -> list[Any] | None:
    checks = [s for s in samples if (s.case, s.kind) == (case, "check")]
    found = checks[-1].facts.get("data_sha256") if checks else None
    return list(found) if isinstance(found, list | tuple) else None


def _find(run: Run, case: str) -> CaseSummary | None:
    return next((c for c in run.cases if c.case == case), None)


def _protocol_differences(base: Protocol, head: Protocol) -> Iterator[str]:
    for kind, names in (("data", _DATA), ("protocol", _PROTOCOL)):
        for name in names:
            words = kind if name == kind else f"{kind}, {name}"
            yield from _differences(words, getattr(base, name), getattr(head, name))


def _differences(what: str, base: Any, head: Any) -> Iterator[str]:
    base, head = to_json(base), to_json(head)
    if base == head:
        return
    if isinstance(base, dict) and isinstance(head, dict):
        for key in [*base, *(k for k in head if k not in base)]:
            if base.get(key) != head.get(key):
                one, other = (_shown(side, key) for side in (base, head))
                yield f"{what}: {key} is {one} in the base, {other} in the head"
        return
    yield f"{what}: {base!r} in the base, {head!r} in the head"


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not set"
