"""Drawing: labels apart, spikes kept, distinguishable colours."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.present import palette, svg
from firstlight.report import warm

Colour = tuple[float, float, float]


@given(st.lists(st.floats(0, 300), min_size=1, max_size=15))
def test_labels_end_up_apart_in_order_and_inside(positions: list[float]) -> None:
    placed = svg.spread(positions, 15, 0, 300)
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    ordered = [placed[i] for i in order]
    assert all(b - a >= 15 - 1e-6 for a, b in pairwise(ordered))
    assert min(placed) >= -1e-6 and max(placed) <= 300 + 1e-6


@given(
    st.lists(st.floats(1e-6, 10), min_size=1, max_size=400), st.integers(min_value=2, max_value=60)
)
def test_thinning_keeps_the_extremes_and_the_order(values: list[float], limit: int) -> None:
    kept = warm.thinned(values, limit)
    assert len(kept) <= max(limit, 1)
    assert kept == sorted(kept) and all(values[i - 1] == v for i, v in kept)
    assert {min(values), max(values)} <= {v for _, v in kept}


@pytest.mark.parametrize(("low", "high"), [(0.0, 9.44), (0.0, 3e-5), (0.0, 1e4), (2.0, 3.0)])
def test_linear_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = svg.Linear(low, high, 0, 100).ticks(7)
    assert 2 <= len(ticks) <= 8
    assert low - 1e-12 <= ticks[0] and ticks[-1] <= high * (1 + 1e-9)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1e8), (3e-4, 5e-4), (0.011, 0.012), (0.2, 900.0)])
def test_logarithmic_ticks_never_leave_an_axis_bare(low: float, high: float) -> None:
    ticks = svg.Logarithmic(low, high, 0, 100).ticks(8)
    assert all(low * 0.99 <= t <= high * 1.01 for t in ticks)
    assert len(ticks) <= 8
    assert ticks or high / low < 1.2


def linear(colour: str) -> Colour:
    """sRGB to linear light (IEC 61966-2-1)."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return r, g, b


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    dark, light = sorted(
        0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other))
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_aa_asks_for(theme: int) -> None:
    paper, raised = palette.INK["paper"][theme], palette.INK["raised"][theme]
    for name in ("ink", "muted", "accent", "alarm", "good"):
        assert contrast(palette.INK[name][theme], paper) >= 4.5, name
        assert contrast(palette.INK[name][theme], raised) >= 4.5, name
    for name, pair in palette.BACKENDS.items():
        assert contrast(pair[theme], paper) >= 4.5, name  # names are written on their colour
    for name, (fill, ink) in palette.PHASE_COLOURS.items():
        assert contrast(fill[theme], ink[theme]) >= 4.5, name


#: Severe protanopia, deuteranopia, tritanopia: Machado, Oliveira, Fernandes 2009, table 1.
VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def lab(colour: Colour) -> Colour:
    """CIE L*a*b* (D65) of linear light."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [_dot(row, colour) / w for row, w in zip(rows, white, strict=True)]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _dot(row: Colour, colour: Colour) -> float:
    return sum(a * b for a, b in zip(row, colour, strict=True))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_known_backends_are_distinguishable_with_any_colour_vision(theme: int, vision: str) -> None:
    """A CIE 1976 difference of 15, six times a just noticeable one."""
    seen = {}
    for name, pair in palette.BACKENDS.items():
        if "other" not in name:
            r, g, b = (min(max(_dot(row, linear(pair[theme])), 0), 1) for row in VISION[vision])
            seen[name] = lab((r, g, b))
    for one, other in combinations(seen, 2):
        assert math.dist(seen[one], seen[other]) > 15, (one, other)


def test_no_two_backends_share_dash_and_marker() -> None:
    names = ["numpy", "jax-eager", "jax-jit", "torch-eager", "torch-compile", "jax", *"abc"]
    looks = [(m.dash, m.outline) for m in palette.marks(names).values()]
    assert len(set(looks)) == len(names)
