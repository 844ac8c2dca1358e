"""The same function compiled again, by reason, with a remedy that names the argument."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from firstlight.trace.findings import shapes
from firstlight.trace.findings import thresholds as limits
from firstlight.trace.findings.costs import cost
from firstlight.trace.findings.source import where_made
from firstlight.trace.findings.static_recompiling import by_identity, static_words
from firstlight.trace.quantities import times
from firstlight.trace.read.model import (
    CONTROL_FLOW,
    Compile,
    Finding,
    Function,
    Place,
    Reason,
    Trace,
)
from firstlight.trace.read.recompiles import OF_PYTHON, dtype_of, is_wide
from firstlight.trace.wording import (
    again_so_often,
    differing,
    first_difference,
    location,
    readable,
    short,
    where_called,
    why_again,
)

#: Kinds of findings by the reason of the recompiles.
KINDS = {
    Reason.SHAPE: "shape-recompiles",
    Reason.DTYPE: "dtype-recompiles",
    Reason.WEAK: "weak-type-recompiles",
    Reason.STATIC: "static-recompiles",
    Reason.NEW_FUNCTION: "new-function-recompiles",
    Reason.TREE: "tree-recompiles",
    Reason.SHARDING: "sharding-recompiles",
    Reason.CONTEXT: "context-recompiles",
    Reason.UNKNOWN: "unexplained-recompiles",
}
#: Differences that are accidents, from whichever lines: nobody wants a function for two types.
_ACCIDENTS = (Reason.DTYPE, Reason.WEAK, Reason.SHARDING, Reason.CONTEXT)


def recompiles(trace: Trace) -> Iterator[Finding]:
    """A finding for every function and reason."""
    for function in trace.functions:
        if function.library:
            yield from _control_flow(function)
            continue
        by_reason: dict[Reason, list[Compile]] = defaultdict(list)
        for one in function.compiles:
            if one.recompile_reason is not None and one.signature is not None:
                by_reason[one.recompile_reason].append(one)
        for reason, again in by_reason.items():
            if _is_told(function, reason, again):
                yield _finding(function, reason, again, trace.started_at)


def _control_flow(operation: Function) -> Iterator[Finding]:
    """Loops that are compiled again at every call of the line that runs them.

    Outside of jit, JAX knows a loop by the object of its body.
    """
    at_line: dict[tuple[int, Place | None], list[Compile]] = defaultdict(list)
    for one in operation.compiles if operation.name in CONTROL_FLOW else ():
        if one.recompile_reason == Reason.UNKNOWN and one.signature is not None:
            at_line[one.process, where_called(one)].append(one)
    for (_, place), again in at_line.items():
        if len(again) < limits.LOOPS_AGAIN_AT_ONE_LINE:
            continue
        name = operation.name
        yield Finding(
            kind=KINDS[Reason.NEW_FUNCTION],
            **cost(again),
            title=f"{name} at {short(place)} is compiled again {times(len(again))}, for the same "
            "arguments: outside of jit its body is a new function each time.",
            function=name,
            place=place,
            remedy=f"Put the call that runs it at {short(place)} into a function under jax.jit "
            "which is made once (a solver or a loop with all that it closes over), or define the "
            f"body of the {name} once, outside, and pass what it needs as operands.",
            evidence={"recompiles": len(again), "run_at": location(again[0].site)},
        )


def _is_told(function: Function, reason: Reason, again: Sequence[Compile]) -> bool:
    if reason == Reason.SHAPE and shapes.are_buckets(function):
        return False
    if len(again) >= limits.RECOMPILES_AT_SEVERAL_LINES or reason == Reason.UNKNOWN:
        return True
    if reason in _ACCIDENTS:
        return True
    static = reason == Reason.STATIC and not by_identity(again)
    least = limits.STATIC_RECOMPILES_AT_ONE_LINE if static else limits.RECOMPILES_AT_ONE_LINE
    return max(_at_lines_seen_before(function, again).values(), default=0) >= least


def _at_lines_seen_before(
    function: Function, again: Sequence[Compile]
) -> dict[tuple[Place | None, ...], int]:
    """Recompiles by line, of those lines from which the function had been compiled already.

    One line of the user may be two of a package: one for training, one for testing.
    """
    seen: set[object] = set()
    counts: dict[tuple[Place | None, ...], int] = defaultdict(int)
    chosen = {id(one) for one in again}
    for one in function.compiles:
        places = (one.user_site, one.site)
        if not any(places) or not one.compiled:
            continue
        if id(one) in chosen and (one.process, places) in seen:
            counts[places] += 1
        seen.add((one.process, places))
    return counts


def _finding(
    function: Function, reason: Reason, again: Sequence[Compile], started_at: float | None
) -> Finding:
    title, remedy = _WORDS[reason](function, again)
    lines = sorted({location(p) or "" for one in again if (p := where_called(one))})
    evidence: dict[str, object] = {
        "recompiles": len(again),
        "differences": [why_again(one) for one in again[:20]],
        "called_at": lines,
        "defined_at": location(function.place),
    }
    if reason == Reason.SHAPE:
        evidence |= shapes.evidence(function)
    made = _made(function, again, started_at)
    if made is not None:
        argument, place = made
        remedy += f" {argument} is made at {short(place)}."
        evidence["made_at"] = location(place)
    return Finding(
        kind=KINDS[reason],
        # What differs in another way as well would be compiled again in any case.
        **cost([one for one in again if one.recompile_is_for_that_alone] or again),
        title=title,
        function=function.name,
        place=where_called(again[0]) or function.place,
        remedy=remedy,
        evidence=evidence,
    )


def _made(
    function: Function, again: Sequence[Compile], started_at: float | None
) -> tuple[str, Place] | None:
    """The first argument that differs, with the line that makes it, where the source tells."""
    bare = function.name.rpartition(".")[2]
    for argument in _roots(path for one in again for path in one.differing):
        place = where_made(where_called(again[0]), bare, argument, started_at)
        if place is not None:
            return argument, place
    return None


# --- title and remedy, for each reason ------------------------------------------------------------

_Words = tuple[str, str]


def _shape(function: Function, again: Sequence[Compile]) -> _Words:
    title = f"{again_so_often(function, again)} for other shapes: {first_difference(again)}."
    return title, shapes.remedy(function, _call(again))


def _dtype(function: Function, again: Sequence[Compile]) -> _Words:
    title = f"{again_so_often(function, again)} for other dtypes: {first_difference(again)}."
    return title, (
        f"Give {differing(again)} one dtype before the call at {_call(again)}, "
        f"for instance with np.asarray(value, dtype=np.{_best_dtype(function, again)})."
    )


def _weak(function: Function, again: Sequence[Compile]) -> _Words:
    values = (
        "plain Python numbers"
        if _was_python_number(function, again)
        else "arrays that were made of Python numbers without a dtype"
    )
    title = (
        f"{readable(function)} is compiled for {values} and again for arrays of the same type: "
        f"{first_difference(again)}."
    )
    dtype = _best_dtype(function, again)
    return title, (
        f"Give {differing(again)} the same kind of value in every call at {_call(again)}: "
        f"np.{dtype}(value), or jnp.asarray(value, dtype=jnp.{dtype}), from the first on."
    )


def _was_python_number(function: Function, again: Sequence[Compile]) -> bool:
    """Whether an argument that differs was no array in some call."""
    paths = {path for one in again for path in one.differing}
    given = [a for c in function.compiles if c.signature for a in c.signature.arguments]
    return any(a.path in paths and a.dtype in OF_PYTHON for a in given)


def _roots(paths: Iterable[str]) -> list[str]:
    """Arguments, without what of them differs."""
    return list(dict.fromkeys(re.split(r"[.\[]", path)[0] or path for path in paths))


def _new_function(function: Function, again: Sequence[Compile]) -> _Words:
    name, made = readable(function), "partial" if function.kind == "partial" else "function"
    title = (
        f"{name} is compiled {times(len(again) + 1)}: every time as a new {made}, which JAX cannot "
        "know to be the same."
    )
    owner = _owner(function)
    if owner:
        give = (
            f"Each {owner} has jitted functions of its own: make the object once, before the loop, "
            "and call the same one again"
        )
        return title, f"{give}. {_called(function)}"
    give = (
        "Bind the arguments once, outside of the loop, or pass them as arguments of the jitted "
        "function"
        if made == "partial"
        else "Define it once and call jax.jit on it once (at the top of the module, or before the "
        "loop), and pass what it takes from outside as arguments"
    )
    return title, f"{give}. {_called(function)}"


def _owner(function: Function) -> str | None:
    """The class that a method is of; it need not be the user's."""
    scope, _, name = function.name.rpartition(".")
    owner = scope.rpartition(".")[2]
    return None if not owner or owner.startswith("<") or name.startswith("<") else owner


