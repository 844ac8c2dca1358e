"""Claims about losses in JAX: values of rebuilt workspaces, derivatives of high-precision refits.

The oracle of values is a workspace rebuilt with the exchanged yields. That of derivatives is
`Exact`, the likelihood by its definition, in numbers of any precision: 50 digits of mpmath for
"complex-8p", the long doubles of NumPy for "thu-184p". Its fits start where the engine's ended and
continue until its own gradient vanishes. What they take from the engine (a start, and a Hessian for
the steps) affects how fast they converge, not where.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from firstlight import histfactory as hf
from firstlight import losses
from firstlight.histfactory import synthetic
from firstlight.histfactory.programs import compiler_options
from firstlight.losses import LossError

pytestmark = pytest.mark.slow

mp = mpmath.mp
Plain = dict[str, Any]
REFUSED = (LossError, hf.ModelError)


# --- exchanged templates are rebuilt workspaces ---------------------------------------------------

#: Yields by (channel, sample).
YIELDS = {
    ("CR", "background"): [100.0, 80.0],
    ("CR", "signal"): [1.0, 0.5],
    ("SR", "background"): [50.0, 52.0, 20.0],
    ("SR", "other"): [2.0, 1.0, 3.0],
    ("SR", "signal"): [9.0, 4.0, 6.0],
}
VARIED = {
    ("SR", "background", "jes", "lo"): [47.0, 53.5, 19.0],
    ("SR", "background", "jes", "hi"): [54.0, 51.0, 21.5],
    ("SR", "signal", "jes", "lo"): [8.5, 4.1, 6.3],
    ("SR", "signal", "jes", "hi"): [9.6, 3.8, 5.8],
    ("SR", "background", "xs", "lo"): 0.93,
    ("SR", "background", "xs", "hi"): 1.09,
}
ERRORS = [4.0, 5.0, 2.5]  # of the background in SR


def written(make: Any, changes: Mapping[Any, Any], variations: str = "absolute") -> Plain:
    """The workspace with other numbers; the relative widths of staterror stay, as in the losses."""
    yields, varied = dict(YIELDS), dict(VARIED)
    for key, values in changes.items():
        if isinstance(key, str):
            raise KeyError(key)
        if len(key) == 2:
            ratio = np.array(values) / np.array(YIELDS[key])
            for other in VARIED:
                if other[:2] == key and other[2] == "jes" and variations == "relative":
                    varied[other] = list(np.array(VARIED[other]) * ratio)
            yields[key] = list(values)
    varied |= {key: values for key, values in changes.items() if len(key) == 4}
    background = yields["SR", "background"]
    errors = [e * b / n for e, b, n in zip(ERRORS, background, YIELDS["SR", "background"])]  # noqa: B905

    def jes(sample: str) -> Plain:
        at = ("SR", sample, "jes")
        return make.histosys("jes", varied[*at, "lo"], varied[*at, "hi"])

    at = ("SR", "background", "xs")
    factor = make.modifier("normfactor", "mu")
    region = make.channel(
        "SR",
        make.sample("signal", yields["SR", "signal"], factor, jes("signal")),
        make.sample("other", yields["SR", "other"], factor),
        make.sample(
            "background",
            background,
            make.normsys("xs", varied[*at, "lo"], varied[*at, "hi"]),
            jes("background"),
            make.modifier("staterror", "stat", errors),
        ),
    )
    control = make.channel(
        "CR",
        make.sample("signal", yields["CR", "signal"], factor),
        make.sample("background", yields["CR", "background"], make.normsys("xs", 0.95, 1.06)),
    )
    return make.workspace([region, control], [[64.0, 60.0, 27.0], [103.0, 79.0]])


CHANGES: dict[str, tuple[dict[Any, Any], dict[Any, Any]]] = {
    # name: (argument of the loss, numbers in the workspace)
    "nothing": ({}, {}),
    "a sample in all its channels": (
        {"signal": [1.5, 0.2, 7.0, 8.0, 2.0]},
        {("CR", "signal"): [1.5, 0.2], ("SR", "signal"): [7.0, 8.0, 2.0]},
    ),
    "a sample in one channel": (
        {("SR", "signal"): [7.0, 8.0, 2.0]},
        {("SR", "signal"): [7.0, 8.0, 2.0]},
    ),
    "two signals and a background in two channels": (
        {
            "signal": [1.5, 0.2, 7.0, 8.0, 2.0],
            "other": [0.5, 0.0, 1.0],
            ("SR", "background"): [48.0, 55.0, 18.0],
            ("CR", "background"): [97.0, 84.0],
        },
        {
            ("CR", "signal"): [1.5, 0.2],
            ("SR", "signal"): [7.0, 8.0, 2.0],
            ("SR", "other"): [0.5, 0.0, 1.0],
            ("SR", "background"): [48.0, 55.0, 18.0],
            ("CR", "background"): [97.0, 84.0],
        },
    ),
    "a shape": (
        {("SR", "background", "jes", "hi"): [56.0, 50.0, 20.0]},
        {("SR", "background", "jes", "hi"): [56.0, 50.0, 20.0]},
    ),
    "both sides of a shape and of a rate with the yields": (
        {
            ("SR", "background", "xs", "lo"): 0.88,
            ("SR", "background", "xs", "hi"): 1.15,
            ("SR", "background", "jes", "lo"): [45.0, 56.0, 17.0],
            ("SR", "background", "jes", "hi"): [52.0, 53.0, 19.0],
            ("SR", "background"): [48.0, 55.0, 18.0],
        },
        {
            ("SR", "background", "xs", "lo"): 0.88,
            ("SR", "background", "xs", "hi"): 1.15,
            ("SR", "background", "jes", "lo"): [45.0, 56.0, 17.0],
            ("SR", "background", "jes", "hi"): [52.0, 53.0, 19.0],
            ("SR", "background"): [48.0, 55.0, 18.0],
        },
    ),
}


@pytest.fixture(scope="module")
def small(make: Any) -> hf.Model:
    return hf.load(written(make, {}))


@pytest.mark.parametrize("variations", ["absolute", "relative"])
@pytest.mark.parametrize("case", CHANGES)
def test_losses_of_exchanged_templates_are_those_of_a_rebuilt_workspace(
    make: Any, small: hf.Model, case: str, variations: str
) -> None:
    given, inside = CHANGES[case]
    given = {key: np.array(values) for key, values in given.items()}
    rebuilt = hf.load(written(make, inside, variations))
    assert rebuilt.about == small.about
    more = {"variations": variations}
    found = hf.discovery(rebuilt)
    assert losses.q0(small, given, **more) == pytest.approx(found.q0, rel=1e-11)
    assert losses.significance(small, given, **more) == pytest.approx(found.z0, rel=1e-11)
    assert found.q0 > 1
    at = {"mu": 0.7, "jes": 0.3, "xs": -0.4}
    assert losses.nll(small, given, **more) == pytest.approx(hf.nll(rebuilt), rel=1e-14)
    assert losses.nll(small, given, at, **more) == pytest.approx(hf.nll(rebuilt, at), rel=1e-14)
    for loss, function in ((losses.qmu_tilde, hf.qmu_tilde), (losses.qmu, hf.qmu)):
        q = function(rebuilt, 3.0)
        assert q > 0.5
        assert loss(small, given, 3.0, **more) == pytest.approx(q, rel=1e-11)
    root = losses.z_mu(small, given, 3.0, **more)
    assert root == pytest.approx(np.sqrt(hf.qmu_tilde(rebuilt, 3.0)), rel=1e-11)
    limit = losses.upper_limit(small, given, **more)
    assert limit == pytest.approx(hf.upper_limit(rebuilt).observed, rel=1e-9)


def test_limit_at_another_level_is_that_of_the_engine(small: hf.Model) -> None:
    lower = losses.upper_limit(small, {}, level=0.2)
    assert lower == pytest.approx(hf.upper_limit(small, level=0.2).observed, rel=1e-9)
    assert lower < losses.upper_limit(small, {})


def test_asimov_objective_is_the_statistic_of_the_expected_data(make: Any, small: hf.Model) -> None:
    given, inside = CHANGES["two signals and a background in two channels"]
    rebuilt = hf.load(written(make, inside))
    with_signal = hf.asimov(rebuilt, parameters={"mu": 1.0})
    without = hf.asimov(rebuilt, parameters={"mu": 0.0})
    found = hf.discovery(rebuilt, data=with_signal)
    assert losses.q0(small, given, "asimov") == pytest.approx(found.q0, rel=1e-11)
    assert losses.significance(small, given, "asimov") == pytest.approx(found.z0, rel=1e-11)
    for mu in (0.5, 2.0):
        q = hf.qmu_tilde(rebuilt, mu, data=without)
        assert losses.qmu_tilde(small, given, mu, "asimov") == pytest.approx(q, rel=1e-10)
        assert losses.z_mu(small, given, mu, "asimov") == pytest.approx(np.sqrt(q), rel=1e-10)
    limit = hf.upper_limit(rebuilt, data=without).observed
    assert losses.upper_limit(small, given, "asimov") == pytest.approx(limit, rel=1e-9)


def test_data_and_fixed_parameters_are_those_of_the_engine(make: Any, small: hf.Model) -> None:
    given, inside = CHANGES["a sample in one channel"]
    rebuilt = hf.load(written(make, inside))
    data, fixed = [110.0, 75.0, 70.0, 66.0, 22.0], {"xs": 0.5}
    found = hf.discovery(rebuilt, data=data, fixed=fixed)
    assert losses.q0(small, given, data=data, fixed=fixed) == pytest.approx(found.q0, rel=1e-11)
    q = hf.qmu_tilde(rebuilt, 3.0, data=data, fixed=["jes"])
    assert losses.qmu_tilde(small, given, 3.0, data=data, fixed=["jes"]) == pytest.approx(
        q, rel=1e-11
    )
    limit = hf.upper_limit(rebuilt, data=data, fixed=fixed).observed
    ours = losses.upper_limit(small, given, data=data, fixed=fixed)
    assert ours == pytest.approx(limit, rel=1e-9)
    assert losses.nll(small, given, data=data) == pytest.approx(hf.nll(rebuilt, data=data))


# --- the likelihood in any precision --------------------------------------------------------------


FACTORS = ("normfactor", "lumi", "shapefactor", "staterror")


class Exact:
    """Expected yields and likelihood of a workspace, by their definitions, in `number`s.

    Arrays of NumPy: of long doubles, or of objects, which are mpmath's. Codes 4 and 4p. What a
    cell is: one bin of one sample.
    """

    def __init__(self, workspace: Plain, names: tuple[str, ...], number: Callable[..., Any]):
        self.number, self.names = number, names
        self.exp, self.log = (
            (np.exp, np.log)
            if number is np.longdouble
            else (np.frompyfunc(mp.exp, 1, 1), np.frompyfunc(mp.log, 1, 1))
        )
        self.cells: dict[tuple[str, str], slice] = {}
        rows = self._collect_cells(workspace)
        place = {name: i for i, name in enumerate(names)}
        kinds = {m["type"] for _, s in rows for m in s["modifiers"]}
        used = {m["name"] for _, s in rows for m in s["modifiers"] if m["type"].endswith("sys")}
        self.alphas = [i for i, name in enumerate(names) if name in used]
        assert kinds <= set(FACTORS) | {"normsys", "histosys"}
        shape = (len(self.alphas), len(self.nominal))
        self.shaped = np.zeros(shape, bool)
        self.lo_data, self.hi_data = self.zeros(shape), self.zeros(shape)
        self.lo, self.hi = self.zeros(shape) + 1, self.zeros(shape) + 1
        #: Parameters that multiply a cell, each at most once.
        self.factors: list[tuple[int, Any]] = []
        self._collect_modifiers(rows, place)
        self._collect_constraints(workspace, rows, place)

    def array(self, values: Any) -> Any:
        flat = [self.number(float(v)) for v in np.ravel(values)]
        return np.array(flat, self.dtype).reshape(np.shape(values))

    def zeros(self, shape: Any) -> Any:
        return np.full(shape, self.number(0), self.dtype)

    @property
    def dtype(self) -> Any:
        return np.longdouble if self.number is np.longdouble else object

    def _collect_cells(self, workspace: Plain) -> list[tuple[str, Plain]]:
        channels = sorted(workspace["channels"], key=lambda c: c["name"])
        rows = [(c["name"], s) for c in channels for s in c["samples"]]
        begin, bins, first = 0, [], {}
        for channel, sample in rows:
            n = len(sample["data"])
            start = first.setdefault(channel, sum(first_n for _, first_n in first.values()))
            if not isinstance(start, tuple):
                start = first[channel] = (start, n)
            bins += range(start[0], start[0] + n)
            self.cells[channel, sample["name"]] = slice(begin, begin + n)
            begin += n
        self.bin_of_cell = np.array(bins)
        self.nominal = self.array(np.concatenate([s["data"] for _, s in rows]))
        observed = {o["name"]: o["data"] for o in workspace["observations"]}
        self.observed = self.array(np.concatenate([observed[c["name"]] for c in channels]))
        return rows

    def _collect_modifiers(self, rows: Any, place: dict[str, int]) -> None:
        for channel, sample in rows:
            cells = self.cells[channel, sample["name"]]
            for modifier in sample["modifiers"]:
                kind, name, data = modifier["type"], modifier["name"], modifier["data"]
                if kind == "histosys":
                    row = self.alphas.index(place[name])
                    self.shaped[row, cells] = True
                    self.lo_data[row, cells] = self.array(data["lo_data"])
                    self.hi_data[row, cells] = self.array(data["hi_data"])
                elif kind == "normsys":
                    row = self.alphas.index(place[name])
                    self.lo[row, cells] = self.number(data["lo"])
                    self.hi[row, cells] = self.number(data["hi"])
                elif kind in FACTORS[:2]:
                    self.factors.append((place[name], np.arange(cells.start, cells.stop)))
                else:
                    for b, cell in enumerate(range(cells.start, cells.stop)):
                        self.factors.append((place[f"{name}[{b}]"], np.array([cell])))

    def _collect_constraints(self, workspace: Plain, rows: Any, place: dict[str, int]) -> None:
        """Centres and 1/σ² of Gaussians; zero: unconstrained. All centres are where fits start."""
        centre, weight = self.zeros(len(self.names)) + 1, self.zeros(len(self.names))
        self.fixed: set[int] = set()
        for i in self.alphas:
            centre[i], weight[i] = self.number(0), self.number(1)
        sums: dict[str, Any] = {}
        for _, sample in rows:
            for modifier in sample["modifiers"]:
                if modifier["type"] == "staterror":
                    total, variance = sums.get(modifier["name"], (0, 0))
                    total = total + self.array(sample["data"])
                    variance = variance + self.array(modifier["data"]) ** 2
                    sums[modifier["name"]] = total, variance
        for name, (total, variance) in sums.items():
            for b in range(len(total)):
                weight[place[f"{name}[{b}]"]] = total[b] ** 2 / variance[b]
        for setting in workspace["measurements"][0]["config"]["parameters"]:
            i = place[setting["name"]]
            if "sigmas" in setting:
                weight[i] = 1 / self.number(setting["sigmas"][0]) ** 2
            if setting.get("fixed"):
                self.fixed.add(i)
        self.centre, self.weight = centre, weight

    # --- other templates ---

    def template(self, key: Any) -> tuple[str, Any]:
        """The array that holds a template, and its position there."""
        if isinstance(key, str):
            found = [c for (_, sample), c in sorted(self.cells.items()) if sample == key]
            return "nominal", np.concatenate([np.arange(c.start, c.stop) for c in found])
        cells = np.arange(self.cells[key[:2]].start, self.cells[key[:2]].stop)
        if len(key) == 2:
            return "nominal", cells
        row = self.alphas.index(self.names.index(key[2]))
        if self.shaped[row, cells].any():
            return f"{key[3]}_data", (row, cells)
        return key[3], (row, cells)

    def values(self, key: Any) -> Any:
        name, where = self.template(key)
        found = getattr(self, name)[where]
        return found[:1] if name in ("lo", "hi") else found

    def moved(self, key: Any, by: Any) -> Exact:
        """A copy with a template increased by an array (or by a number, for a rate)."""
        name, where = self.template(key)
        other = copy.copy(self)
        values = np.array(getattr(self, name))
        values[where] = values[where] + by
        setattr(other, name, values)
        other.__dict__.pop("_prepared", None)
        return other

    # --- the definitions ---

    @property
    def prepared(self) -> Any:
        """Coefficients of the interpolations, per parameter and cell."""
        if "_prepared" not in self.__dict__:
            zero = self.number(0)
            up = np.where(self.shaped, self.hi_data - self.nominal, zero)
            down = np.where(self.shaped, self.nominal - self.lo_data, zero)
            # Code 4 with α0 = 1: the polynomial that ROOT's FlexibleInterpVar has.
            log_hi, log_lo = self.log(self.hi), self.log(self.lo)
            up1, down1 = self.hi * log_hi, -self.lo * log_lo
            up2, down2 = up1 * log_hi, -down1 * log_lo
            s0, a0 = (self.hi + self.lo) / 2, (self.hi - self.lo) / 2
            s1, a1 = (up1 + down1) / 2, (up1 - down1) / 2
            s2, a2 = (up2 + down2) / 2, (up2 - down2) / 2
            polynomial = (
                (15 * a0 - 7 * s1 + a2) / 8,
                (-24 + 24 * s0 - 9 * a1 + s2) / 8,
                (-5 * a0 + 5 * s1 - a2) / 4,
                (12 - 12 * s0 + 7 * a1 - s2) / 4,
                (3 * a0 - 3 * s1 + a2) / 8,
                (-8 + 8 * s0 - 5 * a1 + s2) / 8,
            )
            self._prepared = up, down, log_hi, log_lo, polynomial
        return self._prepared

    def _shift(self, k: int, alpha: Any) -> tuple[Any, Any]:
        """Code 4p of one parameter in all cells, and its slope."""
        up, down = self.prepared[0][k], self.prepared[1][k]
        if abs(alpha) >= 1:
            side = up if alpha > 0 else down
            return alpha * side, side
        bend = (up - down) / 16
        square = alpha * alpha
        shift = (up + down) / 2 * alpha + bend * square * (15 - 10 * square + 3 * square**2)
        slope = (up + down) / 2 + bend * alpha * (30 - 40 * square + 18 * square**2)
        return shift, slope

    def _scale(self, k: int, alpha: Any) -> tuple[Any, Any]:
        """Code 4 of one parameter in all cells, and its slope."""
        log_hi, log_lo, polynomial = self.prepared[2:]
        if abs(alpha) >= 1:
            rate = log_hi[k] if alpha > 0 else -log_lo[k]
            scale = self.exp(alpha * rate)
            return scale, scale * rate
        scale, slope = polynomial[5][k], 6 * polynomial[5][k]
        for degree in range(5, 0, -1):
            scale = scale * alpha + polynomial[degree - 1][k]
            slope = slope * alpha + degree * polynomial[degree - 1][k]
        return 1 + alpha * scale, slope

    def _parts(self, theta: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Yields with shifts, their factor, the factor where a zero counts as one; slopes."""
        shifts = [self._shift(k, theta[i]) for k, i in enumerate(self.alphas)]
        scales = [self._scale(k, theta[i]) for k, i in enumerate(self.alphas)]
        added = self.nominal + sum((s for s, _ in shifts), start=self.zeros(len(self.nominal)))
        factor = self.zeros(len(self.nominal)) + 1
        for scale, _ in scales:
            factor = factor * scale
        zero = np.zeros(len(self.nominal), int)
        for i, cells in self.factors:
            if theta[i] == 0:
                zero[cells] += 1
            else:
                factor[cells] = factor[cells] * theta[i]
        assert zero.max() <= 1
        return added, np.where(zero, self.number(0), factor), factor, shifts, scales

    def expected(self, theta: Any, slopes: bool = False) -> tuple[Any, Any]:
        """Yields of all bins, and their derivatives [parameter, bin] if asked for."""
        added, factor, nonzero, shifts, scales = self._parts(theta)
        cells = added * factor
        if not slopes:
            return self._in_bins(cells), None
        by = self.zeros((len(self.names), len(self.nominal)))
        for k, i in enumerate(self.alphas):
            by[i] = shifts[k][1] * factor + cells * scales[k][1] / scales[k][0]
        for i, where in self.factors:
            if theta[i] == 0:
                by[i, where] = added[where] * nonzero[where]
            else:
                by[i, where] = cells[where] / theta[i]
        return self._in_bins(cells), self._in_bins(by)

    def _in_bins(self, cells: Any) -> Any:
        """Cells summed over the samples."""
        sums = self.zeros((*cells.shape[:-1], int(self.bin_of_cell.max()) + 1))
        for b in range(sums.shape[-1]):
            sums[..., b] = cells[..., self.bin_of_cell == b].sum(axis=-1)
        return sums

    def nll(self, theta: Any, data: Any) -> Any:
        """-ln L relative to the saturated model, so that constants cost no digits."""
        expected = self.expected(theta)[0]
        counted = np.where(data > 0, data, self.number(1))
        poisson = (
            expected
            - data
            - np.where(data > 0, data * self.log(expected / counted), self.number(0))
        )
        return poisson.sum() + (self.weight * (theta - self.centre) ** 2).sum() / 2

    def gradient(self, theta: Any, data: Any) -> Any:
        expected, by = self.expected(theta, slopes=True)
        return by @ (1 - data / expected) + self.weight * (theta - self.centre)

    def by_template(self, key: Any, theta: Any, data: Any) -> Any:
        """∂NLL/∂yields of a sample at fixed parameters: the envelope's slope."""
        _, where = self.template(key)
        factor = self._parts(theta)[1][where]
        pull = (1 - data / self.expected(theta)[0])[self.bin_of_cell[where]]
        # With absolute variations the yields are also in what the variations are measured from.
        nominal = self.zeros(len(where)) + 1
        for k, i in enumerate(self.alphas):
            alpha, used = theta[i], self.shaped[k, where]
            if abs(alpha) >= 1:
                own = -alpha if alpha > 0 else alpha
            else:
                own = -(15 * alpha**2 - 10 * alpha**4 + 3 * alpha**6) / 8
            nominal = nominal + np.where(used, own, self.number(0))
        return pull * nominal * factor


