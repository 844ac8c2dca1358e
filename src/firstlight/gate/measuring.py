"""Measures both sides interleaved: check, prime, then rounds with one pair of processes per case.

The two processes of a pair follow each other immediately, so that the machine is in the same state,
and their warm calls alternate. Which side goes first is drawn at random for each case and round.
The exact p-values of a gate (sign flips of the differences of rounds) rest on this alone. The order
AB BA would be better balanced, but give half as many random signs. The cases of a round are
shuffled.

A process that breaks is repeated on both sides, until both are sound or the number of repetitions
is reached. In the latter case its case is not timed any more.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from firstlight.gate.breakage import breaks_every_time, last_attempts, repeats_of
from firstlight.gate.sides import Side
from firstlight.measure.process import Outcome, Turn, run_worker
from firstlight.measure.runner import Runner
from firstlight.records import PRIMED, Case, Sample, Settings

SIDES = ("base", "head")
Watch = Callable[[int, Sequence[tuple[Case, str, int]]], None]
Announce = Callable[["PairJob", str], None]


@dataclass(frozen=True)
class PairedCase:
    """A case on both sides: under the same name, with each side's file and parameters."""

    base: Case
    head: Case
    is_control: bool = False  # runs under the gate's own Python, so that no side can affect it

    @property
    def id(self) -> str:
        return self.base.id

    def on(self, side: str) -> Case:
        return self.base if side == "base" else self.head


@dataclass(frozen=True)
class PairJob:
    """The two processes of one case and kind in one round, in the order of `sides`."""

    case: PairedCase
    kind: str
    index: int
    sides: tuple[str, str] = SIDES


