"""The lowest fit without samples below zero, by scipy's SLSQP with these samples as constraints."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_models import Likelihood
from scipy import optimize


def yields_of(likelihood: Likelihood, theta: Any) -> Any:
    """All yields in units of their nominal ones, or of their largest variation [..., yield]."""
    cells = []
    found = likelihood.of_samples(theta)
    for (_, nominal, modifiers), of_sample in zip(likelihood.samples, found, strict=True):
        shifts = [
            np.maximum(np.abs(m.first), np.abs(m.second)) for m in modifiers if m.kind == "histosys"
        ]
        size = np.where(nominal > 0, nominal, np.sum(shifts, axis=0) if shifts else 0.0)
        shape = (*np.shape(theta)[:-1], len(nominal))
        cells.append(np.broadcast_to(of_sample / np.where(size > 0, size, 1.0), shape))
    return np.concatenate(cells, axis=-1)


def lowest_positive(
    likelihood: Likelihood, starts: Any, fixed: dict[str, float] | None = None
) -> float:
    """The NLL of the best end of SLSQP; each start is also tried with every free factor at zero."""
    held = {likelihood.names.index(name): value for name, value in (fixed or {}).items()}
    best = np.inf
    for start in _with_zeros(likelihood, starts, held):
        end = _slsqp(likelihood, *start)
        best = min(best, end)
    return best


def _with_zeros(likelihood: Likelihood, starts: Any, held: dict[int, float]) -> Any:
    zero = [i for i in range(likelihood.n) if likelihood.kinds[i] == "free" and i not in held]
    for start in starts:
        theta = np.array(start, float)
        theta[list(held)] = list(held.values())
        yield theta, held
    for i in zero:
        for start in starts[:4]:
            theta = np.array(start, float)
            theta[list(held)] = list(held.values())
            theta[i] = 0.0
            yield theta, held | {i: 0.0}


def _slsqp(likelihood: Likelihood, theta: Any, held: dict[int, float]) -> float:
    free = np.array(
        [
            i
            for i in range(likelihood.n)
            if i not in held and likelihood.upper[i] > likelihood.lower[i]
        ]
    )

    def at(x: Any) -> Any:
        full = theta.copy()
        full[free] = x
        return full

    def height(x: Any) -> Any:
        return likelihood.value_and_gradient(at(x), free)

    def constraints(x: Any) -> Any:
        return yields_of(likelihood, at(x))

    def slopes(x: Any) -> Any:
        rows = np.repeat(at(x).astype(complex)[None], len(free), axis=0)
        rows[np.arange(len(free)), free] += 1e-20j
        return yields_of(likelihood, rows).imag.T / 1e-20

    lower = np.where(likelihood.kinds == "free", np.maximum(likelihood.lower, 0), likelihood.lower)
    end = optimize.minimize(
        height,
        np.clip(theta[free], lower[free], likelihood.upper[free]),
        jac=True,
        method="SLSQP",
        bounds=list(zip(lower[free], likelihood.upper[free], strict=True)),
        constraints=[{"type": "ineq", "fun": constraints, "jac": slopes}],
        options={"maxiter": 300, "ftol": 1e-13},
    )
    ok = np.all(constraints(end.x) > -1e-9)
    return float(end.fun) if ok else np.inf
