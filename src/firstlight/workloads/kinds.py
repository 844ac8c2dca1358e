"""The types `Backend`, `Size` and `Workload`, which `catalog` holds and other packages register.

A program is named as `"module:function"` and loaded only in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firstlight.errors import FirstlightError

Parameters = Mapping[str, Any]
MAX_NAME = 200


class CatalogError(FirstlightError):
    """A registered backend or workload cannot be used."""


def check_name(what: str, name: object) -> None:
    """Reject a name that is not one line of plain text: CI systems run commands found in logs."""
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > MAX_NAME:
        raise CatalogError(
            f"{what} {str(name)[:MAX_NAME]!r} is not a valid name. Use 1 to {MAX_NAME} printable "
            "characters, without line breaks or control characters."
        )


@dataclass(frozen=True)
class Backend:
    """A way to run a program: the framework, and what is applied to the function under test."""

    name: str
    title: str
    framework: str  # the key of its program in `Workload.programs`
    adapter: str  # "module:class", a `firstlight.measure.adapters.Adapter`
    requires: tuple[str, ...]  # modules that must be installed
    compiled: bool  # whether later calls reuse work of the first
    cache: str | None = None  # its persistent cache: "jax", "torch" or None
    extra: str | None = None  # `pip install 'firstlight[extra]'`

    def __post_init__(self) -> None:
        check_name("the backend", self.name)


@dataclass(frozen=True)
class Size:
    """Parameters of one size of a workload."""

    parameters: Parameters
    tolerance: float | None = None  # for this size, if not the workload's
    frameworks: tuple[str, ...] | None = None  # if not all frameworks have it
    note: str | None = None


@dataclass(frozen=True)
class Workload:
    """A kind of program with its sizes, one program per framework, and its reference."""

    name: str
    title: str
    programs: Mapping[str, str]  # framework: "module:function"
    reference: str | None
    sizes: Mapping[str, Size]
    tolerance: float  # max|x - ref| / max|ref| allowed in float32
    environment: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = 0  # None: the program uses none, or its own
    file: str | None = None  # a user's own benchmark file
    backends: tuple[str, ...] | None = None  # if not every backend makes sense
    standard: tuple[str, ...] | None = None  # its sizes in the standard suite; default: the first

    def __post_init__(self) -> None:
        check_name("the workload", self.name)
        for size in self.sizes:
            check_name(f"{self.name}: the size", size)
