"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // The choice of theme works without this; here it is only remembered.
  const remembered = { get: () => null, set: () => {} };
  try {
    const store = window.localStorage;
    remembered.get = () => store.getItem("firstlight-theme");
    remembered.set = (value) => store.setItem("firstlight-theme", value);
    const chosen = remembered.get() && document.getElementById(remembered.get());
    if (chosen) chosen.checked = true;
  } catch { /* storage may be forbidden for local files */ }
  all(".themes input").forEach((input) =>
    input.addEventListener("change", () => { try { remembered.set(input.id); } catch { } }));

  // Filter: every word must occur in the name or status of a case.
  const box = document.getElementById("filter");
  const count = document.getElementById("filter-count");
  const rows = all("#cases tbody tr");
  const searched = new Map(rows.map((row) =>
    [row.dataset.case, `${row.dataset.case} ${row.dataset.status}`.toLowerCase()]));
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const match = (name) => words.every((word) => (searched.get(name) || name).includes(word));
    all("tr[data-case], li[data-case], .panel[data-case]").forEach((element) => {
      element.hidden = !match(element.dataset.case);
    });
    all("svg [data-case]").forEach((element) =>
      element.classList.toggle("dimmed", !match(element.dataset.case)));
    all("[data-cases]").forEach((element) => {
      element.hidden = !element.dataset.cases.split("\n").some(match);
    });
    const left = rows.filter((row) => !row.hidden).length;
    count.hidden = words.length === 0;
    count.textContent = `${left} of ${rows.length} cases`;
  };
  box.hidden = false;
  box.addEventListener("input", filter);
  if (box.value) filter();

  // Sort: numbers by their exact values, what is absent last, a second press turns round.
  const body = document.querySelector("#cases tbody");
  const valueOf = (row, key) => {
    const cell = key === "case" ? row.cells[0] : row.querySelector(`[data-key="${key}"]`);
    return key === "status" ? row.dataset.status : cell.dataset.value;
  };
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b);
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1; // "never" is last
    return x - y;
  };
  all("#cases thead th[data-key]").forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      all("#cases thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
      const key = head.dataset.key;
      const present = rows.filter((row) => valueOf(row, key) !== undefined);
      const absent = rows.filter((row) => valueOf(row, key) === undefined);
      present.sort((a, b) => turn * compare(valueOf(a, key), valueOf(b, key)));
      body.append(...present, ...absent);
    });
  });

  // A link to a folded block unfolds it; paper shows everything.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  window.addEventListener("hashchange", unfold);
  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.closest('a[href^="#"]')) setTimeout(unfold);
  });
  unfold();
  window.addEventListener("beforeprint", () =>
    all("details").forEach((details) => { details.open = true; }));
})();
