"""How often does the gate raise false alarms, and what does it detect? For docs/comparing.md.

    python benchmarks/gate.py record   [--rounds 60] [-b REGEX] [--out FILE]
    python benchmarks/gate.py simulate [--draws 2000]
    python benchmarks/gate.py power    [--draws 400] [--real 3]
    python benchmarks/gate.py real     [--gates 40] [--log FILE]

record    A/A noise: the same program on both sides of every case of the quick suite, interleaved
simulate  gates simulated from that noise, with nothing changed: the alarms of each judge
power     the same with 10 % added to compile or to the warm call; --real runs gates with a program
          that really takes 10 % longer
real      A/A gates with the real command; appends to the log, so it can be stopped and resumed
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from pyperf._utils import is_significant
from scipy import stats

import gate_noise
from firstlight.compare.quantities import GATED, MIN_SHARE
from firstlight.compare.runs import DRIFT
from firstlight.gate.decision import LOOKS, GateReport, Rules, decide
from firstlight.records import now
from firstlight.statistics.effects import holm, paired_effect, unpaired_effect
from firstlight.statistics.steady_state import spread
from gate_noise import Drawn, Noise, interleaved, one_after_the_other, rate, rate_text, say
from gate_real import real, real_power

#: Of a bad day, for false alarms; of a machine that was left alone, for power.
DATA = Path(__file__).with_name("data") / "gate_noise.json.gz"
QUIET = DATA.with_name("gate_noise_quiet.json.gz")
CONTROL = "option_greeks[small]/numpy/none"
ROUNDS = LOOKS[0].rounds
BUDGET_SECONDS = 300.0


# --- record ---------------------------------------------------------------------------------------


def record(options: argparse.Namespace) -> None:
    """Record the A/A noise of this machine with the gate's own measuring."""
    from dataclasses import replace

    from firstlight.compare.conditions import machine_class
    from firstlight.gate.measuring import Pair
    from firstlight.gate.selection import choose
    from firstlight.gate.sides import same_side_twice
    from firstlight.measure.case_selection import SAMPLING
    from firstlight.measure.host import describe_host
    from firstlight.records import Sample

    sides: dict[str, list[Sample]] = {"base": [], "head": []}
    keep = {side: kept.append for side, kept in sides.items()}
    host = describe_host(watch_seconds=1.0)
    about = {
        "recorded_at": now(),
        "machine_class": machine_class(host),
        "packages": host["packages"],
        "cpu_busy_ratio": host["cpu_busy_ratio"],
        "note": options.note,
    }
    settings = replace(SAMPLING["gate"], seed=int(time.time()))
    with same_side_twice() as pair_of_sides:
        chosen = choose("quick", pair_of_sides, pattern=options.pattern)
        with Pair(chosen.cases, settings, pair_of_sides, keep) as pair:
            pair.prepare(lambda *_: None)
            for number in range(options.rounds):
                pair.measure(number, number + 1, lambda *_: None)
                gate_noise.save(options.out, gate_noise.collect(sides, about))
                print(f"{number + 1} of {options.rounds} rounds", flush=True)


# --- simulate: nothing has changed ----------------------------------------------------------------


def slower_by_welch(base: np.ndarray, head: np.ndarray) -> bool:
    found = stats.ttest_ind(head, base, equal_var=False)
    return bool(found.pvalue < 0.05 and found.statistic > 0)


def slower_by_ten_percent(base: np.ndarray, head: np.ndarray) -> bool:
    return bool(head.mean() > 1.1 * base.mean())


def slower_by_pyperf(base: np.ndarray, head: np.ndarray) -> bool:
    """pyperf's rule (`compare_to`): Student's test of all values of all processes."""
    significant, _ = is_significant(list(base), list(head))
    return bool(significant and head.mean() > base.mean())


def slower_by_hyperfine(base: np.ndarray, head: np.ndarray) -> bool:
    """hyperfine's rule: it prints "A ran r ± s times faster than B", and r - s is above 1."""
    ratio = head.mean() / base.mean()
    spread = ratio * np.hypot(head.std(ddof=1) / head.mean(), base.std(ddof=1) / base.mean())
    return bool(ratio - spread > 1)


