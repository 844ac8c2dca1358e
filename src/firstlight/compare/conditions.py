"""What must be equal before two numbers may be compared: the machine, the protocol, the data."""

from __future__ import annotations

import math
from collections.abc import Mapping

from firstlight.records import JsonObject, Run, noisy_share

#: Parts of a protocol that belong to the data, those that say how it was measured, and in words
#: what they are. `environment` holds flags: a flag that was changed is a change of the experiment.
DATA_FIELDS = ("parameters", "data", "data_bytes", "seed")
PROTOCOL_FIELDS = (
    *("cache", "cold_process", "cold_window", "warm_process", "warm_window", "warm_up", "sync"),
    *("threads", "precision", "environment", "bytecode"),
)
#: With this share of the CPU used by others, times are no longer those of the case. One rule
#: for `compare`, the site and `replicate`.
BUSY = 0.5
#: How much was sampled of a process; the number of processes may differ.
SETTINGS_FIELDS = ("warm_calls", "warm_calls_least", "warm_seconds", "affinity")


def machine_class(host: JsonObject) -> str:
    """A short key for "the same kind of machine": CPU, cores, memory, GPUs, operating system.

    Versions of kernel, driver and Python are left out: they are what people want to compare.
    """
    cpu = part(host, "cpu")
    quota = _number(part(host, "container").get("cpu_quota"))
    cores = f"{cpu.get('usable_cores') or '?'} cores"
    parts = [
        " ".join(str(cpu.get("model") or "unknown CPU").split()),
        cores if quota is None else f"{cores} at {quota:g} CPUs",
        _memory(host),
        *_gpus(host),
        f"{part(host, 'os').get('system') or 'unknown OS'} {cpu.get('architecture') or ''}",
    ]
    return " / ".join(part.strip() for part in parts)


def busy_share(host: JsonObject) -> float | None:
    """Share of the CPU used by other programs when a run began; None if its times may decide."""
    share = noisy_share(host)
    return share if share is not None and BUSY <= share < 1e6 else None


def disturbance(share: float, where: str) -> str:
    """Return the warning about a run whose times decide nothing."""
    return (
        f"other programs were using {share:.0%} of the CPU when the run {where} began: its times "
        "decide nothing"
    )


def part(host: JsonObject, name: str) -> JsonObject:
    """A part of a host description; an untrusted record may contain anything there."""
    found = host.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _memory(host: JsonObject) -> str:
    """To two bits: what a kernel keeps for itself makes no other machine, 24 GiB are not 32."""
    known = [host.get("memory_bytes"), part(host, "container").get("memory_limit_bytes")]
    sizes = [size for size in map(_number, known) if size]
    if not sizes:
        return "unknown memory"
    gibibytes = max(min(sizes) / 2**30, 1.0)
    step = 2.0 ** (math.floor(math.log2(gibibytes)) - 2)
    return f"about {round(gibibytes / step) * step:g} GiB"


def _gpus(host: JsonObject) -> list[str]:
    found = host.get("gpus")
    gpus = found if isinstance(found, list | tuple) else []
    names = [str(gpu.get("name") if isinstance(gpu, Mapping) else gpu) for gpu in gpus]
    return [f"{names.count(name)} × {name}" for name in sorted(set(names))]


def steering_variables(run: Run) -> JsonObject:
    """Variables that steer a framework; the location of modules does not affect a measurement."""
    recorded = run.host.get("environment") or {}
    return {k: v for k, v in recorded.items() if not k.startswith("PYTHON") and k != "CI"}
