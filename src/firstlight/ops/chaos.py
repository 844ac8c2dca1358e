"""The table of deliberate failures: how to cause each one, its alert, and the fixed variant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firstlight.telemetry.runtime import EXPECTED_VARIABLE

FAILURES = Path(__file__).parent / "failures"
#: Placeholder for a folder that is made for the run.
FOLDER = "FOLDER"


@dataclass(frozen=True)
class Variant:
    """A program's arguments, environment variables and compilation cache."""

    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    cache: str = f"{FOLDER}/kept"


@dataclass(frozen=True)
class Mode:
    name: str  # also the name of its runbook
    about: str
    program: str
    broken: Variant
    mended: Variant
    alert: str
    trace_finding: str = ""  # the finding of `firstlight trace` that names it
    doctor_check: str = "alerts"  # the check of `firstlight doctor` that names it
    short: tuple[str, ...] = ("--steps", "40")  # ends soon, for `firstlight trace`
    ports: int = 1


MODES = (
    Mode(
        "cold-compile",
        "compiled programs are lost and compiled again",
        "lost_cache",
        Variant(("--sweep", f"{FOLDER}/swept"), cache=f"{FOLDER}/swept"),
        Variant(),
        "FirstlightCacheHitsBurning",
        trace_finding="cache-off",
        short=("--rounds", "1"),
    ),
    Mode(
        "out-of-memory",
        "a batch is larger than the memory of the device",
        "too_large_batch",
        Variant(),
        Variant(("--batch", "256")),
        "FirstlightDeviceOutOfMemory",
    ),
    Mode(
        "repeated-recompilation",
        "every batch has a different length",
        "varying_shapes",
        Variant(),
        Variant(("--pad",)),
        "FirstlightRecompiling",
        trace_finding="shape-recompiles",
    ),
    Mode(
        "non-determinism",
        "equal inputs give different outputs",
        "unseeded",
        Variant(),
        Variant(("--seed", "0")),
        "FirstlightNonDeterministic",
    ),
    Mode(
        "memory-leak",
        "results are kept forever",
        "kept_arrays",
        Variant(),
        Variant(("--keep", "4")),
        "FirstlightLeak",
    ),
    Mode(
        "thundering-compilation",
        "several processes compile the same program at once",
        "lost_cache",
        Variant(("--workers", "4", "--apart", f"{FOLDER}/apart")),
        Variant(("--workers", "4")),
        "FirstlightThunderingCompilation",
        trace_finding="ranks-compile-the-same",
        short=("--rounds", "1"),
        ports=5,
    ),
    Mode(
        "runtime-mismatch",
        "a process that should use a GPU does not find one",
        "any_work",
        Variant(environment=((EXPECTED_VARIABLE, "cuda"),)),
        Variant(environment=((EXPECTED_VARIABLE, "cpu"),)),
        "FirstlightDeviceFallback",
        doctor_check="device and driver",
    ),
)
BY_NAME = {mode.name: mode for mode in MODES}


def program(mode: Mode, variant: Variant, folder: str) -> list[str]:
    """The path of the program, and its arguments."""
    arguments = [argument.replace(FOLDER, folder) for argument in variant.arguments]
    return [str(FAILURES / f"{mode.program}.py"), *arguments]
