"""SVG as text: elements, scales, ticks, and the widths of labels.

Coordinates are CSS pixels at the figure's design width.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Widths in em of a wide system font (DejaVu Sans): what fits here fits in any other.
_WIDTHS = dict.fromkeys("iljtfr.,:;|'![]()/ ·\u202f", 0.40) | dict.fromkeys("mwMW%@—", 0.95)


def text_width(text: str, font_size: float) -> float:
    """An upper estimate of the width of `text` in pixels."""
    return font_size * sum(_WIDTHS.get(c, 0.70 if c.isupper() else 0.62) for c in text)


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, /, *children: str, **attributes: object) -> str:
    """`<name …>…</name>`; children are markup, attribute values are escaped here.

    `class_` means class, `stroke_width` means stroke-width; attributes that are None are left out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            shown = number(value) if isinstance(value, float) else str(value)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{html.escape(shown)}"')
    return f"<{' '.join(parts)}>{''.join(children)}</{name}>"


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "start") -> str:
    """A label with its baseline at y; `content` is plain text."""
    given = {"class_": class_ or None, "text_anchor": None if anchor == "start" else anchor}
    return element("text", html.escape(content), x=float(x), y=float(y), **given)


def title(content: str) -> str:
    """The tooltip of the parent element."""
    return f"<title>{html.escape(content)}</title>"


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight stroke."""
    return f'<path d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}" class="{class_}"/>'


def rectangle(x: float, y: float, width: float, height: float, class_: str, inner: str = "") -> str:
    """A rectangle; `inner` is markup inside its element, such as a title."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0))}" '
        f'height="{number(height)}" class="{class_}">{inner}</rect>'
    )


def polyline(points: Sequence[tuple[float, float]], class_: str, close: bool = False) -> str:
    """A path through the points."""
    steps = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f'<path d="M{steps}{"Z" if close else ""}" class="{class_}"/>' if points else ""


def canvas(
    width: float, height: float, label: str, body: str, class_: str = "", role: str = "img"
) -> str:
    """The `<svg>` element, which scales with its container; `label` is its accessible name.

    With a class, its width is limited to a little more than the design width.
    """
    limited = f' class="{class_}" width="{number(1.15 * width)}"' if class_ else ""
    return (
        f'<svg viewBox="0 0 {number(width)} {number(height)}" role="{role}" '
        f'aria-label="{html.escape(label)}"{limited}>{body}</svg>'
    )


@dataclass(frozen=True)
class Linear:
    """Maps [low, high] to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of `value`."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, wanted: int = 6) -> list[float]:
        """Round values, about as many as wanted."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        step = 10.0 ** math.floor(math.log10(span / wanted))
        step *= next(m for m in (1, 2, 5, 10) if span / (step * m) <= wanted)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Logarithmic(Linear):
    """Like `Linear`, on a logarithmic scale; values are positive."""

    def __call__(self, value: float) -> float:
        span = math.log(self.high / self.low) or 1.0
        return self.start + math.log(value / self.low) / span * (self.end - self.start)

    def ticks(self, wanted: int = 8) -> list[float]:
        """Powers of ten; if fewer than two are inside, also times 2 and 5, then every digit."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for digits in ((1,), (1, 2, 5), range(1, 10)):
            if len(found) < 2:
                values = (d * 10.0**power for power in powers for d in digits)
                found = [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]
        return found[:: max(1, math.ceil(len(found) / wanted))]


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions of labels near the wanted ones, at least `gap` apart and within [low, high].

    Labels that collide form a block, centred on the mean of their wanted positions.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    blocks: list[tuple[float, list[int]]] = []  # centre, members
    for i in order:
        members: list[int] = []
        joined = [i]
        while joined:
            members = joined + members
            half = len(members) * gap / 2
            centre = sum(positions[m] for m in members) / len(members)
            # Shift the block to the inside.
            centre = max(min(centre, high - half + gap / 2), low + half - gap / 2)
            last, others = blocks[-1] if blocks else (-math.inf, [])
            collides = centre - half < last + len(others) * gap / 2
            joined = blocks.pop()[1] if collides else []
        blocks.append((centre, members))
    placed = [0.0] * len(positions)
    for centre, members in blocks:
        for k, i in enumerate(members):
            placed[i] = centre + (k - (len(members) - 1) / 2) * gap
    return placed
