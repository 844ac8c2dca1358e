"""Programs that are slow to compile: large constants, unrolled loops, one that dominates."""

from __future__ import annotations

from collections.abc import Iterator

from firstlight.present.quantities import listed, size
from firstlight.trace.findings import thresholds
from firstlight.trace.findings.costs import cost, is_part_of_start, xla_seconds
from firstlight.trace.findings.start_up import jit_for
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
    """Arrays that a function captures, which become part of its program."""
    for function in trace.functions:
        sizes = [(c.constant_bytes or 0, c) for c in function.compiles]
        large = [c for bytes_, c in sizes if bytes_ >= thresholds.CONSTANT_BYTES]
        if not large or function.library:
            continue
        most, worst = max(sizes, key=lambda pair: pair[0])
        described_ = [_constant(c) for c in worst.constants]
        which = f": {listed(described_, 3)}" if described_ else ""
        names = [constant.name for constant in worst.constants if constant.name]
        name = readable(function)
        give = (
            f"Pass {listed(names, 4)} to {name} as arguments"
            if names
            else f"Pass the arrays that {name} captures as arguments"
        )
        yield Finding(
            kind="large-constants",
            **cost(large, lambda one: (one.stage_seconds.get("lower") or 0.0) + xla_seconds(one)),
            title=f"{name} captures {size(most)} of arrays as constants{which}.",
            function=function.name,
            place=function.place or where_called(large[0]),
            remedy=f"{give}: constants are hashed, written out and read again at every compile, "
            "and stored in each program.",
            evidence={"bytes": most, "programs": len(large), "constants": described_},
        )


def _constant(one: Constant) -> str:
    """`TABLE f32[600,600] (global, used at train.py:12)`"""
    array = described(Argument("", one.dtype, one.shape, False, None), wide=True)
    used = f"used at {short(one.place)}" if one.place else ""
    about = ", ".join(filter(None, (one.origin, used)))
    return f"{one.name or 'an array'} {array}" + (f" ({about})" if about else "")


def unrolled_loops(trace: Trace) -> Iterator[Finding]:
    """Python loops, whose body a program contains once per iteration."""
    for function in trace.functions:
        worst = max(function.compiles, key=lambda c: c.equations or 0, default=None)
        lines = _looped(worst) if worst is not None and not function.library else []
        if worst is None or not lines:
            continue
        count, repeats = sum(n for _, n, _ in lines), max(r for _, _, r in lines)
        numbers = listed((short(place) for place, _, _ in lines), 4)
        yield Finding(
            kind="unrolled-loop",
            **cost(function.compiles, _saved_seconds),
            title=f"{readable(function)} contains a Python loop, unrolled about {repeats} times: "
            f"{count} of its {worst.equations} equations come from {numbers}.",
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
    """Lines of the user that ran many times while traced: (place, equations, repeats)."""
    looped = [
        (place, n, r)
        for (place, n), r in zip(one.equation_lines, one.equation_repeats, strict=False)
        if r >= thresholds.REPEATS_OF_A_LINE and place.package is None
    ]
    return looped if sum(n for _, n, _ in looped) >= thresholds.EQUATIONS_OF_A_LINE else []


def _saved_seconds(one: Compile) -> float:
    """The compile's time for the equations that a loop would save."""
    saved = sum(n * (1 - 1 / r) for _, n, r in _looped(one))
    return one.seconds * saved / (one.equations or 1)


def dominating_function(trace: Trace) -> Iterator[Finding]:
    """A function that takes most of all compile time."""
    total = sum(_compiling_seconds(c) for f in trace.functions for c in f.compiles)
    for function in trace.functions:
        longest = max(function.compiles, key=_compiling_seconds)
        seconds = _compiling_seconds(longest)
        share = thresholds.DOMINATING_SHARE_OF_START
        long = seconds > thresholds.DOMINATING_SHARE * total
        if not long or not is_part_of_start(trace, [longest], seconds, share):
            continue
        yield Finding(
            kind="one-function-dominates",
            **cost([longest], _compiling_seconds),
            title=f"One compile of {readable(function)} takes {seconds / total:.0%} of all "
            "compiling.",
            function=function.name,
            place=where_to_jit(longest) if function.library else function.place,
            remedy=_dominating_remedy(function, longest),
            evidence={"equations": longest.equations, "share": seconds / total},
        )


def _dominating_remedy(function: Function, longest: Compile) -> str:
    if function.library:  # it takes no compiler options
        small = (
            "Under jax.jit it could have a lower optimisation level."
            if function.name in CONTROL_FLOW
            else "If its values are small or known beforehand, use numpy, which compiles nothing."
        )
        return (
            f"It is one of JAX's own operations, called at {short(where_to_jit(longest))}: with a "
            f"persistent cache only the first start pays. {small}"
        )
    jit = jit_for([longest])
    lower = (
        "for all of it, XLA_FLAGS=--xla_backend_optimization_level=0 (nnx.jit takes no option)"
        if jit == "flax.nnx.jit"
        else f"for it, {jit}(f, compiler_options={{'xla_backend_optimization_level': 0}})"
    )
    return (
        f"Try a lower optimisation level {lower}; `firstlight trace --what-if` measures what it "
        "gains, and what it costs at run time. With a persistent cache only the first start pays."
    )


def _compiling_seconds(one: Compile) -> float:
    # Reading from the cache does not get faster with another optimisation level.
    return 0.0 if one.found_in_cache else xla_seconds(one)
