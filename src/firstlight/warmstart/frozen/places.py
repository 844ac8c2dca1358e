"""Where an executable can run: what it was made with and for, and how this machine differs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

#: Prefixes of x86 processor flags for instructions that a compiler may use.
_INSTRUCTIONS = (
    *("sse", "ssse", "avx", "fma", "f16c", "bmi", "popcnt", "movbe", "abm", "adx", "xop", "tbm"),
    *("aes", "vaes", "pclmul", "vpclmul", "sha", "gfni", "amx"),
)


class Kind(StrEnum):
    """What differs between the place where a function was frozen and this one."""

    JAXLIB = "jaxlib"
    JAX = "jax"
    PYTHON = "Python"
    SYSTEM = "system"
    PROCESSOR = "processor"
    DEVICE = "device"
    PRECISION = "jax_enable_x64"


@dataclass(frozen=True)
class Difference:
    kind: Kind
    made: str
    here: str

    def __str__(self) -> str:
        if self.kind is Kind.PROCESSOR:
            return f"this processor lacks {self.made}"
        return f"{self.kind} is {self.here} here, was {self.made}"


@dataclass(frozen=True)
class Place:
    """Everything that decides whether an executable runs; only JAX knows x64 and the device."""

    jaxlib: str
    jax: str
    python: str
    system: str
    instructions: tuple[str, ...]
    platform: str = "cpu"
    device: str = ""  # its kind; empty for a CPU, which `instructions` describe
    device_count: int = 1
    x64: bool = False

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Place:
        return cls(**{**plain, "instructions": tuple(plain["instructions"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def this_place() -> Place:
    """This process, as far as can be known without importing JAX."""
    try:
        from jaxlib.version import __version__ as jaxlib
    except ImportError:
        jaxlib = "not installed"
    system = os.uname()
    return Place(
        jaxlib=jaxlib,
        jax="not imported",
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        system=f"{system.sysname}-{system.machine}".lower(),
        instructions=_instructions(),
    )


def _instructions() -> tuple[str, ...]:
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        # The first processor is enough; on a large machine the whole file takes long.
        for line in file.read(16384).decode("ascii", "replace").splitlines():
            name, _, flags = line.partition(":")
            if name.strip() == "flags":
                return tuple(sorted(f for f in flags.split() if f.startswith(_INSTRUCTIONS)))
            if name.strip() == "Features":  # ARM, where all are relevant
                return tuple(sorted(flags.split()))
    return ()


def differences(made: Place, here: Place) -> list[Difference]:
    """Why an executable cannot run here, with or without JAX."""
    pairs = ((Kind.JAXLIB, made.jaxlib, here.jaxlib), (Kind.SYSTEM, made.system, here.system))
    found = [Difference(kind, a, b) for kind, a, b in pairs if a != b]
    missing = sorted({*made.instructions} - {*here.instructions})
    if missing and made.system == here.system:
        found.append(Difference(Kind.PROCESSOR, ", ".join(missing), ""))
    return found


def differences_for_jax(made: Place, here: Place) -> list[Difference]:
    """Why JAX cannot load it here; its pickles need the same JAX and Python."""
    import jax

    pairs = ((Kind.JAX, made.jax, jax.__version__), (Kind.PYTHON, made.python, here.python))
    found = [Difference(kind, a, b) for kind, a, b in pairs if a != b]
    if found:
        return found
    try:
        devices = jax.devices(made.platform)
    except RuntimeError:
        devices = []
    kinds = sorted({device.device_kind for device in devices})
    if len(devices) < made.device_count or (made.device and kinds != [made.device]):
        were = f"{made.device_count} {made.platform} {made.device}".rstrip()
        are = f"{len(devices)} {made.platform} {', '.join(kinds)}".rstrip()
        found.append(Difference(Kind.DEVICE, were, are))
    x64 = bool(jax.config.jax_enable_x64)
    if x64 != made.x64:
        found.append(Difference(Kind.PRECISION, str(made.x64), str(x64)))
    return found
