"""`snippet.md`: a few lines for a README, with what a number needs beside it."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.present.quantities import estimate
from firstlight.records import CaseSummary
from firstlight.snapshot.machines import machine
from firstlight.snapshot.raw_runs import RawRun, has_number

_MAX_ROWS = 30


def snippet_md(runs: Sequence[RawRun], manifest: Mapping[str, Any]) -> bytes:
    """A table of the sound cases, the machine, the protocol in a line, and how to check it."""
    lines = [f"### {_cell(manifest['publication']['title'])}", ""]
    for raw, described in zip(runs, manifest["runs"], strict=True):
        shown = [c for c in raw.run.cases if c.status == "ok" and has_number(c)]
        lines += _table(shown[:_MAX_ROWS])
        if len(shown) > _MAX_ROWS:
            lines += [f"{len(shown) - _MAX_ROWS} more cases are in `tables/cases.csv`.", ""]
        left_out = len(raw.run.cases) - len(shown)
        if left_out:
            lines += [f"{left_out} case(s) without a number: see `validation.html`.", ""]
        lines += [_machine_line(described), ""]
    lines.append(
        "Medians over fresh processes with exact intervals; every value, the protocol of each case "
        "and its check against a reference are in the snapshot. Check it with `firstlight verify "
        "SNAPSHOT`, measure it on your machine with `firstlight replicate SNAPSHOT`."
    )
    return ("\n".join(lines) + "\n").encode()


def snippet_with_id(snippet: bytes, snapshot_id: str, signer: str | None) -> bytes:
    """`snippet.md` of a snapshot that has been written; within it, it cannot name its own id."""
    by = f"signed with the Ed25519 key `{signer}`" if signer else "not signed"
    return snippet + f"\nSnapshot `{snapshot_id}`, {by}.\n".encode()


def _table(cases: Sequence[CaseSummary]) -> list[str]:
    if not cases:
        return []
    rows = ["| case | first result | warm call | n |", "|---|---|---|---|"]
    for case in cases:
        cold, warm = estimate(case.cold_seconds), estimate(case.warm_call_seconds)
        n = case.cold_seconds.n if case.cold_seconds else 0
        rows.append(f"| `{_code(case.case)}` | {cold} | {warm} | {n} |")
    return [*rows, ""]


def _machine_line(run: Mapping[str, Any]) -> str:
    software = run["software"]
    python = (software.get("python") or {}).get("version")
    packages = software.get("packages") or {}
    named = [f"{name} {packages[name]}" for name in ("jax", "torch", "numpy") if name in packages]
    return _cell(
        f"{machine(run['hardware'])}; Python {python}, {', '.join(named)}; "
        f"Firstlight {run['harness'].get('version')}; {run['created_at'][:10]}."
    )


def _cell(text: str) -> str:
    """Text that stays in its cell and is not read as markup: no link, no tag, no code."""
    return "".join(f"\\{c}" if c in "|<>`\\[]" else c for c in _plain(text))


def _code(text: str) -> str:
    """Text between backticks, where only a backtick ends it and a bar ends the cell."""
    return _plain(text).replace("`", "'").replace("|", "\\|")


def _plain(text: str) -> str:
    """One line without characters that steer what shows it."""
    line = " ".join(text.split())
    return "".join(c for c in line if not unicodedata.category(c).startswith("C"))
