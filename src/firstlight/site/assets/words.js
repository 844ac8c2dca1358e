// Numbers as a reader wants them, as in report/quantities.py, and elements without markup.
const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const THIN = "\u202f";

export const seconds = (value) => {
  if (value === null || !Number.isFinite(value)) return "—";
  if (value === 0) return `0${THIN}s`;
  const rounded = (x) => Number(x.toPrecision(3));
  const [scale, name] = UNITS.find(([unit]) => Math.abs(rounded(value / unit)) >= 1) ?? UNITS[3];
  const shown = rounded(value / scale);
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(shown))));
  const [whole, part] = shown.toFixed(places).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, THIN);
  return `${part ? `${grouped}.${part}` : grouped}${THIN}${name}`;
};

export const change = (ratio) => {
  const percent = (ratio - 1) * 100;
  return `${percent < 0 ? "" : "+"}${percent.toFixed(1)} %`.replace("-", "−");
};

export const probability = (p) =>
  p < 1e-4 ? "< 0.0001" : p < 0.1 ? p.toFixed(4) : p.toFixed(2);

// Two significant digits, as Python's .2g writes them.
export const general = (x) => {
  if (x === 0) return "0";
  const [mantissa, exponent] = x.toExponential(1).split("e").map(Number);
  if (exponent < -4 || exponent >= 2) {
    const sign = exponent < 0 ? "-" : "+";
    return `${mantissa}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  return String(Number(x.toPrecision(2)));
};

export const when = (moment) => moment.slice(0, 16).replace("T", " ");

// element("td", {class: "known"}, "text", otherElement): text is text, whatever it holds.
export const element = (name, attributes, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {}))
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

export const load = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: the server says ${answer.status}`);
  return answer.json();
};

// Every word must occur somewhere in the text.
export const matcher = (query) => {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => words.every((word) => text.includes(word));
};
