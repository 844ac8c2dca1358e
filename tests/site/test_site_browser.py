"""The site in a real browser, from a plain file server and under a sub-path.

One page beside the site holds it in a frame, presses and types as a reader would, and notes what it
sees; what the console says comes from the browser's log. The numbers of a comparison are held
against those of `firstlight compare`.
"""

from __future__ import annotations

import functools
import http.server
import json
import math
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_store import HOSTILE, World

from firstlight.cli.compare import load
from firstlight.compare.runs import NotComparableError, compare_runs
from firstlight.records import slug, to_json
from firstlight.report.quantities import seconds
from firstlight.site.listing import rules
from firstlight.statistics.effects import holm, unpaired_effect
from firstlight.statistics.intervals import median_estimate
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
const compared = async (page) => JSON.parse(
  (await until(() => page.getElementById("result").dataset.report)));
try {
STEPS
} catch (error) {
  seen.error = String(error.stack);
}
document.body.dataset.seen = JSON.stringify(seen);
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """What `python -m http.server` does, without its log."""

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


def visit(
    chromium: str, world: World, address: str, profile: Path, steps: str, width: int = 1280
) -> dict[str, Any]:
    """What the steps noted, and under `console` every message of the browser's console."""
    name = f"harness-{width}-{abs(hash(steps))}.html"
    (world.served / name).write_text(
        '<!DOCTYPE html><link rel="icon" href="data:,"><body>'
        f'<iframe id="frame" style="border:0;width:{width}px;height:900px"></iframe>'
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
type(page.getElementById("search"), " ");
await until(() => page.getElementById("more"));
await new Promise((resolve) => setTimeout(resolve, 300));
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
head("title").querySelector("button").click();
await until(() => head("title").getAttribute("aria-sort") === "ascending");
await new Promise((resolve) => setTimeout(resolve, 100));
seen.ascending = titles(page);
head("title").querySelector("button").click();
await new Promise((resolve) => setTimeout(resolve, 100));
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


def test_a_reader_searches_sorts_and_sees_more_without_an_error(
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
    assert seen["searched"] == [f"nightly {i}" for i in range(11, 6, -1)]  # five a page
    names = sorted([*(n for n in world.ids if n not in ("hostile", "damaged")), HOSTILE])
    assert seen["ascending"] == names[: len(seen["ascending"])]
    assert seen["descending"] == names[::-1][: len(seen["descending"])]
    assert seen["sort"] == "descending"
    assert seen["cases"] == [make_case(backend="jax-jit").id]
    # What a stranger wrote is text, wherever it stands.
    assert seen["heading"] == HOSTILE and seen["trend"] == f"{HOSTILE}[small]/numpy/none"
    assert seen["images"] == 0
    assert [word for word in seen["owned"] if word in ("owned", "1")] == []


COMPARING = """
const pairs = PAIRS;
seen.reports = {};
for (const [name, base, head, more] of pairs) {
  const page = await open(`compare.html?base=${base}&head=${head}${more}`);
  seen.reports[name] = await compared(page);
  seen[`rows ${name}`] = page.querySelectorAll("#result tbody tr").length;
}
const page = await open("compare.html");
await until(() => !page.getElementById("choose").hidden);
seen.options = page.getElementById("base").options.length;
type(page.getElementById("base-search"), "base SEVEN");
seen.narrowed = [...page.getElementById("base").options].map((o) => o.textContent);
const [, base, head] = pairs[0];
type(page.getElementById("base-search"), "");
page.getElementById("base").value = base;
page.getElementById("head").value = head;
page.querySelector("#choose [type=submit]").click();
seen.chosen = await compared(page);
seen.address = frame.contentWindow.location.search;
seen.told = page.getElementById("result").textContent;
"""


def python_report(world: World, base: str, head: str, anyway: bool) -> dict[str, Any] | None:
    sides = [load(str(world.store / world.ids[name])) for name in (base, head)]
    try:
        report: dict[str, Any] = to_json(compare_runs(*sides, anyway=anyway))
    except NotComparableError:
        return None
    return report


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal, numbers to a relative 1e-9: sums in another order round differently."""
    if isinstance(one, dict):
        assert isinstance(other, dict) and one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(one, float) or isinstance(other, float):
        assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-14), (where, one, other)
    else:
        assert one == other, (where, one, other)


def test_two_snapshots_are_compared_as_the_command_line_does(
    chromium: str, world: World, address: str, tmp_path: Path
) -> None:
    wanted = {
        "slower": ("nightly 0", "nightly 11", ""),
        "faster": ("nightly 11", "nightly 0", "&every=1"),
        "alike": ("nightly 1", "nightly 2", ""),
        "by run": ("seven base", "four head", ""),
        "too few runs": ("four head", "four head", ""),
        "machines": ("nightly 0", "other machine", ""),
        "anyway": ("nightly 0", "other machine", "&anyway=1"),
        "nothing shared": ("other machine", "hostile", ""),
    }
    pairs = [[name, world.ids[b], world.ids[h], more] for name, (b, h, more) in wanted.items()]
    steps = COMPARING.replace("PAIRS", json.dumps(pairs))
    seen = visit(chromium, world, address, tmp_path, steps)
    assert seen["console"] == []
    for name, (base, head, more) in wanted.items():
        expected = python_report(world, base, head, "anyway" in more)
        found = seen["reports"][name]
        if expected is None:
            assert found.keys() == {"refused"} and found["refused"], name
            continue
        assert (found["unit"], found["drift"]) == (expected["unit"], expected["drift"])
        assert found["leftOut"].keys() == expected["left_out"].keys()
        counts = [
            sorted(r["counts"], key=lambda c: (c["case"], c["name"])) for r in (found, expected)
        ]
        assert_same(*counts, name)
        for row in expected["comparisons"]:
            row.pop("threshold_source")
        assert_same(found["comparisons"], expected["comparisons"], name)
    verdicts = {c["verdict"] for r in seen["reports"].values() for c in r.get("comparisons", ())}
    assert verdicts == {"regression", "improvement", "same", "inconclusive"}
    assert seen["reports"]["by run"]["unit"] == "run"
    busy = seen["reports"]["anyway"]
    assert all("busy" in c["reason"] for c in busy["comparisons"])
    assert ["90% of the CPU" in text for text in busy["disturbed"]] == [True]
    # Four of each could find one change of one time, but not after Holm's correction over five.
    few = seen["reports"]["too few runs"]
    assert (few["unit"], few["needed"]) == ("process", 5)
    assert "Other CPU" in " ".join(seen["reports"]["machines"]["refused"])
    assert seen["rows faster"] > seen["rows slower"] > 0
    # The form does the same as the address.
    assert seen["options"] == 16
    assert len(seen["narrowed"]) == 1 and "seven base" in seen["narrowed"][0]
    assert seen["chosen"] == seen["reports"]["slower"]
    assert world.ids["nightly 0"] in seen["address"]
    assert "jax 0.10.2 → 0.11.0" in seen["told"]


STATISTICS = """
const s = await import("./deep/er/site/assets/statistics.js");
const words = await import("./deep/er/site/assets/words.js");
const { pairs, families, times } = VALUES;
seen.effects = pairs.map(([base, head]) => s.unpairedEffect(base, head));
seen.medians = pairs.map(([base]) => s.medianEstimate(base));
seen.holm = families.map(s.holm);
seen.times = times.map(words.seconds);
seen.normal = [-30, -8, -3.6, -1, 0, 0.3, 2.5, 6].map(s.normalBelow);
seen.general = [0.0123, 1, 0.000012, 0.5, 0.1, 3e-12].map(words.general);
"""


def test_statistics_in_the_browser_are_those_of_python(
    chromium: str, world: World, address: str, tmp_path: Path
) -> None:
    from scipy.stats import norm

    draw = random.Random(5)

    def values(n: int, digits: int) -> list[float]:
        return [round(draw.lognormvariate(0, 0.1), digits) for _ in range(n)]

    sizes = [(1, 1), (3, 4), (6, 6), (6, 10), (30, 20), (60, 70)]
    pairs = [[values(a, digits), values(b, digits)] for a, b in sizes for digits in (15, 2)]
    pairs.append([[1.0] * 6, [1.0] * 6])
    pairs.append([[1.0] * 70, [1.0] * 70])
    pairs.append([values(1100, 15), values(3, 15)])  # 2 ** -1100 is 0
    families = [[], [0.2], [0.01, 0.04, 0.03, 0.005], [0.5, 0.5, 0.001]]
    times = [1e-9, 3.2149e-4, 0.0009996, 0.9999, 1.0, 59.95, 1234.5, 0.0]
    given = json.dumps({"pairs": pairs, "families": families, "times": times})
    seen = visit(chromium, world, address, tmp_path, STATISTICS.replace("VALUES", given))
    assert seen["console"] == []
    for (base, head), effect, estimate in zip(pairs, seen["effects"], seen["medians"], strict=True):
        assert_same(effect, to_json(unpaired_effect(base, head)), f"{len(base)}, {len(head)}")
        assert_same(estimate, to_json(median_estimate(base)), f"median of {len(base)}")
    assert_same(seen["holm"], [holm(family) for family in families])
    assert seen["times"] == [seconds(t) for t in times]
    expected = [float(norm.cdf(z)) for z in (-30, -8, -3.6, -1, 0, 0.3, 2.5, 6)]
    assert seen["normal"] == pytest.approx(expected, rel=1e-10, abs=0)
    assert seen["general"] == [f"{x:.2g}" for x in (0.0123, 1, 0.000012, 0.5, 0.1, 3e-12)]


def test_the_rules_of_the_browser_are_those_of_the_command_line(world: World) -> None:
    assert json.loads((world.site / "data" / "rules.json").read_text()) == to_json(rules())


LAYOUT = """
for (const name of ["widths", "covered", "cut", "empty"]) seen[name] = {};
for (const path of PATHS) {
  const page = await open(path);
  await new Promise((resolve) => setTimeout(resolve, 300));
  for (const details of page.querySelectorAll("details")) details.open = true;
  const width = frame.contentWindow.innerWidth;
  const wider = [...page.querySelectorAll("body *")].filter((element) =>
    !element.closest(".scroll, .links, pre, .themes, .defs, .skip") &&
    element.getBoundingClientRect().right > width + 1);
  const box = (selector) => page.querySelector(selector).getBoundingClientRect();
  const themes = box(".themes");
  // Where names of any length go: a phone has no room for anything beside them.
  seen.covered[path] = width < 720 && [box("header .brand"), box("h1")].some((name) =>
    themes.left < name.right && themes.right > name.left &&
    themes.top < name.bottom && themes.bottom > name.top);
  // On a phone a row is a card: every cell of it is in sight.
  seen.cut[path] = width > 720 ? 0 : [...page.querySelectorAll("table.cards :is(th, td)")]
    .filter((cell) => cell.getBoundingClientRect().right > width).length;
  seen.empty[path] = [...page.querySelectorAll("th")].filter((th) => !th.textContent.trim()).length;
  seen.widths[path] = [page.documentElement.scrollWidth <= width,
    wider.slice(0, 3).map((e) => e.outerHTML.slice(0, 120))];
}
"""


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_no_page_is_wider_than_its_window(
    chromium: str, world: World, address: str, tmp_path: Path, width: int
) -> None:
    from made_up_run import make_case

    paths = [
        "index.html",
        "snapshots.html",
        "trends/index.html",
        f"trends/{slug(make_case(backend='jax-jit').id)}.html",
        f"snapshots/{world.ids['hostile']}/index.html",
        f"snapshots/{world.ids['seven base']}/index.html",
        f"compare.html?base={world.ids['nightly 0']}&head={world.ids['nightly 11']}&every=1",
    ]
    steps = LAYOUT.replace("PATHS", json.dumps(paths))
    seen = visit(chromium, world, address, tmp_path, steps, width)
    assert seen["console"] == []
    assert seen["widths"] == {path: [True, []] for path in paths}
    assert not any(seen["covered"].values()), "the choice of theme lies on the title"
    assert set(seen["cut"].values()) == set(seen["empty"].values()) == {0}


#: Before the policy of the page, so that it is run; it does what a reader does.
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


def test_a_list_that_is_opened_from_a_file_searches_what_it_has_and_says_so(
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
