"""Workspaces with something wrong: for the claim that nothing but errors of ours comes of them.

    python tests/histfactory/mutations.py 10000     try this many, and count what happens

A workspace follows from its number alone. It has one to three changes: of its JSON (keys dropped,
values replaced, lists longer or shorter), of its numbers, or of its statistics: parameters that the
data cannot tell apart, bins without background, bins without events where a variation is negative,
and strange parameters of interest.
"""

from __future__ import annotations

import copy
import json
import math
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from firstlight import histfactory as hf
from firstlight.histfactory.interpolation import HISTOSYS_CODES, NORMSYS_CODES
from firstlight.histfactory.programs import Patience

Plain = dict[str, Any]

#: A workspace that computes for longer than this (8 seconds are the most seen) counts as a hang.
DEADLINE_CPU_SECONDS = 100

VALUES: list[Any] = [None, True, False, 0, -1.5, 1e-300, 1e300, 10**400, math.nan, math.inf]
VALUES += ["", "mu", "lumi", "stat", "\ud800", [], [[]], [1.0], [1.0, 2.0, 3.0], ["1", "2"], {}]
VALUES += [{"name": "SR"}, [{}], {"lo": 1, "hi": []}, (1, 2), {1, 2}, b"mu", object]
POIS: list[Any] = [["mu"], ["mu", "lumi"], 5, 0, True, False, {}, {"name": "mu"}, 1.5, math.nan]
POIS += [
    None,
    "",
    "mu",
    "lumi",
    "jes",
    "k",
    "free",
    "free[0]",
    "mc[1]",
    "stat[0]",
    "nothing",
    "mu ",
]
NUMBERS = [0.0, -0.0, -3.0, 1e-12, 1e-3, 0.5, 1.0, 40.0, 1e6, 1e15, 1e100, -1e100]


def modifier(kind: str, name: str, data: Any = None) -> Plain:
    return {"name": name, "type": kind, "data": data}


def sample(name: str, data: list[float], *modifiers: Plain) -> Plain:
    return {"name": name, "data": data, "modifiers": list(modifiers)}


def workspace() -> Plain:
    """Two channels with all seven modifiers, in which nothing is wrong."""
    mu, k = (modifier("normfactor", name) for name in ("mu", "k"))
    lumi = modifier("lumi", "lumi")
    shape = modifier("histosys", "jes", {"lo_data": [45.0, 31.0], "hi_data": [54.0, 28.0]})
    acceptance = modifier("normsys", "acc", {"lo": 0.9, "hi": 1.15})
    rate = modifier("normsys", "jes", {"lo": 0.95, "hi": 1.1})
    region = [
        sample("signal", [5.0, 9.0], mu, lumi, acceptance),
        sample("tt", [50.0, 30.0], k, shape, modifier("staterror", "stat", [4.0, 3.0])),
        sample("w", [8.0, 3.0], modifier("shapesys", "mc", [2.0, 1.5]), rate),
    ]
    control = [
        sample("qcd", [20.0, 10.0], modifier("shapefactor", "free")),
        sample("tt", [200.0, 90.0], k),
    ]
    width = {"inits": [1.0], "bounds": [[0.5, 1.5]], "auxdata": [1.0], "sigmas": [0.02]}
    parameters = [
        {"name": "lumi", **width},
        {"name": "mu", "inits": [1.0], "bounds": [[0.0, 10.0]], "fixed": False},
        {"name": "k", "inits": [1.0], "bounds": [[0.0, 10.0]]},
    ]
    plain = {
        "channels": [{"name": "SR", "samples": region}, {"name": "CR", "samples": control}],
        "observations": [
            {"name": "SR", "data": [61.0, 40.0]},
            {"name": "CR", "data": [225.0, 97.0]},
        ],
        "measurements": [{"name": "main", "config": {"poi": "mu", "parameters": parameters}}],
        "version": "1.0.0",
    }
    copied: Plain = json.loads(json.dumps(plain))  # in which nothing is there twice
    return copied