Rule = Callable[[np.ndarray, np.ndarray], bool]
PYPERF = "pyperf's significance test"
RIVALS: Mapping[str, Rule] = {
    "Welch's t-test, 5 %": slower_by_welch,
    "10 % threshold on means": slower_by_ten_percent,
    PYPERF: slower_by_pyperf,
    "hyperfine's ± does not reach 1": slower_by_hyperfine,
}


def made_up_gate(
    drawn: Drawn,
    control: str | None = None,
    slower: Mapping[str, float] | None = None,
    on: str | None = None,
    budget_seconds: float | None = None,
) -> GateReport:
    """Decide as the gate does at its looks, with as many rounds as the budget allows."""
    most = LOOKS[-1].rounds
    if budget_seconds is not None:
        most = min(most, int(budget_seconds / sum(drawn.noise.pair_seconds.values())))
    report = None
    for look in LOOKS:
        rounds = min(look.rounds, most)
        base, head = gate_noise.samples(drawn, rounds, slower, on)
        report = decide(base, head, Rules(control=control), look.alpha)
        if report.is_settled or rounds == most:
            break
    assert report is not None
    return report


@dataclass
class Tally:
    """The outcomes of simulated gates."""

    verdicts: Counter[str] = field(default_factory=Counter)
    significant: int = (
        0  # gates with any p < 5 % after Holm, in either direction, at the first look
    )
    shares: list[float] = field(default_factory=list)  # of a gate's single tests with p < 5 %
    expected: list[float] = field(default_factory=list)  # the same, as computed
    together: Counter[str] = field(default_factory=Counter)
    apart: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.verdicts += other.verdicts
        self.significant += other.significant
        self.shares += other.shares
        self.expected += other.expected
        self.together += other.together
        self.apart += other.apart


def tally_gates(data: Path, seed: Sequence[int], draws: int) -> Tally:
    """Simulate this many gates in one worker process."""
    noise, generator, tally = gate_noise.load(data), np.random.default_rng(seed), Tally()
    for _ in range(draws):
        drawn = interleaved(noise, LOOKS[-1].rounds, generator)
        tally.verdicts[made_up_gate(drawn).verdict] += 1
        pairs = [
            drawn.pair(case, quantity, ROUNDS)
            for case, quantities in noise.values.items()
            for quantity in quantities
        ]
        tests = [paired_effect(*pair).p for pair in pairs]
        tally.significant += min(holm(tests)) < 0.05
        tally.shares.append(float(np.mean([p < 0.05 for p in tests])))
        tally.expected.append(float(np.mean([attainable_level(*pair) for pair in pairs])))
        tally.together.update(alarms_interleaved(drawn))
        tally.apart.update(alarms_apart(noise, generator))
    return tally


def simulate(options: argparse.Namespace) -> None:
    describe(gate_noise.load(options.data))
    tally, chunk = Tally(), 50
    with ProcessPoolExecutor() as pool:
        jobs = [
            pool.submit(
                tally_gates, options.data, (options.seed, start), min(chunk, options.draws - start)
            )
            for start in range(0, options.draws, chunk)
        ]
        for done in as_completed(jobs):
            tally.add(done.result())
            print(f"\r{tally.verdicts.total()} of {options.draws}", end="", file=sys.stderr)
    print_rates(tally)


def print_rates(tally: Tally) -> None:
    draws, alarms = tally.verdicts.total(), tally.verdicts["regression"]
    print(f"\n{draws} gates with nothing changed. Share of gates that call anything slower:\n")
    print("Interleaved: blocks of rounds, sides by lot")
    row("firstlight gate", alarms, draws, "stated: 2.5 % at most")
    row("  its p-value alone, either way", tally.significant, draws, "stated: 5 % at most")
    for name in RIVALS:
        row(name, tally.together[name], draws)
    print(f"\nOne side after the other ({ROUNDS} rounds each), as two runs are")
    for name in (*OWN, *RIVALS):
        row(name, tally.apart[name], draws)
    print(f"\nverdicts of the gate: {dict(tally.verdicts)}")
    _, low, _ = rate(alarms, draws)
    bar = "2.5 % at most: the interval reaches below it"
    say("false alarms of the gate", rate_text(alarms, draws), bar, low <= 0.025)
    # The tests of a gate share their rounds: the gate is the unit.
    middle = np.mean(tally.shares)
    error = 1.96 * np.std(tally.shares) / np.sqrt(len(tally.shares))
    exact = np.mean(tally.expected)
    bar = f"{exact:.2%}, computed by counting all signs, lies in the interval"
    good = abs(middle - exact) <= error
    say("a single test has p < 5 %", f"{middle:.2%} ± {error:.2%}", bar, bool(good))


