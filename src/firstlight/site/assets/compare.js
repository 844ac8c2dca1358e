// The page on which two snapshots are compared: compare.html?base=ID&head=ID
import { compareRuns } from "./comparison.js";
import { change, element, load, matcher, probability, seconds, when } from "./words.js";

const MOST = 200; // options of a list; searching finds the others
const by = (id) => document.getElementById(id);
const result = by("result");
const sides = ["base", "head"];
const headline = ["cold_seconds", "warm_call_seconds"];
let entries = [], rules = null;

const start = async () => {
  const about = await load("data/site.json");
  rules = await load("data/rules.json");
  const pieces = Array.from({ length: about.pieces }, (_, i) =>
    load(`data/list-${String(i).padStart(3, "0")}.json`));
  entries = (await Promise.all(pieces)).flat();
  for (const e of entries)
    e.text = `${e.title}\n${e.machine}\n${e.versions}\n${e.id}\n${e.measured}`.toLowerCase();
  by("needs").hidden = true;
  by("choose").hidden = false;
  const asked = new URLSearchParams(location.search);
  for (const side of sides) {
    fill(side, asked.get(side) ?? "");
    by(`${side}-search`).addEventListener("input", () => fill(side, by(side).value));
  }
  by("anyway").checked = asked.get("anyway") === "1";
  by("every").checked = asked.get("every") === "1";
  by("choose").addEventListener("submit", (event) => {
    event.preventDefault();
    compare();
  });
  by("every").addEventListener("change", () => { if (result.hasChildNodes()) compare(); });
  by("swap").addEventListener("click", () => {
    const [base, head] = sides.map((side) => by(side).value);
    for (const side of sides) by(`${side}-search`).value = "";
    fill("base", head);
    fill("head", base);
    if (base && head) compare();
  });
  if (asked.get("base") && asked.get("head")) await compare();
};

// The snapshots that fit the search, the chosen one among them.
const fill = (side, chosen) => {
  const matches = matcher(by(`${side}-search`).value);
  const fitting = entries.filter((e) => e.id === chosen || matches(e.text)).slice(0, MOST);
  by(side).replaceChildren(...fitting.map((e) => element("option",
    { value: e.id, title: `${e.machine}\n${e.id}` },
    `${when(e.measured)}  ${e.title}  ${e.id.slice(0, 8)}`)));
  by(side).value = fitting.some((e) => e.id === chosen) ? chosen : "";
};

const compare = async () => {
  const [base, head] = sides.map((side) => by(side).value);
  if (!base || !head) return say("Choose a base and a head.");
  const anyway = by("anyway").checked, every = by("every").checked;
  const address = new URLSearchParams({ base, head });
  if (anyway) address.set("anyway", "1");
  if (every) address.set("every", "1");
  history.replaceState(null, "", `?${address}`);
  try {
    const [one, other] = await Promise.all([base, head].map((id) =>
      load(`snapshots/${encodeURIComponent(id)}/data.json`)));
    show(one, other, compareRuns(measured(one), measured(other), rules, anyway), every);
  } catch (error) {
    say(`Cannot compare: ${error.message}`);
  }
};

const measured = (facts) => facts.runs.map((run, i) => ({
  name: facts.id.slice(0, 12) + (facts.runs.length > 1 ? `#${i + 1}` : ""), run,
}));

const say = (text) => result.replaceChildren(element("p", { class: "warnings" }, text));

const list = (title, items, name = "note") => items.length
  ? [element("div", { class: name }, title, element("ul", null,
    ...items.map((text) => element("li", null, text))))] : [];

const show = (one, other, report, every) => {
  const title = element("h2", null, link(one), " → ", link(other));
  result.dataset.report = JSON.stringify(report);
  if (report.refused) {
    result.replaceChildren(title, ...list("Not comparable; the difference would be compared too:",
      report.refused, "warnings"));
    return;
  }
  const rows = report.comparisons.filter((c) => every || c.gated || headline.includes(c.quantity));
  const counts = report.counts.filter((c) => c.verdict !== "same" && (c.gated || every));
  const left = Object.entries(report.leftOut).map(([name, why]) => `${name}: ${why}`);
  result.replaceChildren(title, table(rows),
    ...list("Counts", counts.map((c) => `${c.case}: ${c.reason}`)),
    ...list("Changed from base to head", versions(one.runs[0].versions, other.runs[0].versions)),
    ...list("The machine was busy", report.disturbed, "warnings"),
    ...list("Not compared", left), ...list("Compared anyway", report.overridden, "warnings"),
    element("p", { class: "hint" }, report.unit === "run"
      ? "The run is the unit: medians of runs are compared."
      : `So few runs cannot show how far two jobs drift apart, so only changes beyond ${
        (report.drift * 100).toFixed(0)} % count. It takes ${report.needed} runs of each side.`));
};

const link = (facts) =>
  element("a", { href: `snapshots/${facts.id}/index.html` }, `${facts.title} (${facts.id.slice(0, 8)})`);

const versions = (one, other) => [...new Set([...Object.keys(one), ...Object.keys(other)])]
  .filter((name) => one[name] !== other[name])
  .map((name) => `${name} ${one[name] ?? "absent"} → ${other[name] ?? "absent"}`);

const table = (comparisons) => {
  const head = ["case", "quantity", "base", "head", "change", "interval", "p (Holm)", "verdict"];
  const rows = comparisons.map((c, i) => {
    const first = c.case !== comparisons[i - 1]?.case;
    const { ratio, low, high } = c.effect;
    const verdict = c.gated ? c.verdict : `(${c.verdict})`;
    const cells = [
      c.quantity.replace(/_seconds$/, "").replaceAll("_", " "),
      seconds(c.base.median), seconds(c.head.median), change(ratio),
      `[${change(low)}, ${change(high)}]`,
      c.can_be_significant ? probability(c.p_adjusted) : "too few",
      (c.reason ? `${verdict}: ${c.reason}` : verdict).replaceAll(" %", "\u00a0%"),
    ];
    const classes = { 7: `verdict deciding ${c.gated ? c.verdict : "told"}` };
    const own = comparisons.filter((other) => other.case === c.case).length;
    return element("tr", { class: first ? "first" : null },
      ...(first ? [element("th", { scope: "rowgroup", rowspan: own }, c.case)] : []),
      ...cells.map((text, j) =>
        element("td", { "data-label": head[j + 1], class: classes[j + 1] }, text)));
  });
  return element("div", { class: "scroll", tabindex: "0" },
    element("table", { class: "small comparison cards" },
      element("thead", null, element("tr", null,
        ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", null, ...rows)));
};

start().catch((error) => { by("needs").append(` (${error.message})`); });
