"""The steps as an Atom feed (RFC 4287), newest first."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from firstlight.compare.verdicts import change
from firstlight.present.plain_text import xml_text
from firstlight.records import slug
from firstlight.site.changes import Change
from firstlight.site.changes_page import NAMES
from firstlight.site.frame import FEED

MAX_ENTRIES = 100
_ATOM = "http://www.w3.org/2005/Atom"
#: The namespace of identifiers: a step has the same one in every build.
_SPACE = uuid.UUID("0b8a5c1e-5c6b-4f0e-9d0f-6a0f3a6c9e51")


def feed(site: str, steps: Sequence[Change], newest: float, url: str | None) -> bytes:
    """The feed; `newest` is the time of the newest run, `url` the site's address, if known.

    Without `url`, links are relative to the feed, which not every reader supports.
    """
    root = url.rstrip("/") + "/" if url else ""
    made = ElementTree.Element("feed", xmlns=_ATOM)
    _text(made, "title", f"{site}: what changed")
    _text(made, "id", _identifier(f"feed {site} {root}"))
    _text(made, "updated", _moment(max([newest, *(c.seen for c in steps)])))
    _text(ElementTree.SubElement(made, "author"), "name", site)
    ElementTree.SubElement(made, "link", rel="self", href=f"{root}{FEED}")
    ElementTree.SubElement(made, "link", rel="alternate", href=f"{root}index.html")
    for found in sorted(steps, key=lambda c: -c.seen)[:MAX_ENTRIES]:
        _entry(ElementTree.SubElement(made, "entry"), found, root)
    ElementTree.indent(made)
    body = ElementTree.tostring(made, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'.encode()


def _entry(entry: ElementTree.Element, found: Change, root: str) -> None:
    effect = found.step.effect
    _text(entry, "title", f"{change(effect.ratio)} {NAMES[found.quantity]}: {found.case}")
    parts = (found.case, found.series, found.quantity, found.after.snapshot)
    _text(entry, "id", _identifier(" ".join(parts)))
    _text(entry, "updated", _moment(found.seen))
    href = f"{root}trends/{slug(found.case)}.html"
    ElementTree.SubElement(entry, "link", rel="alternate", href=href)
    why = "; ".join(found.step.changed) or "no recorded version changed"
    size = f"{change(effect.ratio)} [{change(effect.low)}, {change(effect.high)}]"
    since = f"from the run of {_moment(found.after.moment)} on"
    _text(entry, "summary", f"{size} {since}, on {found.machine}: {why}.")


def _text(parent: ElementTree.Element, name: str, content: str) -> None:
    ElementTree.SubElement(parent, name).text = xml_text(content)


def _identifier(name: str) -> str:
    return uuid.uuid5(_SPACE, name).urn


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
