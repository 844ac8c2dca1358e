"""What the text of a compiled program (HLO) says about running it."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The distance from 1 to the next number, by XLA's name of the type.
_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
_FLOAT = re.compile(r"\b(f64|f32|f16|bf16|f8\w*|f4\w*)\[")
_EIGHT_BITS = 2.0**-3
_CALLBACK = re.compile(r'custom_call_target="[^"]*python[^"]*callback')


@dataclass(frozen=True)
class Traits:
    """What is known about a program without running it."""

    may_not_end: bool = True  # its time depends on data: a loop without a count, or a callback
    epsilon: float = 2.0**-23  # of the coarsest type that it computes in


def traits_of(text: str | None) -> Traits:
    """Read the text of an executable; without it, the worst is assumed."""
    if not text:
        return Traits()
    loops = [line for line in text.splitlines() if " while(" in line]
    may_not_end = not all("known_trip_count" in line for line in loops)
    kinds = set(_FLOAT.findall(text))
    epsilon = max((_EPSILON.get(kind, _EIGHT_BITS) for kind in kinds), default=0.0)
    return Traits(may_not_end or _CALLBACK.search(text) is not None, epsilon)
