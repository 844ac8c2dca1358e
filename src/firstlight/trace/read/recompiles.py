"""Why a function was compiled again: the differences from the nearest earlier compile.

Of all earlier compiles of the function in the process, the one with the fewest differences counts,
not the last one: a program may alternate between two shapes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from firstlight.trace.read.model import (
    BY_POSITION,
    Argument,
    ByIdentity,
    Compile,
    Difference,
    Reason,
    Signature,
)
from firstlight.trace.record.log_format import WHOLE

#: Keys of the context that are not settings.
_FURTHER, _OTHERS = "further leaves", "others"
_STRENGTH = {reason: number for number, reason in enumerate(Reason)}
#: Earlier signatures that a compile is compared with.
_MAX_COMPARED = 40
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
#: The dtype that JAX gives a Python number, without and with 64 bits.
OF_PYTHON = {
    "bool": ("bool", "bool"),
    "int": ("int32", "int64"),
    "float": ("float32", "float64"),
    "complex": ("complex64", "complex128"),
}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"-?\d[\d.]*(e[+-]?\d+)?$")
_HALVED = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
#: More owners than this of one static function: it is created repeatedly, not one per model.
_MAX_OWNERS = 2
_FUNCTIONS = (ByIdentity.FUNCTION, ByIdentity.PARTIAL, ByIdentity.METHOD)
#: By code of each function that was passed: the owners of its objects.
_Owners = Mapping[int | None, set[tuple[int, ...]]]
#: Signatures compiled before, by key; the latest last.
_Earlier = dict[object, Signature | None]


def with_reasons(compiles: Iterable[Compile], library: bool = False) -> tuple[Compile, ...]:
    """The compiles of one function, by their begin, each after the first with its reason."""
    in_order = sorted(compiles, key=lambda c: (c.process, c.begin_seconds))
    owners: dict[int | None, set[tuple[int, ...]]] = defaultdict(set)
    for identity in (i for c in in_order if c.signature for i in c.signature.identity.values()):
        owners[identity.made_of] |= {identity.belongs_to} if identity.belongs_to else set()
    all_earlier: dict[object, _Earlier] = defaultdict(dict)
    found = []
    for one in in_order:
        if not one.compiled:
            found.append(one)
            continue
        earlier = all_earlier[one.process, transformation(one), _passed(one, owners)]
        key = one.signature and _key(one.signature)
        found.append(_with_reason(one, key, earlier, library) if earlier else one)
        earlier.pop(key, None)  # moves it to the end
        earlier[key] = one.signature
    return tuple(found)


def _key(signature: Signature) -> object:
    pairs = (signature.static, signature.identity, signature.context)
    texts = [repr(sorted(one.items())) for one in pairs]
    arrays = (signature.arguments, signature.leaves, signature.tree)
    return (*arrays, signature.function_object, *texts)


def transformation(one: Compile) -> object:
    """The transformation of the call: under vmap, or as a gradient, it is another program."""
    return None if one.signature is None else one.signature.context.get("transformation")


def _passed(one: Compile, owners: _Owners) -> object:
    """The functions passed as static arguments: other code, or another model, rightly makes another
    program. A function that is created for each call has the same code."""
    given = one.signature.identity if one.signature else {}
    return tuple(
        (path, identity.made_of, identity.belongs_to if is_its_own else ())
        for path, identity in sorted(given.items())
        if identity.kind in _FUNCTIONS
        for is_its_own in [len(owners.get(identity.made_of, ())) <= _MAX_OWNERS]
    )


def _with_reason(one: Compile, key: object, earlier: _Earlier, library: bool) -> Compile:
    # An equal signature if there is one, otherwise the latest: among thousands any is as near.
    some = [earlier[key]] if key in earlier else [*earlier.values()][-_MAX_COMPARED:]
    known = [signature for signature in some if signature is not None]
    found = nearest_differences(one.signature, known, library) if one.signature and known else []
    found.sort(key=lambda difference: _STRENGTH[difference.kind])  # the reason comes first
    reason = found[0].kind if found else Reason.UNKNOWN
    return replace(one, recompile_reason=reason, recompile_differences=tuple(found))


def nearest_differences(
    now: Signature, earlier: Sequence[Signature], library: bool = False
) -> list[Difference]:
    """The differences from the nearest earlier signature; from the latest of equally near ones."""
    found = [list(differences(before, now, library)) for before in reversed(earlier)]
    return min(found, key=lambda all_of: sum(d.distance for d in all_of))


def differences(before: Signature, now: Signature, library: bool = False) -> Iterator[Difference]:
    """All differences between two signatures of a function."""
    # An operation has an object per set of parameters, which are compared as static values.
    if before.function_object != now.function_object and not library:
        old, new = (f"object {one.function_object}" for one in (before, now))
        yield Difference(Reason.NEW_FUNCTION, None, old, new, 3)
    yield from _tree(before, now)
    yield from _static(before, now)
    old_arguments = {argument.path: argument for argument in before.arguments}
    for argument in now.arguments:
        if argument.path in old_arguments:
            was = (old_arguments[argument.path], is_wide(before))
            yield from _argument(*was, argument, is_wide(now))
    if before.context.get(_FURTHER) != now.context.get(_FURTHER) and before.leaves == now.leaves:
        yield Difference(Reason.SHAPE, None, "", f"{now.leaves} arrays")
    yield from _context(before.context, now.context)


def _tree(before: Signature, now: Signature) -> Iterator[Difference]:
    old, new = ({a.path: a for a in s.arguments} for s in (before, now))
    # Compare paths too: the text of a long tree is shortened.
    if before.tree == now.tree and before.leaves == now.leaves and old.keys() == new.keys():
        was, is_now = (str(one.context.get(BY_POSITION)) for one in (before, now))
        if was != is_now:
            yield Difference(Reason.TREE, BY_POSITION, was, is_now)
        return
    # A change between static and array counts as a static value.
    come = sorted(new.keys() - old.keys() - {*before.static})
    gone = sorted(old.keys() - new.keys() - {*now.static})
    found: list[tuple[str | None, str, str]] = []
    found += [(path, "", described(new[path], is_wide(now))) for path in come]
    found += [(path, described(old[path], is_wide(before)), "") for path in gone]
    if not found:
        if before.tree == now.tree and old.keys() != new.keys():
            return
        found = [(None, before.tree.removeprefix("PyTreeDef"), now.tree.removeprefix("PyTreeDef"))]
    for number, about in enumerate(found):
        yield Difference(Reason.TREE, *about, 0 if number else 10)  # there is one tree


def _static(before: Signature, now: Signature) -> Iterator[Difference]:
    found: list[str] = []
    names = sorted({*before.static, *now.static}, key=lambda name: (name.endswith(WHOLE), name))
    for name in names:
        whole = name.removesuffix(WHOLE)
        if whole != name and any(path.startswith(whole) for path in found):
            continue  # the part that differs is there already
        one = _static_value(name, before, now)
        if one is not None:
            found.append(name)
            yield one


def _static_value(name: str, before: Signature, now: Signature) -> Difference | None:
    was, is_now = before.static.get(name), now.static.get(name)
    if was is None or is_now is None:
        old, new = (s.static.get(name) or _as_array(name, s) for s in (before, now))
        return Difference(Reason.STATIC, name, old, new, 2)
    old, new = (_ADDRESS.sub("", text) for text in (was, is_now))
    one, other = before.identity.get(name), now.identity.get(name)
    if one is not None and other is not None and one.number is not None:
        same, alike = one.number == other.number, one.made_of == other.made_of
    else:
        same, alike = was == is_now, old == new
    if same:
        return None
    if not alike:
        return Difference(Reason.STATIC, name, was, is_now, 2)
    kind = other.kind if other is not None else ByIdentity.OBJECT
    return Difference(Reason.STATIC, name, old, new, 1, kind)


def _as_array(name: str, signature: Signature) -> str:
    """The text of an argument that is an array on this side."""
    given = (described(a, is_wide(signature)) for a in signature.arguments if a.path == name)
    return next(given, "")


def _argument(
    before: Argument, was_wide: bool, now: Argument, is_wide: bool
) -> Iterator[Difference]:
    found = []  # every difference adds distance: shape and type are further than type alone
    if before.shape != now.shape:
        found.append((Reason.SHAPE, 2 + 3 * abs(len(before.shape) - len(now.shape))))
    if dtype_of(before, was_wide) != dtype_of(now, is_wide):
        found.append((Reason.DTYPE, 2))
    if before.weak != now.weak:
        found.append((Reason.WEAK, 1))
    if _placed(before) != _placed(now):
        found.append((Reason.SHARDING, 1))
    if not found:
        return
    texts = described(before, was_wide), described(now, is_wide)
    if found[0][0] is Reason.SHARDING:
        texts = str(before.sharding), str(now.sharding)
    yield Difference(found[0][0], now.path, *texts, sum(distance for _, distance in found))


def _context(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[Difference]:
    differ = [
        name
        for name in sorted({*before, *now} - {BY_POSITION, _FURTHER, _OTHERS})
        if before.get(name) != now.get(name)
    ]
    for name in differ:
        values = (one.get(name) for one in (before, now))
        was, is_now = ("none" if value is None else str(value) for value in values)
        yield Difference(Reason.CONTEXT, name, was, is_now, 2)
    if not differ and before.get(_OTHERS) != now.get(_OTHERS):
        yield Difference(Reason.CONTEXT, None, "", "")


# --- arguments as text ----------------------------------------------------------------------------


def dtype_of(argument: Argument, wide: bool) -> str:
    """The dtype that JAX gives an argument. wide: with 64 bits."""
    if argument.dtype in OF_PYTHON:
        return OF_PYTHON[argument.dtype][wide]
    return argument.dtype if wide else _HALVED.get(argument.dtype, argument.dtype)


def is_number(static: str) -> bool:
    """Whether the text of a static value is a number, or stands for one in a redacted log."""
    return bool(_NUMBER.match(static)) or static.startswith("number-")


def described(argument: Argument, wide: bool) -> str:
    """`f32[128]`, as JAX writes it, with a note for Python numbers and weak types."""
    dtype = dtype_of(argument, wide)
    letters = dtype.rstrip("0123456789")
    short = _SHORT.get(letters, letters) + dtype[len(letters) :]
    shape = ",".join(map(str, argument.shape))
    of_python = argument.dtype in OF_PYTHON and argument.weak and not argument.shape
    note = f" (a Python {argument.dtype})" if of_python else " (weak)" if argument.weak else ""
    return f"{short}[{shape}]{note}"


def is_wide(signature: Signature) -> bool:
    """Whether the call was made with 64 bits."""
    return bool(signature.context.get("jax_enable_x64"))


def _placed(argument: Argument) -> str | None:
    """The sharding if it counts. An uncommitted array on one device goes where the others are."""
    sharding = argument.sharding
    if sharding is None or sharding.startswith("SingleDeviceSharding"):
        return None
    return sharding