def _called(function: Function) -> str:
    """The line that called most objects of it, which may have made them, or was given them."""
    objects: dict[Place, set[int]] = defaultdict(set)
    for one in function.compiles:
        place = where_called(one)
        if one.compiled and one.signature is not None and place is not None:
            objects[place].add(one.signature.function_object)
    if not objects:
        return "No line is known that called them."
    place = max(objects, key=lambda where: len(objects[where]))
    return f"{len(objects[place])} different ones were called at {short(place)}."


def _tree(function: Function, again: Sequence[Compile]) -> _Words:
    title = (
        f"{readable(function)} is compiled again because its arguments are structured in another "
        f"way: {first_difference(again)}."
    )
    return title, (
        f"Call it at {_call(again)} with the same containers (dict or OrderedDict, tuple or list), "
        "the same keys, None at the same places, and arguments always by position or always by "
        "name."
    )


def _sharding(function: Function, again: Sequence[Compile]) -> _Words:
    title = (
        f"{again_so_often(function, again)} for arguments placed elsewhere: "
        f"{first_difference(again)}."
    )
    return title, (
        f"Put {differing(again)} where the results will be before the first call at "
        f"{_call(again)}: jax.device_put(value, sharding) with the sharding that the function's "
        "outputs have."
    )


def _context(function: Function, again: Sequence[Compile]) -> _Words:
    title = (
        f"{readable(function)} is compiled again under another setting of JAX: "
        f"{first_difference(again)}."
    )
    return title, (
        "Set JAX up once at the start of the program (jax.config.update), and not by a context "
        f"around some of the calls: see {_call(again)}."
    )