# --- changes --------------------------------------------------------------------------------------


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values."""
    for key in list(plain) if isinstance(plain, dict) else range(len(plain)):
        yield (*path, key)
        if isinstance(plain[key], dict | list):
            yield from places(plain[key], (*path, key))


def at(plain: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        plain = plain[key]
    return plain


def samples(plain: Plain) -> list[Plain]:
    return [sample for channel in plain["channels"] for sample in channel["samples"]]


def drop(plain: Plain, rng: Random) -> None:
    *path, key = rng.choice(list(places(plain)))
    del at(plain, tuple(path))[key]


def replace(plain: Plain, rng: Random) -> None:
    *path, key = rng.choice(list(places(plain)))
    at(plain, tuple(path))[key] = copy.copy(rng.choice(VALUES))


def stretch(plain: Plain, rng: Random) -> None:
    values = [at(plain, p) for p in places(plain)]
    chosen = rng.choice([v for v in values if isinstance(v, list) and v])
    chosen.append(chosen[-1]) if rng.random() < 0.5 else chosen.pop(rng.randrange(len(chosen)))


def number(plain: Plain, rng: Random) -> None:
    numbers = [p for p in places(plain) if isinstance(at(plain, p), float)]
    *path, key = rng.choice(numbers)
    at(plain, tuple(path))[key] = rng.choice(NUMBERS) * rng.choice([1.0, rng.uniform(0.1, 2.0)])


def scaled(plain: Plain, rng: Random) -> None:
    """All yields of a sample times a number."""
    sample, factor = rng.choice(samples(plain)), rng.choice(NUMBERS)
    sample["data"] = [factor * value for value in sample["data"]]


def two_factors(plain: Plain, rng: Random) -> None:
    """Two factors with the same effect."""
    twin, new = rng.choice([("mu", "mu2"), ("k", "k2"), ("mu", "k")]), "normfactor"
    for sample in samples(plain):
        names = [m["name"] for m in sample["modifiers"]]
        if twin[0] in names and twin[1] not in names:
            sample["modifiers"].append(modifier(new, twin[1]))


def factor_beside_a_shapefactor(plain: Plain, rng: Random) -> None:
    """A factor for every bin beside a factor for all of them."""
    signal = plain["channels"][0]["samples"][0]
    signal["modifiers"].append(modifier("shapefactor", rng.choice(["shape", "free"])))


def without_constraint(plain: Plain, rng: Random) -> None:
    """A luminosity that nothing constrains, beside factors with the same effect."""
    settings = plain["measurements"][0]["config"]["parameters"][0]
    settings["sigmas"] = [rng.choice([1e6, 1e15, 1e-12])]


def without_effect(plain: Plain, rng: Random) -> None:
    """A sample that expects nothing, so that its parameters have no effect."""
    sample = rng.choice(samples(plain))
    sample["data"] = [0.0] * len(sample["data"])


def without_background(plain: Plain, rng: Random) -> None:
    """Bins in which only the signal contributes, with events or without."""
    for sample in plain["channels"][0]["samples"][1:]:
        sample["data"][rng.randrange(2) :] = [0.0]
        sample["data"] = (sample["data"] * 2)[:2]
        sample["modifiers"] = [m for m in sample["modifiers"] if m["type"] != "histosys"]
    if rng.random() < 0.3:
        plain["observations"][0]["data"][rng.randrange(2)] = 0.0


def negative_variation(plain: Plain, rng: Random) -> None:
    """Bins without events, where one direction of a variation makes the yield negative."""
    bin_ = rng.randrange(2)
    plain["observations"][0]["data"][bin_] = 0.0
    sample = rng.choice(plain["channels"][0]["samples"])
    sizes = [rng.uniform(0.5, 30.0) for _ in range(2)]
    shift = {
        "lo_data": [value + size for value, size in zip(sample["data"], sizes, strict=True)],
        "hi_data": [value - 3 * size for value, size in zip(sample["data"], sizes, strict=True)],
    }
    sample["modifiers"].append(modifier("histosys", rng.choice(["neg", "jes2"]), shift))


def negative_signal(plain: Plain, rng: Random) -> None:
    """A signal that may be negative in bins without events."""
    plain["observations"][rng.randrange(2)]["data"] = [0.0, rng.choice([0.0, 3.0])]
    settings = plain["measurements"][0]["config"]["parameters"][1]
    settings["bounds"] = [[rng.choice([-5.0, -1e3, -1e9]), rng.choice([10.0, 1e9])]]


def poi_of_measurement(plain: Plain, rng: Random) -> None:
    plain["measurements"][0]["config"]["poi"] = copy.copy(rng.choice(POIS))


def bounds(plain: Plain, rng: Random) -> None:
    settings = rng.choice(plain["measurements"][0]["config"]["parameters"])
    settings["bounds"] = [sorted(rng.choices([*NUMBERS, -5.0, 5.0], k=2))]
    settings["fixed"] = rng.random() < 0.2


CHANGES: list[Callable[[Plain, Random], None]] = [
    drop,
    replace,
    stretch,
    number,
    scaled,
    two_factors,
    factor_beside_a_shapefactor,
    without_constraint,
    without_effect,
    without_background,
    negative_variation,
    negative_signal,
    poi_of_measurement,
    bounds,
]


def mutated(seed: int) -> tuple[Plain, Plain]:
    """The workspace of this number, and the options to load it with."""
    rng = Random(seed)
    plain, options = workspace(), {}
    for change in rng.choices(CHANGES, k=rng.choice([1, 1, 2, 3])):
        try:
            change(plain, rng)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            continue  # an earlier change took this place away
    if rng.random() < 0.1:
        options["poi"] = copy.copy(rng.choice(POIS))
    if rng.random() < 0.3:
        options["interpolation"] = (rng.choice(NORMSYS_CODES), rng.choice(HISTOSYS_CODES))
    return plain, options


# --- what comes of them ---------------------------------------------------------------------------


def outcome(seed: int) -> str:
    """How the workspace of this number is loaded, fitted and tested.

    Fails with any exception but those that explain what is wrong, and if numbers that are not
    finite are reported as results.
    """
    plain, options = mutated(seed)
    try:
        return _result(hf.load(plain, **options))
    except (hf.WorkspaceError, hf.ModelError) as error:
        assert str(error).startswith("workspace"), error
        return "refused"


def _result(model: hf.Model) -> str:
    found = hf.fit(model)
    expected = hf.expected_data(model, found.values)
    if found.converged:
        assert math.isfinite(found.nll), found
        assert all(map(math.isfinite, (*found.values.tolist(), *expected.tolist()))), found
    assert (found.status is hf.Status.NEGATIVE_EXPECTATION) == bool(found.negative_bins), found
    if model.poi is None or model.fixed[model.poi_index]:
        return f"{found.status.name}, nothing to test"
    tested = hf.cls(model, 1.0)
    if tested.converged:
        assert 0 <= tested.observed <= 1 and all(0 <= x <= 1 for x in tested.expected), tested
    if tested.status is hf.CLsStatus.IMPOSSIBLE_NULL:
        null = hf.nll(model, {model.poi: 0.0})  # of auxiliary data, too
        assert math.isnan(tested.observed), tested
        assert hf.bins_without_background(model) or math.isinf(null), tested
    return f"{found.status.name}, {tested.status.name}"


class HangError(Exception):
    """A workspace took longer than the deadline."""


def attempt(seed: int) -> tuple[int, str]:
    """The number and its outcome; what must not happen begins with FAILED."""

    def too_late(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, too_late)
    signal.setitimer(signal.ITIMER_PROF, DEADLINE_CPU_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", hf.WorkspaceWarning)
            return seed, outcome(seed)
    except Exception as error:
        return seed, f"FAILED {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def compute_by_numpy() -> None:
    """Every workspace has other dimensions, for which a program would have to be compiled."""
    Patience.is_over = lambda *_: False  # type: ignore[method-assign]


def main(count: int) -> int:
    from multiprocessing import get_context

    counts: Counter[str] = Counter()
    with get_context("spawn").Pool(2, compute_by_numpy) as pool:
        for seed, result in pool.imap_unordered(attempt, range(count), chunksize=10):
            counts[result.partition(":")[0]] += 1
            if result.startswith("FAILED"):
                print(seed, result, flush=True)
    for result, number_ in counts.most_common():
        print(f"{number_:7} {result}")
    return sum(n for result, n in counts.items() if result.startswith("FAILED"))


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])) > 0)
