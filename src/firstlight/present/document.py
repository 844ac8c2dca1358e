"""The frame of every HTML page (run, snapshot, trace, site): head, policy, logo, themes, tables."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files

from firstlight.present import palette
from firstlight.present.plain_text import escaped

_LOGO = (
    '<svg viewBox="0 0 48 32" class="logo" aria-hidden="true">'
    '<path d="M12 24a12 12 0 0 1 24 0z" class="sun"/>'
    '<path d="M2 27.5H46" class="horizon"/>'
    '<path d="M24 3v4M9.9 9.9l2.8 2.8M38.1 9.9l-2.8 2.8" class="rays"/></svg>'
)
#: The fill for `unattributed`: a pattern, to set it apart from the colours of phases.
PATTERN = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 0V5" class="hatch"/></pattern></defs>'
)
_HATCH = f'<svg width="0" height="0" class="defs" aria-hidden="true">{PATTERN}</svg>'


def document(
    title: str,
    body: str,
    *,
    style: str = "",
    script: str = "",
    style_attributes: bool = False,
    asks_server: bool = False,
) -> str:
    """A self-contained page. `title` is plain text; `body`, `style` and `script` are code.

    Its policy lets the browser load nothing from elsewhere, and run no other script or style sheet.
    `style_attributes`: `body` has style attributes. `asks_server`: the script may send requests to
    the page's server.
    """
    sheet = f"{palette.stylesheet()}\n{packaged('style.css')}{style}"
    attributes = "style-src-attr 'unsafe-inline'; " if style_attributes else ""
    script = script and packaged("page.js") + script
    scripts = f"script-src {_hash_source(script)}; " if script else ""
    connections = "connect-src 'self'; " if asks_server else ""
    policy = (
        f"default-src 'none'; style-src {_hash_source(sheet)}; {attributes}{scripts}{connections}"
        "base-uri 'none'; form-action 'none'"
    )
    behaviour = f"<script>{script}</script>" if script else ""
    return whole_page(policy, title, f"<style>{sheet}</style>", f"{body}{behaviour}")


def _hash_source(content: str) -> str:
    """The source expression of a content security policy for an inline script or style sheet."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def whole_page(policy: str, title: str, head: str, body: str) -> str:
    """A whole HTML page; `title` is plain text, `head` and `body` are markup."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="generator" content="Firstlight">'
        f"<title>{html.escape(title)}</title>{head}</head><body>{_HATCH}{body}</body></html>\n"
    )


def masthead(title: str, lead: str, brand: str = "Firstlight") -> str:
    """The top of a page with the choice of theme; `lead` is markup, the others plain text."""
    themes = "".join(
        f'<input type="radio" name="theme" id="theme-{t}"{" checked" if t == "auto" else ""}>'
        f'<label for="theme-{t}">{t}</label>'
        for t in ("auto", "light", "dark")
    )
    return (
        f'<header id="top">{_LOGO}<div class="lead"><p class="brand">{html.escape(brand)}</p>'
        f'<h1>{html.escape(title)}</h1>{lead}</div><fieldset class="themes">'
        f"<legend>Theme</legend>{themes}</fieldset></header>"
    )


def table(
    head: Iterable[str], rows: Iterable[str], class_: str = "small", caption: str = ""
) -> str:
    """A table that scrolls if too wide; `head` is plain text, `rows` and `caption` are markup."""
    top = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    return (
        f'<div class="scroll" tabindex="0"><table class="{class_}">{caption}<thead><tr>{top}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def text_table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Like `table`, from plain text; the first cell of each row is its header."""
    cells = (
        f'<th scope="row">{escaped(row[0])}</th>'
        + "".join(f"<td>{escaped(cell)}</td>" for cell in row[1:])
        for row in rows
    )
    return table(head, (f"<tr>{row}</tr>" for row in cells))


def contents(parts: Iterable[tuple[str, str]], filter_label: str, example: str) -> str:
    """Links to the parts of a page, given as (id, title), and the box that filters its rows."""
    links = "".join(f'<a href="#{name}">{html.escape(title)}</a>' for name, title in parts)
    return (
        f'<nav aria-label="Contents"><div class="links">{links}</div><div class="tools">'
        '<output id="filter-count" class="hint" hidden></output><input id="filter" type="search" '
        f'placeholder="{example}" aria-label="{filter_label}" hidden></div></nav>'
    )


def packaged(name: str, package: str = "firstlight.present") -> str:
    """The text of a style sheet, script or fragment that is package data of `package`."""
    return files(package).joinpath(name).read_text("utf-8")
