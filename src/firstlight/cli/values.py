"""Checked values of arguments: numbers of processes, seconds, shares, CPUs."""

from __future__ import annotations

import argparse
import os


def processes(text: str) -> int:
    """Parse the number of processes per case."""
    from firstlight.measure.planning import MAX_PROCESSES

    value = int(text)
    if not 1 <= value <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_PROCESSES}")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be a positive number of seconds")
    return value


def minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e5:
        raise argparse.ArgumentTypeError("must be a positive number of minutes")
    return value


def share(text: str) -> float:
    """Parse a share written as 0.03 or 3%."""
    number = text.strip()
    value = float(number.rstrip("%")) / (100 if number.endswith("%") else 1)
    if 1 <= value < 100 and not number.endswith("%"):
        raise argparse.ArgumentTypeError(
            f"{number} is not a share: for {number} per cent write {value / 100:g} or {number}%"
        )
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError("must be between 0 and 1, such as 0.03, or 3%")
    return value


def cpus(text: str) -> tuple[int, ...]:
    """Parse CPUs written as 0,2-3."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    if not hasattr(os, "sched_getaffinity"):
        raise argparse.ArgumentTypeError("this system cannot pin processes")
    usable = os.sched_getaffinity(0)
    if not found or not found <= usable:
        raise argparse.ArgumentTypeError(f"choose from the usable CPUs: {sorted(usable)}")
    return tuple(sorted(found))
