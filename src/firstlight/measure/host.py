"""Describes the machine and the software: what can affect a measurement, and sources of noise."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from firstlight.records import SECRET_NAME, JsonObject, noisy_share

#: Packages whose version is part of the protocol.
PACKAGES = (
    *("jax", "jaxlib", "numpy", "torch", "scipy", "triton", "ml_dtypes", "jax-cuda13-plugin"),
    *("pyhf", "nextstat"),
)
_VARIABLE = re.compile(
    r"^(JAX_|XLA_|TF_(?:CPP|XLA|ENABLE|GPU)_|TORCH|PYTORCH|OMP_|MKL_|OPENBLAS_|BLIS_|KMP_|GOMP_|"
    r"NUMEXPR_|CUDA_|NVIDIA_(?:VISIBLE_DEVICES|DRIVER_CAPABILITIES|TF32_OVERRIDE)|TRITON_|"
    r"LD_PRELOAD|MALLOC_|PYTHON|CI$)"
)


def describe_host(watch_seconds: float = 0.0) -> JsonObject:
    """Everything about the machine that is recorded with a run.

    watch_seconds: how long to watch the CPU for use by other programs. The load average would also
        include what this user did a minute ago.
    """
    import psutil

    memory = psutil.virtual_memory()
    busy = psutil.cpu_percent(watch_seconds) / 100 if watch_seconds else None
    return {
        "cpu": _cpu(),
        "container": _container(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "gpus": _gpus(),
        "os": _os(),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "compiler": platform.python_compiler(),
        },
        **software(_installed()),
        "environment": recorded_environment(os.environ),
        "commit": _commit(Path.cwd()),
        "load": load_average(),
        "cpu_busy_ratio": busy,
    }


def recorded_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that can affect a measurement, except those that look like secrets."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if _VARIABLE.match(name) and not SECRET_NAME.search(name)
    }


def _cpu() -> JsonObject:
    import psutil

    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "model": _cpu_model(),
        "architecture": platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "frequency_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "virtual": "hypervisor" in (_read("/proc/cpuinfo") or ""),
    }


def _cpu_model() -> str | None:
    named = re.search(r"^model name\s*:(.*)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return named[1].strip() if named else platform.processor() or None


def _turbo() -> bool | None:
    if no_turbo := _read("/sys/devices/system/cpu/intel_pstate/no_turbo"):
        return no_turbo == "0"
    boost = _read("/sys/devices/system/cpu/cpufreq/boost")
    return None if boost is None else boost == "1"


def _container() -> JsonObject:
    """Limits of the control group: a quota of 1.5 CPUs on a machine of 64 changes everything."""
    group = (_read("/proc/self/cgroup") or "").rpartition("::")[2].strip().rstrip("/")
    root = "/sys/fs/cgroup"
    quota = (_read(f"{root}{group}/cpu.max") or _read(f"{root}/cpu.max") or "max").split()
    memory = _read(f"{root}{group}/memory.max") or _read(f"{root}/memory.max")
    limited = len(quota) == 2 and quota[0] != "max"
    return {
        "cpu_quota": float(quota[0]) / float(quota[1]) if limited else None,
        "memory_limit_bytes": int(memory) if memory and memory.isdigit() else None,
    }


def _gpus() -> list[dict[str, str]]:
    """Name, driver and memory as reported by nvidia-smi; an empty list without it."""
    query = ("name", "driver_version", "memory.total", "clocks.max.sm", "power.limit")
    text = _output("nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv,noheader")
    if text is None:
        return []
    return [dict(zip(query, line.split(", "), strict=False)) for line in text.splitlines()]


def _os() -> dict[str, str | None]:
    named = re.search(r"^PRETTY_NAME=(.*)$", _read("/etc/os-release") or "", re.MULTILINE)
    return {
        "system": platform.system(),
        "release": platform.release(),
        "distribution": named[1].strip('"') if named else None,
        "libc": " ".join(platform.libc_ver()) or None,
    }


def software(installed: Mapping[str, str]) -> JsonObject:
    """`packages`, whose versions are part of the protocol, and `lock`: all that is installed.

    Install locations are left out, because a path can contain the user's name.
    """
    versions = {name: installed.get(normal_name(name)) for name in PACKAGES}
    return {
        "packages": {name: version for name, version in versions.items() if version is not None},
        "lock": [f"{name}=={version}" for name, version in sorted(installed.items())],
    }


def normal_name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


@functools.cache
def _installed() -> dict[str, str]:
    from importlib.metadata import distributions

    found: dict[str, str] = {}
    for distribution in distributions():
        if name := distribution.metadata["Name"]:  # Python imports the first one on the path
            found.setdefault(normal_name(name), distribution.version)
    return found


def _commit(source: Path) -> JsonObject | None:
    """The git commit of a folder, and whether tracked files differ from it."""
    commit = _output("git", "-C", str(source), "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _output("git", "-C", str(source), "status", "--porcelain", "--untracked-files=no")
    return {"id": commit, "changed": bool(status)}


def harness() -> JsonObject:
    """The version of Firstlight, and its commit if it runs from a checkout."""
    from firstlight import __version__

    # A repository that merely contains the environment with the installed package does not count.
    checkout = Path(__file__).parents[3]
    commit = _commit(checkout) if (checkout / "src" / "firstlight").is_dir() else None
    if commit is not None and not commit["changed"]:
        # Untracked modules are imported too.
        new = ("ls-files", "--others", "--exclude-standard", "--", "src/firstlight/*.py")
        commit = {**commit, "changed": bool(_output("git", "-C", str(checkout), *new))}
    return {"name": "firstlight", "version": __version__, "commit": commit}


def load_average() -> list[float] | None:
    """Over one, five and fifteen minutes; None where the system has none."""
    try:
        return list(os.getloadavg())
    except OSError:
        return None


def noise_warnings(host: JsonObject) -> Iterator[str]:
    """Warnings about what adds noise to measurements on this machine."""
    cpu, quota = host["cpu"], host["container"]["cpu_quota"]
    if (busy := noisy_share(host)) is not None:
        yield (
            f"other programs were using {busy:.0%} of the CPU when the run began: measured "
            "processes get less of it"
        )
    if (governor := cpu["frequency_governor"]) not in (None, "performance"):
        yield f"the CPU frequency policy is {governor!r}: speeds change with load"
    if cpu["virtual"]:
        yield "this is a virtual machine: other guests can take CPU time unseen"
    if (cpu["usable_cores"] or 1) < 2:
        yield "there is only one core: the parent shares it with the measured process"
    if quota is not None:
        yield f"the container may use {quota:.1f} CPUs: it is throttled when it uses more"
    if host["memory_available_bytes"] < 2 << 30:
        yield "less than 2 GiB of memory is free: swapping would be measured too"
    if "coverage" in sys.modules or sys.gettrace() is not None:
        yield "a tracer or debugger is active in this process"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
