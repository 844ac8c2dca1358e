"""The first sentence of every report, and what no report can tell."""

from __future__ import annotations

from firstlight.trace.model import Process, Trace
from firstlight.trace.torch_regions import regions
from firstlight.trace.wording import counted, seconds


def headline(trace: Trace) -> str:
    """What happened, in a sentence or two."""
    compiled = _compiled(trace)
    first = trace.time_to_first_result_seconds
    if first is None:
        begin = "No result was waited for"
        if not any(p.jax_version or p.torch_version for p in trace.processes):
            return f"{begin}: JAX was not imported."
    else:
        begin = f"First result after {seconds(first)}"
    sentence = f"{begin}; {compiled}{_cut_off(trace)}."
    found = sum(1 for finding in trace.findings if finding.seconds > 0)
    if found:
        sentence += f" {counted(found, 'thing')} to gain from, worst first:"
    return sentence


def _cut_off(trace: Trace) -> str:
    names = dict.fromkeys(p.unfinished for p in trace.processes if p.unfinished)
    return f"; the program ended while it compiled {', '.join(map(str, names))}" if names else ""


def _compiled(trace: Trace) -> str:
    by_torch = _by_torch(trace)
    if not trace.compiles:
        return by_torch or "nothing was compiled"
    spent = sum(f.seconds for f in trace.functions)
    again = f", {trace.recompiles} of them again" if trace.recompiles else ""
    programs = counted(trace.compiles, "program")
    told = f"{programs} compiled{again}, in {seconds(spent)} with tracing and lowering"
    return f"{told}{_after(trace)}" + (f"; {by_torch}" if by_torch else "")


def _after(trace: Trace) -> str:
    """What of it no first result had to wait for."""
    late = [c for f in trace.functions for c in f.compiles if not c.before_first_result]
    compiled = sum(c.compiled for c in late)
    if not compiled:
        return ""
    spent = sum(c.seconds for c in late)
    return f" ({compiled} of them after the first result, in {seconds(spent)})"


def _by_torch(trace: Trace) -> str:
    compiled = regions(trace)
    if not compiled:
        return ""
    again = sum(one.recompile_kind is not None for one in compiled)
    of_them = f", {again} of them again" if again else ""
    spent = seconds(sum(one.own_seconds for one in compiled))
    return f"{counted(len(compiled), 'region')} compiled by torch{of_them}, in {spent}"


def unknown(trace: Trace) -> tuple[str, ...]:
    """What could not be told, and why."""
    several = len(trace.processes) > 1
    said = [
        (f"process {p.pid}: " if several else "") + sentence
        for p in trace.processes
        for sentence in _unknown_of(p)
    ]
    return tuple(dict.fromkeys(said))


def _unknown_of(process: Process) -> list[str]:
    found = list(process.problems)
    if process.unfinished:
        found.append(f"how long {process.unfinished} compiles: the process ended while it did")
    if process.wall_seconds is None:
        found.append("when it ended: its end was not seen, as after a kill or os._exit")
    if process.jax_version and process.first_result_seconds is None:
        found.append(
            "the first result: the program never waited for one in a way that can be seen "
            "(np.asarray of an array on a CPU cannot; block_until_ready and float can)"
        )
    return found
