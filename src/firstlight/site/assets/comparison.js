// Runs that were measured apart, compared as `firstlight compare` does (gate/runs.py and
// gate/comparison.py). A side is a list of {name, run}; run as data.json has it.
import { holm, median, medianEstimate, unpairedEffect } from "./statistics.js";
import { change, general } from "./words.js";

export const compareRuns = (base, head, rules, anyway = false) => {
  const all = [...base, ...head];
  const machines = all.slice(1).flatMap((m) =>
    differences(conditionsOf(base[0].run), conditionsOf(m.run)).map((text) => `${m.name}: ${text}`));
  if (machines.length && !anyway) return { refused: machines };
  const overridden = [...machines], leftOut = {}, compared = [], counts = [];
  for (const name of new Set(all.flatMap((m) => m.run.order))) {
    const problems = caseProblems(base, head, name);
    if (problems.length && anyway && all.every((m) => hasNumbers(m.run.cases[name])))
      overridden.push(...problems.map((text) => `${name}: ${text}`));
    else if (problems.length) {
      leftOut[name] = problems.join("; ");
      continue;
    }
    compared.push(name);
    counts.push(...countChanges(name, base, head, rules));
  }
  const pairsBy = (unit) => compared.flatMap((name) => pairsOf(name, base, head, unit, rules));
  let pairs = pairsBy("process");
  if (!pairs.length) return { refused: Object.entries(leftOut).map(([c, why]) => `${c}: ${why}`) };
  const decisive = pairs.filter((pair) => pair.gated).length;
  const unit = enoughRuns(base.length, head.length, decisive, rules.alpha) ? "run" : "process";
  if (unit === "run") pairs = pairsBy("run");
  const drift = unit === "run" ? null : Math.max(rules.drift, rules.minimum_effect);
  const rule = {
    alpha: rules.alpha, limit: 1 + (drift ?? rules.minimum_effect),
    resolution: Math.max(rules.resolution, drift ?? 0), least: 1 + rules.minimum_effect, drift,
  };
  const needed = runsNeeded(decisive, rules.alpha);
  const disturbed = all.filter((m) => m.run.busy !== null && m.run.busy >= rules.busy)
    .map((m) => `other programs were using ${(m.run.busy * 100).toFixed(0)}% of the CPU when the run ${
      m.name} began: its times decide nothing`);
  const comparisons = judged(pairs, rule).map((found) => disturbed.length === 0 ? found
    : { ...found, verdict: "inconclusive", reason: "the machine was busy with other programs" });
  return { unit, drift, needed, comparisons, counts, leftOut, overridden, disturbed };
};

// Whether ranks of so many runs can give an interval of 95 %, and find a change at all: their
// smallest p-value is multiplied by Holm's correction.
const enoughRuns = (base, head, comparisons, alpha) => {
  const smallest = smallestP(base, head);
  return smallest <= 0.05 && Math.max(1, comparisons) * smallest < alpha;
};

// All values of one side beyond the other's.
const smallestP = (base, head) => 2 / choose(base + head, base);

const runsNeeded = (comparisons, alpha) => {
  let runs = 1;
  while (!enoughRuns(runs, runs, comparisons, alpha)) runs += 1;
  return runs;
};

const choose = (n, k) => {
  let found = 1;
  for (let i = 1; i <= k; i += 1) found = found * (n - k + i) / i;
  return Math.round(found);
};

const conditionsOf = ({ machine, settings, environment }) => ({ machine, settings, environment });

// "protocol threads cpus: 8 in the base, 2 in the head" for every part that is not the same.
const differences = (base, head, where = "") => {
  if (isObject(base) && isObject(head)) {
    const names = new Set([...Object.keys(base), ...Object.keys(head)]);
    return [...names].flatMap((name) =>
      differences(base[name], head[name], where ? `${where}, ${name}` : name));
  }
  if (JSON.stringify(sorted(base)) === JSON.stringify(sorted(head))) return [];
  return [`${where}: ${told(base)} in the base, ${told(head)} in the head`];
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const sorted = (value) => Array.isArray(value) ? value.map(sorted) : isObject(value)
  ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])])) : value;
