const live = document.getElementById("live");
let token = "";
const authorised = () => (token ? { authorization: `Bearer ${token}` } : {});

// The part that changes is fetched as it would be drawn again; folded blocks stay as they are.
const renew = async () => {
  const answer = await fetch("/", { headers: authorised() });
  if (!answer.ok) return;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const open = all("details", live).map((one) => one.open);
  live.replaceChildren(...next.getElementById("live").childNodes);
  all("details", live).forEach((one, i) => { one.open = open[i] ?? false; });
  const form = next.getElementById("try");
  if (form && !document.getElementById("try")) { live.after(form); connect(); }
};

const connect = () => {
  const place = document.getElementById("try");
  if (!place) return;
  const examples = JSON.parse(place.dataset.examples);
  const [model, request, answer] = ["model", "request", "answer"].map((id) => document.getElementById(id));
  const fill = () => { request.value = examples[model.value] ?? "{}"; };
  model.addEventListener("change", fill);
  fill();
  document.getElementById("send").addEventListener("click", async () => {
    const begin = performance.now();
    try {
      const seen = await fetch(`/models/${encodeURIComponent(model.value)}`, {
        method: "POST", body: request.value, headers: authorised(),
      });
      const milliseconds = (performance.now() - begin).toFixed(1);
      answer.textContent = `${seen.status} after ${milliseconds} ms\n${await seen.text()}`;
    } catch (error) {
      answer.textContent = String(error);
    }
    renew();
  });
};

document.getElementById("unlock")?.addEventListener("submit", (event) => {
  event.preventDefault();
  token = document.getElementById("token").value;
  renew();
});
connect();
setInterval(() => { if (!document.hidden && (token || document.getElementById("try"))) renew(); }, 2000);
