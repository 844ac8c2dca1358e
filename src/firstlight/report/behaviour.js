(() => {
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

  makeSortable(document.getElementById("cases"), (row, key) => {
    const cell = key === "case" ? row.cells[0] : row.querySelector(`[data-key="${key}"]`);
    return key === "status" ? row.dataset.status : cell.dataset.value;
  }, () => "ascending");
})();