@dataclass
class Fits:
    """Minima of an `Exact` and of similar ones, starting from those of the engine."""

    model: hf.Model
    tolerance: float
    known: dict[str, Any] = field(default_factory=dict)

    def minimum(self, name: str, exact: Exact, found: Any, data: Any) -> Any:
        """The parameters at the minimum; `found` is the engine's fit of the kind `name`."""
        if name not in self.known:
            free = np.flatnonzero(np.asarray(found.is_free) > 0)
            # The engine's, in float64: it only affects the size of the steps.
            hessian = hf.hessian(self.model, found.values, np.array(data, np.float64))
            inverse = np.linalg.inv(hessian[np.ix_(free, free)])
            self.known[name] = exact.array(found.values), free, exact.array(inverse)
        theta, free, inverse = self.known[name]
        theta = theta.copy()
        for _ in range(60):
            step = inverse @ exact.gradient(theta, data)[free]
            theta[free] = theta[free] - step
            if max(abs(step)) < self.tolerance:
                return theta
        raise ArithmeticError(f"{name}: no minimum, still moving by {max(abs(step))}")


class Discovery:
    """q0 of an `Exact`, or of one with other templates: two fits, or one for the Asimov data."""

    def __init__(self, model: hf.Model, exact: Exact, objective: str = "observed") -> None:
        self.exact, self.objective = exact, objective
        # The error of the value is quadratic in that of the minimum.
        tolerance = 1e-22 if exact.dtype is object else 1e-12
        self.fits = Fits(model, tolerance)
        self.poi = model.index(model.poi)
        data = None
        if objective == "asimov":
            data = hf.asimov(model, parameters={model.poi: 1.0})
        self.found = hf.discovery(model, data)
        assert self.found.free.converged
        assert self.found.conditional.converged

    def data_of(self, exact: Exact) -> Any:
        if self.objective == "observed":
            return exact.observed
        return exact.expected(exact.centre)[0]

    def points(self, exact: Exact) -> tuple[Any, Any, Any]:
        """Data, the best fit and the best fit without signal."""
        data = self.data_of(exact)
        if self.objective == "observed":
            free = self.fits.minimum("free", exact, self.found.free, data)
        else:
            free = exact.centre
        return data, free, self.fits.minimum("null", exact, self.found.conditional, data)

    def q0(self, exact: Exact | None = None) -> Any:
        exact = self.exact if exact is None else exact
        data, free, null = self.points(exact)
        return 2 * (exact.nll(null, data) - exact.nll(free, data))

    def z0(self, exact: Exact | None = None) -> Any:
        root = mp.sqrt if self.exact.dtype is object else np.sqrt
        return root(self.q0(exact))