const told = (value) => value === undefined ? "not set" : JSON.stringify(value);

const caseProblems = (base, head, name) => {
  const first = base[0].run.cases[name];
  const problems = [...base.slice(1), ...head].flatMap((m) =>
    caseDifferences(first, m.run.cases[name], name));
  for (const m of [...base, ...head]) {
    const found = m.run.cases[name];
    if (found && found.status !== "ok") problems.push(`${found.status} in ${m.name}`);
  }
  return problems;
};

const caseDifferences = (one, other, name) => {
  if (!one || !other) return [`${name} was measured by the ${one ? "base" : "head"} alone`];
  if (!one.conditions || !other.conditions)
    return [`the ${one.conditions ? "head" : "base"} has no protocol of ${name}`];
  return differences(one.conditions, other.conditions);
};

const processes = (found) => Object.values(found.quantities)[0]?.length ?? 0;
const hasNumbers = (found) => found?.status === "ok" && processes(found) > 0;

const pairsOf = (name, base, head, unit, rules) => {
  const sides = [base, head].map((side) => side.map((m) => m.run.cases[name].quantities));
  const has = (side, quantity) => side.some((run) => run[quantity]?.some((v) => v !== null));
  return rules.quantities
    .filter((quantity) => sides.every((side) => has(side, quantity)))
    .map((quantity) => {
      const [one, other] = sides.map((side) => valuesOf(side, quantity, unit));
      const wanted = rules.gated.includes(quantity) &&
        (!rules.phases.includes(quantity) || share(sides, quantity) >= rules.least_share);
      const note = wanted ? restless(valuesOf(sides[0], quantity, "process")) : null;
      return {
        case: name, quantity, gated: wanted && note === null, base: one, head: other,
        effect: unpairedEffect(one, other), note,
      };
    });
};

// One value a process, or the median of every run.
const valuesOf = (side, quantity, unit) => {
  const byRun = side.map((run) => (run[quantity] ?? []).filter((value) => value !== null));
  return unit === "run" ? byRun.filter((values) => values.length).map(median) : byRun.flat();
};

// The phase's share of the cold start, on the side where it is larger.
const share = (sides, phase) => Math.max(...sides.map((side) => median(side.flatMap((run) =>
  (run[phase] ?? []).flatMap((value, i) => value === null ? [] : [value / run.cold_seconds[i]])))));

const restless = (values) => {
  const ordered = Float64Array.from(values).sort();
  const quarter = Math.floor(ordered.length / 4), last = ordered.length - 1;
  if (ordered[last - quarter] <= 3 * ordered[quarter]) return null;
  const fold = (ordered[last] / ordered[0]).toFixed(0);
  return `not judged: the processes of the base differ ${fold}-fold`;
};

const judged = (pairs, rule) => {
  const adjusted = new Map();
  for (const family of [true, false]) {
    const members = pairs.filter((pair) => pair.gated === family);
    const values = holm(members.map((pair) => pair.effect.p));
    const smallest = holm(members.map((pair) => smallestP(pair.base.length, pair.head.length)));
    members.forEach((pair, i) => adjusted.set(pair,
      { p: values[i], tooMany: smallest[i] < rule.alpha ? null : members.length }));
  }
  return pairs.map((pair) => {
    const { p, tooMany } = adjusted.get(pair);
    const [verdict, reason] = worded(judge(pair.effect, p, rule, tooMany), pair, rule);
    return {
      case: pair.case, quantity: pair.quantity, gated: pair.gated,
      base: medianEstimate(pair.base), head: medianEstimate(pair.head),
      effect: pair.effect, p_adjusted: p, threshold: rule.limit, verdict, reason,
      can_be_significant: tooMany === null,
    };
  });
};

