"""Recompiles for static values: which of them differ, and a cure that fits what they are."""

from __future__ import annotations

from collections.abc import Sequence

from firstlight.trace.quantities import listed
from firstlight.trace.read.model import ByIdentity, Compile, Difference, Function, Reason
from firstlight.trace.read.recompiles import is_number
from firstlight.trace.wording import again_so_often, differing, first_difference


def static_words(function: Function, again: Sequence[Compile]) -> tuple[str, str]:
    """Title and remedy of recompiles for static values."""
    new_objects = by_identity(again)
    if new_objects:
        paths = [path for some in new_objects.values() for path in some]
        new = "is a new object" if len(paths) == 1 else "are new objects"
        title = (
            f"{again_so_often(function, again)}: {listed(paths, 3)} {new} each time, of the same "
            "code."
        )
        cures = (_MADE_ANEW[kind].format(listed(some, 3)) for kind, some in new_objects.items())
        return title, " ".join(cures)
    values = differing(again)
    title = (
        f"{again_so_often(function, again)} for other values of static arguments: "
        f"{first_difference(again)}."
    )
    if not _differs_in_number(again):
        return title, (
            f"Each value of {values} makes a program of its own: use fewer different values, and "
            "let values with the same meaning compare equal. Beyond that only a persistent cache "
            "saves them, from the second start on."
        )
    if all(one.site is not None and one.site.package == "equinox" for one in again):
        return title, (
            f"Under equinox.filter_jit a Python number is static: give {values} as an array, "
            "jnp.asarray(value), in every call, and one program does for all."
        )
    return title, (
        f"If {values} is a number that only takes part in arithmetic, take it out of "
        "static_argnames: it is then an array, and one program does for all. If it is the length "
        "of a loop, use jax.lax.fori_loop, which takes a length that is not static."
    )


#: What to do about a value that is equal to nothing but itself.
_MADE_ANEW = {
    ByIdentity.METHOD: "{} is a method of a new object each time: make that object once, before "
    "the loop.",
    ByIdentity.PARTIAL: "{} is a new functools.partial each time, which is equal to no other: make "
    "it once, before the loop, or pass what it binds as arguments.",
    ByIdentity.FUNCTION: "JAX knows {} by identity, and gets a new function each time: make it, or "
    "the optimiser that it comes with, once, before the loop (a lambda in the call is a new one), "
    "and pass the same one.",
    ByIdentity.OF_PACKAGE: "{} is a new object each time, of a class that does not compare its "
    "values: make it once, before the loop.",
    ByIdentity.OBJECT: "If objects given as {} hold the same values, make their class comparable "
    "by them: @dataclass(frozen=True), or __eq__ and __hash__. Or make the object once, outside of "
    "the loop.",
}


def by_identity(again: Sequence[Compile]) -> dict[ByIdentity, list[str]]:
    """What is the same but for being another object, by what it is; {}: values differ as well."""
    found: dict[ByIdentity, list[str]] = {}
    for difference in _static_differences(again):
        if difference.identity is None or difference.field is None:
            return {}
        paths = found.setdefault(difference.identity, [])
        if difference.field not in paths:
            paths.append(difference.field)
    return found


def _static_differences(again: Sequence[Compile]) -> list[Difference]:
    every = (d for one in again for d in one.recompile_differences)
    return [difference for difference in every if difference.kind is Reason.STATIC]


def _differs_in_number(again: Sequence[Compile]) -> bool:
    """Whether one of the values that differ is a number."""
    paths = {difference.field for difference in _static_differences(again)}
    given = [pair for one in again if one.signature for pair in one.signature.static.items()]
    return any(path in paths and is_number(text) for path, text in given)
