"""The page on which two snapshots are chosen and compared: a form, filled by `compare.js`."""

from __future__ import annotations

from firstlight.site.frame import page

_WORDS = (
    "The same comparison as <code>firstlight compare</code>, computed here from the raw values of "
    "every process: ratio by Hodges and Lehmann with its exact interval of 95 % or more, p by Mann "
    "and Whitney, adjusted by Holm over the rows that decide. Two jobs drift apart by more than "
    "their intervals say, so between single runs only changes beyond 15 % count."
)


def compare_page(site: str) -> bytes:
    """The form; without a script or a server it says what it needs."""
    sides = "".join(_side(name, title) for name, title in (("base", "Base"), ("head", "Head")))
    body = (
        f'<p class="prose">{_WORDS}</p>'
        '<p id="needs" class="warnings">This page needs JavaScript, and to be opened from a web '
        "server (for example <code>python -m http.server</code> in the folder of the site).</p>"
        f'<form id="choose" hidden><div class="columns">{sides}</div>'
        '<p class="actions"><label><input type="checkbox" id="anyway"> compare what is not '
        'comparable, too</label> <label><input type="checkbox" id="every"> show every phase</label>'
        ' <button type="submit">Compare</button> '
        '<button type="button" id="swap">Swap sides</button></p></form>'
        '<div id="result" role="region" aria-live="polite" aria-label="Comparison"></div>'
    )
    return page(site, "Compare", body, "", "", ("compare.js",), "compare.html")


def _side(name: str, title: str) -> str:
    return (
        f'<fieldset class="side"><legend>{title}</legend>'
        f'<input type="search" id="{name}-search" placeholder="search" '
        f'aria-label="Search for the {name}">'
        f'<select id="{name}" size="8" aria-label="{title}"></select></fieldset>'
    )