def differences(function: Callable[[Exact], Any], exact: Exact, key: Any) -> np.ndarray:
    """Central differences for all values of a template, with steps of 1e-13 at 50 digits."""
    h, slopes = mp.mpf("1e-13"), []
    size = len(exact.values(key))
    for i in range(size):
        unit = exact.zeros(size)
        unit[i] = h
        rate = h if exact.template(key)[0] in ("lo", "hi") else unit
        up, down = function(exact.moved(key, rate)), function(exact.moved(key, -rate))
        slopes.append(float((up - down) / (2 * h)))
    return np.array(slopes)


# --- complex-8p at 50 digits ----------------------------------------------------------------------

COMPLEX = synthetic.preset("complex-8p")
#: Templates that a network produces: yields of signal and background, and a shape. Two bins each.
KEYS = (
    "signal",
    ("SR", "background"),
    ("SR", "background", "alpha002", "lo"),
    ("SR", "background", "alpha002", "hi"),
)
RATES = (("SR", "signal", "alpha001", "lo"), ("SR", "signal", "alpha001", "hi"))


def complex_workspace(
    observed: Any = None, bounds: Mapping[str, Any] | None = None
) -> tuple[Plain, hf.Model]:
    """The preset, with other counts in SR and other bounds: numbers, so no other program."""
    workspace = json.loads(json.dumps(COMPLEX))
    if observed is not None:
        workspace["observations"][0]["data"] = [float(x) for x in observed]
    parameters = workspace["measurements"][0]["config"]["parameters"]
    for name, (low, high) in (bounds or {}).items():
        known = next((p for p in parameters if p["name"] == name), None)
        if known is None:
            known = {"name": name, "inits": [0.5 * (low + high)], "bounds": []}
            parameters.append(known)
        known["bounds"] = [[low, high]]
        known["inits"] = [min(max(known["inits"][0], low), high)]
    return workspace, hf.load(workspace)


