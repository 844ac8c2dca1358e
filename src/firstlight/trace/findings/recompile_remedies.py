"""Titles and remedies of recompiles: what differs, and what to do about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from firstlight.present.quantities import listed, times
from firstlight.trace import wording
from firstlight.trace.findings import shapes
from firstlight.trace.read.model import ByIdentity, Compile, Difference, Function, Reason
from firstlight.trace.read.recompiles import OF_PYTHON, dtype_of, is_number, is_wide

#: Title and remedy by reason; `title_and_remedy` has their values.
_TITLES = {
    Reason.SHAPE: "{again} for other shapes: {first}.",
    Reason.DTYPE: "{again} for other dtypes: {first}.",
    Reason.WEAK: "{name} is compiled for {values} and again for arrays of the same type: {first}.",
    Reason.TREE: "{name} is compiled again because the structure of its arguments differs: "
    "{first}.",
    Reason.SHARDING: "{again} for arguments placed elsewhere: {first}.",
    Reason.CONTEXT: "{name} is compiled again under another JAX setting: {first}.",
    Reason.UNKNOWN: "{name} is compiled again although nothing that is recorded differs.",
    Reason.STATIC: "{again} for other values of static arguments: {first}.",
    Reason.NEW_FUNCTION: "{name} is compiled {times}: each time as a new {made}, which JAX cannot "
    "recognise.",
}
_REMEDIES = {
    Reason.SHAPE: "{padding}",
    Reason.DTYPE: "Give {differing} one dtype before the call at {call}, for instance with "
    "np.asarray(value, dtype=np.{dtype}).",
    Reason.WEAK: "Give {differing} the same kind of value in every call at {call}: "
    "np.{dtype}(value), or jnp.asarray(value, dtype=jnp.{dtype}), from the first call on.",
    Reason.TREE: "Call it at {call} with the same containers (dict or OrderedDict, tuple or "
    "list), the same keys, None in the same places, and arguments always by position or always by "
    "name.",
    Reason.SHARDING: "Before the first call at {call}, place {differing} where the results will "
    "be: jax.device_put(value, sharding) with the sharding of the function's outputs.",
    Reason.CONTEXT: "Set it once at the start of the program (jax.config.update), not in a context "
    "around some of the calls: see {call}.",
    Reason.UNKNOWN: "{why}. The call is at {call}; JAX says more with jax_explain_cache_misses.",
    Reason.STATIC: "Each value of {differing} makes its own program: use fewer values, and make "
    "values with the same meaning compare equal. For the rest, a persistent cache saves the "
    "compiles from the second start on.",
    Reason.NEW_FUNCTION: "{give}. {called}",
}
_STATIC_NUMBER = (
    "If {differing} is a number used only in arithmetic, remove it from static_argnames: it is "
    "then an array, and one program serves all values. If it is the length of a loop, use "
    "jax.lax.fori_loop, whose length need not be static."
)
_NUMBER_IN_EQUINOX = (
    "Under equinox.filter_jit a Python number is static: give {differing} as an array, "
    "jnp.asarray(value), in every call, and one program serves all values."
)
#: What to do about a value that is equal only to itself.
_NEW_OBJECT = {
    ByIdentity.METHOD: "{} is a method of a new object each time: create that object once, before "
    "the loop.",
    ByIdentity.PARTIAL: "{} is a new functools.partial each time, which equals no other: create "
    "it once, before the loop, or pass what it binds as arguments.",
    ByIdentity.FUNCTION: "JAX compares {} by identity, and gets a new function each time: create "
    "it, or the optimiser that it belongs to, once, before the loop (a lambda in the call is a new "
    "one).",
    ByIdentity.OF_PACKAGE: "{} is a new object each time, of a class that does not compare its "
    "values: create it once, before the loop.",
    ByIdentity.OBJECT: "If objects passed as {} have the same values, make their class comparable: "
    "@dataclass(frozen=True), or __eq__ and __hash__. Or create the object once, before the loop.",
}


def title_and_remedy(
    function: Function, reason: Reason, again: Sequence[Compile]
) -> tuple[str, str]:
    """Title and remedy for the recompiles of a function for one reason."""
    new_objects = by_identity(again) if reason is Reason.STATIC else {}
    if new_objects:
        paths = [path for some in new_objects.values() for path in some]
        new = "is a new object" if len(paths) == 1 else "are new objects"
        what = f"{listed(paths, 3)} {new} each time, of the same code"
        cures = (_NEW_OBJECT[kind].format(listed(some, 3)) for kind, some in new_objects.items())
        return f"{_recompiled(function, again)}: {what}.", " ".join(cures)
    title, remedy = _TITLES[reason], _REMEDIES[reason]
    static = {d.field for d in _static_differences(again)}
    given = [pair for one in again if one.signature for pair in one.signature.static.items()]
    number = any(path in static and is_number(text) for path, text in given)
    if reason is Reason.STATIC and number:
        in_equinox = all(one.site is not None and one.site.package == "equinox" for one in again)
        remedy = _NUMBER_IN_EQUINOX if in_equinox else _STATIC_NUMBER
    one, why = again[0], wording.why_again(again[0]) or ""
    call = wording.short(wording.where_called(one))
    if one.site and one.user_site and one.site.package:  # the user's call went through a package
        call += f" (by {one.site.package}, {wording.short(one.site)})"
    differing = dict.fromkeys(path for some in again for path in some.differing)
    weak, dtype = _weak_values_and_dtype(function, again)
    values = {
        "name": wording.readable(function),
        "again": _recompiled(function, again),
        "first": listed(map(wording.difference, one.recompile_differences), 1),
        "values": weak,
        "differing": listed(differing, 3) or "the argument",
        "call": call,
        "dtype": dtype,
        "why": f"{why[:1].upper()}{why[1:]}",
        "padding": shapes.remedy(function, call) if reason is Reason.SHAPE else "",
        "times": times(len(again) + 1),
        "made": "partial" if function.kind == "partial" else "function",
        "give": _make_once(function),
        "called": _called(function),
    }
    return title.format(**values), remedy.format(**values)


def _recompiled(function: Function, again: Sequence[Compile]) -> str:
    return f"{wording.readable(function)} is compiled again {times(len(again))}"


def _weak_values_and_dtype(function: Function, again: Sequence[Compile]) -> tuple[str, str]:
    """What the weak arguments were, and the dtype to use: a float if one of them ever was."""
    signatures = [one.signature for one in function.compiles if one.signature]
    given = [(a, dtype_of(a, is_wide(s))) for s in signatures for a in s.arguments]
    paths = [path for one in again for path in one.differing]
    weak = "arrays made from Python numbers without a dtype"
    if any(a.path in paths and a.dtype in OF_PYTHON for a, _ in given):
        weak = "plain Python numbers"
    seen = [dtype for a, dtype in given if [a.path] == paths[:1]] or ["float32"]
    return weak, next((dtype for dtype in seen if dtype.startswith("float")), seen[0])


def _make_once(function: Function) -> str:
    """What to do about functions that are created repeatedly."""
    scope, _, name = function.name.rpartition(".")
    owner = scope.rpartition(".")[2]
    if owner and not owner.startswith("<") and not name.startswith("<"):
        return (
            f"Each {owner} has its own jitted functions: create the object once, before the loop, "
            "and call the same one again"
        )
    if function.kind == "partial":
        return (
            "Bind the arguments once, outside of the loop, or pass them as arguments of the jitted "
            "function"
        )
    return (
        "Define it once and call jax.jit on it once (at the top of the module, or before the "
        "loop), and pass what it captures as arguments"
    )


def _called(function: Function) -> str:
    """The line that called most objects of the function; it may have created them or not."""
    objects = defaultdict(set)
    for one in function.compiles:
        if one.compiled and one.signature is not None and (place := wording.where_called(one)):
            objects[place].add(one.signature.function_object)
    if not objects:
        return "The line that called them is unknown."
    place = max(objects, key=lambda where: len(objects[where]))
    count = len(objects[place])
    which = "One was" if count == 1 else f"{count} different ones were"
    return f"{which} called at {wording.short(place)}."


def by_identity(again: Sequence[Compile]) -> dict[ByIdentity, list[str]]:
    """Paths of values that differ only as objects, by kind; {} if values differ as well."""
    found: dict[ByIdentity, dict[str, None]] = defaultdict(dict)
    for difference in _static_differences(again):
        if difference.identity is None or difference.field is None:
            return {}
        found[difference.identity][difference.field] = None
    return {kind: list(paths) for kind, paths in found.items()}


def _static_differences(again: Sequence[Compile]) -> list[Difference]:
    return [d for one in again for d in one.recompile_differences if d.kind is Reason.STATIC]