def _unknown(function: Function, again: Sequence[Compile]) -> _Words:
    title = f"{readable(function)} is compiled again although nothing differs that JAX shows."
    detail = why_again(again[0]) or "nothing is known of the call"
    return title, (
        f"{detail[0].upper()}{detail[1:]}. The call "
        f"is at {_call(again)}; JAX says more with jax_explain_cache_misses."
    )


_WORDS: dict[Reason, Callable[[Function, Sequence[Compile]], _Words]] = {
    Reason.SHAPE: _shape,
    Reason.DTYPE: _dtype,
    Reason.WEAK: _weak,
    Reason.STATIC: static_words,
    Reason.NEW_FUNCTION: _new_function,
    Reason.TREE: _tree,
    Reason.SHARDING: _sharding,
    Reason.CONTEXT: _context,
    Reason.UNKNOWN: _unknown,
}


def _best_dtype(function: Function, again: Sequence[Compile]) -> str:
    """The type to use for the first argument that differs: a float, if it ever was one."""
    path = next(iter(again[0].differing), None)
    seen = [
        dtype_of(argument, is_wide(one.signature))
        for one in function.compiles
        if one.signature is not None
        for argument in one.signature.arguments
        if argument.path == path
    ]
    return next((dtype for dtype in seen if dtype.startswith("float")), (seen or ["float32"])[0])


def _call(again: Sequence[Compile]) -> str:
    """The line of the user; and of the package that called in its name, which gave the values."""
    one, place = again[0], short(where_called(again[0]))
    within = one.site and one.user_site and one.site.package
    return f"{place} (by {within}, {short(one.site)})" if within else place
