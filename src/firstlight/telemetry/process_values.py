"""Memory and processor time of this process, under the names common to all exporters."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from functools import cache

from firstlight.telemetry import metrics
from firstlight.telemetry.values import Sample


def process_samples() -> list[Sample]:
    """What the system reports about this process; unknown values are left out."""
    values = {metrics.PROCESS_CPU: time.process_time(), metrics.PROCESS_START: started()}
    values[metrics.PROCESS_MAX_FILES] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    memory = memory_bytes()
    if memory is not None:
        values[metrics.PROCESS_MEMORY], values[metrics.PROCESS_MEMORY_PEAK] = memory
    if os.path.isdir("/proc/self/fd"):
        values[metrics.PROCESS_OPEN_FILES] = len(os.listdir("/proc/self/fd"))
    return [Sample(metric, (), float(value)) for metric, value in values.items()]


def memory_bytes() -> tuple[int, int] | None:
    """Resident memory, now and at its peak."""
    try:
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status if line.startswith("Vm"))
        # Not ru_maxrss, which a child inherits from its parent.
        return _kibibytes(lines["VmRSS"]), _kibibytes(lines["VmHWM"])
    except (OSError, KeyError):
        return None


def _kibibytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def identity() -> tuple[str, str]:
    """The name of the program, and `HOST:PID`."""
    program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    return program, f"{socket.gethostname()}:{os.getpid()}"


@cache
def started() -> float:
    """When this process began, in seconds since 1970."""
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as uptime:
            age = float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _IMPORTED
    return time.time() - age


_IMPORTED = time.time()
