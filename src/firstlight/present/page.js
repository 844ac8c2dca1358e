"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// The choice of theme is done in CSS; here it is only stored.
try {
  const inputs = all(".themes input");
  const chosen = document.getElementById(localStorage.getItem("firstlight-theme") ?? "");
  if (inputs.includes(chosen)) chosen.checked = true;
  inputs.forEach((input) => input.addEventListener("change", () => {
    try { localStorage.setItem("firstlight-theme", input.id); } catch { }
  }));
} catch { /* storage may be forbidden for local files */ }

// A link to a folded block unfolds it; a printed page shows everything.
const unfold = () => {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", unfold);
document.addEventListener("click", (event) => {
  if (event.target instanceof Element && event.target.closest('a[href^="#"]')) setTimeout(unfold);
});
unfold();
addEventListener("beforeprint", () => all("details").forEach((one) => { one.open = true; }));

// Sort: numbers by their exact values, absent values last; a second click reverses the order.
const compared = (a, b) => {
  const [x, y] = [Number(a), Number(b)];
  if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b);
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1; // "never" is last
  return x - y;
};
const makeSortable = (table, valueOf, firstOrder) => {
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const heads = all("thead th[data-key]", table);
  heads.forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = firstOrder(head);
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const value = (row) => valueOf(row, head.dataset.key);
      const turn = order === "ascending" ? 1 : -1;
      const known = rows.filter((row) => value(row) !== undefined);
      known.sort((a, b) => turn * compared(value(a), value(b)));
      table.tBodies[0].append(...known, ...rows.filter((row) => value(row) === undefined));
    });
  });
};
