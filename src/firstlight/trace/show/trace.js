(() => {
  // Search: every word must occur in the name, a place or a reason.
  const box = document.getElementById("filter");
  const count = document.getElementById("filter-count");
  const rows = all("#functions-table tbody tr");
  const search = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    all("[data-search]").forEach((element) => {
      element.hidden = !words.every((word) => element.dataset.search.includes(word));
    });
    count.hidden = words.length === 0;
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} functions`;
  };
  box.hidden = rows.length === 0;
  box.addEventListener("input", search);
  if (box.value) search();

  // The first press of a number shows the largest.
  const isWords = (head) => head.classList.contains("words") || head.dataset.key === "name";
  makeSortable(document.getElementById("functions-table"),
    (row, key) => row.querySelector(`[data-key="${key}"]`).dataset.value,
    (head) => (isWords(head) ? "ascending" : "descending"));

  // Zoom: the lanes become wider than their frame, which scrolls; words appear where they fit.
  const frame = document.querySelector(".timeline");
  if (frame) {
    const lanes = frame.querySelector(".lanes");
    const axis = frame.querySelector(".axis");
    const end = Number(frame.dataset.end);
    const firstResult = Number(frame.dataset.first);
    let zoom = 1;
    const ticks = () => {
      const wanted = Math.max(2, lanes.clientWidth / 110);
      let step = 10 ** Math.floor(Math.log10(end / wanted));
      step *= [1, 2, 5, 10].find((m) => end / (step * m) <= wanted);
      axis.replaceChildren();
      for (let i = 0; i * step <= end * 0.985; i += 1) {
        const tick = document.createElement("span");
        tick.style.left = `${100 * i * step / end}%`;
        tick.textContent = i ? `${Number((i * step).toPrecision(6))} s` : "0";
        axis.append(tick);
      }
    };
    const words = () => {
      all(".lane .box", lanes).forEach((element) => {
        const fits = element.clientWidth > 46;
        if (fits && !element.firstChild) {
          const label = document.createElement("b");
          label.textContent = element.dataset.label;
          element.append(label);
        } else if (!fits && element.firstChild) {
          element.replaceChildren();
        }
      });
      // The name of the mark goes to the side that has room.
      all(".lane .first", lanes).forEach((mark) => {
        mark.classList.toggle("left", mark.offsetLeft > lanes.clientWidth - 150);
      });
    };
    const show = (wanted, from) => {
      const middle = from ?? (frame.scrollLeft + frame.clientWidth / 2) / lanes.clientWidth;
      zoom = Math.min(Math.max(wanted, 1), 500);
      lanes.style.setProperty("--zoom", zoom);
      ticks();
      words();
      frame.scrollLeft = from === 0 ? 0 : middle * lanes.clientWidth - frame.clientWidth / 2;
    };
    all(".zoom button").forEach((button) => button.addEventListener("click", () => {
      const by = button.dataset.zoom;
      if (by === "first") show(firstResult > 0 ? 0.92 * end / firstResult : 1, 0);
      else if (by === "0") show(1, 0);
      else show(zoom * Number(by));
    }));
    all('.zoom [data-zoom="first"]').forEach((button) => { button.hidden = !(firstResult > 0); });
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      show(zoom * (event.deltaY < 0 ? 1.25 : 0.8));
    }, { passive: false });
    document.querySelector(".zoom").hidden = false;
    show(1, 0);
    window.addEventListener("resize", () => { ticks(); words(); });
  }
})();
