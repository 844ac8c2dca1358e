"""Shared by several commands: their parsers, checked values, the choice of cases, signals."""

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


def add_command(
    commands: Commands, name: str, handle: Handler, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    """Add a command; the line breaks of its description and epilog are kept."""
    parser = _add_parser(commands, name, description, epilog)
    parser.set_defaults(handle=handle, parser=parser)
    return parser


def add_actions(
    commands: Commands, name: str, description: str, epilog: str = ""
) -> Callable[[str, str, Handler], AddArgument]:
    """Add a command that consists of actions.

    Return a function that adds one (name, help, handler) and returns its `add_argument`.
    """
    parser = _add_parser(commands, name, description, epilog)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, about: str, handle: Handler) -> AddArgument:
        added = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        added.set_defaults(handle=handle, parser=added)
        return added.add_argument

    return action


def _add_parser(
    commands: Commands, name: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, description=description, epilog=epilog, formatter_class=raw)


def processes(text: str) -> int:
    """Parse the number of processes per case."""
    from firstlight.measure.planning import MAX_PROCESSES

    return between(1, MAX_PROCESSES)(text)


def between(low: int, high: int | None = None) -> Callable[[str], int]:
    """A parser for whole numbers in this range."""

    def parse(text: str) -> int:
        value = int(text) if text.isdecimal() else -1
        if not low <= value <= (value if high is None else high):
            limits = f", {low} or more" if high is None else f" from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number{limits}")
        return value

    return parse


def positive(limit: float, unit: str, or_zero: bool = False) -> Callable[[str], float]:
    """A parser for positive numbers up to a limit."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= limit or (value == 0 and not or_zero):
            wanted = "0 or a positive" if or_zero else "a positive"
            raise argparse.ArgumentTypeError(f"{text!r}: give {wanted} number of {unit}")
        return value

    return parse


seconds = positive(1e6, "seconds")
minutes = positive(1e5, "minutes")


def size(text: str, low: int = 1) -> int:
    """Parse a size in bytes, as 512M or 1.5G (of 1024 each)."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    unit = units.get(text[-1:].upper(), 1)
    try:
        value = int(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        value = -1
    if value < low:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of bytes, such as 500M or 4G")
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
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give CPUs such as 0,2-3") from None
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


def program_of(options: argparse.Namespace) -> list[str]:
    """Return the program and its arguments, without a leading `--`."""
    words: list[str] = options.program
    return words[1:] if words[:1] == ["--"] else words


def location(text: str) -> str:
    """Return a URL unchanged, and a path as an absolute one."""
    return text if "://" in text else os.path.abspath(text)


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