def exact_of(workspace: Plain, model: hf.Model, number: Any = mp.mpf) -> Exact:
    return Exact(workspace, tuple(model.parameter_names), number)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A program compiled with the options of the library, in half of the time."""
    return jax.jit(function, compiler_options=compiler_options())


def gradient_of(
    function: Callable[..., Any],
    histograms: Mapping[Any, Any],
    wrap: Callable[..., Any] = compiled,
) -> tuple[float, dict[Any, np.ndarray]]:
    """Value and derivatives with respect to templates, in JAX, which cannot sort mixed keys."""
    keys = list(histograms)
    values = [histograms[key] for key in keys]

    def of_values(*given: Any) -> Any:
        return function(dict(zip(keys, given, strict=True)))

    value, slopes = wrap(jax.value_and_grad(of_values, tuple(range(len(keys)))))(*values)
    return float(value), {
        k: np.atleast_1d(np.asarray(s)) for k, s in zip(keys, slopes, strict=True)
    }


def templates_of(exact: Exact, keys: Any = KEYS) -> dict[Any, Any]:
    """The workspace's templates, as JAX arrays that stay float64 in a 32-bit program."""
    with jax.enable_x64(True):
        found = {}
        for key in keys:
            values = jnp.asarray(exact.values(key).astype(np.float64))
            found[key] = values[0] if key in RATES else values
        return found


