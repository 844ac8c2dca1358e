"""The parts of every page: head, navigation, policy, style, tables and links."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape

from firstlight.compare.verdicts import change
from firstlight.present import palette
from firstlight.present.document import masthead, packaged, whole_page
from firstlight.present.document import table as plain_table
from firstlight.present.svg import element
from firstlight.records import slug

#: Scripts and data come only from the site itself; inline scripts never run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'"
)
_PLACES = (
    ("index.html", "Changes"),
    ("snapshots.html", "Snapshots"),
    ("trends/index.html", "Trends"),
    ("compare.html", "Compare"),
)
FEED = "feed.xml"
_ASSETS = "firstlight.site.assets"


def page(
    site: str,
    title: str,
    body: str,
    up: str,
    lead: str = "",
    scripts: Sequence[str] = (),
    place: str = "",
) -> bytes:
    """A whole page. `body` and `lead` are markup; `up` leads to the root of the site: '' or '../'.

    `site` and `title` (of the page) are plain text. `place` is the page's own path, if it is in the
    navigation.
    """
    run = "".join(
        f'<script defer src="{up}assets/{name}"></script>' for name in ("page.js", *scripts)
    )
    head = (
        '<meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="{up}assets/icon.svg"><link rel="stylesheet" '
        f'href="{up}assets/site.css"><link rel="alternate" type="application/atom+xml" '
        f'title="{escape(site)}: changes" href="{up}{FEED}">{run}'
    )
    whole = (
        f'<a class="skip" href="#main">Skip to the content</a>{masthead(title, lead, site)}'
        f'{_navigation(up, place)}<main id="main" data-root="{up}">{body}</main>'
    )
    heading = f"{title} · {site}" if title != site else site
    return whole_page(_POLICY, heading, head, whole).encode()


def _navigation(up: str, here: str) -> str:
    links = "".join(
        f'<a href="{up}{place}"{" aria-current=page" if place == here else ""}>{name}</a>'
        for place, name in _PLACES
    )
    return f'<nav aria-label="Site"><div class="links">{links}</div></nav>'


@cache
def assets() -> dict[str, bytes]:
    """{path: content} of style, scripts and icon."""
    # Not modules, which a page opened from a file cannot load.
    scripts = {"page.js": packaged("page.js"), "list.js": packaged("list.js", _ASSETS)}
    style = f"{palette.stylesheet()}\n{packaged('style.css')}\n{packaged('site.css', _ASSETS)}"
    found = {"icon.svg": _icon(), "site.css": style, **scripts}
    return {f"assets/{name}": content.encode() for name, content in found.items()}


def _icon() -> str:
    sun = '<path d="M6 22a10 10 0 0 1 20 0z"/><path d="M3 25h26v2H3z"/>'
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" fill="#d99a00">'
    return f"{head}{sun}</svg>\n"


def section(title: str, body: str, attributes: str = "") -> str:
    """A section with its heading; all arguments are markup."""
    return f"<section{attributes and ' ' + attributes}><h2>{title}</h2>{body}</section>"


def snapshot_link(snapshot_id: str, text: str, up: str = "") -> str:
    return link(f"{up}snapshots/{snapshot_id}/index.html", text)


def trend_link(case: str) -> str:
    """A link from a page at the root to the trends of a case."""
    return link(f"trends/{slug(case)}.html", case)


def toned(ratio: float) -> str:
    """A change, coloured by its direction."""
    tone = "slower" if ratio > 1 else "faster"
    return f'<b class="{tone}">{escape(change(ratio))}</b>'


def finder(example: str, what: str) -> str:
    """The search box of a list, hidden until `list.js` runs."""
    return (
        f'<div class="finder"><input type="search" id="search" placeholder="search: {example}" '
        f'aria-label="Search {what}" hidden>'
        '<output id="found" role="status" hidden></output></div>'
    )


def badge(text: str, fine: bool) -> str:
    return f'<span class="badge{" fine" if fine else ""}">{escape(text)}</span>'


def link(href: str, text: str) -> str:
    """A link; both arguments are plain text."""
    return element("a", escape(text), href=href)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], class_: str = "small", deciding: str = ""
) -> str:
    """A table of markup cells with plain headings; the first cell of a row is its header.

    On narrow screens a row becomes a card, with the cell of the column `deciding` first.
    """
    names = [escape(name) for name in head]
    first = [' class="deciding"' if name == deciding else "" for name in head]
    body = (
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(
            f'<td data-label="{name}"{mark}>{cell}</td>'
            for name, mark, cell in zip(names[1:], first[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return plain_table(head, body, f"{class_} cards")