const judge = (effect, p, rule, tooMany) => {
  if (effect.confidence < 0.95)
    return ["inconclusive", `${effect.n} processes per side are too few for an interval of 95 %`];
  const beyond = effect.low > rule.limit || effect.high < 1 / rule.limit;
  if (beyond && p < rule.alpha) return [effect.ratio > 1 ? "regression" : "improvement", null];
  if (beyond) {
    const word = effect.low > rule.limit ? "slower" : "faster";
    if (tooMany !== null)
      return ["inconclusive", `${word}, but ${tooFew(effect, tooMany, rule.alpha)}`];
    return ["inconclusive", `${word}, but p is ${general(p)} after Holm's correction`];
  }
  if (effect.high >= 1 + rule.resolution)
    return ["inconclusive", `too noisy: up to ${change(effect.high)} cannot be excluded`];
  if (effect.low <= 1 / (1 + rule.resolution))
    return ["same", `no slower; too noisy to exclude ${change(effect.low)}`];
  if (p < rule.alpha)
    return ["same", `${change(effect.ratio)}, ${notBeyond(effect, rule.limit)}`];
  return ["same", null];
};

const notBeyond = ({ ratio, low, high }, limit) => {
  const far = ratio > 1 ? limit : 1 / limit;
  if (1 / limit <= ratio && ratio <= limit) return `within the threshold of ${change(far)}`;
  return `but perhaps only ${change(ratio > 1 ? low : high)}, which is not beyond ${change(far)}`;
};

const tooFew = (effect, comparisons, alpha) => {
  let needed = 1;
  while (comparisons * smallestP(needed, needed) >= alpha) needed += 1;
  const number = comparisons === 1 ? "one comparison" : `${comparisons} comparisons`;
  return `${effect.n} processes per side can never be significant in ${number}: it takes ${
    needed} or more`;
};

// Between single runs, a difference that drift could explain is no "same" either.
const worded = ([verdict, reason], { effect, note }, rule) => {
  if (note) return ["inconclusive", note];
  const real = effect.low > rule.least || effect.high < 1 / rule.least;
  if (rule.drift !== null && verdict === "same" && real) {
    const drift = `${(rule.drift * 100).toFixed(0)}%`;
    return ["inconclusive", `the jobs differ, but drift between jobs may be ${drift}`];
  }
  return [verdict, reason];
};

const countChanges = (name, base, head, rules) => {
  const sides = [base, head].map((side) => {
    const found = {};
    for (const m of side)
      for (const [count, values] of Object.entries(m.run.cases[name].counts))
        (found[count] ??= []).push(...values.filter((value) => value !== null));
    return found;
  });
  return Object.keys(sides[0]).filter((count) => sides[1][count]?.length && sides[0][count].length)
    .map((count) => countChange(name, count, sides[0][count], sides[1][count], rules));
};

const countChange = (name, count, base, head, rules) => {
  const single = (values) => new Set(values).size === 1 ? values[0] : null;
  const [one, other] = [single(base), single(head)];
  const found = {
    case: name, name: count, gated: rules.gated_counts.includes(count), base: one, head: other,
    verdict: "same", reason: null,
  };
  if (one !== null && other !== null) {
    if (one === other) return found;
    const worse = other > one;
    return {
      ...found, verdict: worse ? "regression" : "improvement",
      reason: `${count}: ${one} before, ${other} now${worse ? "" : ", unexplained"}`,
    };
  }
  const [low, high] = [Math.min, Math.max];
  const spans = `${low(...base)} to ${high(...base)} before, ${low(...head)} to ${high(...head)} now`;
  return low(...head) > high(...base)
    ? { ...found, verdict: "regression", reason: `${count}: ${spans}` }
    : { ...found, verdict: "inconclusive", reason: `${count} varies: ${spans}` };
};
