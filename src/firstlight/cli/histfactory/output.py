"""What the commands print: numbers for people, one JSON object for programs, progress on stderr."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TextIO

from firstlight.present.plain_text import printable
from firstlight.present.progress import LiveLine
from firstlight.present.quantities import ABSENT

if TYPE_CHECKING:
    from enum import IntEnum

    from firstlight.cli.histfactory.job import Job
    from firstlight.histfactory.exclusion import CLsStatus
    from firstlight.histfactory.fitting import BinYield, FitResult
    from firstlight.histfactory.model import Model
    from firstlight.histfactory.newton import Status
    from firstlight.histfactory.workspace_file import JsonObject

#: What a table says of a test, by the name of its status.
STATES = {
    "CONVERGED": "",
    "LEVEL_NOT_REACHED": "NO LIMIT",
    "UNLIKELY_NULL": "UNLIKELY DATA",
    "NOT_CONVERGED": "NOT CONVERGED",
    "IMPOSSIBLE_NULL": "NO BACKGROUND",
}
#: What is said of a fit that ended in a minimum, by the name of its status.
STATES_OF_MINIMA = {
    "CONVERGED": "converged",
    "NOT_DETERMINED": "NOT DETERMINED",
    "NOT_PROVEN_LOWEST": "NOT PROVEN LOWEST",
}
BAND_NAMES = ("−2σ", "−1σ", "median", "+1σ", "+2σ")


def show_results(
    options: argparse.Namespace, job: Job, content: JsonObject, show: Callable[[], None]
) -> None:
    """Print the results of a command: one JSON object if asked for, else as `show` does."""
    if options.json:
        print_json(job.header, content)
    else:
        show()


def print_json(header: JsonObject, content: JsonObject) -> None:
    text = json.dumps(finite({**header, **content}), indent=1, allow_nan=False, ensure_ascii=False)
    # A lone surrogate in a name cannot be encoded, but its escape can.
    print(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def finite(value: object) -> object:
    """Arrays as lists, and null in place of every number that is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def note(text: str) -> None:
    """Print a note that is not a failure, on stderr."""
    print(f"firstlight: note: {printable(text)}.", file=sys.stderr)


def several_minima(branches: int) -> None:
    """Print a note if a fit found more than one minimum."""
    if branches > 1:
        note(
            f"the likelihood has at least {branches} minima; the results are those of the lowest "
            "one found"
        )


def below_zero(result: FitResult, model: Model) -> None:
    """Print a note if a fit expects samples below zero, but for a signal that is allowed to be."""
    allowed = model.poi if model.poi is not None and model.lower[model.poi_index] < 0 else None
    found = [one for one in result.negative_samples if one.parameter != allowed]
    if found:
        worst = min(found, key=lambda one: one.expected)
        more = f", the lowest of {len(found)} yields" if len(found) > 1 else ""
        note(
            f"the fit expects a sample below zero: {worst}{more}; --require-positive keeps the "
            "lowest fit without such samples"
        )


def ending(problems: Iterable[str]) -> int:
    """Print the problems on stderr; the exit code is 1 if there are any."""
    code = 0
    for problem in problems:
        print(f"firstlight: {printable(problem)}", file=sys.stderr)
        code = 1
    return code


def unconverged(result: FitResult, what: str) -> list[str]:
    """A problem if a fit did not converge."""
    if result.converged:
        return []
    ended = ended_as(result.status)
    return [f"{what} {ended}: {result.status.message}", *map(str, result.negative_bins)]


def ended_as(status: Status, verb: str = "is") -> str:
    """What a fit that did not converge did instead."""
    state = STATES_OF_MINIMA.get(status.name)
    return "DID NOT CONVERGE" if state is None else f"{verb} {state}"


def state_of_fit(status: Status) -> str:
    """How a fit ended, in a table."""
    return STATES_OF_MINIMA.get(status.name, "NOT CONVERGED")


def statuses(codes: Iterable[int]) -> list[Status]:
    """How fits ended."""
    from firstlight.histfactory.newton import Status

    return [Status(int(code)) for code in codes]


def names_of(statuses: Iterable[IntEnum]) -> list[str]:
    """Statuses in JSON."""
    return [status.name for status in statuses]


def untested(status: CLsStatus, job: Job, what: str) -> list[str]:
    """A problem if a test failed, and the bins behind it."""
    problem = [] if status == 0 else [f"{what}: {status.message}"]
    return [*problem, *map(str, without_background(status, job))]


def without_background(status: CLsStatus, job: Job) -> list[BinYield]:
    """The bins that make a test impossible."""
    from firstlight.histfactory.exclusion import CLsStatus, bins_without_background

    if status is not CLsStatus.IMPOSSIBLE_NULL:
        return []
    return bins_without_background(job.model, job.data, job.fixed)


def explained(status: CLsStatus, job: Job) -> JsonObject:
    """How a test ended, for JSON."""
    bins = [one._asdict() for one in without_background(status, job)]
    named = {"status": status.message, "status_name": status.name}
    return {**named, "bins_without_background": bins}


def state_of(status: CLsStatus) -> str:
    """A status in a table."""
    return STATES[status.name]


def measured(value: float, sigma: float) -> tuple[str, str]:
    """A value and its uncertainty, rounded to two digits of the uncertainty."""
    if not (math.isfinite(sigma) and sigma > 0):
        return significant(value), ""
    places = 1 - math.floor(math.log10(sigma))
    if places > 9 or abs(value) >= 1e9:
        return f"{value:.6g}", f"{sigma:.2g}"
    places = max(places, 0)
    return f"{value:.{places}f}".replace("-", "−"), f"{sigma:.{places}f}"


def significant(value: float | None, digits: int = 4) -> str:
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:.{digits}g}".replace("-", "−")


def signed(value: float, places: int | None = None) -> str:
    """With its sign; to the given number of decimal places, or three significant digits."""
    if not math.isfinite(value):
        return ABSENT
    text = f"{value:+#.3g}" if places is None else f"{value:+.{places}f}"
    return text.replace("-", "−")


class Working:
    """One progress line on stderr, if stderr is a terminal."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._line = LiveLine(stream or sys.stderr)
        self._drawn = 0.0

    def __enter__(self) -> Working:
        self._line.show(f"{self._what} …")
        return self

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._drawn > 0.1 or done == of:
            self._drawn = now
            filled = 24 * done // max(of, 1)
            self._line.show(f"{self._what} {'█' * filled}{'░' * (24 - filled)} {done}/{of}")

    def __exit__(self, *_: object) -> None:
        self._line.clear()
