"""The first sentences of every report, and what could not be determined."""

from __future__ import annotations

from firstlight.present.quantities import counted, duration, listed
from firstlight.trace.read import phases
from firstlight.trace.read.model import Function, Process, SourceLine, Trace, Witness
from firstlight.trace.read.torch_regions import regions
from firstlight.trace.wording import place, why_again

#: Closer moments, as a share of the time to the first result, count as one.
_ANOTHER_MOMENT = 0.05
_MAX_AGAIN = 3
_NO_END = "when it ended: the log has no end, as after a kill, os._exit, or on a full disk"


def headline(trace: Trace) -> str:
    """What happened, in one or two sentences."""
    gap, first = _gap(trace), trace.time_to_first_result_seconds
    begin = "No first result" if first is None else f"First result after {duration(first)}"
    if first is None and not any(p.jax_version or p.torch_version for p in trace.processes):
        if gap is None and any(p.wall_seconds is None for p in trace.processes):
            gap = "the end of the log is missing, as after a kill or on a full disk"
        if gap is None:
            return f"{begin}: JAX was not imported."
        return f"Nothing is known of JAX in this program: {gap}."
    leading = phases.leading(trace)
    beside = [words for words, _ in _other_moments(leading)] if leading else []
    begin += f" ({'; '.join(beside)})" if beside else ""
    cut_off = dict.fromkeys(p.unfinished for p in trace.processes if p.unfinished)
    ended = f"; the program ended while it compiled {', '.join(map(str, cut_off))}"
    # With a gap, perhaps only the log ended.
    sentence = f"{begin}; {_compiled(trace)}{ended if cut_off and not gap else ''}."
    if gap:
        sentence += f" There may be more: {gap}."
    found = sum(finding.seconds > 0 and not finding.apart for finding in trace.findings)
    if found:
        order = ", worst first" if found > 1 else ""
        sentence += f" {counted(found, 'thing')} to improve{order}:"
    return sentence


def _gap(trace: Trace) -> str | None:
    """Why the log may lack compiles; None if it is complete."""
    return next((p.incomplete for p in trace.processes if p.incomplete), None)


def _other_moments(process: Process) -> list[tuple[str, SourceLine | None]]:
    """(text, line) of other moments that could be mistaken for the first result: a read before it,
    an output after it."""
    first, read, output = process.first_result_seconds, process.first_read, process.first_output
    apart = _ANOTHER_MOMENT * (first or 0.0)
    found = []
    if read is not None and (first is None or first - read.seconds > apart):
        by = read.package or "the program"
        found.append((f"{by} read an array after {duration(read.seconds)}", read.site))
    if output is not None and first is not None and output.seconds - first > apart:
        found.append((f"the first output came after {duration(output.seconds)}", output.site))
    return found


def where_first_result(process: Process) -> str | None:
    """Sentences with the lines of the first result and of moments that could be mistaken for it."""
    sentences = []
    if process.first_result_site is not None:
        witness = process.first_result_witness or Witness.READ
        how = f"{'is' if witness is Witness.MARKED else 'was'} {witness.value}"
        sentences.append(f"The first result {how} at {place(process.first_result_site)}.")
    found = [f"{words} (at {place(site)})" for words, site in _other_moments(process)]
    if found:
        sentences.append(f"Apart from that, {'; '.join(found)}.")
    return " ".join(sentences) or None


def nothing_found(trace: Trace) -> str:
    """The text in place of findings; "" if there are some, or the log has a gap.

    It mentions recompiles below the thresholds.
    """
    if _gap(trace) or any(not finding.apart for finding in trace.findings):
        return ""
    where = " in the program itself" if trace.findings else ""
    again = [
        f"{f.name} at {place(c.user_site or c.site)} ({why_again(c)})"
        for f in trace.functions
        for c in f.compiles
        if c.recompile_reason is not None and not f.library
    ]
    also = f" Compiled again, perhaps on purpose: {listed(again, _MAX_AGAIN)}." if again else ""
    return f"Nothing found{where} that would make it start sooner.{also}"


def _compiled(trace: Trace) -> str:
    """What XLA compiled, found in its cache and compiled late, and what torch compiled."""
    by_torch = _by_torch(trace)
    if not trace.compile_count:
        return by_torch or "nothing was compiled"
    compiles = [c for f in trace.functions for c in f.compiles]
    again = f", {trace.recompiles} of them again" if trace.recompiles else ""
    hits = sum(c.compiled and c.found_in_cache for c in compiles)
    found = f"{counted(hits, 'program')} found in the persistent cache"
    if not hits:
        programs = f"{counted(trace.compile_count, 'program')} compiled{again}"
    elif hits == trace.compile_count:
        programs = f"{found}{again}, none compiled"
    else:
        programs = f"{counted(trace.compile_count - hits, 'program')} compiled and {found}{again}"
    late = [c for c in compiles if not c.before_first_result]
    count, spent = sum(c.compiled for c in late), duration(sum(c.seconds for c in late))
    after = f" ({count} of them after the first result, in {spent})" if count else ""
    whole = duration(sum(f.seconds for f in trace.functions))
    torch = f"; {by_torch}" if by_torch else ""
    return f"{programs}, in {whole} with tracing and lowering{after}{torch}"


def _by_torch(trace: Trace) -> str:
    compiled = regions(trace)
    if not compiled:
        return ""
    again = sum(one.recompile_kind is not None for one in compiled)
    of_them = f", {again} of them again" if again else ""
    spent = duration(sum(one.own_seconds for one in compiled))
    return f"{counted(len(compiled), 'region')} compiled by torch{of_them}, in {spent}"


def in_other_threads(process: Process) -> str:
    """Time by kind in other threads up to the first result; "" if there is none."""
    elsewhere = phases.in_other_threads(process, process.first_result_seconds)
    spent = ", ".join(f"{phases.name_of(k)} {duration(v)}" for k, v in elsewhere.items())
    threads = counted(len(process.threads), "other thread")
    return f"At the same time, in {threads}: {spent}." if spent else ""


def cache_text(function: Function) -> str:
    """`off`, or `1 hit, 3 miss`."""
    counts = function.cache_counts
    return "off" if set(counts) == {"off"} else ", ".join(f"{n} {s}" for s, n in counts.items())


def unknown(trace: Trace) -> tuple[str, ...]:
    """What could not be determined, and why."""
    sentences: dict[str, None] = {}
    for p in trace.processes:
        found = list(p.problems)
        if p.unfinished and not p.incomplete:
            found.append(f"how long {p.unfinished} compiles: the process ended during it")
        if p.wall_seconds is None:
            found.append(_NO_END)
        if p.jax_version and p.first_result_seconds is None:
            found.append(f"the first result: {_why_none(p)}")
        which = f"process {p.pid}: " if len(trace.processes) > 1 else ""
        sentences |= {f"{which}{sentence}": None for sentence in found}
    return tuple(sentences)


def _why_none(process: Process) -> str:
    if process.first_result_pattern is not None:
        return f"nothing matched --first-result ({process.first_result_pattern})"
    mark = "mark it with --first-result, or call firstlight.trace.mark_first_result()"
    read = process.first_read
    if read is None:
        return (
            "the program never visibly waited for one (np.asarray of an array on a CPU is not "
            f"visible; block_until_ready and float are), and output no number; {mark}"
        )
    by = f"only {read.package}" if read.package else "only the preparation of data"
    return f"{by} read arrays, and the program output no number after that; {mark}"
