// The choice of theme is CSS alone; here it is only remembered, and folded parts open for links.
const inputs = [...document.querySelectorAll(".themes input")];
try {
  const chosen = document.getElementById(localStorage.getItem("firstlight-theme") ?? "");
  if (inputs.includes(chosen)) chosen.checked = true;
  inputs.forEach((input) => input.addEventListener("change", () =>
    localStorage.setItem("firstlight-theme", input.id)));
} catch { /* storage may be forbidden */ }

const unfold = () => {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", unfold);
unfold();
