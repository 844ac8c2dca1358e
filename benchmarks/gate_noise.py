"""Recorded A/A noise: stored, loaded, and resampled into simulated gates.

A recording has, for every case, rounds with the times of the same program on both sides. A gate is
simulated by drawing blocks of neighbouring rounds, which keeps drift, and by swapping the sides of
each round at random, as a real gate does.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from firstlight.compare.quantities import of_pair
from firstlight.records import ColdStart, Sample, WarmCalls

KEPT = ("cold_seconds", "compile", "warm_call_seconds")
BLOCK = 4  # neighbouring rounds that are drawn together
SIDES = ("base", "head")


def say(name: str, value: str, bar: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'MISS'}  {name}: {value}  (bar: {bar})", flush=True)


def rate(alarms: int, draws: int) -> tuple[float, float, float]:
    """A share with its exact 95 % interval."""
    ends = stats.binomtest(alarms, draws).proportion_ci(method="exact")
    return alarms / draws, ends.low, ends.high


def rate_text(alarms: int, draws: int) -> str:
    share, low, high = rate(alarms, draws)
    return f"{share:6.1%} [{low:.1%}, {high:.1%}]"


@dataclass(frozen=True)
class Noise:
    """`values[case][quantity]` is an array (round, side); `calls[case]` (round, side, value)."""

    about: Mapping[str, Any]
    values: Mapping[str, Mapping[str, np.ndarray]]
    calls: Mapping[str, np.ndarray]
    pair_seconds: Mapping[str, float]  # what a pair of processes of a case takes, wall clock

    @property
    def rounds(self) -> int:
        return min(len(v["cold_seconds"]) for v in self.values.values())

    def only(self, cases: Sequence[str]) -> Noise:
        return Noise(
            self.about,
            {c: self.values[c] for c in cases},
            {c: self.calls[c] for c in cases},
            {c: self.pair_seconds[c] for c in cases},
        )


def collect(sides: Mapping[str, Sequence[Sample]], about: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of both sides' samples that are recorded, as plain JSON."""
    durations = _durations([*sides["base"], *sides["head"]])
    cases: dict[str, dict[str, Any]] = {}
    found = {
        side: {(s.case, s.index): s for s in samples if s.kind == "timed"}
        for side, samples in sides.items()
    }
    for key in sorted(found["base"].keys() & found["head"].keys()):
        pair = [found[side][key] for side in SIDES]
        if any(s.status != "ok" for s in pair):
            continue
        case = cases.setdefault(key[0], {"rounds": [], "seconds": []})
        times = of_pair(*pair)
        case["rounds"].append([_kept(s, of) for s, of in zip(pair, times, strict=True)])
        case["seconds"].append(sum(durations.get((s.case, s.order), 0.0) for s in pair))
    return {
        "about": dict(about),
        "cases": {
            name: {"rounds": case["rounds"], "pair_seconds": float(np.median(case["seconds"]))}
            for name, case in cases.items()
        },
    }


def _kept(sample: Sample, times: Mapping[str, float]) -> dict[str, Any]:
    values: dict[str, Any] = {k: v for k, v in times.items() if k in KEPT}
    assert sample.warm is not None
    # pyperf takes three values of every process: the calls in thirds.
    thirds = np.array_split(np.array(sample.warm.call_seconds), 3)
    values["calls"] = [float(np.mean(t)) for t in thirds if len(t)]
    return {k: _short(v) for k, v in values.items()}


def _short(value: Any) -> Any:
    return [_short(v) for v in value] if isinstance(value, list) else float(f"{value:.5g}")


def _durations(samples: Sequence[Sample]) -> dict[tuple[str, int], float]:
    """Seconds from the start of each process to the start of the next."""
    ordered = sorted(samples, key=lambda s: s.started_at)
    starts = [datetime.fromisoformat(s.started_at) for s in ordered]
    return {
        (s.case, s.order): (after - before).total_seconds()
        for s, before, after in zip(ordered, starts, starts[1:], strict=False)
    }


def save(path: Path, plain: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, 9, mtime=0))


