"""The page in a real browser: both themes, desk and phone, with its script and without errors.

Chromium is asked through its command line only. It does not make a window narrower than 500 px, so
the phone is a frame of 390 px in a page of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from synthetic import rich

from firstlight.present import palette
from firstlight.report.html import render
from real_browser import browse, framed, witness

pytestmark = pytest.mark.slow

#: Runs in the page and hands what it saw to the page around it.
WITNESS = """<script>
const seen = { errors: [] };
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => seen.errors.push(event.blockedURI));
console.error = console.warn = (...words) => seen.errors.push(words.join(" "));
addEventListener("load", () => {
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  const visible = (selector) => [...document.querySelectorAll(selector)]
    .filter((element) => element.checkVisibility()).length;
  const wider = [...document.querySelectorAll("body *")].filter((element) =>
    !element.closest(".scroll, .links, pre, .themes, .defs") &&
    element.getBoundingClientRect().right > innerWidth + 1);
  Object.assign(seen, {
    width: innerWidth, scrollWidth: document.documentElement.scrollWidth,
    wider: wider.map((e) => e.tagName + "." + e.getAttribute("class") + " " + e.textContent)
      .slice(0, 5),
    faint: [...document.querySelectorAll("body :not(svg *)")].filter((element) =>
      element.checkVisibility() && Number(getComputedStyle(element).opacity) < 1 &&
      !element.closest(".themes")).length,
    cut: innerWidth > 720 ? 0 : [...document.querySelectorAll("#cases :is(th, td)")]
      .filter((cell) => cell.getBoundingClientRect().right > innerWidth).length,
    wide: visible("svg.wide"), narrow: visible("svg.narrow"), rows: visible("#cases tbody tr"),
  });
  const box = document.getElementById("filter");
  box.value = "jit WARM"; box.dispatchEvent(new Event("input"));
  seen.filtered = visible("#cases tbody tr");
  seen.blocks = visible(".workload");
  seen.dimmed = document.querySelectorAll("svg .dimmed").length;
  box.value = ""; box.dispatchEvent(new Event("input"));
  const values = (key) => [...document.querySelectorAll(`#cases tbody td[data-key="${key}"]`)]
    .map((cell) => cell.dataset.value ?? null);
  const press = (key) => document.querySelector(`#cases th[data-key="${key}"] button`).click();
  press("cold"); seen.ascending = values("cold");
  press("cold"); seen.descending = values("cold");
  press("break-even"); seen.even = values("break-even");
  parent.postMessage(seen, "*");
});
</script>"""


@pytest.fixture(scope="module")
def page() -> str:
    return render(*rich())


@pytest.fixture(scope="module")
def seen_at(
    chromium: str, page: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], dict[str, Any]]:
    """What `WITNESS` saw in a window of that width; each width is opened once."""
    return cache(
        lambda width: witness(chromium, tmp_path_factory.mktemp("seen"), page, width, WITNESS)
    )


@pytest.mark.parametrize("width", [1280, 768, 390], ids=["desk", "tablet", "phone"])
def test_nothing_is_wider_than_the_window_and_nothing_goes_wrong(
    seen_at: Callable[[int], dict[str, Any]], width: int
) -> None:
    seen = seen_at(width)
    assert seen["errors"] == []
    assert seen["width"] == width
    assert seen["scrollWidth"] <= width
    assert seen["wider"] == []
    # The colours of text are chosen for their contrast; fading them would undo it.
    assert (seen["faint"], seen["cut"]) == (0, 0)
    shown, hidden = ("narrow", "wide") if width <= 720 else ("wide", "narrow")
    assert seen[shown] > 0 and seen[hidden] == 0


def test_filter_and_sorting_work(seen_at: Callable[[int], dict[str, Any]]) -> None:
    seen = seen_at(1280)
    run, _ = rich()
    matching = [c for c in run.cases if "jit" in c.case and "warm" in c.case]
    assert seen["rows"] == len(run.cases)
    assert seen["filtered"] == len(matching) == 2
    assert seen["blocks"] == len({c.workload for c in matching})
    assert seen["dimmed"] > 0
    numbers = [float(v) for v in seen["ascending"] if v is not None]
    assert numbers == sorted(numbers)
    assert [float(v) for v in seen["descending"] if v is not None] == numbers[::-1]
    for order in (seen["ascending"], seen["descending"]):  # absent values stay at the end
        assert order[len(numbers) :] == [None] * (len(order) - len(numbers))
    counts = [v for v in seen["even"] if v is not None]
    assert counts[-1] == "never" and counts[:-1] == sorted(counts[:-1], key=int)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_the_page_is_drawn_in_its_theme_on_desk_and_phone(
    chromium: str, tmp_path: Path, page: str, theme: int
) -> None:
    """Both in one window, side by side."""
    source, picture = tmp_path / "page.html", tmp_path / "page.png"
    source.write_text(framed(page, 1000, 1400) + framed(page, 390, 1400))
    browse(
        chromium,
        tmp_path / "profile",
        f"--blink-settings=preferredColorScheme={1 - theme}",
        "--window-size=1390,1400",
        f"--screenshot={picture}",
        source.as_uri(),
    )
    found = colours(picture)
    for desk_or_phone in (found[:, :1000], found[:, 1000:1390]):
        assert desk_or_phone[5, 5] == rgb(palette.INK["paper"][theme])
        used = np.unique(desk_or_phone)
        assert len(used) > 300
        assert rgb(palette.BACKENDS["b-numpy"][theme]) in used  # the ribbon of the answer


def test_without_a_script_everything_is_there_but_the_filter(
    chromium: str, tmp_path: Path, page: str
) -> None:
    bare = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    picture, source = tmp_path / "bare.png", tmp_path / "bare.html"
    checked = bare.replace('id="theme-auto" checked', 'id="theme-auto"')
    source.write_text(checked.replace('id="theme-dark"', 'id="theme-dark" checked'))
    browse(
        chromium,
        tmp_path / "profile",
        "--window-size=800,600",
        f"--screenshot={picture}",
        source.as_uri(),
    )
    # The choice of theme is CSS.
    assert colours(picture)[5, 5] == rgb(palette.INK["paper"][1])


def rgb(colour: str) -> int:
    return int(colour.removeprefix("#"), 16)


def colours(path: Path) -> np.ndarray:
    """A picture as numbers such as 0xFF8800: [row, column]."""
    red, green, blue = np.round(255 * imread(path)[:, :, :3]).astype(int).transpose(2, 0, 1)
    return red << 16 | green << 8 | blue
