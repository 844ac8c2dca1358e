"""The derived files of a snapshot: made from the raw runs when published, and again when verified,
to compare them byte for byte.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from firstlight import __version__
from firstlight.present import palette, quantities
from firstlight.present.document import PATTERN, packaged
from firstlight.present.svg import canvas, rectangle, text, text_width
from firstlight.records import PHASES
from firstlight.report import bars, strips
from firstlight.report.admission import admit, has_number
from firstlight.report.exporters import csv_text
from firstlight.report.html import render
from firstlight.snapshot.citation import citation_cff, snippet_md, zenodo_json
from firstlight.snapshot.layout import DISTRIBUTIONS, MANIFEST, VALIDATION
from firstlight.snapshot.manifest import Publication, manifest
from firstlight.snapshot.opening import RawRun, machine
from firstlight.snapshot.strict_json import canonical
from firstlight.snapshot.tables import cases_csv, distributions
from firstlight.snapshot.validation import validation_html, validation_report

_MARGIN, _TOP, _LINE = 16.0, 40.0, 22.0
#: The rooms whose code derives files from raw runs; other code may draw other pictures.
MAKERS = ("present", "records", "report", "snapshot", "statistics")


@functools.cache
def made_by() -> Mapping[str, str]:
    """Name, version and a hash of the code that makes a snapshot."""
    return {"name": "firstlight", "version": __version__, "code_sha256": code_sha256(*MAKERS)}


def code_sha256(*rooms: str) -> str:
    """A hash of every file in these rooms, code and page templates alike."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(path for room in rooms for path in root.joinpath(room).rglob("*.*")):
        if "__pycache__" not in path.parts:  # nor files that Python writes there meanwhile
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def derived_files(
    runs: Sequence[RawRun], publication: Publication, by: Mapping[str, str], method: int
) -> dict[str, bytes]:
    """{path: content} of every file that is neither raw nor a program.

    `by` is the value of `made_by`, `method` that of the summaries in the runs.
    """
    about = manifest(runs, publication, by, method)
    report = validation_report(runs)
    files = {
        MANIFEST: canonical(about),
        DISTRIBUTIONS: canonical(distributions(runs)),
        VALIDATION: canonical(report),
        "validation.html": validation_html(report, about),
        "tables/cases.csv": cases_csv(runs),
        "snippet.md": snippet_md(runs, about),
        "CITATION.cff": citation_cff(about),
        "zenodo.json": zenodo_json(about),
    }
    for raw in runs:
        files[f"tables/processes-{raw.number}.csv"] = csv_text(raw.run, raw.samples).encode()
        files[f"{raw.folder}/report.html"] = render(raw.run, raw.samples).encode()
        files |= plots(raw)
    return files


def plots(raw: RawRun) -> Iterator[tuple[str, bytes]]:
    """(path, SVG): the phases and every process of each workload that has a number."""
    run, sheet = raw.run, packaged("style.css")
    pictures = sheet.partition("/* Pictures */")[2].partition("/* Tables */")[0]
    font = "svg{font-family:system-ui,sans-serif}.paper{fill:var(--paper)}"
    style = f"{palette.stylesheet()}\n{pictures}{font}"
    version = run.harness.get("version")
    source = f"{machine(run.host)}; {run.created_at[:10]}; Firstlight {version}"
    for number, workload in enumerate(admit(run, raw.samples), start=1):
        if not any(has_number(case) for case in workload.cases):
            continue
        slug = workload.anchor.removeprefix("w-").strip("-")[:40].rstrip("-") or "workload"
        stem = f"plots/{raw.number}-{number:02d}-{slug}"
        rows = bars.time_rows(workload)
        present = {segment.phase for row in rows for segment in row.segments}
        phases = [phase for phase in (*PHASES, "unattributed") if phase in present]
        title = f"{workload.label}: time to first result by phase, median"
        drawn = bars.draw(rows, dict(workload.marks), title, quantities.TIME_UNITS, bars.WIDE)
        yield f"{stem}-phases.svg", standalone(drawn, bars.WIDE, title, phases, source, style)
        title = f"{workload.label}: every process, relative to its case’s median"
        drawn = strips.draw(workload, 640.0)
        yield f"{stem}-processes.svg", standalone(drawn, 640.0, title, (), source, style)


def standalone(
    drawn: str, width: float, title: str, phases: Sequence[str], source: str, style: str
) -> bytes:
    """A figure of the report as a file, with background, title, legend and source."""
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
    """(SVG, height) of the swatches and names of the phases."""
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
