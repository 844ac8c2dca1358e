"""The page of one snapshot: its cases, protocols, environment, verification and raw files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from firstlight.present.quantities import ABSENT, counted, estimate, size
from firstlight.records import CaseSummary, Run, Sample, slug
from firstlight.report import blocks, protocols
from firstlight.report.admission import admit
from firstlight.site.admission import status
from firstlight.site.frame import badge, link, page, section, table
from firstlight.site.listing import when
from firstlight.site.snapshot_facts import Facts
from firstlight.snapshot.layout import INDEX, FileEntry
from firstlight.snapshot.opening import Snapshot, machine
from firstlight.snapshot.validation import CaseText
from firstlight.snapshot.verification import Verification

UP = "../../"
_COLUMNS = (
    *("case", "verdict", "first result", "warm call", "error, tolerance", "cache label"),
    *("processes", "spread", "class"),
)
_UNFOLDED = 2
_CALL_POINTS = 60  # drawn per process, to keep the page small
#: Only these files of a stranger are served: none that a browser would execute.
SERVED = (".json", ".jsonl", ".csv", ".cff", ".md", ".py")


def snapshot_page(
    site: str,
    snapshot: Snapshot,
    samples: Sequence[Sequence[Sample]],
    found: Verification,
    files: str | None,
) -> bytes:
    """The page; `files` is the URL of the raw files, or None if they are beside the page."""
    publication = snapshot.manifest["publication"]
    body = _verification(found) + _cases(snapshot)
    for number, run in enumerate(snapshot.runs):
        about = snapshot.manifest["runs"][number]
        body += _run(run, samples[number], about, several=len(snapshot.runs) > 1)
    body += _data(snapshot) + _files(snapshot, files, found.unchecked_files)
    return page(site, publication["title"], body, UP, _lead(snapshot, found))


def _lead(snapshot: Snapshot, found: Verification) -> str:
    manifest, report = snapshot.manifest, snapshot.validation
    asked = report["cases_total"] - report["cases_skipped"]
    machines = dict.fromkeys(machine(run["hardware"]) for run in manifest["runs"])
    period = " to ".join(dict.fromkeys(when(manifest[f"measured_{end}"]) for end in ("from", "to")))
    people = ", ".join(str(c["name"]) for c in manifest["publication"]["creators"])
    passed, signed = report["cases_passed"], found.signature in ("trusted", "valid")
    badges = [
        badge(f"{passed} of {asked} cases valid", passed == asked),
        *(badge(f"loaded machine, {text}", False) for text in found.loads),
        badge(status(found.signature, found.signer_name), signed),
    ]
    return (
        f"<p>{escape(period)} UTC {' '.join(badges)}</p><p>{escape('; '.join(machines))}</p>"
        + (f"<p>{escape(people)}</p>" if people else "")
        + f'<p class="id"><code>{snapshot.id}</code></p>'
        f'<p><a href="{UP}compare.html#c-{snapshot.id[:16]}">Compare with earlier snapshots</a></p>'
    )


def _verification(found: Verification) -> str:
    groups = [("Holds", found.checked), ("Cannot be known from files", found.not_checked)]
    if found.skipped:
        groups.append(("Not checked", found.skipped))
    lists = "".join(
        f"<div><h3>{name}</h3><ul>{''.join(f'<li>{escape(t)}</li>' for t in texts)}</ul></div>"
        for name, texts in groups
    )
    title = "Verification, when this site was built"
    return section(title, f'<div class="columns">{lists}</div>', 'id="verification"')


def _cases(snapshot: Snapshot) -> str:
    """One row per case: its verdict, numbers, and a link to its trend."""
    several, judged = len(snapshot.runs) > 1, snapshot.validation["cases"]
    summaries = {
        (folder, case.case): case
        for folder, run in zip(snapshot.folders, snapshot.runs, strict=True)
        for case in run.cases
    }
    rows = [_case_row(case, summaries[case["run"], case["case"]], several) for case in judged]
    words = (
        "<p>Medians over fresh processes with their intervals. Error is max|x − ref| / max|ref|, "
        "the worst over all outputs and processes. Spread is the range of first results divided by "
        "their median.</p>"
    )
    troubles = "".join(
        f"<li><b>{escape(case['case'])}</b> {escape(case['reason'])}</li>"
        for case in judged
        if not case["passed"] and case["reason"]
    )
    troubles = f'<ul class="troubles">{troubles}</ul>' if troubles else ""
    shown = table(_COLUMNS, rows, deciding="verdict")
    return section("Cases", words + shown + troubles, 'id="cases-of"')


def _case_row(case: Facts, summary: CaseSummary, several: bool) -> list[str]:
    words = CaseText.of(case)
    name = link(f"{UP}trends/{slug(case['case'])}.html", case["case"])
    cells = (
        *(estimate(summary.cold_seconds), estimate(summary.warm_call_seconds)),
        *(f"{words.error} of {words.tolerance}", words.label, words.processes, words.spread),
        words.warm_class,
    )
    return [
        (name if case["passed"] else escape(case["case"]))
        + (f" <small>{escape(case['run'])}</small>" if several else ""),
        badge(words.verdict, case["passed"]),
        *map(escape, cells),
    ]


def _run(run: Run, samples: Sequence[Sample], about: Facts, several: bool) -> str:
    """Distributions, protocols and environment of one run."""
    workloads = admit(run, samples)
    name = escape(f": {about['folder']}") if several else ""
    # Two runs may have the same workload, but ids must be unique.
    figures = "".join(
        blocks.block(w, i < _UNFOLDED, _CALL_POINTS).replace(
            f'id="{w.anchor}"', f'id="{about["folder"].replace("/", "-")}-{w.anchor}"', 1
        )
        for i, w in enumerate(workloads)
    )
    rules = "".join(
        f"<details><summary>{escape(w.label)}</summary>{protocols.full(w)}</details>"
        for w in workloads
    )
    notes = "".join(f"<li>{escape(w)}</li>" for w in run.warnings)
    label = f'class="warnings" aria-label="Warnings{name}"'
    warned = f"<aside {label}><ul>{notes}</ul></aside>" if notes else ""
    trees = [
        ("Hardware", about["hardware"]),
        ("Software", {k: v for k, v in about["software"].items() if k != "lock"}),
        ("Harness and settings", {**about["harness"], "settings": about["settings"]}),
    ]
    shown = "".join(
        f'<div class="tree"><h3>{title}</h3>{protocols.tree(tree)}</div>' for title, tree in trees
    )
    environment = f'<div class="trees">{shown}</div>{_lock(about["software"])}'
    return (
        section(f"Distributions{name}", warned + figures)
        + section(f"Protocols{name}", rules, 'class="protocols"')
        + section(f"Environment{name}", environment)
    )


def _lock(software: Facts) -> str:
    lock = software.get("lock")
    if lock is None:
        return f"<p>Packages: {escape(str(software.get('lock_unknown')))}.</p>"
    lines = escape("\n".join(str(line) for line in lock))
    return (
        f"<details><summary>All {counted(len(lock), 'package')}</summary>"
        f'<pre tabindex="0">{lines}</pre></details>'
    )


def _data(snapshot: Snapshot) -> str:
    """The input data, by name and hash, without duplicates."""
    rows: dict[str, list[str]] = {}
    for data in (case["dataset"] for run in snapshot.manifest["runs"] for case in run["cases"]):
        name, digest = str(data["id"]), str(data["sha256"] or data["sha256_unknown"])
        arrays = ", ".join(f"{a.get('shape')} {a.get('dtype')}" for a in data["arrays"])
        row = [escape(name), escape(arrays) or ABSENT, f"<code>{escape(digest)}</code>"]
        rows.setdefault(f"{name} {digest}", row)
    head = ("data", "arrays", "SHA-256")
    return section("Data", table(head, [*rows.values()], "small left"), 'id="data"')


def served(path: str, unchecked: Collection[str]) -> bool:
    """Whether the site serves a file of a snapshot."""
    return path.endswith(SERVED) and path not in unchecked


def _files(snapshot: Snapshot, files: str | None, unchecked: Collection[str]) -> str:
    rows = [_file_row(entry, snapshot.id, files, unchecked) for entry in snapshot.files.values()]
    how = (
        "Check it with <code>firstlight verify</code>, measure it again with <code>firstlight "
        "replicate</code>."
    )
    if files is not None:
        note = f"They are at {link(_below(files, snapshot.id, INDEX), files)}."
    elif unchecked:
        note = (
            f"{counted(len(unchecked), 'file')} could not be checked when this site was built. "
            f"They are not served here, nor is the archive. {how}"
        )
    else:
        archive = link(f"files/{snapshot.id}.tar", f"{snapshot.id[:12]}….tar")
        note = f"All files as published: {archive}. {how}"
    shown = table(("file", "size", "SHA-256"), rows, "small left")
    folded = f"<details><summary>{counted(len(rows), 'file')}</summary>{shown}</details>"
    return section("Raw files", f"<p>{note}</p>{folded}", 'id="files"')


def _file_row(
    entry: FileEntry, snapshot_id: str, files: str | None, unchecked: Collection[str]
) -> list[str]:
    name = escape(entry.path)
    if entry.path in unchecked:
        name += " <small>not checked</small>"
    elif files is not None:
        name = link(_below(files, snapshot_id, entry.path), entry.path)
    elif served(entry.path, unchecked):
        name = link(f"files/{entry.path}", entry.path)
    return [name, escape(size(entry.bytes)), f"<code>{entry.sha256}</code>"]


def _below(files: str, snapshot_id: str, path: str) -> str:
    return f"{files.rstrip('/')}/{snapshot_id}/{path}"
