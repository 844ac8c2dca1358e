"""How a snapshot is cited and deposited: `CITATION.cff` and Zenodo's metadata."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.snapshot.machines import machine as machine
from firstlight.snapshot.manifest import Creator
from firstlight.snapshot.strict_json import canonical

_NOBODY = Creator("The publisher of this snapshot (not named)")
_MESSAGE = (
    "If you use these measurements, please cite the snapshot by its id, which is the SHA-256 of "
    "its index.json and the name of its folder."
)
_KEYWORDS = ("benchmark", "time to first result", "compilation", "cold start")


def citation_cff(manifest: Mapping[str, Any]) -> bytes:
    """Citation File Format 1.2.0. Strings are written as JSON, which YAML reads as they are."""
    publication = manifest["publication"]
    lines = [
        "cff-version: 1.2.0",
        "message: " + _quoted(_MESSAGE),
        "type: dataset",
        "title: " + _quoted(publication["title"]),
        "authors:",
    ]
    for creator in _creators(publication):
        lines += _author(creator)
    lines.append("abstract: " + _quoted(abstract(manifest)))
    lines.append("date-released: " + _quoted(manifest["measured_to"][:10]))
    if publication["license"]:
        lines.append("license: " + _quoted(publication["license"]))
    lines.append("keywords:")
    lines += [f"  - {_quoted(word)}" for word in _KEYWORDS]
    return ("\n".join(lines) + "\n").encode()


def citation_with_id(citation: bytes, snapshot_id: str, signer: str | None) -> bytes:
    """`CITATION.cff` of a snapshot that has been written; within it, it cannot name its own id."""
    by = f", signed with the Ed25519 key {signer}" if signer else ", not signed"
    lines = (
        "identifiers:",
        "  - type: other",
        "    value: " + _quoted(f"sha256:{snapshot_id}"),
        "    description: " + _quoted(f"Id of the Firstlight snapshot{by}"),
    )
    return citation + ("\n".join(lines) + "\n").encode()


def zenodo_json(manifest: Mapping[str, Any]) -> bytes:
    """The metadata of a deposition, in the form of `.zenodo.json`."""
    publication = manifest["publication"]
    plain: dict[str, Any] = {
        "title": publication["title"],
        "upload_type": "dataset",
        "description": f"<p>{html.escape(abstract(manifest))}</p>",
        "creators": [_zenodo_creator(c) for c in _creators(publication)],
        "keywords": list(_KEYWORDS),
        "publication_date": manifest["measured_to"][:10],
        "access_right": "open",
    }
    if publication["license"]:
        plain["license"] = publication["license"]
    return canonical(plain)


def abstract(manifest: Mapping[str, Any]) -> str:
    """What was measured, where and when, in two sentences."""
    runs = manifest["runs"]
    cases = sum(len(run["cases"]) for run in runs)
    processes = sum(run["samples"] for run in runs)
    machines = dict.fromkeys(machine(run["hardware"]) for run in runs)
    versions = ", ".join(sorted({str(run["harness"].get("version")) for run in runs}))
    return (
        f"Time to first result of {cases} benchmark {'case' if cases == 1 else 'cases'}, measured "
        f"in {processes} fresh processes (untimed checks included) on {'; '.join(machines)}, "
        f"{manifest['measured_from'][:10]} to "
        f"{manifest['measured_to'][:10]}, with Firstlight {versions}. Raw samples, protocols, "
        "correctness checks and hashes are part of the snapshot."
    )


def _creators(publication: Mapping[str, Any]) -> Sequence[Creator]:
    return [Creator(**creator) for creator in publication["creators"]] or [_NOBODY]


def _author(creator: Creator) -> list[str]:
    family, comma, given = (part.strip() for part in creator.name.partition(","))
    if comma and given:
        lines = [f"  - family-names: {_quoted(family)}", f"    given-names: {_quoted(given)}"]
    else:
        lines = [f"  - name: {_quoted(creator.name)}"]
    if creator.orcid:
        lines.append("    orcid: " + _quoted(f"https://orcid.org/{creator.orcid}"))
    if creator.affiliation and comma:  # the format has affiliations of persons only
        lines.append("    affiliation: " + _quoted(creator.affiliation))
    return lines


def _zenodo_creator(creator: Creator) -> dict[str, str]:
    pairs = {
        "name": creator.name,
        "orcid": creator.orcid,
        "affiliation": creator.affiliation,
    }
    return {key: value for key, value in pairs.items() if value}


def _quoted(text: str) -> str:
    return json.dumps(text)
