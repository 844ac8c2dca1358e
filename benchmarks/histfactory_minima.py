"""How often does a fit miss the lowest minimum of a likelihood that has several?

    python benchmarks/histfactory_minima.py [--models N] [--starts N]

Random models of two channels, in which three of five systematics change yields in the same
direction up and down, with data drawn from the model. Each is fitted free and at one signal
strength, and compared with the best of many fits from random starts. Prints, for every strength of
the systematics, the share of fits that end higher, by how much, and the share that found several
minima.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from firstlight import histfactory as hf
from firstlight.histfactory.layout import Sizes

ALPHAS = ("a0", "a1", "a2")
STRENGTHS = (0.03, 0.06, 0.15, 0.4)
#: Sizes of all models, so that one executable serves them.
SIZES = Sizes(slots=3, bins=6, channels=2, alphas=3, factors=1, shapes=3, rates=3)


def random_workspace(rng: np.random.Generator, strength: float) -> dict[str, Any]:
    """Make a signal and two backgrounds, with systematics of about this relative size."""
    scale = 10 ** rng.uniform(1, 3)
    channels = []
    for name, samples in (("CR", ("b1", "b2")), ("SR", ("b1", "b2", "signal"))):
        entries = [_sample(rng, sample, scale, strength) for sample in samples]
        channels.append({"name": name, "samples": entries})
    return {
        "version": "1.0.0",
        "channels": channels,
        "observations": [{"name": c["name"], "data": [1.0] * 3} for c in channels],
        "measurements": [{"name": "m", "config": {"poi": "mu", "parameters": []}}],
    }


def _sample(rng: np.random.Generator, name: str, scale: float, strength: float) -> dict[str, Any]:
    signal = name == "signal"
    nominal = scale * rng.uniform(0.2, 1.0, 3) * (0.3 if signal else 1.0)
    modifiers: list[dict[str, Any]] = []
    if signal:
        modifiers.append({"name": "mu", "type": "normfactor", "data": None})
    for alpha in ALPHAS:
        if rng.uniform() < 0.35:
            continue
        up = strength * rng.normal(size=3)
        one_sided = rng.uniform() < 0.6
        down = up * rng.uniform(0.2, 1.2) if one_sided else -up * rng.uniform(0.5, 1.5)
        hi, lo = (nominal * np.maximum(1 + x, 0.05) for x in (up, down))
        data = {"hi_data": hi.tolist(), "lo_data": lo.tolist()}
        modifiers.append({"name": alpha, "type": "histosys", "data": data})
    return {"name": name, "data": nominal.tolist(), "modifiers": modifiers}


def excess(
    model: hf.Model, data: Any, mu: float | None, starts: int, rng: Any
) -> tuple[float, int]:
    """How far a fit ends above the best of many, and how many minima it found."""
    fixed = None if mu is None else {"mu": mu}
    found = hf.fit(model, data, fixed)
    lowest = found.nll
    for _ in range(starts):
        free = [name for name in model.parameter_names if name != "mu"]
        init = {name: float(np.clip(1.5 * rng.normal(), -5, 5)) for name in free}
        if mu is None:
            init["mu"] = float(rng.uniform(0, 3))
        other = hf.fit(model, data, fixed, init)
        if other.converged:
            lowest = min(lowest, other.nll)
    return float(found.nll - lowest), found.branches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--models", type=int, default=100, help="models per strength (100)")
    parser.add_argument("--starts", type=int, default=12, help="random starts per fit (12)")
    options = parser.parse_args()
    for strength in STRENGTHS:
        rng = np.random.default_rng(4)
        found = []
        for _ in range(options.models):
            model = hf.load(random_workspace(rng, strength), sizes=SIZES)
            truth = {n: float(rng.normal()) for n in model.parameter_names} | {"mu": 1.0}
            data = rng.poisson(np.maximum(hf.expected_data(model, truth, False), 0)).astype(float)
            found += [excess(model, data, mu, options.starts, rng) for mu in (None, 1.0)]
        above, branches = (np.array(column) for column in zip(*found, strict=True))
        missed = above[above > 1e-6]
        print(
            f"strength {strength}: {len(missed)} of {len(found)} fits above the best of "
            f"{options.starts + 1}, by at most {missed.max() if len(missed) else 0:.3g}; several "
            f"minima found in {np.mean(branches > 1):.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
