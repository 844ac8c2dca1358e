"""Shared by several commands: checked argument values, the choice of cases, signals."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Handler = Callable[[argparse.Namespace], int]
    AddArgument = Callable[..., argparse.Action]  # `add_argument` of a parser
    Options = argparse._ActionsContainer  # a parser, or a group of its options


def adding_actions(parser: argparse.ArgumentParser) -> Callable[[str, str, Handler], AddArgument]:
    """A function that adds an action (name, help, handler) and returns its `add_argument`."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, about: str, handle: Handler) -> AddArgument:
        added = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        added.set_defaults(handle=handle, parser=added)
        return added.add_argument

    return action


def processes(text: str) -> int:
    """Parse the number of processes per case."""
    from firstlight.measure.planning import MAX_PROCESSES

    value = int(text)
    if not 1 <= value <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_PROCESSES}")
    return value


def between(low: int, high: int) -> Callable[[str], int]:
    """A parser for whole numbers in this range."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be {low} to {high}")
        return value

    parse.__name__ = "whole number"  # argparse names it if the text is not a number
    return parse


def _positive(limit: float, unit: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not 0 < value < limit:
            raise argparse.ArgumentTypeError(f"must be a positive number of {unit}")
        return value

    parse.__name__ = unit  # argparse names it if the text is not a number
    return parse


seconds = _positive(1e6, "seconds")
minutes = _positive(1e5, "minutes")


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


def add_case_options(group: Options, time_limit: str) -> None:
    """Add the options by which `run`, `gate` and `calibrate` choose cases and processes."""
    add = group.add_argument
    add(
        "-b",
        dest="pattern",
        metavar="REGEX",
        help="only cases whose name contains a match; names are workload[size]/backend/cache, "
        "see `firstlight list TARGET`",
    )
    add("--backend", action="append", metavar="NAME", help="only this backend (repeatable)")
    add(
        "--cache",
        action="append",
        choices=("none", "cold", "warm", "shared", "frozen", "tiered"),
        help="persistent compilation cache policy; shared, frozen and tiered are Firstlight's own "
        "(repeatable; default: none for a file, none and warm for compiled backends of a "
        "workload, the suite's own otherwise)",
    )
    add("--affinity", type=cpus, metavar="CPUS", help="pin the workers, as in 0,2-3")
    add("--timeout", type=seconds, metavar="SECONDS", help=time_limit)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Treat a closed terminal or a stopped job like Ctrl-C: nothing is lost or left behind."""
    import signal

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    previous = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
