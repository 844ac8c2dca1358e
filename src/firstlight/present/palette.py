"""Colours and markers: a fixed look per backend and per phase, for light and dark themes.

Backends follow Okabe and Ito (blue for JAX, orange for torch, green for NumPy), adjusted so that
text in the paper's colour is legible on each. Nothing is encoded by colour alone: a backend also
has a dash and a marker, a phase its name.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from itertools import cycle

from firstlight.present.svg import number

#: CSS variable: (light, dark)
INK: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14161a"),
    "raised": ("#f6f7f9", "#1c1f25"),
    "ink": ("#16191f", "#e8eaee"),
    "muted": ("#5a6270", "#a2aab8"),
    "rule": ("#dfe3e8", "#333943"),
    "grid": ("#eaedf1", "#2a2f38"),
    "accent": ("#8a5a00", "#f5c451"),
    "alarm": ("#a8201a", "#ff8f87"),
    "alarm-paper": ("#fdf0ef", "#33201f"),
    "good": ("#0b6e4f", "#5fd3a6"),
}

#: By backend: light and dark colour, dash, marker. The last four are for unknown backends.
_LOOKS = {
    "numpy": ("#007d52", "#35c99d", "", "circle"),
    "jax-eager": ("#3870d0", "#9ad4fb", "6 3", "triangle"),
    "jax-jit": ("#123f86", "#5aa2f5", "", "square"),
    "torch-eager": ("#a96500", "#f3bb4e", "2 3", "diamond"),
    "torch-compile": ("#8f2a05", "#ff8359", "9 3 2 3", "down"),
    "other-0": ("#8a3a86", "#e39be0", "4 2", "plus"),
    "other-1": ("#5c5f66", "#b9bec8", "1 3", "star"),
    "other-2": ("#6b6a00", "#cfce5a", "8 4", "cross"),
    "other-3": ("#8b2452", "#ff9dc0", "5 2 1 2", "bar"),
}
BACKENDS = {f"b-{name}": (light, dark) for name, (light, dark, _, _) in _LOOKS.items()}
#: Users' files name only the framework; they get the look of the most similar backend.
_ALIASES = {"jax": "jax-jit", "torch": "torch-eager"}

#: By phase: fill and text colour, each (light, dark). Greys for starting the process, violets for
#: compiling, gold for the first result.
PHASE_COLOURS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "p-interpreter": (("#b9c0ca", "#59616e"), ("#16191f", "#ffffff")),
    "p-import": (("#8d97a5", "#7d8796"), ("#16191f", "#14161a")),
    "p-backend_init": (("#5f6a7a", "#a4aebd"), ("#ffffff", "#14161a")),
    "p-setup": (("#b5c7a4", "#5f7350"), ("#16191f", "#ffffff")),
    "p-trace": (("#d3c2ec", "#5e4a86"), ("#16191f", "#ffffff")),
    "p-lower": (("#a988d6", "#8466bd"), ("#16191f", "#ffffff")),
    "p-compile": (("#6a3fa8", "#b697ea"), ("#ffffff", "#14161a")),
    "p-first_execute": (("#f3c13a", "#f3c13a"), ("#16191f", "#16191f")),
    "p-later": (("#f9e3a3", "#8d7330"), ("#16191f", "#ffffff")),
}

_OUTLINES = {
    "circle": "M{w} 0A{r} {r} 0 1 1 {e} 0A{r} {r} 0 1 1 {w} 0Z",
    "square": "M{a} {a}H{b}V{b}H{a}Z",
    "triangle": "M0 {w}L{e} {b}H{w}Z",
    "down": "M0 {e}L{e} {a}H{w}Z",
    "diamond": "M0 {w}L{e} 0L0 {e}L{w} 0Z",
    "plus": "M{w} {c}H{c}V{w}H{d}V{c}H{e}V{d}H{d}V{e}H{c}V{d}H{w}Z",
    "star": "M0 {w}L{d} {c}L{e} 0L{d} {d}L0 {e}L{c} {d}L{w} 0L{c} {c}Z",
    "cross": (
        "M{w} {a}L{a} {w}L0 {c}L{b} {w}L{e} {a}L{d} 0L{e} {b}L{b} {e}L0 {d}L{a} {e}L{w} {b}L{c} 0Z"
    ),
    "bar": "M{c} {w}H{d}V{e}H{c}Z",
}


@dataclass(frozen=True)
class Mark:
    """The look of a backend: CSS class for its colour, stroke dash, outline of its marker."""

    class_: str
    dash: str
    outline: str

    def at(self, x: float, y: float, radius: float = 4.5, hollow: bool = False) -> str:
        """The marker as SVG, centred on (x, y)."""
        r = radius
        values = {"r": r, "w": -r, "e": r, "a": -0.85 * r, "b": 0.85 * r, "c": -r / 3, "d": r / 3}
        path = _OUTLINES[self.outline].format(**{k: number(v) for k, v in values.items()})
        fill = "hollow" if hollow else "solid"
        return (
            f'<path d="{path}" transform="translate({number(x)} {number(y)})" '
            f'class="mark {fill} {self.class_}"/>'
        )


def marks(backends: list[str]) -> dict[str, Mark]:
    """The look of every backend of a run; unknown ones take the spare looks in turn."""
    found: dict[str, Mark] = {}
    spare = cycle(name for name in _LOOKS if name.startswith("other-"))
    for backend in dict.fromkeys(backends):
        alias = _ALIASES.get(backend, backend)
        look = backend if alias in backends else alias  # no two backends with the same look
        look = look if look in _LOOKS else next(spare)
        found[backend] = Mark(f"b-{look}", *_LOOKS[look][2:])
    return found


def swatch(mark: Mark, hollow: bool = False) -> str:
    """The marker alone, for use within text."""
    return (
        '<svg viewBox="-6 -6 12 12" class="swatch" aria-hidden="true">'
        f"{mark.at(0, 0, hollow=hollow)}</svg>"
    )


def name_with_swatch(mark: Mark, label: str, hollow: bool = False) -> str:
    """`label` in bold, after its marker."""
    return f'<b class="name">{swatch(mark, hollow)}{html.escape(label)}</b>'


def stylesheet() -> str:
    """CSS: the variables of both themes, and the classes that use them."""
    dark = f"{{color-scheme:dark;{_variables(1)}}}"
    wanted = f":root:not(:has(#theme-light:checked)){dark}"
    rules = [
        f":root{{color-scheme:light;{_variables(0)}}}",
        f"@media screen{{:root:has(#theme-dark:checked){dark}}}",
        f"@media screen and (prefers-color-scheme:dark){{{wanted}}}",
    ]
    rules += [f".{name}{{--c:var(--{name})}}" for name in BACKENDS]
    rules += [
        f".{name}{{fill:var(--{name});background:var(--{name})}}"
        f"text.{name}-ink{{fill:var(--{name}-ink)}}"
        for name in PHASE_COLOURS
    ]
    return "\n".join(rules)


def _variables(theme: int) -> str:
    pairs = [(k, v[theme]) for k, v in (INK | BACKENDS).items()]
    pairs += [(k, fill[theme]) for k, (fill, _) in PHASE_COLOURS.items()]
    pairs += [(f"{k}-ink", ink[theme]) for k, (_, ink) in PHASE_COLOURS.items()]
    return ";".join(f"--{name}:{colour}" for name, colour in pairs)
