"""Everything in a snapshot that follows from the raw runs: made when published, made again when
verified, and compared byte by byte.

    runs, publication ──▶ manifest, distributions, validation, tables, plots, reports, citation
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files as packaged
from importlib.resources.abc import Traversable

from firstlight import __version__
from firstlight.report.exporters import csv_text
from firstlight.report.html import render
from firstlight.snapshot.citation import citation_cff, snippet_md, zenodo_json
from firstlight.snapshot.layout import DISTRIBUTIONS, MANIFEST, VALIDATION
from firstlight.snapshot.manifest import Publication, manifest
from firstlight.snapshot.plots import plots
from firstlight.snapshot.raw_runs import RawRun
from firstlight.snapshot.strict_json import canonical
from firstlight.snapshot.tables import cases_csv, distributions
from firstlight.snapshot.validation import validation_html, validation_report

#: What turns raw runs into the rest. Pictures of the same run by other code may look different.
MAKERS = ("present", "records", "report", "snapshot", "statistics")


@functools.cache
def made_by() -> Mapping[str, str]:
    """Name, version and a hash of the code that makes a snapshot."""
    return {"name": "firstlight", "version": __version__, "code_sha256": code_sha256(*MAKERS)}


def code_sha256(*rooms: str) -> str:
    """A hash of all code in these rooms: other code may make other files."""
    digest = hashlib.sha256()

    def add(place: Traversable, name: str) -> None:
        if place.is_dir():
            for inner in sorted(place.iterdir(), key=lambda p: p.name):
                add(inner, f"{name}/{inner.name}")
        elif name.endswith((".py", ".css", ".js")):
            digest.update(f"{name}\n".encode() + place.read_bytes())

    for room in rooms:
        add(packaged("firstlight").joinpath(room), room)
    return digest.hexdigest()


def derived_files(
    runs: Sequence[RawRun], publication: Publication, by: Mapping[str, str]
) -> dict[str, bytes]:
    """{path: content} of every file that is neither raw nor a program of the user's.

    `by` is who says to have made them: `made_by()` for a new snapshot.
    """
    about = manifest(runs, publication, by)
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
