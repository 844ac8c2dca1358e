// The statistics of statistics/comparison.py, value for value: a test holds them together.
const MOST_UNPAIRED = 100; // of both sides together; beyond, the normal approximation

export const median = (values) => {
  const ordered = Float64Array.from(values).sort();
  const half = ordered.length >> 1;
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
};

// Median with the narrowest symmetric interval of order statistics that covers 95 % or more.
export const medianEstimate = (values, confidence = 0.95) => {
  const ordered = Float64Array.from(values).sort();
  const n = ordered.length;
  let k = 1;
  while (2 * (k + 1) <= n && coverage(n, k + 1) >= confidence) k += 1;
  return {
    median: median(ordered), low: ordered[k - 1], high: ordered[n - k], n,
    confidence: Math.max(0, coverage(n, k)),
  };
};

const coverage = (n, k) => {
  let sum = 0, logarithm = -n * Math.LN2; // 2 ** -n itself is 0 from n = 1075 on
  for (let i = 0; i < k; i += 1) {
    sum += Math.exp(logarithm);
    logarithm += Math.log((n - i) / (i + 1));
  }
  return 1 - 2 * sum;
};

// How many times as long the head takes as the base: Hodges and Lehmann, Mann and Whitney.
export const unpairedEffect = (base, head, confidence = 0.95) => {
  const one = base.map(Math.log), other = head.map(Math.log);
  const between = Float64Array.from(other.flatMap((y) => one.map((x) => y - x))).sort();
  const tail = rankSumTail(other.length, one.length);
  const allowed = (1 - confidence) / 2 * (1 + 1e-9);
  let k = 0;
  while (k < tail.length && tail[k] <= allowed) k += 1;
  k = Math.max(1, k);
  return {
    ratio: Math.exp(median(between)),
    low: Math.exp(between[k - 1]),
    high: Math.exp(between[between.length - k]),
    confidence: Math.max(0, 1 - 2 * tail[k - 1]),
    p: rankSumP(one, other),
    n: Math.min(one.length, other.length),
    paired: false,
  };
};

// Adjusted p-values in the order given (Holm 1979).
export const holm = (pValues) => {
  const adjusted = pValues.map(() => 1);
  const order = pValues.map((_, i) => i).sort((a, b) => pValues[a] - pValues[b] || a - b);
  let worst = 0;
  order.forEach((index, rank) => {
    worst = Math.max(worst, Math.min(1, (pValues.length - rank) * pValues[index]));
    adjusted[index] = worst;
  });
  return adjusted;
};

// Twice the mean rank of every value: whole numbers, also where values are equal.
const doubledRanks = (values) => {
  const ordered = Float64Array.from(values).sort();
  return values.map((value) => {
    let first = 0;
    while (ordered[first] < value) first += 1;
    let last = first;
    while (last < ordered.length && ordered[last] === value) last += 1;
    return first + last + 1;
  });
};

const rankSumP = (one, other) => {
  const ranks = doubledRanks([...other, ...one]);
  const n = ranks.length, drawn = other.length;
  const observed = ranks.slice(0, drawn).reduce((a, b) => a + b, 0);
  if (n > MOST_UNPAIRED) {
    const mean = ranks.reduce((a, b) => a + b, 0) / n;
    const squares = ranks.reduce((a, r) => a + (r - mean) ** 2, 0);
    const deviation = Math.sqrt(drawn * one.length / (n * (n - 1)) * squares);
    if (deviation === 0) return 1;
    const distance = Math.max(0, Math.abs(observed - drawn * mean) - 1);
    return Math.min(1, 2 * normalBelow(-distance / deviation));
  }
  const probabilities = sumsOfDraws([...ranks].sort((a, b) => a - b), drawn);
  let below = 0, above = 0;
  probabilities.forEach((p, sum) => {
    if (sum <= observed) below += p;
    if (sum >= observed) above += p;
  });
  return Math.min(1, 2 * Math.min(below, above));
};

// Probability of every sum of `drawn` ranks, all choices being equally likely.
const known = new Map();
const sumsOfDraws = (ranks, drawn) => {
  const key = `${drawn}:${ranks}`;
  if (known.has(key)) return known.get(key);
  const most = ranks.slice(ranks.length - drawn).reduce((a, b) => a + b, 0);
  const chosen = Array.from({ length: drawn + 1 }, () => new Float64Array(most + 1));
  chosen[0][0] = 1;
  ranks.forEach((rank, seen) => {
    for (let j = Math.min(drawn, seen + 1); j > 0; j -= 1) {
      const taken = j / (seen + 1), row = chosen[j], less = chosen[j - 1];
      for (let s = most; s >= 0; s -= 1)
        row[s] = row[s] * (1 - taken) + (s >= rank ? taken * less[s - rank] : 0);
    }
  });
  known.set(key, chosen[drawn]);
  return chosen[drawn];
};

// P(U ≤ c) for c = 0, 1, … up to its middle.
const rankSumTail = (drawn, left) => {
  const most = drawn * left, tail = new Float64Array(Math.floor(most / 2) + 1);
  if (drawn + left > MOST_UNPAIRED) {
    const deviation = Math.sqrt(most * (drawn + left + 1) / 12);
    return tail.map((_, c) => normalBelow((c + 0.5 - most / 2) / deviation));
  }
  const ranks = Array.from({ length: drawn + left }, (_, i) => i + 1);
  const probabilities = sumsOfDraws(ranks, drawn), start = drawn * (drawn + 1) / 2;
  let sum = 0;
  return tail.map((_, c) => (sum += probabilities[start + c]));
};

export const normalBelow = (z) => complement(-z / Math.SQRT2) / 2;

// erfc: its Taylor series near 0, elsewhere Laplace's continued fraction from the far end.
const complement = (x) => {
  if (x < 0) return 2 - complement(-x);
  if (x < 2.5) {
    let term = x, sum = x;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum) && n < 200; n += 1) {
      term *= -x * x / n;
      sum += term / (2 * n + 1);
    }
    return 1 - 2 / Math.sqrt(Math.PI) * sum;
  }
  let fraction = x;
  for (let n = 120; n > 0; n -= 1) fraction = x + n / 2 / fraction;
  return Math.exp(-x * x) / Math.sqrt(Math.PI) / fraction;
};