def assert_slopes(
    ours: dict[Any, np.ndarray], function: Callable[[Exact], Any], exact: Exact, atol: float = 1e-11
) -> None:
    """The largest absolute error, over all values of all templates, is within `atol`."""
    with mpmath.workdps(50):
        for key, slopes in ours.items():
            assert slopes.dtype == np.float64
            wanted = differences(function, exact, key)
            np.testing.assert_allclose(slopes, wanted, rtol=0, atol=atol, err_msg=str(key))


@pytest.fixture(scope="module")
def eight() -> tuple[Plain, hf.Model]:
    """A workspace and model with an excess of about two standard deviations."""
    return complex_workspace(observed=[75.0, 34.0])


def test_exact_likelihood_is_that_of_the_engine(eight: tuple[Plain, hf.Model]) -> None:
    """That both compute the same function; the oracle of the engine's likelihood is pyhf."""
    workspace, model = eight
    exact = exact_of(workspace, model, np.longdouble)
    rng = np.random.default_rng(4)
    points = [model.init + rng.uniform(-1, 1, 8) * 0.3 for _ in range(3)]
    far = np.array(model.init)
    far[[model.index("alpha001"), model.index("alpha002")]] = 1.7, -1.4
    base = hf.nll(model) - float(exact.nll(exact.array(model.init), exact.observed))
    for point in (*points, far):
        ours = float(exact.nll(exact.array(point), exact.observed))
        assert hf.nll(model, point) - base == pytest.approx(ours, rel=1e-12)
        slopes = np.asarray(exact.gradient(exact.array(point), exact.observed), np.float64)
        movable = [i for i in range(8) if i not in exact.fixed]
        np.testing.assert_allclose(
            hf.gradient(model, point)[movable], slopes[movable], rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize(
    ("objective", "wide"),
    [("observed", True), ("asimov", True), ("observed", False)],
    ids=["observed, 64 bits", "asimov, 64 bits", "observed, 32 bits"],
)
def test_gradient_of_z0_with_respect_to_every_template_matches_50_digits_to_1e_11(
    eight: tuple[Plain, hf.Model], objective: str, wide: bool
) -> None:
    workspace, model = eight
    exact = exact_of(workspace, model)
    if wide and objective == "observed":
        value, ours = z0_and_gradient(model, exact)
    else:
        with jax.enable_x64(wide):
            value, ours = gradient_of(
                lambda h: losses.significance(model, h, objective), templates_of(exact)
            )
    with mpmath.workdps(50):
        oracle = Discovery(model, exact, objective)
        assert value == pytest.approx(float(oracle.z0()), rel=1e-13)
        assert value > 1.5
        assert_slopes(ours, oracle.z0, exact)


def test_gradient_of_zmu_with_respect_to_rates_matches_50_digits_to_1e_11(
    eight: tuple[Plain, hf.Model],
) -> None:
    """A rate of the signal alone does not change a fit with free μ, but one with fixed μ."""
    workspace, model = eight
    exact = exact_of(workspace, model)
    with jax.enable_x64(True):
        value, ours = gradient_of(lambda h: losses.z_mu(model, h, 4.0), templates_of(exact, RATES))
    free, held = hf.fit(model), hf.fit(model, fixed={"mu": 4.0})
    with mpmath.workdps(50):
        fits = Fits(model, 1e-22)

        def z_mu(changed: Exact) -> Any:
            data = changed.observed
            best = fits.minimum("free", changed, free, data)
            at_mu = fits.minimum("at mu", changed, held, data)
            return mp.sqrt(2 * (changed.nll(at_mu, data) - changed.nll(best, data)))

        assert value == pytest.approx(float(z_mu(exact)), rel=1e-12)
        assert all(np.abs(slope[0]) > 1e-3 for slope in ours.values())
        assert_slopes(ours, z_mu, exact)


def z0_and_gradient(model: hf.Model, exact: Exact) -> tuple[float, dict[Any, np.ndarray]]:
    """Without `jit`, so computed in NumPy; the other gradients here are those of programs."""
    with jax.enable_x64(True):
        return gradient_of(
            lambda h: losses.significance(model, h), templates_of(exact), wrap=lambda plain: plain
        )


@pytest.mark.parametrize("excess", [1e-1, 1e-2, 1e-3])
def test_gradient_matches_50_digits_where_the_excess_is_about_to_vanish(excess: float) -> None:
    """Counts that fit best at μ = `excess`."""
    model = hf.load(COMPLEX)
    counts = hf.asimov(model, parameters={"mu": excess})[2:4]
    workspace, model = complex_workspace(observed=counts)
    exact = exact_of(workspace, model)
    value, ours = z0_and_gradient(model, exact)
    assert 0 < value < 2.5 * excess
    with mpmath.workdps(50):
        oracle = Discovery(model, exact)
        # q0 is a difference: the smaller it is, the fewer digits Z0 = √q0 has.
        assert_slopes(ours, oracle.z0, exact, atol=1e-10)


def test_gradient_is_finite_where_data_are_as_expected_without_signal() -> None:
    """q0 = 0 is its minimum there, and rounding decides on which side of it a fit ends."""
    model = hf.load(COMPLEX)
    counts = hf.asimov(model, parameters={"mu": 0.0})[2:4]
    workspace, model = complex_workspace(observed=counts)
    value, ours = z0_and_gradient(model, exact_of(workspace, model))
    assert 0 <= value < 1e-6
    assert all(np.all(np.isfinite(slopes)) for slopes in ours.values())


@pytest.mark.parametrize("bounds", [(0.0, 10.0), (-5.0, 10.0)])
@pytest.mark.parametrize("deficit", [1e-6, 1e-3, 0.5])
def test_gradient_is_exactly_zero_without_an_excess(
    deficit: float, bounds: tuple[float, float]
) -> None:
    model = complex_workspace(bounds={"mu": (-5.0, 10.0)})[1]
    counts = hf.asimov(model, parameters={"mu": -deficit})[2:4]
    workspace, model = complex_workspace(observed=counts, bounds={"mu": bounds})
    value, ours = z0_and_gradient(model, exact_of(workspace, model))
    assert value == 0
    for key, slopes in ours.items():
        assert np.all(slopes == 0), key


@pytest.mark.parametrize("bounds", [{"lumi": (0.999, 1.001)}, {"alpha002": (-0.01, 0.01)}])
def test_gradient_matches_50_digits_with_parameters_at_bounds(bounds: dict[str, Any]) -> None:
    workspace, model = complex_workspace(observed=[75.0, 34.0], bounds=bounds)
    exact = exact_of(workspace, model)
    (name,) = bounds
    held = model.index(name)
    value, ours = z0_and_gradient(model, exact)
    with mpmath.workdps(50):
        oracle = Discovery(model, exact)
        assert any(fit.at_bound[held] for fit in (oracle.found.free, oracle.found.conditional))
        data, free, null = oracle.points(exact)
        for fit, theta in ((oracle.found.free, free), (oracle.found.conditional, null)):
            # At a minimum within the bounds, the gradient pushes the held parameter outwards.
            pushed = exact.gradient(theta, data)[held]
            if fit.at_bound[held]:
                assert pushed < 0 if fit.values[held] == bounds[name][1] else pushed > 0
        assert value == pytest.approx(float(oracle.z0()), rel=1e-12)
        assert_slopes(ours, oracle.z0, exact)


def test_second_derivatives_of_z0_match_50_digits(eight: tuple[Plain, hf.Model]) -> None:
    """The Hessian times a vector, by mixed differences of Z0 itself."""
    workspace, model = eight
    exact = exact_of(workspace, model)
    along = np.array([0.7, -1.3])
    with jax.enable_x64(True):
        signal = jnp.asarray(exact.values("signal").astype(np.float64))

        def z0(signal: Any) -> Any:
            return losses.significance(model, {"signal": signal})

        along_slope = compiled(jax.grad(lambda s: jnp.vdot(jax.grad(z0)(s), along)))
        ours = np.asarray(along_slope(signal))
    with mpmath.workdps(50):
        oracle = Discovery(model, exact)
        h, v = mp.mpf("1e-10"), exact.array(along)
        for i in range(2):
            unit = exact.zeros(2)
            unit[i] = h
            corners = [
                oracle.z0(exact.moved("signal", a * unit + b * h * v))
                for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))
            ]
            mixed = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * h * h)
            assert ours[i] == pytest.approx(float(mixed), rel=1e-9)