class PairedMeasurement:
    """Measures two sides; each sample goes to `keep` of its side before the next process starts."""

    def __init__(
        self,
        cases: Sequence[PairedCase],
        settings: Settings,
        sides: tuple[Side, Side],
        keep: Mapping[str, Callable[[Sample], None]],
        done: Mapping[str, Sequence[Sample]] | None = None,
        spawn: Callable[..., Outcome] = run_worker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cases = list(cases)
        self._seed = settings.seed
        self._clock = clock
        self._stack = contextlib.ExitStack()
        #: By side and case: {module: file}. Not in the samples, which may be published, because
        #: these are paths of this machine.
        self.modules: dict[str, dict[str, Mapping[str, str]]] = {side: {} for side in SIDES}
        self._given_up: set[str] = set()
        self._attempts: defaultdict[tuple[str, str, str, int], list[Sample]] = defaultdict(list)
        for side_name, samples in (done or {}).items():
            for s in samples:
                self._attempts[side_name, s.case, s.kind, s.index].append(s)
        taken = (s.order for attempts in self._attempts.values() for s in attempts)
        self._order = 1 + max(taken, default=-1)
        # The control has short calls: a tenth of a second is enough to see whether it moves.
        brief = replace(settings, warm_seconds=min(settings.warm_seconds, 0.1))
        self._runners: dict[tuple[str, bool], Runner] = {}
        for side, control in itertools.product(sides, (False, True)):
            chosen = [c.on(side.name) for c in cases if c.is_control is control]
            names = {case.id for case in chosen}
            self._runners[side.name, control] = Runner(
                chosen,
                brief if control else settings,
                self._keeper(side.name, control, keep[side.name]),
                [s for s in (done or {}).get(side.name, ()) if s.case in names],
                spawn if control else side.spawner(spawn),
            )

    def _keeper(
        self, side: str, control: bool, keep: Callable[[Sample], None]
    ) -> Callable[[Sample], None]:
        def keep_without_paths(sample: Sample) -> None:
            facts = dict(sample.facts)
            modules = facts.pop("modules", None)
            if modules is not None and not control:
                self.modules[side][sample.case] = modules
            keep(replace(sample, facts=facts))

        return keep_without_paths

    def __enter__(self) -> Self:
        for runner in self._runners.values():
            self._stack.enter_context(runner)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prepare(self, watch: Watch) -> None:
        """Run the check processes of both sides, then those that fill caches."""
        shuffled = list(self.cases)
        random.Random(f"{self._seed}/prepare").shuffle(shuffled)
        jobs = [PairJob(case, "check", 0) for case in shuffled]
        jobs += [PairJob(case, "prime", 0) for case in shuffled if case.base.cache in PRIMED]
        self._run(jobs, _shown(jobs, watch))

    def measure(self, first: int, last: int, watch: Watch, deadline: float | None = None) -> int:
        """Measure rounds `first` to `last - 1`; return the number of complete rounds.

        A round that would probably end after `deadline` is not started. If every case but the
        control is broken, nothing is measured.
        """
        others = [case for case in self.cases if not case.is_control]
        if others and not any(self._sound(case) for case in others):
            return first
        rounds = list(paired_rounds(self.cases, first, last, self._seed))
        announce = _shown([job for jobs in rounds for job in jobs], watch)
        round_seconds = 0.0
        for complete, jobs in enumerate(rounds):
            now = self._clock()
            if deadline is not None and now + round_seconds > deadline:
                return first + complete
            self._run(jobs, announce)
            round_seconds = self._clock() - now
        return last

    def _run(self, jobs: Sequence[PairJob], announce: Announce) -> None:
        for job in jobs:
            self._take_both(job, [side for side in job.sides if self._is_due(job, side)], announce)
            while self._needs_repetition(job):
                self._take_both(job, job.sides, announce)
            if any(found and breaks_every_time(found) for found in self._attempts_at(job)):
                self._given_up.add(job.case.id)

    def _take_both(self, job: PairJob, sides: Sequence[str], announce: Announce) -> None:
        """Run the processes of a pair, or of one side if the other was already measured."""
        if len(sides) == 2 and job.kind == "timed":
            self._take_in_turns(job, announce)
            return
        for side in sides:
            announce(job, side)
            self._take(job, side)

    def _needs_repetition(self, job: PairJob) -> bool:
        """Whether the last attempt broke on a side, and may be repeated again."""
        attempts = self._attempts_at(job)
        bad = [found[-1] for found in attempts if found and found[-1].status != "ok"]
        if not bad or not all(attempts):
            return False
        done = max(map(len, attempts)) - 1
        return done < min(repeats_of(sample.status) for sample in bad)

    def _attempts_at(self, job: PairJob) -> list[list[Sample]]:
        """The attempts of each side, in order."""
        return [self._attempts[side, job.case.id, job.kind, job.index] for side in SIDES]

    def _is_due(self, job: PairJob, side: str) -> bool:
        # Checks run on both sides in any case, to find out whether both are broken.
        if job.kind == "timed" and not self._sound(job.case):
            return False
        runner = self._runners[side, job.case.is_control]
        return runner.is_due(job.case.on(side), job.kind, job.index)

    def _take(self, job: PairJob, side: str, turn: Turn | None = None) -> None:
        runner = self._runners[side, job.case.is_control]
        runner.order = self._order
        self._order += 1
        sample = runner.take(job.case.on(side), job.kind, job.index, turn)
        self._attempts[side, sample.case, sample.kind, sample.index].append(sample)

    def _take_in_turns(self, job: PairJob, announce: Announce) -> None:
        """Run both processes of a pair: first both cold starts, then warm calls in turns."""
        first, second = job.sides
        begun = False

        def begin_other() -> None:
            nonlocal begun
            begun = True
            pipes.close_of_first()
            announce(job, second)
            self._take(job, second, Turn(*pipes.second, first=True))
            pipes.close()

        announce(job, first)
        with contextlib.closing(_Pipes()) as pipes:
            self._take(job, first, Turn(*pipes.first, first=False, meanwhile=begin_other))
        if not begun:  # the first one failed, or its instrument does not support turns
            announce(job, second)
            self._take(job, second)

    def leave_out(self, names: Collection[str]) -> None:
        """Exclude these cases from timing."""
        self.cases = [case for case in self.cases if case.id not in names]

    def _sound(self, case: PairedCase) -> bool:
        """Whether the case works on both sides; otherwise there is nothing to compare."""
        if case.id in self._given_up:
            return False
        return all(self._runners[s, case.is_control].is_sound(case.on(s)) for s in SIDES)


def _shown(jobs: Sequence[PairJob], watch: Watch) -> Announce:
    """Adapt `watch`, which takes positions in the list of all processes of `jobs`."""
    both = [(job, side) for job in jobs for side in job.sides]
    shown = [
        (replace(j.case.base, id=f"{j.case.id} ({side})"), j.kind, j.index) for j, side in both
    ]
    return lambda job, side: watch(both.index((job, side)), shown)


class _Pipes:
    """The pipes through which two processes take turns: (read end, write end) for each."""

    def __init__(self) -> None:
        (read_1, write_1), (read_2, write_2) = os.pipe(), os.pipe()
        self.first, self.second = (read_1, write_2), (read_2, write_1)
        self._open = [*self.first, *self.second]

    def close_of_first(self) -> None:
        for descriptor in self.first:
            self._open.remove(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())


def paired_rounds(
    cases: Sequence[PairedCase], first: int, last: int, seed: int
) -> Iterator[list[PairJob]]:
    """The pairs of each round in run order; a round depends only on `seed` and its number."""
    for number in range(first, last):
        draw = random.Random(f"{seed}/round {number}")
        shuffled = list(cases)
        draw.shuffle(shuffled)
        yield [
            PairJob(case, "timed", number, SIDES if draw.random() < 0.5 else SIDES[::-1])
            for case in shuffled
        ]


def complete_rounds(samples: Mapping[str, Sequence[Sample]]) -> int:
    """The number of rounds, from the first, in which both sides of every timed case were measured.

    Cases that broke are ignored, because they were given up, unless all broke.
    """
    last = {side: last_attempts([s for s in v if s.kind == "timed"]) for side, v in samples.items()}
    both = set.intersection(*({(s.case, s.index) for s in found} for found in last.values()))
    names = {s.case for found in last.values() for s in found}
    broken = {s.case for found in last.values() for s in found if s.status != "ok"}
    names = names - broken or names
    number = 0
    while names and all((case, number) in both for case in names):
        number += 1
    return number
