"""Conditions that must be equal for two numbers to be comparable: machine, protocol, data."""

from __future__ import annotations

import math
from collections.abc import Mapping

from firstlight.records import JsonObject, Run, noisy_share

#: Fields of a protocol that describe the data, and those that describe the measurement.
#: `environment` holds flags: changing a flag changes the experiment.
DATA_FIELDS = ("parameters", "data", "data_bytes", "seed")
PROTOCOL_FIELDS = (
    *("cache", "cold_process", "cold_window", "warm_process", "warm_window", "warm_up", "sync"),
    *("threads", "precision", "environment", "bytecode"),
)
#: If other programs use this share of the CPU or more, times decide nothing. The same rule holds
#: for `compare`, the site and `replicate`.
MIN_BUSY_SHARE = 0.5
#: Sampling within a process. The number of processes may differ.
SETTINGS_FIELDS = ("warm_calls", "warm_calls_least", "warm_seconds", "affinity")


def machine_class(host: JsonObject) -> str:
    """A key for the kind of machine: CPU, cores, memory, GPUs, operating system.

    It leaves out the versions of kernel, driver and Python, which people want to compare.
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
    """The share of the CPU used by other programs, if too large for times to decide; else None."""
    share = noisy_share(host)
    return share if share is not None and MIN_BUSY_SHARE <= share < 1e6 else None


def disturbance_warning(share: float, where: str) -> str:
    """Return the warning about a run whose times decide nothing."""
    return (
        f"other programs were using {share:.0%} of the CPU when the run {where} began: its times "
        "decide nothing"
    )


def part(host: JsonObject, name: str) -> JsonObject:
    """A section of a host description; {} if missing, or malformed in an untrusted record."""
    found = host.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _memory(host: JsonObject) -> str:
    """The size rounded to three significant bits.

    What a kernel reserves must not make it another machine, but 24 GiB are not 32 GiB.
    """
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
    """Recorded variables that affect a framework: without PYTHON…, which locate modules, and CI."""
    recorded = run.host.get("environment") or {}
    return {k: v for k, v in recorded.items() if not k.startswith("PYTHON") and k != "CI"}
