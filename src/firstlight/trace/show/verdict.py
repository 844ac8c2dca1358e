"""The first sentence of every report, and what no report can tell."""

from __future__ import annotations

from firstlight.present.quantities import counted, duration, listed
from firstlight.trace.read import phases
from firstlight.trace.read.model import Process, SourceLine, Trace, Witness
from firstlight.trace.read.torch_regions import regions
from firstlight.trace.wording import place, why_again


def headline(trace: Trace) -> str:
    """What happened, in a sentence or two."""
    compiled = _compiled(trace)
    first = trace.time_to_first_result_seconds
    if first is None:
        begin = "No first result"
        if not any(p.jax_version or p.torch_version for p in trace.processes):
            return _without_jax(trace, begin)
    else:
        begin = f"First result after {duration(first)}"
    begin += _beside(trace)
    sentence = f"{begin}; {compiled}{_cut_off(trace)}."
    gap = _gap(trace)
    if gap:
        sentence += f" There may be more: {gap}."
    found = sum(finding.seconds > 0 and not finding.apart for finding in trace.findings)
    if found:
        order = ", worst first" if found > 1 else ""
        sentence += f" {counted(found, 'thing')} to gain from{order}:"
    return sentence


#: Two moments that are less of the time to the first result apart are one.
_ANOTHER_MOMENT = 0.05


def _beside(trace: Trace) -> str:
    """In brackets, what else could be taken for the first result, where it was another moment."""
    leading = phases.leading(trace)
    found = [] if leading is None else [words for words, _ in _other_moments(leading)]
    return f" ({'; '.join(found)})" if found else ""


def _other_moments(process: Process) -> list[tuple[str, SourceLine | None]]:
    """What was read before the first result, and what was put out after it, and where."""
    first, read, output = process.first_result_seconds, process.first_read, process.first_output
    apart = _ANOTHER_MOMENT * (first or 0.0)
    found = []
    if read is not None and (first is None or first - read.seconds > apart):
        by = read.package or "the program"
        found.append((f"{by} read an array after {duration(read.seconds)}", read.site))
    if output is not None and first is not None and output.seconds - first > apart:
        found.append((f"the first output came after {duration(output.seconds)}", output.site))
    return found


_WITNESSED = {
    Witness.MARKED: "The first result is marked at",
    Witness.READ: "The first result was read at",
    Witness.PUT_OUT: "The first result was put out at",
}


def where_first_result(process: Process) -> str | None:
    """A sentence or two with the lines of all moments that could be taken for it."""
    told = []
    if process.first_result_site is not None:
        how = _WITNESSED[process.first_result_witness or Witness.READ]
        told.append(f"{how} {place(process.first_result_site)}.")
    found = [f"{words} (at {place(site)})" for words, site in _other_moments(process)]
    return " ".join([*told, f"Apart from that, {'; '.join(found)}."] if found else told) or None


def nothing_found(trace: Trace) -> str:
    """What is said in place of findings; nothing where there are some, or the log has a gap.

    What was compiled again is not passed over.
    """
    if _gap(trace) or any(not finding.apart for finding in trace.findings):
        return ""
    where = " in the program itself" if trace.findings else ""
    told = f"Nothing found{where} that would make it start sooner."
    again = [
        f"{f.name} at {place(c.user_site or c.site)} ({why_again(c)})"
        for f in trace.functions
        for c in f.compiles
        if c.recompile_reason is not None and not f.library
    ]
    if not again:
        return told
    return f"{told} Compiled again, which may be meant: {listed(again, _MAX_AGAIN)}."


_MAX_AGAIN = 3


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
    told = f"{_programs(trace)}, in {duration(spent)} with tracing and lowering"
    return f"{told}{_after(trace)}" + (f"; {by_torch}" if by_torch else "")


def _programs(trace: Trace) -> str:
    """What XLA compiled, and what was found in the persistent cache instead."""
    again = f", {trace.recompiles} of them again" if trace.recompiles else ""
    hits = sum(c.compiled and c.found_in_cache for f in trace.functions for c in f.compiles)
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
    return f" ({compiled} of them after the first result, in {duration(spent)})"


def _by_torch(trace: Trace) -> str:
    compiled = regions(trace)
    if not compiled:
        return ""
    again = sum(one.recompile_kind is not None for one in compiled)
    of_them = f", {again} of them again" if again else ""
    spent = duration(sum(one.own_seconds for one in compiled))
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


def _why_none(process: Process) -> str:
    if process.first_result_pattern is not None:
        return f"nothing that --first-result asked for ({process.first_result_pattern}) came"
    mark = "--first-result, or firstlight.trace.mark_first_result() in the program, says when it is"
    read = process.first_read
    if read is None:
        return (
            "the program never waited for one in a way that can be seen (np.asarray of an array "
            f"on a CPU cannot; block_until_ready and float can), and put out no number; {mark}"
        )
    by = f"only {read.package}" if read.package else "only what prepares the data"
    return f"{by} read arrays, and the program put out no number after that; {mark}"


def _unknown_of(process: Process) -> list[str]:
    found = list(process.problems)
    if process.unfinished and not process.incomplete:
        found.append(f"how long {process.unfinished} compiles: the process ended while it did")
    if process.wall_seconds is None:
        found.append(
            "when it ended: its end was not seen, as after a kill, os._exit, or on a full disk"
        )
    if process.jax_version and process.first_result_seconds is None:
        found.append(f"the first result: {_why_none(process)}")
    return found
