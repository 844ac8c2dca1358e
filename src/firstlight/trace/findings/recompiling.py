"""Functions compiled again, by reason, with a remedy that names the argument."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from firstlight.present.quantities import times
from firstlight.trace.findings import shapes, thresholds
from firstlight.trace.findings.costs import cost
from firstlight.trace.findings.recompile_remedies import by_identity, title_and_remedy
from firstlight.trace.findings.source import where_made
from firstlight.trace.read.model import (
    CONTROL_FLOW,
    Compile,
    Finding,
    Function,
    Reason,
    SourceLine,
    Trace,
)
from firstlight.trace.wording import short, where_called, why_again

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
#: Always an accident, whichever lines call: nobody wants a function for two types.
_ALWAYS = (Reason.DTYPE, Reason.WEAK, Reason.SHARDING, Reason.CONTEXT, Reason.UNKNOWN)


def recompiles(trace: Trace) -> Iterator[Finding]:
    """One finding per function and reason."""
    for function in trace.functions:
        if function.library:
            yield from _control_flow(function)
            continue
        by_reason: dict[Reason, list[Compile]] = defaultdict(list)
        for one in function.compiles:
            if one.recompile_reason is not None and one.signature is not None:
                by_reason[one.recompile_reason].append(one)
        for reason, again in by_reason.items():
            if _is_reported(function, reason, again):
                yield _finding(function, reason, again, trace.started_at)


def _control_flow(operation: Function) -> Iterator[Finding]:
    """Loops that are compiled again by every call at the same line.

    Outside jit, JAX identifies a loop by the function object of its body.
    """
    at_line: dict[tuple[int, SourceLine | None], list[Compile]] = defaultdict(list)
    for one in operation.compiles if operation.name in CONTROL_FLOW else ():
        if one.recompile_reason == Reason.UNKNOWN and one.signature is not None:
            at_line[one.process, where_called(one)].append(one)
    for (_, place), again in at_line.items():
        if len(again) < thresholds.LOOPS_AGAIN_AT_ONE_LINE:
            continue
        name = operation.name
        yield Finding(
            kind=KINDS[Reason.NEW_FUNCTION],
            **cost(again),
            title=f"{name} at {short(place)} is compiled again {times(len(again))}, for the same "
            "arguments: outside jit its body is a new function each time.",
            function=name,
            place=place,
            remedy=f"Put the call at {short(place)} into a function under jax.jit that is created "
            f"once, or define the body of the {name} once and pass what it needs as operands.",
            evidence={"recompiles": len(again), "run_at": again[0].site and again[0].site.location},
        )


def _is_reported(function: Function, reason: Reason, again: Sequence[Compile]) -> bool:
    if reason is Reason.SHAPE and shapes.are_buckets(function):
        return False
    if len(again) >= thresholds.RECOMPILES_AT_SEVERAL_LINES or reason in _ALWAYS:
        return True
    static = reason is Reason.STATIC and not by_identity(again)
    at_one_line = thresholds.RECOMPILES_AT_ONE_LINE
    least = thresholds.STATIC_RECOMPILES_AT_ONE_LINE if static else at_one_line
    return _at_one_line_seen_before(function, again) >= least


def _at_one_line_seen_before(function: Function, again: Sequence[Compile]) -> int:
    """The most recompiles at one line from which the function had been compiled before.

    A line is the user's and the package's: one of the user may reach two of a package, for training
    and for testing.
    """
    seen: set[object] = set()
    counts: Counter[object] = Counter()
    chosen = {id(one) for one in again}
    for one in function.compiles:
        places = (one.user_site, one.site)
        if not any(places) or not one.compiled:
            continue
        if id(one) in chosen and (one.process, places) in seen:
            counts[places] += 1
        seen.add((one.process, places))
    return max(counts.values(), default=0)


def _finding(
    function: Function, reason: Reason, again: Sequence[Compile], started_at: float | None
) -> Finding:
    title, remedy = title_and_remedy(function, reason, again)
    evidence: dict[str, object] = {
        "recompiles": len(again),
        "differences": [why_again(one) for one in again[:20]],
        "called_at": sorted({place.location for one in again if (place := where_called(one))}),
        "defined_at": function.place and function.place.location,
    }
    if reason is Reason.SHAPE:
        evidence |= shapes.evidence(function)
    call, bare = where_called(again[0]), function.name.rpartition(".")[2]
    # The arguments, without the paths inside them.
    paths = (re.split(r"[.\[]", path)[0] or path for one in again for path in one.differing)
    for argument in dict.fromkeys(paths):
        made = where_made(call, bare, argument, started_at)
        if made is not None:
            remedy += f" {argument} is made at {short(made)}."
            evidence["made_at"] = made.location
            break
    return Finding(
        kind=KINDS[reason],
        # Compiles with another difference as well would happen in any case.
        **cost([one for one in again if one.has_single_reason] or again),
        title=title,
        function=function.name,
        place=call or function.place,
        remedy=remedy,
        evidence=evidence,
    )
