"""A machine in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def machine(hardware: Mapping[str, Any]) -> str:
    """'Made-up CPU, 8 cores', and its accelerators."""
    cpu = hardware.get("cpu") or {}
    gpus = [str(gpu.get("name")) for gpu in hardware.get("gpus") or () if isinstance(gpu, dict)]
    parts = [str(cpu.get("model") or "an unnamed CPU"), f"{cpu.get('usable_cores') or '?'} cores"]
    parts += [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return ", ".join(parts)