def attainable_level(base: np.ndarray, head: np.ndarray, alpha: float = 0.05) -> float:
    """How often p is below α if only the signs of these log-ratios are random.

    p-values are discrete, and rounds that were drawn twice make their steps uneven.
    """
    ranks = stats.rankdata(np.round(np.abs(np.log(head / base)), 12)) * 2
    return _level(tuple(sorted(int(r) for r in ranks)), alpha)


@lru_cache(maxsize=4096)
def _level(ranks: tuple[int, ...], alpha: float) -> float:
    sums = np.array([1.0])
    for rank in ranks:
        sums = (np.pad(sums, (0, rank)) + np.pad(sums, (rank, 0))) / 2
    tails = np.cumsum(sums)
    below = tails[2 * tails < alpha]
    return float(2 * below[-1]) if len(below) else 0.0


def row(name: str, alarms: int, draws: int, remark: str = "") -> None:
    print(f"  {name:34s} {rate_text(alarms, draws):24s} {remark}".rstrip())


OWN = ("firstlight compare", "  Mann-Whitney alone (Holm)")


def alarms_interleaved(drawn: Drawn) -> set[str]:
    """Other tools that call anything slower, on the rounds of the same gate's first look."""
    found = set()
    for case, quantities in drawn.noise.values.items():
        values = {quantity: drawn.pair(case, quantity, ROUNDS) for quantity in quantities}
        found |= alarms_of({**values, "calls": drawn.call_pair(case, ROUNDS)})
    return found


def alarms_apart(noise: Noise, generator: np.random.Generator) -> set[str]:
    """The same for two runs one after the other, with our own unpaired comparison too."""
    found, effects = set(), []
    for values in one_after_the_other(noise, ROUNDS, generator):
        found |= alarms_of(values)
        effects += [unpaired_effect(*values[q]) for q in GATED if judged(q, values)]
    adjusted = holm([e.p for e in effects])
    slower = [e for e, p in zip(effects, adjusted, strict=True) if p < 0.05 and e.ratio > 1]
    if slower:
        found.add(OWN[1])
    if any(e.low > 1 + DRIFT for e in slower):
        found.add(OWN[0])
    return found