def test_gradient_of_qmu_with_its_asimov_data_is_the_difference_of_refits(
    eight: tuple[Plain, hf.Model],
) -> None:
    workspace, model = eight
    exact = exact_of(workspace, model)
    with jax.enable_x64(True):
        value, ours = gradient_of(
            lambda h: losses.z_mu(model, h, 1.5, "asimov"), templates_of(exact)
        )
    with mpmath.workdps(50):
        null = exact.centre.copy()
        null[model.index("mu")] = mp.mpf(0)
        data = hf.asimov(model, parameters={"mu": 0.0})
        found = hf.fit(model, data, fixed={"mu": 1.5})
        fits = Fits(model, 1e-22)

        def z_mu(changed: Exact) -> Any:
            data = changed.expected(null)[0]
            theta = fits.minimum("at mu", changed, found, data)
            return mp.sqrt(2 * (changed.nll(theta, data) - changed.nll(null, data)))

        assert value == pytest.approx(float(z_mu(exact)), rel=1e-12)
        assert_slopes(ours, z_mu, exact)


# --- thu-184p in long doubles ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def thu() -> tuple[hf.Model, Exact]:
    workspace = synthetic.preset("thu-184p")
    model = hf.load(workspace)
    return model, exact_of(workspace, model, np.longdouble)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="long doubles are doubles here")