def load(path: Path) -> Noise:
    plain = json.loads(gzip.decompress(path.read_bytes()))
    values, calls, seconds = {}, {}, {}
    for name, case in plain["cases"].items():
        rounds = case["rounds"]
        present = [q for q in KEPT if all(q in side for pair in rounds for side in pair)]
        values[name] = {
            q: np.array([[side[q] for side in pair] for pair in rounds]) for q in present
        }
        calls[name] = np.array([[side["calls"] for side in pair] for pair in rounds])
        seconds[name] = case["pair_seconds"]
    return Noise(plain["about"], values, calls, seconds)


@dataclass(frozen=True)
class Drawn:
    """The rounds of a simulated gate: `sides[case]` holds (recorded round, swapped) for each."""

    noise: Noise
    rounds: np.ndarray
    swapped: Mapping[str, np.ndarray]

    def pair(self, case: str, quantity: str, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.noise.values[case][quantity][self.rounds[:rounds]]
        return _swap(chosen, self.swapped[case][:rounds])

    def call_pair(self, case: str, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        base, head = _swap(
            self.noise.calls[case][self.rounds[:rounds]], self.swapped[case][:rounds]
        )
        return base.ravel(), head.ravel()


def _swap(values: np.ndarray, swapped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    column = swapped.astype(int)
    at = np.arange(len(values))
    return values[at, column], values[at, 1 - column]


def interleaved(noise: Noise, rounds: int, generator: np.random.Generator) -> Drawn:
    """Draw a gate: blocks of neighbouring rounds, the same for all cases; random sides."""
    starts = generator.integers(0, noise.rounds - BLOCK + 1, -(-rounds // BLOCK))
    chosen = (starts[:, None] + np.arange(BLOCK)).ravel()[:rounds]
    return Drawn(noise, chosen, {c: generator.random(rounds) < 0.5 for c in noise.values})


def one_after_the_other(
    noise: Noise, rounds: int, generator: np.random.Generator
) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Draw two runs: all of the base, then all of the head, from neighbouring stretches of time."""
    start = int(generator.integers(0, noise.rounds - 2 * rounds + 1))
    first, second = slice(start, start + rounds), slice(start + rounds, start + 2 * rounds)
    for case, quantities in noise.values.items():
        column = int(generator.random() < 0.5)
        found = {q: (v[first, column], v[second, 1 - column]) for q, v in quantities.items()}
        calls = noise.calls[case]
        found["calls"] = (calls[first, column].ravel(), calls[second, 1 - column].ravel())
        yield found


def samples(
    drawn: Drawn,
    rounds: int,
    slower: Mapping[str, float] | None = None,
    on: str | None = None,
) -> tuple[list[Sample], list[Sample]]:
    """Both sides as input of the gate's decision; `slower` are factors on the head of case `on`.

    A factor on `compile` lengthens the cold start by as much as the phase.
    """
    sides: tuple[list[Sample], list[Sample]] = ([], [])
    for case, quantities in drawn.noise.values.items():
        pairs = {q: drawn.pair(case, q, rounds) for q in quantities}
        for number, side in enumerate(sides):
            times = {q: pair[number] for q, pair in pairs.items()}
            if number == 1 and slower and case == on:
                times = _slowed(times, slower)
            side += [
                _sample(case, i, {q: float(v[i]) for q, v in times.items()}) for i in range(rounds)
            ]
    return sides


def _slowed(times: dict[str, np.ndarray], slower: Mapping[str, float]) -> dict[str, np.ndarray]:
    changed = {q: v * slower.get(q, 1.0) for q, v in times.items()}
    if "compile" in slower:
        changed["cold_seconds"] = times["cold_seconds"] + changed["compile"] - times["compile"]
    return changed


def _sample(case: str, index: int, times: Mapping[str, float]) -> Sample:
    phases = {"compile": times["compile"]} if "compile" in times else {}
    return Sample(
        case=case,
        kind="timed",
        index=index,
        order=index,
        started_at="",
        status="ok",
        cold=ColdStart(times["cold_seconds"], phases, 0.0),
        warm=WarmCalls((times["warm_call_seconds"],), 1, ()),
    )
