"""The shapes that a function was compiled for, and the sizes to pad them to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass

from firstlight.present.quantities import counted, listed
from firstlight.trace.read.model import Argument, Function, Reason, Signature
from firstlight.trace.read.recompiles import dtype_of, is_wide, transformation

_MAX_BUCKETS = 6  # powers of two to pad to: at most twice the work, and few programs


@dataclass(frozen=True)
class Varying:
    """A dimension that differs between compiles, in one or several arguments together."""

    arguments: tuple[str, ...]
    dimension: int
    sizes: tuple[int, ...]  # in the order of the compiles

    @property
    def buckets(self) -> tuple[int, ...]:
        """Sizes to pad to: powers of two, fewer than there are sizes.

        Only the largest if there are two sizes, or if it came first: a batch, and the last batches
        of several data sets.
        """
        sizes = sorted(set(self.sizes))
        if len(sizes) <= 2 or self.sizes[0] == sizes[-1]:
            return (sizes[-1],)
        powers = sorted({1 << max(size - 1, 0).bit_length() for size in sizes})
        # Drop the smallest: padding those further costs least.
        return tuple(powers[-min(_MAX_BUCKETS, len(sizes) - 1) :])


def varying(function: Function) -> list[Varying]:
    """The dimensions that differ between compiles; those with the same sizes are one `Varying`.

    Empty if an argument differs in rank: padding cannot change that.
    """
    shapes: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for signature in _signatures(function):
        for argument in signature.arguments:
            shapes[argument.path].append(argument.shape)
    together: dict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for path, seen in shapes.items():
        if len({len(shape) for shape in seen}) != 1:
            return []
        for dimension, sizes in enumerate(zip(*seen, strict=True)):
            numbers = [size for size in sizes if isinstance(size, int)]
            if len(set(numbers)) > 1:
                together[dimension, tuple(dict.fromkeys(numbers))].append(path)
    return [Varying(tuple(p), dimension, sizes) for (dimension, sizes), p in together.items()]


def _signatures(function: Function) -> list[Signature]:
    """Signatures of the compiles that are compared: under vmap, arrays rightly have other ranks."""
    compared = {transformation(c) for c in function.compiles if c.recompile_reason is Reason.SHAPE}
    return [
        c.signature
        for c in function.compiles
        if c.compiled and c.signature and (transformation(c) in compared or not compared)
    ]


def are_buckets(function: Function) -> bool:
    """Whether the program already pads: all sizes are powers of two, and few."""
    found = varying(function)
    sizes = {size for v in found for size in v.sizes}
    powers = all(size > 0 and size & (size - 1) == 0 for size in sizes)
    return bool(found) and powers and len(sizes) <= _MAX_BUCKETS


def remedy(function: Function, called: str) -> str:
    """What to do about shapes that differ, with the sizes to pad to."""
    found = varying(function)
    if not found:
        return (
            f"The call at {called} passes arrays of different ranks: use one rank, or a function "
            "for each."
        )
    if len(found) > 1:
        what = listed(f"{listed(v.arguments, 2)} (dimension {v.dimension})" for v in found)
        return (
            f"Several sizes differ at {called}: {what}. Pad each to a few fixed sizes, with a "
            "mask: few combinations then remain."
        )
    one = found[0]
    where = f"dimension {one.dimension} of {listed(one.arguments, 3)}"
    if len(set(one.sizes)) == 2:
        return (
            f"Pad {where} from {min(one.sizes)} to {max(one.sizes)} before the call at {called} "
            "(with a mask for the padding), or drop the smaller one if it is a last batch."
        )
    signatures = _signatures(function)
    left = {
        (s.tree, *s.static.items(), *(_padded(a, one) for a in s.arguments)) for s in signatures
    }
    types: dict[str, set[object]] = defaultdict(set)
    for signature in signatures:
        for a in signature.arguments:
            types[a.path].add((dtype_of(a, is_wide(signature)), a.weak))
    several = [path for path, seen in types.items() if len(seen) > 1]
    and_types = f", and give {listed(several, 3)} one type" if several else ""
    to = "up to the next of" if len(one.buckets) > 1 else "to"
    return (
        f"Pad {where} {to} {listed(map(str, one.buckets), 8)} before the call at {called}, with a "
        f"mask{and_types}: {counted(len(left), 'compile')} instead of {len(signatures)}."
    )


def _padded(argument: Argument, by: Varying) -> tuple[object, ...]:
    shape = list(argument.shape)
    if argument.path in by.arguments:
        size = shape[by.dimension]
        fitting = [b for b in by.buckets if isinstance(size, int) and b >= size]
        shape[by.dimension] = min(fitting, default=size)
    return (argument.path, *shape)


def evidence(function: Function) -> dict[str, object]:
    """Sizes and buckets of each dimension that differs."""
    return {"varying": [asdict(v) | {"buckets": v.buckets} for v in varying(function)]}
