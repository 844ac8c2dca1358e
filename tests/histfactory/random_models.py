"""Random models with every kind of modifier, and an independent likelihood to judge their fits by.

The likelihood is written out sample by sample in NumPy, for many parameter vectors at once, and
accepts complex ones: an imaginary step gives its exact gradient. `lowest` is the best of many
starts of scipy's L-BFGS-B.

    python tests/histfactory/random_models.py COUNT

compares the free fits of so many models with the best of eight starts; about a second each.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

Plain = dict[str, Any]


def random_workspace(seed: int) -> Plain:
    """A small workspace with two-sided systematics, shared parameters, and often strange bounds."""
    rng = np.random.default_rng([20261119, seed])
    scale = 10 ** rng.uniform(0.7, 2.8)
    alphas = [f"a{k}" for k in range(rng.integers(1, 4))]
    size = 10 ** rng.uniform(-1.3, -0.1)
    one_sided, two_factors = rng.uniform(0, 0.7), rng.uniform() < 0.25
    channels, observations = [], []
    for c in range(rng.integers(1, 4)):
        bins = int(rng.integers(1, 5))
        names = ["signal", *(f"b{k}" for k in range(rng.integers(1, 4)))]
        if c and rng.uniform() < 0.3:
            names = names[1:]
        share = rng.uniform(0.05, 1.5)
        samples = [
            _sample(
                rng,
                f"c{c}",
                name,
                scale * (share if name == "signal" else 1.0),
                bins,
                alphas,
                size,
                one_sided,
                two_factors,
            )
            for name in names
        ]
        channels.append({"name": f"c{c}", "samples": samples})
        observations.append({"name": f"c{c}", "data": [0.0] * bins})
    parameters: list[Plain] = []
    if rng.uniform() < 0.3:
        bound = float(rng.choice([-10.0, -2.0]))
        parameters.append({"name": "mu", "bounds": [[bound, 10.0]], "inits": [1.0]})
    for name in alphas:
        if rng.uniform() < 0.15:
            low, high = -rng.uniform(1, 4), rng.uniform(0.8, 4)
            parameters.append({"name": name, "bounds": [[low, high]]})
    measurement = {"name": "m", "config": {"poi": "mu", "parameters": parameters}}
    workspace = {
        "version": "1.0.0",
        "channels": channels,
        "observations": observations,
        "measurements": [measurement],
    }
    if not _uses(workspace, "mu"):
        return random_workspace(seed + 1_000_003)
    _trim(workspace)
    _observe(rng, workspace)
    return workspace


def _sample(
    rng: Any,
    channel: str,
    name: str,
    scale: float,
    bins: int,
    alphas: list[str],
    size: float,
    one_sided: float,
    two_factors: bool,
) -> Plain:
    nominal = scale * rng.uniform(0.2, 1.2, bins)
    if rng.uniform() < 0.05:
        nominal[rng.integers(bins)] = 0.0
    modifiers: list[Plain] = []
    if name == "signal":
        modifiers.append({"name": "mu", "type": "normfactor", "data": None})
    if (two_factors and rng.uniform() < 0.6) or (name != "signal" and rng.uniform() < 0.1):
        modifiers.append({"name": f"k{rng.integers(2)}", "type": "normfactor", "data": None})
    for alpha in alphas:
        if rng.uniform() < 0.45:
            up = np.exp(size * rng.normal())
            down = np.exp(size * rng.normal() * 0.7) if rng.uniform() < one_sided else 1 / up
            data = {"hi": float(up), "lo": float(down * np.exp(0.1 * size * rng.normal()))}
            modifiers.append({"name": alpha, "type": "normsys", "data": data})
        if rng.uniform() < 0.5:
            up = size * rng.normal(size=bins)
            sign = 1.0 if rng.uniform() < one_sided else -1.0
            down = sign * up * rng.uniform(0.2, 1.4, bins)
            hi, lo = (nominal * np.maximum(1 + x, 0.02) for x in (up, down))
            data = {"hi_data": hi.tolist(), "lo_data": lo.tolist()}
            modifiers.append({"name": alpha, "type": "histosys", "data": data})
    if rng.uniform() < 0.4:
        errors = nominal * rng.uniform(0.01, 0.3, bins)
        modifiers.append({"name": f"stat_{channel}", "type": "staterror", "data": errors.tolist()})
    elif rng.uniform() < 0.15:
        errors = nominal * rng.uniform(0.03, 0.4, bins)
        kind = {"name": f"shape_{channel}_{name}", "type": "shapesys", "data": errors.tolist()}
        modifiers.append(kind)
    if name != "signal" and rng.uniform() < 0.05:
        modifiers.append({"name": f"free_{channel}_{name}", "type": "shapefactor", "data": None})
    return {"name": name, "data": nominal.tolist(), "modifiers": modifiers}


def _uses(workspace: Plain, parameter: str) -> bool:
    return any(
        modifier["name"] == parameter
        for channel in workspace["channels"]
        for sample in channel["samples"]
        for modifier in sample["modifiers"]
    )


def _trim(workspace: Plain) -> None:
    """Leave out settings of parameters that no modifier uses."""
    config = workspace["measurements"][0]["config"]
    config["parameters"] = [p for p in config["parameters"] if _uses(workspace, p["name"])]


def _observe(rng: Any, workspace: Plain) -> None:
    """Fill in data: drawn from the model somewhere, from the nominal yields, or from neither."""
    likelihood = Likelihood(workspace)
    truth = likelihood.start.copy()
    kind = rng.uniform()
    if kind < 0.6:
        low, high = likelihood.lower, likelihood.upper
        normal = likelihood.width > 0
        truth = np.where(normal, truth + likelihood.width * rng.normal(size=len(truth)), truth)
        truth = np.where(likelihood.kinds == "free", rng.uniform(0, 2, len(truth)), truth)
        truth = np.clip(truth, low, high)
    expected = np.maximum(likelihood.expected(truth), 0.3)
    if kind > 0.85:
        expected = expected * np.exp(0.4 * rng.normal(size=len(expected)))
    data = rng.poisson(expected).astype(float)
    begin = 0
    for channel, observation in zip(workspace["channels"], workspace["observations"], strict=True):
        bins = len(channel["samples"][0]["data"])
        observation["data"] = data[begin : begin + bins].tolist()
        begin += bins


@dataclass
class _Modifier:
    kind: str
    positions: Any  # of its parameters: one, or one per bin
    first: Any  # hi - nominal, or hi
    second: Any  # nominal - lo, or lo


class Likelihood:
    """The negative log-likelihood of a workspace without its constants, by this file alone."""

    def __init__(self, workspace: Plain) -> None:
        self.names: list[str] = []
        self.samples: list[tuple[slice, Any, list[_Modifier]]] = []
        settings = {
            p["name"]: p for p in workspace["measurements"][0]["config"].get("parameters", [])
        }
        widths: dict[str, float] = {}
        taus: dict[str, float] = {}
        begin = 0
        staterrors: dict[str, tuple[slice, list[Any], list[Any]]] = {}
        for channel in workspace["channels"]:
            bins = len(channel["samples"][0]["data"])
            place = slice(begin, begin + bins)
            begin += bins
            for sample in channel["samples"]:
                nominal = np.array(sample["data"], float)
                modifiers = []
                for modifier in sample["modifiers"]:
                    name, kind, data = modifier["name"], modifier["type"], modifier["data"]
                    per_bin = kind in ("staterror", "shapesys", "shapefactor")
                    own = [f"{name}[{i}]" for i in range(bins)] if per_bin else [name]
                    positions = [self._position(p) for p in own]
                    first = second = None
                    if kind == "histosys":
                        first = np.array(data["hi_data"]) - nominal
                        second = nominal - np.array(data["lo_data"])
                        widths[name] = 1.0
                    elif kind == "normsys":
                        first, second = data["hi"], data["lo"]
                        widths[name] = 1.0
                    elif kind == "staterror":
                        entry = staterrors.setdefault(name, (place, [], []))
                        entry[1].append(nominal)
                        entry[2].append(np.array(data))
                    elif kind == "shapesys":
                        for p, n, e in zip(own, nominal, data, strict=True):
                            taus[p] = (n / e) ** 2 if n > 0 and e > 0 else 0.0
                    modifiers.append(_Modifier(kind, np.array(positions), first, second))
                self.samples.append((place, nominal, modifiers))
        self.bins = begin
        for name, (_, nominals, errors) in staterrors.items():
            total = np.sum(nominals, axis=0)
            sigma = np.sqrt(np.sum(np.square(errors), axis=0)) / np.where(total > 0, total, 1.0)
            for i, s in enumerate(sigma):
                widths[f"{name}[{i}]"] = float(s)
        n = len(self.names)
        self.width = np.array([widths.get(p, 0.0) for p in self.names])
        self.tau = np.array([taus.get(p, 0.0) for p in self.names])
        is_alpha = np.array([p.startswith("a") for p in self.names])
        held = np.array([p.startswith("stat") and widths[p] == 0 for p in self.names]) | np.array(
            [p.startswith("shape_") and taus[p] == 0 for p in self.names]
        )
        constrained = (self.width > 0) | (self.tau > 0) | held
        self.kinds = np.where(constrained, "constrained", "free")
        self.start = np.where(is_alpha, 0.0, 1.0)
        self.centre = self.start.copy()
        self.lower = np.where(is_alpha, -5.0, np.where(constrained, 1e-10, 0.0))
        self.upper = np.where(is_alpha, 5.0, 10.0)
        for i, name in enumerate(self.names):
            own_settings = settings.get(name, {})
            if "bounds" in own_settings:
                self.lower[i], self.upper[i] = own_settings["bounds"][0]
            if "inits" in own_settings:
                self.start[i] = own_settings["inits"][0]
        self.lower[held] = self.upper[held] = 1.0
        self.data = np.concatenate([o["data"] for o in workspace["observations"]])
        self.n = n

    def _position(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def of_samples(self, theta: Any) -> list[Any]:
        """Expected yields of every sample, [..., bin of its channel]."""
        theta = np.asarray(theta)
        found = []
        for _, nominal, modifiers in self.samples:
            shifted, factor = nominal.astype(theta.dtype), 1.0
            for m in modifiers:
                at = theta[..., m.positions]
                if m.kind == "histosys":
                    shifted = shifted + _code4p(at, m.first, m.second)
                elif m.kind == "normsys":
                    factor = factor * _code4(at, m.first, m.second)
                else:
                    factor = factor * at
            found.append(shifted * factor)
        return found

    def expected(self, theta: Any) -> Any:
        theta = np.asarray(theta)
        total = np.zeros((*theta.shape[:-1], self.bins), theta.dtype)
        for (place, _, _), cells in zip(self.samples, self.of_samples(theta), strict=True):
            total[..., place] += cells
        return total

    def nll(self, theta: Any, data: Any = None, centre: Any = None) -> Any:
        """Above a saturated model; what is impossible costs more the more impossible it is."""
        theta = np.asarray(theta)
        n = self.data if data is None else data
        centre = self.centre if centre is None else centre
        nu = self.expected(theta)
        floor = 1e-9
        safe = np.where(nu.real > floor, nu, floor)
        terms = nu - n - n * np.where(n > 0, np.log(safe / np.where(n > 0, n, 1.0)), 0.0)
        terms = terms + np.where((n > 0) & (nu.real <= floor), 1e6 * (floor - nu), 0.0)
        width = np.where(self.width > 0, self.width, 1.0)
        pulls = np.where(self.width > 0, (theta - centre) / width, 0.0)
        aux = self.tau * centre
        rate = self.tau * np.where(theta.real > 1e-12, theta, 1e-12)
        known = self.tau > 0
        ratio = np.where(known, rate, 1.0) / np.where(known, aux, 1.0)
        poisson = np.where(known, rate - aux - aux * np.log(ratio), 0.0)
        return terms.sum(-1) + (0.5 * pulls**2 + poisson).sum(-1)

    def value_and_gradient(self, theta: Any, free: Any, **options: Any) -> tuple[float, Any]:
        """By an imaginary step along every free parameter."""
        rows = np.repeat(np.asarray(theta, complex)[None], len(free), axis=0)
        rows[np.arange(len(free)), free] += 1e-20j
        values = self.nll(rows, **options)
        return float(values[0].real), values.imag / 1e-20

    def lowest(
        self, starts: Any, fixed: dict[str, float] | None = None, **options: Any
    ) -> tuple[float, Any]:
        """The best of L-BFGS-B from all starts, and where it is."""
        held = {self.names.index(name): value for name, value in (fixed or {}).items()}
        free = np.array(
            [i for i in range(self.n) if i not in held and self.upper[i] > self.lower[i]]
        )
        bounds = list(zip(self.lower[free], self.upper[free], strict=True))
        best: tuple[float, Any] = (np.inf, None)
        for start in starts:
            theta = np.array(start, float)
            for i, value in held.items():
                theta[i] = value

            def height(x: Any, theta: Any = theta) -> tuple[float, Any]:
                theta[free] = x
                return self.value_and_gradient(theta, free, **options)

            x = np.clip(theta[free], self.lower[free], self.upper[free])
            for _ in range(2):  # restarted, because a line search may end early
                end = optimize.minimize(
                    height,
                    x,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=bounds,
                    options={"maxiter": 500, "ftol": 1e-15, "gtol": 1e-8},
                )
                x = end.x
            if end.fun < best[0]:
                theta[free] = end.x
                best = (float(end.fun), theta.copy())
        return best

    def starts(self, rng: Any, count: int) -> list[Any]:
        """The nominal start and random ones."""
        found = [self.start]
        for _ in range(count - 1):
            wide = self.start + 2 * self.width * rng.normal(size=self.n)
            free = np.where(self.kinds == "free", rng.uniform(0, 4, self.n), wide)
            found.append(np.clip(free, self.lower, self.upper))
        return found

    def in_order(self, names: Any, values: Any) -> Any:
        """A parameter vector of ours from another order; the names are the same."""
        by_name = dict(zip(names, values, strict=True))
        return np.array(
            [by_name[name] if name in by_name else by_name[f"{name}[0]"] for name in self.names]
        )


def _code4p(alpha: Any, up: Any, down: Any) -> Any:
    half, scaled, square = (up + down) / 2, (up - down) / 16, alpha * alpha
    inside = alpha * half + scaled * square * (15 - square * (10 - 3 * square))
    outside = alpha * np.where(alpha.real > 0, up, down)
    return np.where(np.abs(alpha.real) < 1, inside, outside)


def _code4(alpha: Any, hi: float, lo: float) -> Any:
    beyond = np.where(alpha.real > 0, _power(hi, alpha), _power(lo, -alpha))
    powers = _coefficients(hi, lo)
    inside = 1 + sum(c * alpha ** (k + 1) for k, c in enumerate(powers))
    return np.where(np.abs(alpha.real) < 1, inside, beyond)


def _power(base: float, exponent: Any) -> Any:
    return np.exp(exponent * np.log(base))


def _coefficients(hi: float, lo: float) -> Any:
    """Of the polynomial with value, slope and curvature of the exponentials at ±1."""
    k = np.arange(1, 7)
    rows = [
        np.ones(6),
        (-1.0) ** k,
        k,
        k * (-1.0) ** (k - 1),
        k * (k - 1),
        k * (k - 1) * (-1.0) ** k,
    ]
    log_hi, log_lo = np.log(hi), np.log(lo)
    right = [hi - 1, lo - 1, hi * log_hi, -lo * log_lo, hi * log_hi**2, lo * log_lo**2]
    return np.linalg.solve(np.array(rows, float), np.array(right))


def main(count: int) -> int:
    """Print the fits that end above the best of eight starts without saying so; 1 if any did."""
    from firstlight import histfactory as hf

    above, statuses = 0, Counter[str]()
    for seed in range(count):
        workspace = random_workspace(seed)
        judge, found = Likelihood(workspace), hf.fit(hf.load(workspace))
        height = float(judge.nll(judge.in_order(found.names, found.values)))
        best, at = judge.lowest(judge.starts(np.random.default_rng(seed), 8))
        # Where fewer than no events are expected there is no lower bound.
        possible = at is not None and judge.expected(at).min() > -1e-7
        statuses[found.status.name] += 1
        if possible and height > best + 1e-6 and found.status is not hf.Status.NOT_PROVEN_LOWEST:
            above += 1
            print(f"seed {seed}: {height - best:.3g} above, {found.status.name}", flush=True)
    print(f"{above} of {count} fits above; {dict(statuses)}")
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
