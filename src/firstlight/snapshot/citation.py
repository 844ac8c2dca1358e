"""Files to cite, deposit and quote a snapshot: `CITATION.cff`, `zenodo.json`, `snippet.md`."""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Sequence

from firstlight.present.quantities import counted, estimate
from firstlight.snapshot.manifest import Creator
from firstlight.snapshot.opening import RawRun, machine
from firstlight.snapshot.strict_json import Plain, canonical

_NOBODY = Creator("The publisher of this snapshot (not named)")
_MESSAGE = (
    "If you use these measurements, please cite the snapshot by its id, which is the SHA-256 of "
    "its index.json and the name of its folder."
)
_KEYWORDS = ("benchmark", "time to first result", "compilation", "cold start")
_MAX_ROWS = 30


def abstract(manifest: Plain) -> str:
    """What was measured, where and when, in two sentences."""
    runs = manifest["runs"]
    cases = counted(sum(len(run["cases"]) for run in runs), "benchmark case")
    processes = sum(run["samples"] for run in runs)
    machines = dict.fromkeys(machine(run["hardware"]) for run in runs)
    versions = ", ".join(sorted({str(run["harness"].get("version")) for run in runs}))
    return (
        f"Time to first result of {cases}, measured in {processes} fresh processes (untimed checks "
        f"included) on {'; '.join(machines)}, {manifest['measured_from'][:10]} to "
        f"{manifest['measured_to'][:10]}, with Firstlight {versions}. Raw samples, protocols, "
        "correctness checks and hashes are part of the snapshot."
    )


def citation_cff(manifest: Plain) -> bytes:
    """Citation File Format 1.2.0; strings are written as JSON, which is also YAML."""
    publication = manifest["publication"]
    lines = [
        "cff-version: 1.2.0",
        f"message: {json.dumps(_MESSAGE)}",
        "type: dataset",
        f"title: {json.dumps(publication['title'])}",
        "authors:",
        *(line for creator in _creators(publication) for line in _author(creator)),
        f"abstract: {json.dumps(abstract(manifest))}",
        f"date-released: {json.dumps(manifest['measured_to'][:10])}",
    ]
    if publication["license"]:
        lines.append(f"license: {json.dumps(publication['license'])}")
    lines += ["keywords:", *(f"  - {json.dumps(word)}" for word in _KEYWORDS)]
    return ("\n".join(lines) + "\n").encode()


def citation_with_id(citation: bytes, snapshot_id: str, signer: str | None) -> bytes:
    """`CITATION.cff` for use outside the snapshot; the one inside cannot name the id."""
    by = f"signed with the Ed25519 key {signer}" if signer else "not signed"
    return (
        citation
        + (
            "identifiers:\n"
            "  - type: other\n"
            f"    value: {json.dumps(f'sha256:{snapshot_id}')}\n"
            f"    description: {json.dumps(f'Id of the Firstlight snapshot, {by}')}\n"
        ).encode()
    )


def zenodo_json(manifest: Plain) -> bytes:
    """The metadata of a deposit, in the format of `.zenodo.json`."""
    publication = manifest["publication"]
    people = [vars(creator) for creator in _creators(publication)]
    plain = {
        "title": publication["title"],
        "upload_type": "dataset",
        "description": f"<p>{html.escape(abstract(manifest))}</p>",
        "creators": [{key: value for key, value in one.items() if value} for one in people],
        "keywords": list(_KEYWORDS),
        "publication_date": manifest["measured_to"][:10],
        "access_right": "open",
        "license": publication["license"],
    }
    return canonical({key: value for key, value in plain.items() if value})


def _creators(publication: Plain) -> Sequence[Creator]:
    return [Creator(**creator) for creator in publication["creators"]] or [_NOBODY]


def _author(creator: Creator) -> list[str]:
    family, comma, given = (part.strip() for part in creator.name.partition(","))
    named = {"family-names": family, "given-names": given}
    about = named if comma and given else {"name": creator.name}
    if creator.orcid:
        about["orcid"] = f"https://orcid.org/{creator.orcid}"
    if creator.affiliation and comma:  # in this format, only persons have affiliations
        about["affiliation"] = creator.affiliation
    lines = [f"    {key}: {json.dumps(value)}" for key, value in about.items()]
    return [lines[0].replace("    ", "  - ", 1), *lines[1:]]


def snippet_md(runs: Sequence[RawRun], manifest: Plain) -> bytes:
    """Lines for a README: the valid cases, the machine, and how to check it."""
    lines = [f"### {_cell(manifest['publication']['title'])}", ""]
    for raw, described in zip(runs, manifest["runs"], strict=True):
        shown = [c for c in raw.run.cases if c.status == "ok" and c.cold_seconds is not None]
        if shown:
            lines += ["| case | first result | warm call | n |", "|---|---|---|---|"]
        for case in shown[:_MAX_ROWS]:
            cold, warm = estimate(case.cold_seconds), estimate(case.warm_call_seconds)
            n = case.cold_seconds.n if case.cold_seconds else 0
            name = _one_line(case.case).replace("`", "'").replace("|", "\\|")
            lines.append(f"| `{name}` | {cold} | {warm} | {n} |")
        lines += [""] if shown else []
        if len(shown) > _MAX_ROWS:
            lines += [f"{len(shown) - _MAX_ROWS} more cases are in `tables/cases.csv`.", ""]
        left_out = len(raw.run.cases) - len(shown)
        if left_out:
            lines += [f"{left_out} case(s) without a number: see `validation.html`.", ""]
        lines += [_cell(_machine_line(described)), ""]
    lines.append(
        "Medians over fresh processes with exact intervals; every value, the protocol of each case "
        "and its check against a reference are in the snapshot. Check it with `firstlight verify "
        "SNAPSHOT`, measure it on your machine with `firstlight replicate SNAPSHOT`."
    )
    return ("\n".join(lines) + "\n").encode()


def snippet_with_id(snippet: bytes, snapshot_id: str, signer: str | None) -> bytes:
    """`snippet.md` for use outside the snapshot; the one inside cannot name the id."""
    by = f"signed with the Ed25519 key `{signer}`" if signer else "not signed"
    return snippet + f"\nSnapshot `{snapshot_id}`, {by}.\n".encode()


def _machine_line(run: Plain) -> str:
    software = run["software"]
    python = (software.get("python") or {}).get("version")
    packages = software.get("packages") or {}
    named = [f"{name} {packages[name]}" for name in ("jax", "torch", "numpy") if name in packages]
    return (
        f"{machine(run['hardware'])}; Python {python}, {', '.join(named)}; "
        f"Firstlight {run['harness'].get('version')}; {run['created_at'][:10]}."
    )


def _cell(text: str) -> str:
    """Text escaped for a table cell: no link, tag or code."""
    return "".join(f"\\{c}" if c in "|<>`\\[]" else c for c in _one_line(text))


def _one_line(text: str) -> str:
    """Text without control characters."""
    line = " ".join(text.split())
    return "".join(c for c in line if not unicodedata.category(c).startswith("C"))
