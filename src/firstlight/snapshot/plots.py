"""The figures of the report as separate files: SVG for a browser, a paper or a README.

A picture that travels alone says itself what it shows: title, legend, machine and time are in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firstlight.present import palette, quantities
from firstlight.present.document import PATTERN, packaged
from firstlight.present.svg import canvas, rectangle, text, text_width
from firstlight.records import PHASES
from firstlight.report import bars, strips
from firstlight.report.admission import Workload, admit, has_number
from firstlight.snapshot.citation import machine
from firstlight.snapshot.raw_runs import RawRun

_MARGIN, _TOP, _LINE = 16.0, 40.0, 22.0


def plots(raw: RawRun) -> Iterator[tuple[str, bytes]]:
    """(path, SVG) of the phases and of every process, for each workload that has a number."""
    style, source = _style(), _source(raw)
    for number, workload in enumerate(admit(raw.run, raw.samples), start=1):
        if not any(has_number(case) for case in workload.cases):
            continue
        stem = f"plots/{raw.number}-{number:02d}-{_slug(workload)}"
        rows = bars.time_rows(workload)
        present = {segment.phase for row in rows for segment in row.segments}
        phases = [phase for phase in (*PHASES, "unattributed") if phase in present]
        title = f"{workload.label}: time to first result by phase, median"
        drawn = bars.draw(rows, dict(workload.marks), title, quantities.TIME_UNITS, bars.WIDE)
        yield f"{stem}-phases.svg", alone(drawn, bars.WIDE, title, phases, source, style)
        title = f"{workload.label}: every process, relative to its case’s median"
        drawn = strips.draw(workload, 640.0)
        yield f"{stem}-processes.svg", alone(drawn, 640.0, title, (), source, style)


def alone(
    drawn: str, width: float, title: str, phases: Sequence[str], source: str, style: str
) -> bytes:
    """A figure of the report on paper of its own, with title, legend and source."""
    head, _, rest = drawn.partition(">")
    height = float(head.partition('viewBox="')[2].partition('"')[0].split()[3])
    legend, legend_height = _legend(phases, width, _TOP + height + 16)
    bottom = _TOP + height + legend_height + _LINE
    body = (
        f"<style><![CDATA[{style}]]></style>{PATTERN}"
        f'<rect width="100%" height="100%" class="paper"/>'
        f"{text(_MARGIN, 24, title, 'rowname')}"
        f'<g transform="translate({_MARGIN:g} {_TOP:g})">{rest.removesuffix("</svg>")}</g>'
        f"{legend}{text(_MARGIN, bottom, source, 'tick')}"
    )
    picture = canvas(width + 2 * _MARGIN, bottom + 12, title, body)
    return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).encode() + b"\n"


def _legend(phases: Sequence[str], width: float, top: float) -> tuple[str, float]:
    """Swatches with the names of the phases, in as many lines as they need, and their height."""
    parts, x, y = [], _MARGIN, top
    for phase in phases:
        name = bars.phase_name(phase)
        room = 16 + text_width(name, 11) + 14
        if x + room > width and x > _MARGIN:
            x, y = _MARGIN, y + 18
        parts.append(rectangle(x, y - 9, 11, 11, f"seg {bars.phase_class(phase)}"))
        parts.append(text(x + 16, y, name, "tick"))
        x += room
    return "".join(parts), y - top + 18 if phases else 0.0


def _source(raw: RawRun) -> str:
    run = raw.run
    version = run.harness.get("version")
    return f"{machine(run.host)}; {run.created_at[:10]}; Firstlight {version}"


def _style() -> str:
    """The colours of both themes, and of the style sheet the part about pictures."""
    sheet = packaged("style.css")
    pictures = sheet.partition("/* Pictures */")[2].partition("/* Tables */")[0]
    font = "svg{font-family:system-ui,sans-serif}.paper{fill:var(--paper)}"
    return f"{palette.stylesheet()}\n{pictures}{font}"


def _slug(workload: Workload) -> str:
    return workload.anchor.removeprefix("w-").strip("-")[:40].rstrip("-") or "workload"
