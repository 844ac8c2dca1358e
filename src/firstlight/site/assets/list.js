// Searching and sorting. The list of snapshots has fifty rows in its markup and fetches the rest when
// needed. The list of trends is complete in its markup and is only filtered.
(() => {
"use strict";

const when = (moment) => moment.slice(0, 16).replace("T", " ");

// element("td", {class: "known"}, "text", otherElement): strings become text, never markup.
const element = (name, attributes, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {}))
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

const load = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: the server answered ${answer.status}`);
  return answer.json();
};

// Every word must occur somewhere in the text.
const matcher = (query) => {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => words.every((word) => text.includes(word));
};

const box = document.getElementById("search");
const found = document.getElementById("found");
const table = document.getElementById("snapshots");

const showStatus = (text) => {
  found.hidden = text === "";
  found.textContent = text;
};

const FROM_FILE = "Opened from a file: only the rows on this page can be searched and sorted. " +
  "For all of them, use a web server: python -m http.server";

const row = (entry) => element("tr", null,
  element("td", null, when(entry.measured)),
  element("td", null,
    element("a", { href: `snapshots/${entry.id}/index.html` }, entry.title),
    element("small", null, entry.versions)),
  element("td", null, entry.machine),
  element("td", null,
    element("span", { class: entry.passed === entry.asked ? "badge fine" : "badge" },
      `${entry.passed} of ${entry.asked}`),
    ...(entry.loaded ? [" ", element("span", { class: "badge" }, entry.loaded)] : [])),
  element("td", { class: entry.trusted ? "known" : null }, entry.signature),
  element("td", null, element("code", null, entry.id.slice(0, 12))));

const VALUES = {
  measured: (e) => e.measured,
  title: (e) => e.title,
  machine: (e) => e.machine,
  cases: (e) => (e.asked ? e.passed / e.asked : 0),
  signature: (e) => e.signature,
  id: (e) => e.id,
};

const snapshots = () => {
  const more = document.getElementById("more");
  const body = table.tBodies[0];
  let entries = null, shown = body.rows.length;
  let key = "measured", direction = -1;

  const fetchAll = async () => {
    if (entries) return;
    const about = await load("data/site.json");
    const pieces = Array.from({ length: about.pieces }, (_, i) =>
      load(`data/list-${String(i).padStart(3, "0")}.json`));
    const names = (await load("data/cases.json")).map((name) => name.toLowerCase());
    entries = (await Promise.all(pieces)).flat();
    for (const e of entries)
      e.text = [e.title, e.machine, e.versions, e.signature, e.loaded, e.id, e.measured,
        ...e.cases.map((i) => names[i])].join("\n").toLowerCase();
  };

  const compare = (a, b) => {
    const [x, y] = [VALUES[key](a), VALUES[key](b)];
    const order = typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
    return direction * (order || (a.id < b.id ? -1 : 1));
  };

  // A page opened from a file cannot fetch; it searches the rows in its markup.
  const own = [...body.rows].map((made) => ({ made, text: made.textContent.toLowerCase() }));
  const showOwn = () => {
    const place = Object.keys(VALUES).indexOf(key);
    const value = ({ made }) => made.cells[place]?.textContent ?? "";
    const matches = own.filter((one) => matcher(box.value)(one.text))
      .sort((a, b) => direction * value(a).localeCompare(value(b), "en", { numeric: true }));
    body.replaceChildren(...matches.map((one) => one.made));
    showStatus(`${matches.length} of the ${own.length} rows on this page. ${FROM_FILE}`);
  };

  const show = async (rows) => {
    if (location.protocol === "file:") return showOwn();
    try {
      await fetchAll();
    } catch (error) {
      showStatus(`The list cannot be loaded (${error.message}). Open this site from a web server.`);
      return;
    }
    const matches = entries.filter((e) => matcher(box.value)(e.text)).sort(compare);
    shown = Math.min(rows, matches.length);
    body.replaceChildren(...matches.slice(0, shown).map(row));
    more.hidden = shown >= matches.length;
    showStatus(box.value.trim() ? `${matches.length} of ${entries.length}` : "");
  };

  const pageRows = Number(table.dataset.rows);
  box.addEventListener("input", () => show(pageRows));
  more.disabled = false;
  more.addEventListener("click", () => show(shown + pageRows));
  for (const head of table.querySelectorAll("thead th[data-key]")) {
    const button = element("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      key = head.dataset.key;
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      show(Math.max(shown, pageRows));
    });
  }
  if (location.protocol === "file:") {
    more.hidden = true;
    showStatus(FROM_FILE);
  }
  if (box.value) show(pageRows);
};

const cases = () => {
  const rows = [...document.querySelectorAll("main tbody tr")];
  const filter = () => {
    const matches = matcher(box.value);
    for (const one of rows) one.hidden = !matches(one.cells[0].textContent.toLowerCase());
    const left = rows.filter((one) => !one.hidden).length;
    showStatus(box.value.trim() ? `${left} of ${rows.length}` : "");
  };
  box.addEventListener("input", filter);
  if (box.value) filter();
};

box.hidden = false;
if (table) snapshots();
else cases();
})();
