"""Two signatures held against each other, part by part."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.trace.read import recompiles
from firstlight.trace.read.model import Compile, Signature
from firstlight.trace.record.log_format import WHOLE


@dataclass(frozen=True)
class Difference:
    """A part that is not the same; '' where a side does not have it."""

    name: str
    before: str
    after: str
    of_argument: bool = True


def differences(before: Signature, after: Signature) -> list[Difference]:
    """All parts that differ: arguments, static values, structure, settings, the function itself."""
    found = _arguments(before, after)
    found += _mapping(_told(before), _told(after), "{} (static)", True)
    if before.tree != after.tree:
        found.append(Difference("structure", before.tree, after.tree, False))
    found += [_worded(d) for d in _mapping(before.context, after.context, "{}", False)]
    if before.function_object != after.function_object:
        old, new = (f"object {n}" for n in (before.function_object, after.function_object))
        found.append(Difference("function", old, new, False))
    return found


def _told(signature: Signature) -> dict[str, str]:
    """Static values by name; what is there as a whole as well only says that something differs."""
    return {name: text for name, text in signature.static.items() if not name.endswith(WHOLE)}


def nearest(compile_: Compile, earlier: Sequence[Compile]) -> Compile | None:
    """The earlier compile that the reason was found by: the nearest; of several the last."""
    known = [c for c in earlier if c.signature is not None]
    if compile_.signature is None or not known:
        return None
    signature = compile_.signature
    # Under another transformation it is another program, which is not compared with.
    same = [c for c in known if recompiles.transformation(c) == recompiles.transformation(compile_)]
    known = same or known

    def distance(earlier: Compile) -> int:
        if earlier.signature is None:
            return sys.maxsize
        return sum(d.distance for d in recompiles.differences(earlier.signature, signature))

    return min(reversed(known), key=distance)


def _worded(setting: Difference) -> Difference:
    """Some settings are only known to differ: the log has a number for all of them."""
    if setting.name != "others":
        return setting
    return Difference("other settings of JAX", "as they were", "others", False)


def _arguments(before: Signature, after: Signature) -> list[Difference]:
    old, new = ({a.path: a for a in side.arguments} for side in (before, after))
    wide = [recompiles.is_wide(side) for side in (before, after)]
    found = []
    for path in dict.fromkeys([*old, *new]):
        pair = old.get(path), new.get(path)
        was, now = (
            recompiles.described(x, w) if x else "" for x, w in zip(pair, wide, strict=True)
        )
        a, b = (x.sharding if x else None for x in pair)
        # None: a value of Python or NumPy, which is on no device yet.
        if a and b and a != b:
            was, now = f"{was} {a}", f"{now} {b}"
        if was != now:
            found.append(Difference(path, was, now))
    return found


def _mapping(
    before: Mapping[str, Any], after: Mapping[str, Any], name: str, of_argument: bool
) -> list[Difference]:
    return [
        Difference(
            name.format(key),
            str(before[key]) if key in before else "",
            str(after[key]) if key in after else "",
            of_argument,
        )
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]
