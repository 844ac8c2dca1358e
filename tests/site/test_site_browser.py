"""The site in a real browser, from a plain file server and under a sub-path.

A page beside the site shows it in a frame, clicks and types as a reader would, and records what it
sees; console messages come from the browser's log.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_store import HOSTILE, World

from firstlight.records import slug
from firstlight.site.comparisons import SnapshotPair
from real_browser import browse, seen_in

pytestmark = pytest.mark.slow

LOGGING = ("--enable-logging=stderr", "--log-level=0")

SCRIPT = """
const frame = document.getElementById("frame");
const seen = {};
const until = async (what) => {
  for (let i = 0; i < 400; i += 1) {
    const found = what();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error(`never: ${what}`);
};
const open = async (path) => {
  await new Promise((resolve) => {
    frame.addEventListener("load", resolve, { once: true });
    frame.src = `deep/er/site/${path}`;
  });
  return frame.contentDocument;
};
const type = (box, text) => {
  box.value = text;
  box.dispatchEvent(new Event("input"));
};
const titles = (page) => [...page.querySelectorAll("#snapshots tbody a")].map((a) => a.textContent);
// Act, and wait until the script has replaced the rows of the list.
const redrawn = async (page, act) => {
  const row = page.querySelector("#snapshots tbody tr");
  act();
  await until(() => !row.isConnected);
};
try {
STEPS
} catch (error) {
  seen.error = String(error.stack);
}
document.body.dataset.seen = JSON.stringify(seen);
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """`python -m http.server` without its log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(world: World) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(world.served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def visit(chromium: str, world: World, address: str, profile: Path, steps: str) -> dict[str, Any]:
    """What the steps recorded, and under `console` every message of the browser's console."""
    name = f"harness-{abs(hash(steps))}.html"
    (world.served / name).write_text(
        '<!DOCTYPE html><link rel="icon" href="data:,"><body>'
        '<iframe id="frame" style="border:0;width:1280px;height:900px"></iframe>'
        f'<script type="module">{SCRIPT.replace("STEPS", steps)}</script>'
    )
    arguments = (*LOGGING, "--window-size=1400,1000", "--dump-dom", f"{address}/{name}")
    done = browse(chromium, profile, *arguments, seconds=20)
    seen = seen_in(done.stdout)
    assert "error" not in seen, seen["error"]
    seen["console"] = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return seen


READING = """
let page = await open("snapshots.html");
await until(() => !page.getElementById("search").hidden);
seen.first = titles(page);
const markup = () => [...page.querySelectorAll("#snapshots tbody tr")].map((r) => r.outerHTML);
seen.markup = markup();
await redrawn(page, () => type(page.getElementById("search"), " "));
seen.scripted = markup();
page.getElementById("more").click();
await until(() => titles(page).length > 5);
seen.more = titles(page).length;
type(page.getElementById("search"), "nightly JIT 0.11");
await until(() => page.getElementById("found").textContent);
seen.found = page.getElementById("found").textContent;
seen.searched = titles(page);
type(page.getElementById("search"), "");
await until(() => page.getElementById("found").hidden);
const head = (key) => page.querySelector(`th[data-key="${key}"]`);
await redrawn(page, () => head("title").querySelector("button").click());
seen.ascending = titles(page);
await redrawn(page, () => head("title").querySelector("button").click());
seen.descending = titles(page);
seen.sort = head("title").getAttribute("aria-sort");

page = await open("trends/index.html");
await until(() => !page.getElementById("search").hidden);
type(page.getElementById("search"), "jax-jit");
seen.cases = [...page.querySelectorAll("tbody tr")].filter((row) => !row.hidden)
  .map((row) => row.cells[0].textContent);

page = await open(`snapshots/HOSTILE_ID/index.html`);
seen.heading = page.querySelector("h1").textContent;
seen.images = page.querySelectorAll("img, iframe").length;
seen.owned = [String(frame.contentWindow.owned), String(window.owned), page.title];
page = await open("trends/HOSTILE_CASE.html");
seen.trend = page.querySelector("h1").textContent;
seen.owned.push(String(window.owned), page.title);
"""


def test_searching_sorting_and_showing_more_work_without_console_messages(
    chromium: str, world: World, address: str, tmp_path: Path
) -> None:
    from made_up_run import make_case

    steps = READING.replace("HOSTILE_ID", world.ids["hostile"])
    steps = steps.replace("HOSTILE_CASE", slug(f"{HOSTILE}[small]/numpy/none"))
    seen = visit(chromium, world, address, tmp_path, steps)
    assert seen["console"] == []
    assert seen["first"] == [HOSTILE, "four head", "seven base", "other machine", "nightly 11"]
    assert seen["scripted"] == seen["markup"]  # Python and JavaScript make the same rows
    assert seen["more"] == 10
    assert seen["found"] == "6 of 16"
    assert seen["searched"] == [f"nightly {i}" for i in range(11, 6, -1)]  # five per page
    names = sorted([*(n for n in world.ids if n not in ("hostile", "damaged")), HOSTILE])
    assert seen["ascending"] == names[: len(seen["ascending"])]
    assert seen["descending"] == names[::-1][: len(seen["descending"])]
    assert seen["sort"] == "descending"
    assert seen["cases"] == [make_case(backend="jax-jit").id]
    # A stranger's text is never markup.
    assert seen["heading"] == HOSTILE and seen["trend"] == f"{HOSTILE}[small]/numpy/none"
    assert seen["images"] == 0
    assert [word for word in seen["owned"] if word in ("owned", "1")] == []


LAYOUT = """
for (const name of ["widths", "covered", "cut", "empty", "touching"]) seen[name] = {};
const look = async (path, width) => {
  frame.style.width = `${width}px`;
  const page = await open(path);
  await page.fonts.ready;
  for (const details of page.querySelectorAll("details")) details.open = true;
  const place = `${path} at ${frame.contentWindow.innerWidth}`;
  const wider = [...page.querySelectorAll("body *")].filter((element) =>
    !element.closest(".scroll, .links, pre, .themes, .defs, .skip") &&
    element.getBoundingClientRect().right > width + 1);
  const box = (selector) => page.querySelector(selector).getBoundingClientRect();
  const themes = box(".themes");
  // Names of any length: a phone has no room for anything beside them.
  seen.covered[place] = width < 720 && [box("header .brand"), box("h1")].some((name) =>
    themes.left < name.right && themes.right > name.left &&
    themes.top < name.bottom && themes.bottom > name.top);
  // On a phone a row is a card: all of its cells are visible.
  seen.cut[place] = width > 720 ? 0 : [...page.querySelectorAll("table.cards :is(th, td)")]
    .filter((cell) => cell.getBoundingClientRect().right > width).length;
  const heads = [...page.querySelectorAll("th")];
  seen.empty[place] = heads.filter((th) => !th.textContent.trim()).length;
  seen.touching[place] = [...page.querySelectorAll("svg")].flatMap((svg) => {
    const steps = [...svg.querySelectorAll(".stepname")].map((e) => e.getBoundingClientRect());
    return steps.slice(1).filter((box, i) => box.width && box.left < steps[i].right + 2);
  }).length;
  seen.widths[place] = [page.documentElement.scrollWidth <= width,
    wider.slice(0, 3).map((e) => e.outerHTML.slice(0, 120))];
};
for (const width of WIDTHS) for (const path of PATHS) await look(path, width);
"""


def test_pages_fit_a_desktop_and_a_phone_without_overlaps(
    chromium: str, world: World, address: str, tmp_path: Path
) -> None:
    from made_up_run import make_case

    paths = [
        "index.html",
        "snapshots.html",
        "trends/index.html",
        f"trends/{slug(make_case(backend='jax-jit').id)}.html",
        f"snapshots/{world.ids['hostile']}/index.html",
        f"snapshots/{world.ids['seven base']}/index.html",
        "compare.html",
        SnapshotPair(world.ids["nightly 0"], world.ids["nightly 11"]).path,
    ]
    widths = [1280, 390]
    steps = LAYOUT.replace("PATHS", json.dumps(paths)).replace("WIDTHS", json.dumps(widths))
    seen = visit(chromium, world, address, tmp_path, steps)
    assert seen["console"] == []
    places = [f"{path} at {width}" for width in widths for path in paths]
    assert seen["widths"] == {place: [True, []] for place in places}
    assert not any(seen["covered"].values()), "the theme buttons cover the title"
    assert set(seen["cut"].values()) == set(seen["empty"].values()) == {0}
    assert set(seen["touching"].values()) == {0}, "the labels of two steps overlap"


#: Inserted before the page's policy, which would block it; it acts like a reader.
FROM_A_FILE = """<script>addEventListener("load", () => {
  const seen = {}, [box, table] = ["search", "snapshots"].map((id) => document.getElementById(id));
  const titles = () => [...table.querySelectorAll("tbody a")].map((a) => a.textContent);
  const type = (text) => { box.value = text; box.dispatchEvent(new Event("input")); };
  seen.told = document.getElementById("found").textContent;
  seen.all = titles();
  type("machine 0.10.2"); seen.searched = titles();
  type(""); table.querySelector('th[data-key="title"] button').click(); seen.sorted = titles();
  document.getElementById("theme-dark").click();
  seen.dark = getComputedStyle(document.body).backgroundColor;
  document.body.dataset.seen = JSON.stringify(seen);
});</script>"""


def test_a_list_opened_from_a_file_searches_its_own_rows_and_says_so(
    chromium: str, world: World, tmp_path: Path
) -> None:
    copied = tmp_path / "site"
    shutil.copytree(world.site / "assets", copied / "assets")
    text = (world.site / "snapshots.html").read_text()
    page = copied / "snapshots.html"
    page.write_text(text.replace("<head>", f"<head>{FROM_A_FILE}"))
    done = browse(chromium, tmp_path / "profile", *LOGGING, "--dump-dom", page.as_uri())
    seen = seen_in(done.stdout)
    assert "only the rows on this page" in seen["told"] and "http.server" in seen["told"]
    assert len(seen["all"]) == 5 and sorted(seen["all"]) == seen["sorted"]
    assert seen["searched"] == ["other machine"]
    assert seen["dark"] != "rgb(255, 255, 255)"
