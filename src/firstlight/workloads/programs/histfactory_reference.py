"""The likelihood of a HistFactory workspace in plain NumPy, as a reference: slow, short, reliable.

Written from the definitions (arXiv:1007.1727; CERN-OPEN-2012-016; codes 4 and 4p as in pyhf 0.7.6),
without any code of the engine under test: dense arrays over all (parameter, cell) pairs, where a
cell is one bin of one sample, derivatives of the interpolation by complex step, and Fisher scoring
for the minimum. It supports what the synthetic workspaces use and rejects the rest: no shapesys, no
staterror of zero.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Workspace = Mapping[str, Any]

#: Where a search stops: the estimated distance to the minimum, in units of -ln L.
EDM_GOAL = 1e-14
ITERATION_LIMIT = 500
_COMPLEX_STEP = 1e-30  # nothing is subtracted, so it may be arbitrarily small
_ONE_VALUE = ("normsys", "histosys", "normfactor", "lumi")


class Likelihood:
    """-ln L of a workspace as a function of parameters in the order `names`, and of main counts.

    The counts are those of all channels, concatenated in order of their names.
    """

    def __init__(self, workspace: Workspace, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.channels = sorted(channel["name"] for channel in workspace["channels"])
        observed = {entry["name"]: entry["data"] for entry in workspace["observations"]}
        self.observed = np.concatenate([np.array(observed[name]) for name in self.channels])
        self._place = {name: index for index, name in enumerate(names)}
        self._collect_cells(workspace)
        self._collect_modifiers(workspace)
        self._collect_constraints(workspace)
        self._hessians: dict[tuple[tuple[str, float], ...], tuple[Array, Array, Array]] = {}

    # --- the workspace ---

    def _samples(self, workspace: Workspace) -> Iterator[tuple[str, Any, slice]]:
        """(channel, sample, its cells), channels sorted."""
        begin = 0
        for channel in sorted(workspace["channels"], key=lambda c: str(c["name"])):
            for sample in channel["samples"]:
                end = begin + len(sample["data"])
                yield channel["name"], sample, slice(begin, end)
                begin = end

    def _collect_cells(self, workspace: Workspace) -> None:
        rows = list(self._samples(workspace))
        self._nominal = np.concatenate([np.array(sample["data"]) for _, sample, _ in rows])
        self._cells = {(name, sample["name"]): cells for name, sample, cells in rows}
        bins = {name: len(sample["data"]) for name, sample, _ in rows}
        starts = dict(zip(bins, np.cumsum([0, *bins.values()]), strict=False))
        self._bin_of_cell = np.concatenate(
            [starts[name] + np.arange(len(sample["data"])) for name, sample, _ in rows]
        )

    def _collect_modifiers(self, workspace: Workspace) -> None:
        shape = (len(self.names), len(self._nominal))
        up, down = np.zeros(shape), np.zeros(shape)
        hi, lo = np.ones(shape), np.ones(shape)
        self._scales = np.zeros(shape, dtype=bool)
        self._staterrors: dict[str, list[tuple[Array, Array]]] = {}
        for _, sample, cells in self._samples(workspace):
            nominal = np.array(sample["data"])
            for modifier in sample["modifiers"]:
                kind, name, data = modifier["type"], modifier["name"], modifier["data"]
                rows = self._rows(kind, name, len(nominal))
                if kind == "histosys":
                    up[rows, cells] = np.array(data["hi_data"]) - nominal
                    down[rows, cells] = nominal - np.array(data["lo_data"])
                elif kind == "normsys":
                    hi[rows, cells], lo[rows, cells] = data["hi"], data["lo"]
                elif kind in ("normfactor", "lumi"):
                    self._scales[rows, cells] = True
                elif kind in ("shapefactor", "staterror"):  # one parameter per bin
                    self._scales[rows, np.arange(cells.start, cells.stop)] = True
                else:
                    raise NotImplementedError(f"the reference does not support {kind}")
                if kind == "staterror":
                    self._staterrors.setdefault(name, []).append((nominal, np.array(data)))
        self._alphas = np.flatnonzero(((up != 0) | (down != 0) | (hi != 1) | (lo != 1)).any(1))
        alphas = self._alphas
        self._up, self._down, self._hi, self._lo = up[alphas], down[alphas], hi[alphas], lo[alphas]
        self._polynomial = _code4_polynomial(self._hi, self._lo)

    def _rows(self, kind: str, name: str, bins: int) -> int | list[int]:
        if kind in _ONE_VALUE:
            return self._place[name]
        return [self._place[f"{name}[{index}]"] for index in range(bins)]

    def _collect_constraints(self, workspace: Workspace) -> None:
        """Centre, width (infinite: unconstrained), initial value and bounds of every parameter."""
        size = len(self.names)
        self._centre, self._width = np.ones(size), np.full(size, math.inf)
        self._initial, self._fixed = np.ones(size), np.zeros(size, dtype=bool)
        self._lower, self._upper = np.zeros(size), np.full(size, 10.0)
        alphas = self._alphas
        self._centre[alphas], self._width[alphas], self._initial[alphas] = 0.0, 1.0, 0.0
        self._lower[alphas], self._upper[alphas] = -5.0, 5.0
        for name, parts in self._staterrors.items():
            variance = np.sum([errors**2 for _, errors in parts], axis=0)
            width = np.sqrt(variance) / np.sum([nominal for nominal, _ in parts], axis=0)
            if not np.all(width > 0):
                raise NotImplementedError("the reference does not support a staterror of zero")
            self._width[self._rows("staterror", name, len(width))] = width
        for setting in workspace["measurements"][0]["config"]["parameters"]:
            index = self._place[setting["name"]]
            (self._initial[index],) = setting["inits"]
            ((self._lower[index], self._upper[index]),) = setting["bounds"]
            self._fixed[index] = setting.get("fixed", False)
            if "sigmas" in setting:
                (self._centre[index],) = setting["auxdata"]
                (self._width[index],) = setting["sigmas"]

    # --- other yields ---

    def cells_of(self, samples: Sequence[str]) -> Array:
        """Cells of samples: sample by sample, each in its sorted channels."""
        found = [
            np.arange(cells.start, cells.stop)
            for sample in samples
            for (_, name), cells in self._cells.items()
            if name == sample
        ]
        return np.concatenate(found)

    def with_yields(self, cells: Array, values: Array) -> Likelihood:
        """The same with other nominal yields. Varied templates and widths stay as they are."""
        other = copy.copy(self)
        copies = (self._nominal.copy(), self._up.copy(), self._down.copy())
        other._nominal, other._up, other._down = copies
        change = values - self._nominal[cells]
        other._nominal[cells] = values
        varied = (self._up[:, cells] != 0) | (self._down[:, cells] != 0)
        other._up[:, cells] -= np.where(varied, change, 0.0)
        other._down[:, cells] += np.where(varied, change, 0.0)
        return other

    def response(self, theta: Array, cells: Array) -> Array:
        """∂(expected counts)/∂(yields), [yield, bin]: differences, exact because it is linear."""
        base, at = self.expected(theta), self._nominal[cells]
        rows = []
        for i in range(len(cells)):
            moved = at.copy()
            moved[i] += 1.0
            rows.append(self.with_yields(cells, moved).expected(theta) - base)
        return np.array(rows)

    # --- the likelihood ---

    @property
    def initial(self) -> Array:
        """Initial values of the parameters."""
        return self._initial.copy()

    def expected(self, theta: Array) -> Array:
        """Expected counts of every bin."""
        return self._expected(theta)[0]

    def nll(self, theta: Array, counts: Array) -> float:
        """-ln L with all constants; infinite if a bin expects zero or less."""
        expected = self._expected(theta)[0]
        if not np.all(expected > 0):
            return math.inf
        constants = [math.lgamma(count + 1.0) for count in counts]
        poisson = math.fsum(expected - counts * np.log(expected)) + math.fsum(constants)
        held = np.isfinite(self._width)
        pull = (theta[held] - self._centre[held]) / self._width[held]
        normalisation = np.log(self._width[held]) + 0.5 * math.log(2.0 * math.pi)
        return poisson + math.fsum(0.5 * pull**2 + normalisation)

    def gradient(self, theta: Array, counts: Array) -> Array:
        """Gradient of -ln L with respect to the parameters."""
        expected, jacobian = self._expected(theta)
        gradient: Array = jacobian @ (1.0 - counts / expected)
        gradient += (theta - self._centre) / self._width**2
        return gradient

    def minimum(self, counts: Array, held: Mapping[str, float] | None = None) -> float:
        """-ln L at its minimum within the bounds, with the parameters in `held` fixed."""
        return self.minimum_at(counts, held)[0]

    def exact_minimum(
        self, counts: Array, held: Mapping[str, float] | None = None
    ) -> tuple[float, Array]:
        """The same with its position, to rounding: Newton's method with one good Hessian.

        Scoring comes close but is slow at the end, where expected and observed information differ.
        A Hessian and its position can be reused for other yields that do not differ too much.
        """
        key = tuple(sorted((held or {}).items()))
        if key in self._hessians:
            theta, free, hessian = self._hessians[key]
            found = self._settled(theta.copy(), free, hessian, counts)
            if found is not None:
                return self.nll(found, counts), found
        _, theta = self.minimum_at(counts, held, goal=1e-8)
        free = ~self._fixed & (theta > self._lower) & (theta < self._upper)
        free[[self._place[name] for name in held or {}]] = False
        hessian = self._hessian(theta, free, counts)
        found = self._settled(theta, free, hessian, counts)
        if found is None:
            raise ValueError("Newton's method does not converge to the minimum")
        self._hessians[key] = found.copy(), free, hessian
        return self.nll(found, counts), found

    def _hessian(self, theta: Array, free: Array, counts: Array) -> Array:
        """By central differences of the gradient: accurate to about eight digits."""
        rows, width = np.flatnonzero(free), 1e-4
        hessian = np.empty((len(rows), len(rows)))
        for i, row in enumerate(rows):
            up, down = theta.copy(), theta.copy()
            up[row] += width
            down[row] -= width
            difference = self.gradient(up, counts) - self.gradient(down, counts)
            hessian[i] = difference[free] / (2 * width)
        return hessian

    def _settled(self, theta: Array, free: Array, hessian: Array, counts: Array) -> Array | None:
        """Where steps with this Hessian end; None if they do not end, or end out of bounds."""
        size = math.inf
        for _ in range(60):
            slope = self.gradient(theta, counts)[free]
            last, size = size, float(np.abs(slope).max())
            if size < 1e-9 and size >= 0.5 * last:
                inside = (theta > self._lower) & (theta < self._upper)
                return theta if inside[free].all() else None
            theta[free] -= np.linalg.solve(hessian, slope)
        return None

    def minimum_at(
        self, counts: Array, held: Mapping[str, float] | None = None, goal: float = EDM_GOAL
    ) -> tuple[float, Array]:
        """The minimum and its position, to within √goal of a standard deviation."""
        theta, movable = self._initial.copy(), ~self._fixed
        for name, value in (held or {}).items():
            theta[self._place[name]], movable[self._place[name]] = value, False
        value = self.nll(theta, counts)
        for _ in range(ITERATION_LIMIT):
            step, edm = self._scoring_step(theta, counts, movable)
            if edm < goal:
                return value, theta
            theta, value = self._descend(theta, value, step, counts)
        raise ValueError(f"no minimum in {ITERATION_LIMIT} steps: EDM {edm:.3g}")

    def _descend(
        self, theta: Array, value: float, step: Array, counts: Array
    ) -> tuple[Array, float]:
        """The first of ever smaller steps that does not raise -ln L, apart from rounding."""
        length = 1.0
        while length > 1e-12:
            trial = np.where(
                step == 0, theta, np.clip(theta + length * step, self._lower, self._upper)
            )
            lower = self.nll(trial, counts)
            if lower <= value + 1e-13 * abs(value):
                return trial, lower
            length /= 2.0
        raise ValueError("no step lowers -ln L")

    def _scoring_step(self, theta: Array, counts: Array, movable: Array) -> tuple[Array, float]:
        """The Newton step with expected instead of observed information, and its EDM.

        A parameter at a bound stays there while the gradient pushes it out.
        """
        expected, jacobian = self._expected(theta)
        gradient = self.gradient(theta, counts)
        free = movable & ~((theta <= self._lower) & (gradient > 0))
        free &= ~((theta >= self._upper) & (gradient < 0))
        jacobian, gradient = jacobian[free], gradient[free]
        information = (jacobian / expected) @ jacobian.T + np.diag(self._width[free] ** -2.0)
        step = np.zeros_like(theta)
        step[free] = -np.linalg.solve(information, gradient)
        return step, float(-0.5 * gradient @ step[free])

    def _expected(self, theta: Array) -> tuple[Array, Array]:
        """Expected counts of every bin, and their derivatives [parameter, bin].

        A cell is (nominal + shifts) * scales, and each shift and scale depends on one parameter.
        """
        alpha = theta[self._alphas][:, None]
        shifts, shift_slopes = _with_slope(self._code4p, alpha)
        scales, scale_slopes = _with_slope(self._code4, alpha)
        shifted = self._nominal + shifts.sum(0)
        factors = np.where(self._scales, theta[:, None], 1.0)
        cells = shifted * scales.prod(0) * factors.prod(0)
        slopes = np.zeros_like(factors)
        np.divide(cells, factors, out=slopes, where=self._scales & (factors != 0))
        # 0 / 0 is not a derivative.
        for index in np.flatnonzero(self._scales.any(1) & (theta == 0)):
            others = np.delete(factors, index, axis=0).prod(0)
            slopes[index] = self._scales[index] * shifted * scales.prod(0) * others
        slopes[self._alphas] = scales.prod(0) * factors.prod(0) * shift_slopes
        slopes[self._alphas] += cells * scale_slopes / scales
        return self._in_bins(cells), self._in_bins(slopes)

    def _in_bins(self, cells: Array) -> Array:
        """Cells summed over the samples."""
        sums = np.zeros((*cells.shape[:-1], len(self.observed)))
        np.add.at(sums.T, self._bin_of_cell, cells.T)
        return sums

    def _code4p(self, alpha: Array) -> Array:
        """Additive: linear outside |α| < 1, a polynomial of degree six inside."""
        slope, bend = (self._up + self._down) / 2.0, (self._up - self._down) / 16.0
        inside = slope * alpha + bend * (15.0 * alpha**2 - 10.0 * alpha**4 + 3.0 * alpha**6)
        outside = np.where(alpha.real > 0, self._up, self._down) * alpha
        return np.where(np.abs(alpha.real) < 1.0, inside, outside)

    def _code4(self, alpha: Array) -> Array:
        """Multiplicative: exponential outside |α| < 1, a polynomial of degree six inside."""
        inside: Array = 1.0 + sum(
            a * alpha**degree for degree, a in enumerate(self._polynomial, start=1)
        )
        base, sign = np.where(alpha.real > 0, self._hi, self._lo), np.sign(alpha.real)
        return np.where(np.abs(alpha.real) < 1.0, inside, np.exp(sign * alpha * np.log(base)))


def _with_slope(function: Callable[[Array], Array], alpha: Array) -> tuple[Array, Array]:
    """Values and derivatives: Im f(x + ih) / h, exact to rounding."""
    values = function(alpha + 1j * _COMPLEX_STEP)
    return values.real, values.imag / _COMPLEX_STEP


def _code4_polynomial(hi: Array, lo: Array) -> Array:
    """Coefficients 1 to 6 that match hi^α and lo^-α and two derivatives at α = ±1."""
    degrees = np.arange(1, 7)
    signs = np.array([1.0, -1.0])[:, None]
    conditions = np.concatenate(
        [
            signs**degrees,
            degrees * signs ** (degrees - 1),
            degrees * (degrees - 1) * signs**degrees,
        ]
    )
    log_hi, log_lo = np.log(hi), np.log(lo)
    wanted = np.stack(
        [hi - 1.0, lo - 1.0, hi * log_hi, -lo * log_lo, hi * log_hi**2, lo * log_lo**2]
    )
    solved: Array = np.linalg.solve(conditions, wanted.reshape(6, -1))
    return solved.reshape(wanted.shape)
