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
            return _without_jax(trace, begin)
    else:
        begin = f"First result after {seconds(first)}"
    sentence = f"{begin}; {compiled}{_cut_off(trace)}."
    gap = _gap(trace)
    if gap:
        sentence += f" There may be more: {gap}."
    found = sum(finding.seconds > 0 and not finding.apart for finding in trace.findings)
    if found:
        order = ", worst first" if found > 1 else ""
        sentence += f" {counted(found, 'thing')} to gain from{order}:"
    return sentence


def nothing_found(trace: Trace) -> str:
    """What is said in place of findings; nothing where there are some, or the log has a gap."""
    if _gap(trace) or any(not finding.apart for finding in trace.findings):
        return ""
    where = " in the program itself" if trace.findings else ""
    return f"Nothing found{where} that would make it start sooner."


def _without_jax(trace: Trace, begin: str) -> str:
    gap = _gap(trace)
    if gap is None and any(p.wall_seconds is None for p in trace.processes):
        gap = "the end of the log is missing, as after a kill or on a full disk"
    if gap is None:
        return f"{begin}: JAX was not imported."
    return f"Nothing is known of JAX in this program: {gap}."


def _gap(trace: Trace) -> str | None:
    """Why the log may lack compiles, if it may."""
    return next((p.incomplete for p in trace.processes if p.incomplete), None)


def _cut_off(trace: Trace) -> str:
    if _gap(trace):
        return ""  # the log may have ended, not the program
    names = dict.fromkeys(p.unfinished for p in trace.processes if p.unfinished)
    return f"; the program ended while it compiled {', '.join(map(str, names))}" if names else ""


def _compiled(trace: Trace) -> str:
    by_torch = _by_torch(trace)
    if not trace.compiles:
        return by_torch or "nothing was compiled"
    spent = sum(f.seconds for f in trace.functions)
    told = f"{_programs(trace)}, in {seconds(spent)} with tracing and lowering"
    return f"{told}{_after(trace)}" + (f"; {by_torch}" if by_torch else "")


def _programs(trace: Trace) -> str:
    """What XLA compiled, and what was found in the persistent cache instead."""
    again = f", {trace.recompiles} of them again" if trace.recompiles else ""
    hits = sum(
        c.compiled and c.cache is not None and c.cache.status == "hit"
        for f in trace.functions
        for c in f.compiles
    )
    if not hits:
        return f"{counted(trace.compiles, 'program')} compiled{again}"
    found = f"{counted(hits, 'program')} found in the persistent cache"
    if hits == trace.compiles:
        return f"{found}{again}, none compiled"
    return f"{counted(trace.compiles - hits, 'program')} compiled and {found}{again}"


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
    if process.unfinished and not process.incomplete:
        found.append(f"how long {process.unfinished} compiles: the process ended while it did")
    if process.wall_seconds is None:
        found.append(
            "when it ended: its end was not seen, as after a kill, os._exit, or on a full disk"
        )
    if process.jax_version and process.first_result_seconds is None:
        found.append(
            "the first result: the program never waited for one in a way that can be seen "
            "(np.asarray of an array on a CPU cannot; block_until_ready and float can)"
        )
    return found