@pytest.mark.parametrize("objective", ["observed", "asimov"])
def test_gradient_of_z0_of_a_large_model_matches_long_double_refits(
    thu: tuple[hf.Model, Exact], objective: str
) -> None:
    """Along a direction in all bins of two signals: Richardson differences of refits. By every bin:

    the slope that the envelope theorem gives at long-double minima.
    """
    model, exact = thu
    keys = ("signal1", "signal2")
    oracle = Discovery(model, exact, objective)
    with jax.enable_x64(True):
        given = {k: jnp.asarray(exact.values(k).astype(np.float64)) for k in keys}
        value, ours = gradient_of(lambda h: losses.significance(model, h, objective), given)
    z0 = oracle.z0()
    assert value == pytest.approx(float(z0), rel=1e-12)
    rng = np.random.default_rng(6)
    along = {k: exact.values(k) * exact.array(rng.uniform(-1, 1, len(ours[k]))) for k in keys}

    def central(step: float) -> Any:
        found = []
        for h in (np.longdouble(step), -np.longdouble(step)):
            changed = exact
            for key in keys:
                changed = changed.moved(key, h * along[key])
            found.append(oracle.z0(changed))
        return (found[0] - found[1]) / (2 * np.longdouble(step))

    near, far = (central(step) for step in (3e-4, 6e-4))
    slope = float((4 * near - far) / 3)
    mine = sum(ours[k] @ along[k].astype(np.float64) for k in keys)
    assert mine == pytest.approx(slope, abs=1e-11)
    data, free, null = oracle.points(exact)
    for key in keys:
        wanted = exact.by_template(key, null, data) - exact.by_template(key, free, data)
        if objective == "asimov":
            # The data move too: by ln(ν̂/ν̂̂) for every event that the signal brings.
            _, where = exact.template(key)
            events = np.log(data / exact.expected(null)[0])[exact.bin_of_cell[where]]
            wanted = wanted + events * exact._parts(exact.centre)[1][where]
        error = np.abs(ours[key] - np.asarray(wanted / z0, np.float64)).max()
        assert error < 1e-11


# --- warm starts ----------------------------------------------------------------------------------


def test_warm_start_gives_the_same_value_and_gradient_in_fewer_steps(
    eight: tuple[Plain, hf.Model],
) -> None:
    _, model = eight
    signal = np.array(COMPLEX["channels"][0]["samples"][0]["data"])
    nearby = signal * np.array([1.02, 0.99])
    for asked in (
        ("z0",),
        ("q0",),
        ("qmu", 3.0),
        ("qmu_tilde", 3.0),
        ("z_mu", 3.0, "asimov"),
        ("z0", None, "asimov"),
    ):
        _, state = losses.statistic_and_state(model, {"signal": signal}, *asked)
        assert state.converged
        cold, first = losses.statistic_and_state(model, {"signal": nearby}, *asked)
        warm, second = losses.statistic_and_state(model, {"signal": nearby}, *asked, state=state)
        assert second.converged
        assert warm == pytest.approx(cold, rel=1e-12)
        assert second.iterations < first.iterations
        assert np.all(np.asarray(second.status_code) == 0)


def test_state_passes_through_a_compiled_training_step_from_the_first_step_on(
    eight: tuple[Plain, hf.Model], compilations: Any
) -> None:
    _, model = eight
    signal = np.array(COMPLEX["channels"][0]["samples"][0]["data"])
    with jax.enable_x64(True):

        def loss(signal: Any, state: Any) -> Any:
            return losses.statistic_and_state(model, {"signal": signal}, state=state)

        step = compiled(jax.value_and_grad(loss, has_aux=True))
        nobody = losses.initial_state(model)
        (value, state), _ = step(jnp.asarray(signal), nobody)
        expected = losses.significance(model, {"signal": signal})
        assert float(value) == pytest.approx(expected, rel=1e-12)
        compilations.reset()
        for scale in (1.0, 1.03, 0.95, 1.2):
            nearby = jax.device_put(signal * scale)
            (warm, state), slope = step(nearby, state)
            (cold, first), expected = step(nearby, nobody)
            assert bool(state.converged)
            assert bool(first.converged)
            assert float(warm) == pytest.approx(float(cold), rel=1e-12)
            np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-10)
            assert int(state.iterations) < int(first.iterations)
        assert compilations.count == 0


def test_state_reports_muhat_and_failed_fits(make: Any) -> None:
    signal = make.sample("signal", [5.0, 3.0], make.modifier("normfactor", "mu"))
    background = make.sample("background", [20.0, 10.0])
    model = hf.load(make.workspace([make.channel("SR", signal, background)], [[25.0, 13.0]]))
    _, state = losses.statistic_and_state(model, {}, "q0")
    assert state.muhat == pytest.approx(1.0, rel=1e-12)  # n = s + b in both bins
    # Events where nothing is expected without signal: their likelihood is zero.
    empty = {"background": np.array([20.0, 0.0])}
    _, broken = losses.statistic_and_state(model, empty, "q0")
    assert not broken.converged
    assert np.asarray(broken.status_code).tolist() == [0, int(hf.Status.IMPOSSIBLE_START)]
    # Fits do not start from a failed one.
    again, state = losses.statistic_and_state(model, {}, "q0", state=broken)
    assert state.converged
    assert again == pytest.approx(losses.q0(model, {}), rel=1e-12)


