"""May two numbers be compared at all? What must be equal, and what the difference is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from firstlight.records import CaseSummary, Protocol, Run, to_json

#: Parts of a protocol that belong to the data, those that say how it was measured, and in words
#: what they are. `environment` holds flags: a flag that was changed is a change of the experiment.
_DATA = ("parameters", "data", "data_bytes", "seed")
_PROTOCOL = (
    *("cache", "cold_process", "cold_window", "warm_process", "warm_window", "warm_up", "sync"),
    *("threads", "precision", "environment", "bytecode"),
)
#: How much was sampled of a process; the number of processes may differ.
_SETTINGS = ("warm_calls", "warm_calls_least", "warm_seconds", "affinity")


def machine_class(host: Mapping[str, Any]) -> str:
    """A short key for "the same kind of machine": CPU, cores, memory, GPUs, operating system.

    Versions of kernel, driver and Python are left out: they are what people want to compare.
    """
    cpu = host.get("cpu") or {}
    quota = (host.get("container") or {}).get("cpu_quota")
    cores = f"{cpu.get('usable_cores') or '?'} cores"
    parts = [
        " ".join(str(cpu.get("model") or "unknown CPU").split()),
        cores if quota is None else f"{cores} at {quota:g} CPUs",
        _memory(host),
        *_gpus(host),
        f"{(host.get('os') or {}).get('system') or 'unknown OS'} {cpu.get('architecture') or ''}",
    ]
    return " / ".join(part.strip() for part in parts)


def _memory(host: Mapping[str, Any]) -> str:
    """Rounded to a power of two: what a kernel keeps for itself makes no other machine."""
    known = [host.get("memory_bytes"), (host.get("container") or {}).get("memory_limit_bytes")]
    sizes = [size for size in known if size]
    if not sizes:
        return "unknown memory"
    return f"about {2 ** round(math.log2(max(min(sizes) / 2**30, 1.0)))} GiB"


def _gpus(host: Mapping[str, Any]) -> list[str]:
    names = [str(gpu.get("name")) for gpu in host.get("gpus") or ()]
    return [f"{names.count(name)} × {name}" for name in sorted(set(names))]


def differences(base: Run, head: Run, case: str) -> list[str]:
    """What forbids comparing a case of two runs, as sentences; nothing if they are comparable."""
    return [*machine_differences(base, head), *case_differences(base, head, case)]


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
