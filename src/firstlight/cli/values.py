"""What the text of an argument stands for, checked: numbers of processes, seconds, shares, CPUs."""

from __future__ import annotations

import argparse
import os


def processes(text: str) -> int:
    """How often a case is measured."""
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
    """A share as 0.03 or 3%."""
    number = text.strip()
    value = float(number.rstrip("%")) / (100 if number.endswith("%") else 1)
    if 1 <= value < 100 and not number.endswith("%"):
        raise argparse.ArgumentTypeError(
            f"{number} is not a share: for {number} per cent write {value / 100:g} or {number}%"
        )
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError("must lie between 0 and 1, as 0.03, or be written as 3%")
    return value


def cpus(text: str) -> tuple[int, ...]:
    """CPUs as 0,2-3."""
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
