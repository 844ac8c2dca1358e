"""The verdict under a cell: `%load_ext firstlight.trace`, then `%%firstlight` on top of a cell."""

from __future__ import annotations

from typing import Any

from firstlight.report.plain_text import printable
from firstlight.trace import phases
from firstlight.trace.json_report import stage_seconds
from firstlight.trace.markup import escaped
from firstlight.trace.model import Finding, Function, Trace
from firstlight.trace.verdict import headline, unknown
from firstlight.trace.wording import OF_JAX, location, place, seconds, sentence_of

_MOST_FUNCTIONS = 8


def load_ipython_extension(shell: Any) -> None:
    """Called by %load_ext."""

    def firstlight(line: str, cell: str) -> None:
        """Run the cell, then show what it compiled and what to do about it."""
        from IPython.display import display

        from firstlight.trace.session import recording

        with recording() as recorded:
            result = shell.run_cell(cell)
        display(recorded)
        result.raise_error()  # "run all" must stop here, as without us

    shell.register_magic_function(firstlight, "cell")


def unload_ipython_extension(shell: Any) -> None:
    """Called by %unload_ext."""
    shell.magics_manager.magics["cell"].pop("firstlight", None)


def as_text(trace: Trace) -> str:
    """The verdict in plain lines."""
    lines = [headline(trace)]
    for number, finding in enumerate(trace.findings, start=1):
        lines.append(f"{number}. {seconds(finding.seconds)}  {sentence_of(finding)}")
        if finding.location:
            lines.append(f"   {location(finding.location)}")
        lines.append(f"   → {finding.remedy}")
    lines += [f"Not known: {sentence}" for sentence in unknown(trace)]
    return printable("\n".join(lines))


def as_html(trace: Trace) -> str:
    """The verdict, the shares of time and the functions, in colours that suit any theme."""
    found = "".join(_finding(f) for f in trace.findings)
    verdict = f'<ol style="margin:.4em 0;padding-left:1.4em">{found}</ol>' if found else ""
    doubts = "".join(f"<div>Not known: {escaped(text)}</div>" for text in unknown(trace))
    return (
        '<div style="border-left:3px solid #f3c13a;padding:.2em 0 .2em .8em">'
        f"<b>{escaped(headline(trace))}</b>{verdict}{_shares(trace)}{_functions(trace)}{doubts}"
        "</div>"
    )


def _finding(finding: Finding) -> str:
    where = f" <code>{escaped(location(finding.location))}</code>" if finding.location else ""
    return (
        f"<li><b>{seconds(finding.seconds)}</b> {escaped(sentence_of(finding))}{where}"
        f"<br>→ {escaped(finding.remedy)}</li>"
    )


def _shares(trace: Trace) -> str:
    process = phases.leading(trace)
    by_kind = phases.until(process, None) if process else {}
    total = sum(by_kind.values())
    words = ", ".join(
        f"{phases.name_of(k)} {seconds(v)}"
        for k, v in sorted(by_kind.items(), key=lambda item: -item[1])
        if v >= 0.01 * total
    )
    return f"<div>{escaped(f'{seconds(total)} in all: {words}')}</div>" if total else ""


def _functions(trace: Trace) -> str:
    rows = "".join(_row(f) for f in trace.functions[:_MOST_FUNCTIONS])
    if not rows:
        return ""
    names = ("function", "defined", "compiles", "trace", "lower", "compile")
    head = "".join(f"<th>{name}</th>" for name in names)
    more = len(trace.functions) - _MOST_FUNCTIONS
    rest = f"<div>and {more} more functions</div>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{rest}"


def _row(function: Function) -> str:
    cells = (
        function.name,
        OF_JAX if function.library else place(function.place),
        str(sum(c.compiled for c in function.compiles)),
        *(seconds(value) for value in stage_seconds(function).values()),
    )
    return f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in cells)}</tr>"