def judged(quantity: str, values: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bool:
    """The quantities that `compare` judges: no phases that take no time, none at two speeds."""
    if quantity not in values or spread(list(values[quantity][0])) is not None:
        return False
    if quantity != "compile":
        return True
    shares = [np.median(values[quantity][i] / values["cold_seconds"][i]) for i in (0, 1)]
    return bool(max(shares) >= MIN_SHARE)


def alarms_of(values: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> set[str]:
    """Tools that call a quantity of this case slower; pyperf takes three calls per process."""
    return {
        name
        for name, rule in RIVALS.items()
        for quantity in GATED
        if quantity in values
        and rule(*values["calls" if name == PYPERF and quantity == GATED[2] else quantity])
    }


def describe(noise: Noise) -> None:
    about = noise.about
    print(f"noise: {noise.rounds} rounds of {len(noise.values)} cases, {about['machine_class']}")
    print(f"       recorded {about['recorded_at'][:16]}; {about.get('note') or 'no note'}")
    for case, quantities in noise.values.items():
        spreads = {}
        for name, values in quantities.items():
            low, high = np.percentile(np.log(values[:, 1] / values[:, 0]), (25, 75))
            spreads[name] = f"{name} {(high - low) / 1.349:.1%}"
        print(f"       {case:34s} σ of a log-ratio: {', '.join(spreads.values())}")


# --- power: 10 % more -----------------------------------------------------------------------------


def power(options: argparse.Namespace) -> None:
    if options.real:
        real_power(options)
        return
    noise = gate_noise.load(options.data)
    describe(noise)
    print(f"\n10 % more, one case and the control, at most {BUDGET_SECONDS / 60:.0f} minutes:\n")
    for case, quantity in candidates(noise):
        one = noise.only([case, CONTROL])
        generator = np.random.default_rng(options.seed)
        verdicts, seconds = [], []
        for _ in range(options.draws):
            drawn = interleaved(one, LOOKS[-1].rounds, generator)
            report = made_up_gate(drawn, CONTROL, {quantity: 1.1}, case, BUDGET_SECONDS)
            verdicts.append(report.verdict)
            seconds.append(report.rounds * sum(one.pair_seconds.values()))
        caught = verdicts.count("regression")
        text = (
            f"{rate_text(caught, options.draws)} caught, "
            f"{verdicts.count('inconclusive') / options.draws:.0%} inconclusive, "
            f"median {np.median(seconds) / 60:.1f} min"
        )
        say(f"{case} {quantity}", text, "≥ 90 % caught", caught >= 0.9 * options.draws)
    noise_levels(options)


SIGMAS = (0.05, 0.08, 0.10, 0.12, 0.15, 0.20, 0.30)
A_PAIR_SECONDS = 5.0  # one case of the quick suite with its control, both sides


def noise_levels(options: argparse.Namespace) -> None:
    """How much noise is too much: normal log-ratios of known spread, 10 % more per call."""
    print(f"\n10 % more, by the spread σ of a log-ratio, at {A_PAIR_SECONDS:.0f} s a round:\n")
    for sigma in SIGMAS:
        generator = np.random.default_rng(options.seed)
        verdicts, rounds = [], []
        for _ in range(options.draws):
            values = np.exp(generator.normal(0, sigma / np.sqrt(2), (LOOKS[-1].rounds, 2)))
            times = {"warm_call_seconds": values, "cold_seconds": np.ones_like(values)}
            noise = Noise({}, {"case": times}, {}, {"case": A_PAIR_SECONDS})
            drawn = interleaved(noise, LOOKS[-1].rounds, generator)
            slower = {"warm_call_seconds": 1.1}
            report = made_up_gate(drawn, None, slower, "case", BUDGET_SECONDS)
            verdicts.append(report.verdict)
            rounds.append(report.rounds)
        caught = rate_text(verdicts.count("regression"), options.draws)
        print(f"  σ = {sigma:4.0%}: {caught} caught, median {np.median(rounds):.0f} rounds")


def candidates(noise: Noise) -> Iterator[tuple[str, str]]:
    """The deciding quantities of the compiled cases."""
    for case, values in noise.values.items():
        if case == CONTROL:
            continue
        share = np.median(values["compile"] / values["cold_seconds"]) if "compile" in values else 0
        if share >= MIN_SHARE:
            yield case, "compile"
        yield case, "warm_call_seconds"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    for part in (record, simulate, power, real):
        own = parts.add_parser(part.__name__)
        own.set_defaults(part=part)
        if part is record:
            own.add_argument("--rounds", type=int, default=60)
            own.add_argument("--out", type=Path, default=DATA)
            own.add_argument("--note", help="what else the machine did meanwhile")
        if part in (record, real):
            own.add_argument("-b", dest="pattern", metavar="REGEX")
        if part in (simulate, power):
            own.add_argument("--data", type=Path, default=QUIET if part is power else DATA)
            own.add_argument("--draws", type=int, default=2000 if part is simulate else 400)
            own.add_argument("--seed", type=int, default=0)
        if part is power:
            own.add_argument("--real", type=int, default=0, metavar="GATES")
        if part is real:
            own.add_argument("--gates", type=int, default=40)
            own.add_argument("--max-minutes", type=float, default=2.0)
            own.add_argument("--log", type=Path, default=Path("gate-real.jsonl"))
    options = parser.parse_args()
    options.part(options)


if __name__ == "__main__":
    main()