# --- transformations ------------------------------------------------------------------------------


def test_vmap_over_histograms_equals_a_loop_in_a_32_bit_program(
    eight: tuple[Plain, hf.Model],
) -> None:
    _, model = eight
    many = np.array([[4.5, 12.0], [8.0, 3.0], [1.0, 1.0]], np.float32)

    def z0(signal: Any) -> Any:
        return losses.significance(model, {"signal": signal})

    together, slopes = compiled(jax.vmap(jax.value_and_grad(z0)))(many)
    assert together.dtype == jnp.float64
    assert slopes.dtype == jnp.float32
    for row, value in zip(many.astype(np.float64), together, strict=True):
        assert float(value) == pytest.approx(z0(row), rel=1e-12)


def test_scores_become_significance_with_an_exact_gradient(eight: tuple[Plain, hf.Model]) -> None:
    """End to end: histogram and statistic are one differentiable function of the scores."""
    _, model = eight
    rng = np.random.default_rng(9)
    scores, weights = rng.uniform(0.05, 0.95, 60), rng.uniform(0.1, 0.5, 60)
    along = rng.normal(size=60)

    def z0(scores: Any) -> Any:
        signal = losses.soft_histogram(scores, [0.0, 0.5, 1.0], weights, 0.2)
        return losses.significance(model, {"signal": signal})

    program = compiled(jax.value_and_grad(z0))

    def at(shift: float) -> tuple[float, Any]:
        value, slopes = program(jnp.asarray(scores + shift * along))
        return float(value), np.asarray(slopes)

    with jax.enable_x64(True):
        slope = at(0.0)[1] @ along
        near, far = ((at(h)[0] - at(-h)[0]) / (2 * h) for h in (1e-3, 2e-3))
    assert slope == pytest.approx((4 * near - far) / 3, rel=1e-8)


# --- bad input ------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[Any, Any], str]] = {
    "too few bins": ({"signal": [1.0, 2.0]}, r"'signal' has shape \(2,\).*5 bins"),
    "too many bins": ({("SR", "signal"): [1.0] * 5}, r"shape \(5,\).*3 bins"),
    "a row too much": ({("SR", "signal"): [[1.0, 2.0, 3.0]]}, r"shape \(1, 3\)"),
    "yields for a rate": ({("SR", "background", "xs", "hi"): [1.0, 1.0]}, "1 number"),
    "no number": ({("SR", "signal"): [1.0, np.nan, 2.0]}, "histograms.*'signal' has NaN"),
    "infinity": ({("SR", "signal"): [1.0, np.inf, 2.0]}, "histograms.*'signal' has NaN or inf"),
    "negative yields": ({("SR", "signal"): [1.0, -0.1, 2.0]}, "histograms.*negative"),
    "an unknown sample": ({"signl": [1.0]}, "no sample 'signl'.*background, other, signal"),
    "an unknown channel": ({("VR", "signal"): [1.0]}, "no channel 'VR'.*CR, SR"),
    "a sample elsewhere": ({("CR", "other"): [1.0]}, "'CR' has no sample 'other'.*background"),
    "an unknown modifier": ({("SR", "other", "jes", "hi"): [1.0]}, "no normsys or histosys 'jes'"),
    "an unknown side": ({("SR", "signal", "jes", "up"): [1.0]}, "'hi' or 'lo', not 'up'"),
    "a name that names nothing": ({("SR", "signal", "jes"): [1.0]}, "is not a template"),
    "half precision": ({("SR", "signal"): np.ones(3, np.float16)}, "histograms.*float16"),
    "bfloat16": ({("SR", "signal"): jnp.ones(3, jnp.bfloat16)}, "histograms.*bfloat16"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_histograms_are_rejected_by_every_loss_with_their_name(
    small: hf.Model, case: str
) -> None:
    histograms, message = BAD[case]
    for function in (
        losses.significance,
        losses.q0,
        losses.upper_limit,
        losses.nll,
        lambda m, h: losses.qmu(m, h, 1.0),
        lambda m, h: losses.z_mu(m, h, 1.0),
    ):
        with pytest.raises(REFUSED, match=message):
            function(small, histograms)


def test_bad_options_are_rejected_with_their_name(small: hf.Model) -> None:
    given = {("SR", "signal"): np.array([7.0, 8.0, 2.0])}
    with pytest.raises(LossError, match="objective is 'best', not one of 'observed', 'asimov'"):
        losses.significance(small, given, "best")
    with pytest.raises(LossError, match=r'data are given, but objective="asimov"'):
        losses.q0(small, given, "asimov", data=[1.0] * 5)
    with pytest.raises(LossError, match="histograms must be a mapping"):
        losses.q0(small, np.array([7.0, 8.0, 2.0]))
    with pytest.raises(REFUSED, match="variations is 'both', not one of absolute, relative"):
        losses.q0(small, given, variations="both")
    with pytest.raises(LossError, match="statistic is 'best', not one of 'z0', 'q0', 'qmu'"):
        losses.statistic_and_state(small, given, "best")
    with pytest.raises(LossError, match="'qmu' tests a signal strength: give mu"):
        losses.statistic_and_state(small, given, "qmu")
    with pytest.raises(LossError, match="'z0' tests no signal strength: drop mu"):
        losses.statistic_and_state(small, given, "z0", 1.0)
    with pytest.raises(REFUSED, match="mu is nan"):
        losses.qmu(small, given, np.nan)
    with pytest.raises(REFUSED, match="data have shape"):
        losses.q0(small, given, data=[1.0, 2.0])


def test_wrong_sizes_are_rejected_while_tracing_too(small: hf.Model) -> None:
    with pytest.raises(REFUSED, match=r"'signal' has shape \(4,\).*3 bins"):
        jax.grad(lambda s: losses.q0(small, {("SR", "signal"): s}))(jnp.ones(4))
