"""What is in a program that makes it slow to compile."""

from __future__ import annotations

from collections.abc import Iterator

from firstlight.present.quantities import listed, size
from firstlight.trace.findings import thresholds as limits
from firstlight.trace.findings.costs import cost, is_part_of_start
from firstlight.trace.findings.jits import jit_for
from firstlight.trace.read.model import (
    CONTROL_FLOW,
    Argument,
    Compile,
    Constant,
    Finding,
    Function,
    SourceLine,
    Trace,
)
from firstlight.trace.read.recompiles import described
from firstlight.trace.wording import readable, short, where_called, where_to_jit


def large_constants(trace: Trace) -> Iterator[Finding]:
    """Arrays that a function takes from outside, which become part of its program."""
    for function in trace.functions:
        having = [c for c in function.compiles if (c.constant_bytes or 0) >= limits.CONSTANT_BYTES]
        if not having or function.library:
            continue
        worst = max(having, key=lambda c: c.constant_bytes or 0)
        most = worst.constant_bytes or 0
        named = [_constant(c) for c in worst.constants]
        which = f": {listed(named, 3)}" if named else ""
        yield Finding(
            kind="large-constants",
            **cost(having, _after_trace),
            title=f"{readable(function)} holds {size(most)} of arrays from outside as "
            f"constants{which}.",
            function=function.name,
            place=function.place or where_called(having[0]),
            remedy=f"{_pass_as_arguments(worst, readable(function))}: inside of a program they are "
            "hashed, written out and read again with every compile, and kept for each program.",
            evidence={"bytes": most, "programs": len(having), "constants": named},
        )


def _pass_as_arguments(one: Compile, function: str) -> str:
    names = [constant.name for constant in one.constants if constant.name]
    if not names:
        return f"Pass the arrays that {function} uses from outside as arguments"
    return f"Pass {listed(names, 4)} to {function} as arguments"


def _constant(one: Constant) -> str:
    """`TABLE f32[600,600] (global, used at train.py:12)`"""
    array = described(Argument("", one.dtype, one.shape, False, None), wide=True)
    used = f"used at {short(one.place)}" if one.place else ""
    about = ", ".join(filter(None, (one.origin, used)))
    return f"{one.name or 'an array'} {array}" + (f" ({about})" if about else "")


def _after_trace(one: Compile) -> float:
    return sum(one.stage_seconds.get(stage) or 0.0 for stage in ("lower", "compile"))


def unrolled_loops(trace: Trace) -> Iterator[Finding]:
    """Loops of Python, which a program holds once for every turn."""
    for function in trace.functions:
        worst = max(function.compiles, key=lambda c: c.equations or 0, default=None)
        lines = _looped(worst) if worst is not None and not function.library else []
        if worst is None or not lines:
            continue
        count, repeats = sum(n for _, n, _ in lines), max(r for _, _, r in lines)
        numbers = listed((short(place) for place, _, _ in lines), 4)
        yield Finding(
            kind="unrolled-loop",
            **cost(function.compiles, lambda c: _share(c) * c.seconds),
            title=f"{readable(function)} holds a Python loop unrolled about {repeats} times: "
            f"{count} of its {worst.equations} equations are of {numbers}.",
            function=function.name,
            place=lines[0][0],
            remedy=f"Write the loop around {short(lines[0][0])} as jax.lax.scan (or fori_loop, "
            "while_loop): its body is then traced and compiled once.",
            evidence={
                "equations": worst.equations,
                "lines": [[place.location, n, r] for place, n, r in lines],
            },
        )


def _looped(one: Compile) -> list[tuple[SourceLine, int, int]]:
    """Lines of the user in a program that ran many times: (place, equations, repeats)."""
    pairs = zip(one.equation_lines, one.equation_repeats, strict=False)
    looped = [
        (place, n, r)
        for (place, n), r in pairs
        if r >= limits.REPEATS_OF_A_LINE and place.package is None
    ]
    enough = sum(n for _, n, _ in looped) >= limits.EQUATIONS_OF_A_LINE
    return looped if enough else []


def _share(one: Compile) -> float:
    """Of a program's equations, those that a loop would not have."""
    if not one.equations:
        return 0.0
    return sum(n * (1 - 1 / r) for _, n, r in _looped(one)) / one.equations


def dominating_function(trace: Trace) -> Iterator[Finding]:
    """One function that takes most of all compiling."""
    total = sum(_compile_seconds(f) for f in trace.functions)
    for function in trace.functions:
        longest = max(function.compiles, key=_one_compile_seconds, default=None)
        if longest is None:
            continue
        seconds = _one_compile_seconds(longest)
        if seconds <= limits.DOMINATING_SHARE * total or not is_part_of_start(
            trace, [longest], seconds, limits.DOMINATING_SHARE_OF_START
        ):
            continue
        yield Finding(
            kind="one-function-dominates",
            **cost([longest], _one_compile_seconds),
            title=f"Compiling {readable(function)} once is {seconds / total:.0%} of all compiling.",
            function=function.name,
            place=where_to_jit(longest) if function.library else function.place,
            remedy=_dominating_remedy(function, longest),
            evidence={"equations": longest.equations, "share": seconds / total},
        )


def _dominating_remedy(function: Function, longest: Compile) -> str:
    if function.library:  # nobody can give it options
        small = (
            " Under jax.jit it could be given a lower level of optimisation."
            if function.name in CONTROL_FLOW
            else " If its values are known before or small, numpy compiles nothing."
        )
        return (
            f"It is an operation of JAX's own, called at {short(where_to_jit(longest))}: with a "
            f"persistent cache only the first start pays.{small}"
        )
    jit = jit_for([longest])
    lower = (
        "for all of it, XLA_FLAGS=--xla_backend_optimization_level=0 (nnx.jit takes no option)"
        if jit == "flax.nnx.jit"
        else f"for it, {jit}(f, compiler_options={{'xla_backend_optimization_level': 0}})"
    )
    return (
        f"Try a lower level of optimisation {lower}, and look what it costs at run time; "
        "`firstlight trace --what-if` measures that. With a persistent cache only the first start "
        "pays."
    )


def _one_compile_seconds(one: Compile) -> float:
    if one.found_in_cache:
        return 0.0  # read, not compiled: no level of optimisation makes that shorter
    return one.stage_seconds.get("compile") or 0.0


def _compile_seconds(function: Function) -> float:
    return sum(map(_one_compile_seconds, function.compiles))
