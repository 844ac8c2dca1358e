"""Several devices or ranks: arguments moved in every call, ranks with different programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from firstlight.present.quantities import listed, size
from firstlight.trace.findings import thresholds
from firstlight.trace.findings.costs import cost, start_seconds, xla_seconds
from firstlight.trace.read.model import (
    Argument,
    Compile,
    Difference,
    Finding,
    Function,
    Reason,
    Resharded,
    Trace,
)
from firstlight.trace.read.recompiles import described, differences
from firstlight.trace.wording import difference as words_of
from firstlight.trace.wording import readable, short, where_called

#: Remedies by what differs between ranks; of several differences the first here counts.
_OF_RANKS = {
    Reason.SHAPE: "Give {differing} the same shape on every rank: pad the shorter shards, with a "
    "mask",
    Reason.STATIC: "Pass {differing} as an array, not as a static value: what differs between "
    "ranks is then data",
    Reason.DTYPE: "Give {differing} the same dtype on every rank",
    Reason.TREE: "Call it with the same structure on every rank",
}


def resharded_arguments(trace: Trace) -> Iterator[Finding]:
    """Arguments whose sharding is not the one that their program uses."""
    for function in trace.functions:
        moving = [one for one in function.compiles if _bytes(one) >= thresholds.RESHARDED_BYTES]
        if not moving:
            continue
        worst = max(moving, key=_bytes)
        first = worst.resharded[0]
        moves = [_move(one) for one in worst.resharded]
        yield Finding(
            kind="resharded-arguments",
            **cost(moving),
            title=f"{readable(function)} moves {size(_bytes(worst))} of its arguments between "
            f"devices in every call: {listed(moves, 3)}.",
            function=function.name,
            place=where_called(worst) or function.place,
            remedy=f"Once, before the first call, place "
            f"{listed([one.name for one in worst.resharded], 4)} as {short(first.place)} uses it: "
            f"jax.device_put(value, NamedSharding(mesh, {first.used})). If another program makes "
            "it, set the out_shardings of that program, or use the sharding that it gives.",
            evidence={"bytes": _bytes(worst), "arguments": moves, "programs": len(moving)},
        )


def _bytes(one: Compile) -> int:
    return sum(argument.bytes for argument in one.resharded)


def _move(one: Resharded) -> str:
    array = described(Argument("", one.dtype, one.shape, False, None), wide=True)
    return f"{one.name} {array} is given as {one.given}, used as {one.used} at {short(one.place)}"


def ranks_apart(trace: Trace) -> Iterator[Finding]:
    """Functions for which every rank of a job compiles a different program."""
    ranks = {process.number: process.rank for process in trace.processes}
    for function in trace.functions:
        by_rank: dict[str, list[Compile]] = defaultdict(list)
        for one in function.compiles:
            rank = ranks.get(one.process)
            if one.compiled and one.signature is not None and rank is not None:
                by_rank[rank].append(one)
        by_rank = dict(sorted(by_rank.items(), key=lambda item: (len(item[0]), item[0])))
        difference = None if function.library else _difference(by_rank)
        if difference is None:
            continue
        spent = [sum(map(xla_seconds, own)) for own in by_rank.values()]
        seconds = sum(spent) - max(spent)  # one of them has to
        if seconds >= thresholds.SAME_PROGRAM_SHARE * start_seconds(trace):
            yield _apart(function, by_rank, difference, seconds)


def _difference(by_rank: Mapping[str, Sequence[Compile]]) -> Difference | None:
    """The difference between the programs of two ranks; None if any ranks share a program."""
    firsts = [own[0] for own in by_rank.values()]
    programs = [{_program(one) for one in own} for own in by_rank.values()]
    # Ranks that call at different lines do different work, as the stages of a pipeline do.
    if len(firsts) < 2 or len({where_called(one) for one in firsts}) > 1:
        return None
    if len(set.union(*programs)) < sum(map(len, programs)):
        return None
    before, now = (one.signature for one in firsts[:2])
    assert before is not None and now is not None  # `ranks_apart` drops the others
    found = [d for d in differences(before, now) if d.kind in _OF_RANKS]
    return min(found, key=lambda d: list(_OF_RANKS).index(d.kind), default=None)


def _program(one: Compile) -> object:
    assert one.signature is not None
    static = tuple(sorted(one.signature.static.items()))
    arrays = tuple((a.path, a.dtype, a.shape) for a in one.signature.arguments)
    return arrays, one.signature.tree, static


def _apart(
    function: Function,
    by_rank: Mapping[str, Sequence[Compile]],
    difference: Difference,
    seconds: float,
) -> Finding:
    first = next(iter(by_rank.values()))[0]
    differing = difference.field or "its arguments"
    return Finding(
        kind="ranks-compile-apart",
        seconds=seconds,
        title=f"Each of {len(by_rank)} ranks compiles its own program for {readable(function)}: "
        f"{words_of(difference)}.",
        function=function.name,
        place=where_called(first) or function.place,
        remedy=f"{_OF_RANKS[difference.kind].format(differing=differing)}. One program then serves "
        "all ranks, and with a shared cache (`firstlight exec --cache FOLDER`) one compile.",
        evidence={"ranks": list(by_rank), "difference": words_of(difference)},
    )
