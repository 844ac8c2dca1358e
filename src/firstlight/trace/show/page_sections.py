"""The smaller parts of the page: imports, waits, processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from firstlight.present import document
from firstlight.present.markup import escaped
from firstlight.present.quantities import counted, duration
from firstlight.trace.read import phases
from firstlight.trace.read.model import ImportedPackage, Process, Trace
from firstlight.trace.read.torch_regions import Region, regions, why
from firstlight.trace.wording import place

_MAX_PACKAGES = 15
_MAX_WAITS = 20
_MAX_SIDE_BY_SIDE = 4


def imports(trace: Trace) -> str:
    """Packages by their own time, as bars; of the process that had the first result."""
    leading = phases.leading(trace)
    packages = leading.imports if leading else ()
    shown = sorted(packages, key=lambda p: -p.seconds)[:_MAX_PACKAGES]
    if not shown:
        return ""
    longest = shown[0].seconds or 1.0
    rows = "".join(_package(p, longest) for p in shown)
    rest = sum(p.seconds for p in packages) - sum(p.seconds for p in shown)
    left = len(packages) - len(shown)
    more = f" {counted(left, 'more package')} took {duration(rest)} together." if left else ""
    return (
        f'<table class="bars"><tbody>{rows}</tbody></table><p class="hint">Own time of each '
        "top-level package, without those that it imports; in brackets, with them where it was the "
        f"first to import them.{more}</p>"
    )


def _package(package: ImportedPackage, longest: float) -> str:
    width = 100 * package.seconds / longest
    whole = f" ({duration(package.with_others_seconds)})"
    if package.with_others_seconds < 1.05 * package.seconds + 0.001:
        whole = ""
    return (
        f'<tr><th scope="row"><code>{escaped(package.name)}</code></th>'
        f'<td class="bar"><span class="p-import" style="width:{width:.2f}%"></span></td>'
        f"<td>{duration(package.seconds)}{whole}</td>"
        f'<td class="hint">{counted(package.modules, "module")}</td></tr>'
    )


def waits(trace: Trace) -> str:
    """Lines that waited for results, the longest first."""
    found = [(p, w) for p in trace.processes for w in p.waits]
    found.sort(key=lambda pair: -pair[1].seconds)
    short = sum(p.short_waits for p in trace.processes)
    if not found and not short:
        return ""
    rows = [
        (
            place(w.user_site or w.site),
            str(w.count),
            duration(w.seconds),
            f"{duration(w.first_seconds)} to {duration(w.last_seconds)}",
        )
        for _, w in found[:_MAX_WAITS]
    ]
    lines = table(("line", "waits", "waited", "from … to"), rows) if rows else ""
    brief = duration(sum(p.short_waits_seconds for p in trace.processes))
    note = f" {counted(short, 'wait')} of less than 0.1 ms took {brief} together." if short else ""
    return (
        f'{lines}<p class="hint">Where the program waited for a device: reading a value or '
        f"block_until_ready.{note}</p>"
    )


def processes(trace: Trace) -> str:
    """Every process with its phases, and torch's regions where there are any."""
    kinds = [k for k in phases.LOOKS if any(p.phases_seconds.get(k) for p in trace.processes)]
    head = (
        "pid",
        "rank",
        "started at",
        "first result at",
        "whole",
        *map(phases.name_of, kinds),
        "tracing it",
    )
    rows = [_process(p, kinds) for p in trace.processes]
    if len(rows) <= _MAX_SIDE_BY_SIDE:  # as columns they can be seen at once
        head, *rows = zip(head, *rows, strict=True)
    return table(head, rows) + _regions(regions(trace))


def _process(process: Process, kinds: Iterable[str]) -> tuple[str, ...]:
    first = process.first_result_seconds
    return (
        str(process.pid) + ("" if process.whole else ", from within"),
        process.rank or "",
        duration(process.starts_at_seconds),
        "none" if first is None else duration(first),
        "did not end" if process.wall_seconds is None else duration(process.wall_seconds),
        *(duration(process.phases_seconds.get(k, 0.0)) for k in kinds),
        duration(process.own_seconds),
    )


def _regions(compiled: Sequence[Region]) -> str:
    if not compiled:
        return ""
    rows = [
        (
            one.readable,
            place(one.place),
            one.number or "",
            place(one.user_site),
            duration(one.seconds),
            duration(one.seconds - one.own_seconds),
            "" if one.backend_seconds is None else duration(one.backend_seconds),
            why(one),
        )
        for one in compiled
    ]
    head = ("function", "defined", "frame/compile", "called from", "whole", "imports", "backend")
    return f"<h3>torch.compile</h3>{table((*head, 'what happened'), rows)}"


def table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    body = (
        "<tr>"
        + "".join(
            f'<th scope="row">{escaped(cell)}</th>' if number == 0 else f"<td>{escaped(cell)}</td>"
            for number, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return document.table(head, body)
