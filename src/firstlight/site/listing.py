"""The list of snapshots: the newest as a table, the rest as JSON in pieces.

A reader loads a page of fifty rows; searching and sorting fetch the pieces, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from firstlight.present.quantities import counted
from firstlight.site.frame import finder, page
from firstlight.site.snapshot_facts import Facts
from firstlight.snapshot.strict_json import compact

ROWS, PIECE = 50, 500
_COLUMNS = (
    ("measured", "Measured"),
    ("title", "Title"),
    ("machine", "Machine"),
    ("cases", "Valid cases"),
    ("signature", "Published by"),
    ("id", "Id"),
)
#: The versions in the list; the page of a snapshot has all of them.
_SHOWN = ("Python", "jax", "torch", "numpy", "Firstlight")


def entry(facts: Facts, status: str, trusted: bool) -> Facts:
    """A row as plain values; `cases` are names."""
    runs = facts["runs"]
    busiest = max((run["noisy"] for run in runs if run["noisy"] is not None), default=None)
    versions = {name: runs[-1]["versions"].get(name) for name in _SHOWN}
    return {
        "id": facts["id"],
        "title": facts["title"],
        "measured": facts["measured"],
        "machine": "; ".join(dict.fromkeys(run["machine"] for run in runs)),
        "versions": ", ".join(f"{name} {v}" for name, v in versions.items() if v),
        "passed": facts["passed"],
        "asked": facts["asked"],
        "signature": status,
        "trusted": trusted,
        "loaded": None if busiest is None else f"loaded machine, {busiest:.0%}",
        "cases": list(dict.fromkeys(case for run in runs for case in run["order"])),
    }


def newest_first(entries: Sequence[Facts]) -> list[Facts]:
    return sorted(entries, key=lambda e: (e["measured"], e["id"]), reverse=True)


def data_files(site: str, entries: Sequence[Facts]) -> dict[str, bytes]:
    """`data/…`: the list in pieces, with cases as indices into one list of names."""
    names = sorted({case for e in entries for case in e["cases"]})
    number = {name: i for i, name in enumerate(names)}
    pieces = [entries[i : i + PIECE] for i in range(0, len(entries), PIECE)]
    files = {
        f"data/list-{i:03d}.json": compact(
            [{**e, "cases": [number[case] for case in e["cases"]]} for e in piece]
        )
        for i, piece in enumerate(pieces)
    }
    about = {"site": site, "snapshots": len(entries), "pieces": len(pieces), "rows": ROWS}
    return files | {"data/site.json": compact(about), "data/cases.json": compact(names)}


def list_page(site: str, entries: Sequence[Facts], refused: int) -> bytes:
    """The list; `entries` are in display order."""
    lead = f"<p>{counted(len(entries), 'snapshot')}, each verified when this site was built</p>"
    if refused:
        lead += f'<p><a href="index.html#refused">{counted(refused, "folder")} refused</a></p>'
    hidden = "" if len(entries) > ROWS else " hidden"
    more = f'<p><button type="button" id="more" disabled{hidden}>Show {ROWS} more</button></p>'
    body = finder("jit 0.10 Xeon", "titles, cases, machines, versions, and ids")
    body += _table(entries[:ROWS]) + more
    return page(site, "Snapshots", body, "", lead, ("list.js",), "snapshots.html")


def _table(entries: Sequence[Facts]) -> str:
    head = "".join(f'<th scope="col" data-key="{key}">{name}</th>' for key, name in _COLUMNS)
    head = head.replace(">", ' aria-sort="descending">', 1)  # newest first
    rows = "".join(row(e) for e in entries) or (
        '<tr><td colspan="6">No snapshot here could be verified.</td></tr>'
    )
    return (
        f'<div class="scroll" tabindex="0"><table id="snapshots" data-rows="{ROWS}"><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def row(e: Facts) -> str:
    """A row; `list.js` makes the same one."""
    href = f"snapshots/{e['id']}/index.html"
    fine = "badge fine" if e["passed"] == e["asked"] else "badge"
    loaded = f' <span class="badge">{escape(e["loaded"])}</span>' if e["loaded"] else ""
    known = ' class="known"' if e["trusted"] else ""
    return (
        f"<tr><td>{escape(when(e['measured']))}</td>"
        f'<td><a href="{escape(href)}">{escape(e["title"])}</a>'
        f"<small>{escape(e['versions'])}</small></td>"
        f"<td>{escape(e['machine'])}</td>"
        f'<td><span class="{fine}">{e["passed"]} of {e["asked"]}</span>{loaded}</td>'
        f"<td{known}>{escape(e['signature'])}</td>"
        f"<td><code>{escape(e['id'][:12])}</code></td></tr>"
    )


def when(moment: str) -> str:
    """'2026-03-01 09:15' from an ISO time in UTC."""
    return moment[:16].replace("T", " ")
