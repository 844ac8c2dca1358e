"""Newton steps and linear systems with a Hessian whose γ block is diagonal.

γ is eliminated first, so the factorised matrix has the size of α and φ only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from firstlight.histfactory.array_types import Array, Numpy
from firstlight.histfactory.closed_form import Blocks
from firstlight.histfactory.lazy_jax import jax, jnp

#: A pivot below this in a matrix with unit diagonal means that parameters are degenerate: their
#: uncertainties are thirty thousand times larger than with the other parameters fixed.
SINGULAR = 1e-9
#: Up to this size plain arithmetic is cheaper than a library call, especially on a GPU.
_TINY = 6


class _Reduced(NamedTuple):
    """The damped Hessian of the free parameters without γ, scaled to a unit diagonal."""

    matrix: Array
    scale: Array
    coupling: Array
    inverse_diagonal: Array  # of γ; zero where γ is not free


def _reduce(hessian: Blocks, free: Array, damping: Array, xp: Numpy) -> _Reduced:
    n_dense = hessian.dense.shape[0]
    free_dense, free_gamma = free[:n_dense], free[n_dense:] > 0
    gamma = hessian.diagonal + damping * xp.where(hessian.diagonal > 0, hessian.diagonal, 1.0)
    positive = gamma > 0
    # A free γ without curvature cannot be eliminated; NaN reports this, as Cholesky does.
    inverse = xp.where(free_gamma, xp.where(positive, 1 / gamma, xp.nan), 0.0)
    reduced = hessian.dense - (hessian.coupling.T * inverse) @ hessian.coupling
    # In units of the curvature before γ was eliminated: what γ can undo is then seen as flat.
    size = xp.maximum(xp.abs(xp.diagonal(hessian.dense)), xp.abs(xp.diagonal(reduced)))
    scale = free_dense / xp.sqrt(xp.where(size > 0, size, 1.0))
    matrix = scale[:, None] * reduced * scale
    matrix += xp.diag(xp.where(free_dense > 0, damping, 1.0))
    return _Reduced(matrix, scale, hessian.coupling * scale, inverse)


def newton_step(
    hessian: Blocks, gradient: Array, free: Array, damping: Array, xp: Numpy = jnp
) -> tuple[Array, Array]:
    """The damped Newton step and the EDM; NaN if the matrix is not positive definite."""
    n = hessian.dense.shape[0]
    matrix, scale, coupling, inverse = _reduce(hessian, free, damping, xp)
    gradient = gradient * free
    dense, gamma = gradient[:n], gradient[n:]
    right = -(scale * dense - (gamma * inverse) @ coupling)
    x, squares = (_eliminate if n <= _TINY else _by_cholesky)(matrix, right, xp)
    move = xp.concatenate([scale * x, -inverse * (gamma + coupling @ x)])
    return move, 0.5 * (squares + xp.sum(gamma * gamma * inverse))


def _eliminate(matrix: Array, right: Array, xp: Numpy) -> tuple[Array, Array]:
    """x with `matrix` x = `right`, and rightᵀ matrix⁻¹ right, by elimination without pivoting."""
    n = len(right)
    # Bordered by `right`, all rows are cleared: each step is one array expression, x and the form
    # end in the last column, and nothing is left to substitute.
    work = xp.pad(matrix, (0, 1)) + xp.pad(right[:, None], ((0, 1), (n, 0)))
    work += xp.pad(right[None], ((n, 0), (0, 1)))
    rows = np.arange(n + 1)[:, None]
    for k in range(n):
        pivot = xp.where(work[k, k] > SINGULAR, work[k, k], xp.nan)
        row = work[k] / pivot
        work = xp.where(rows == k, row, work - work[:, k : k + 1] * row)
    return work[:n, n], -work[n, n]


def _by_cholesky(matrix: Array, right: Array, xp: Numpy) -> tuple[Array, Array]:
    """Like `_eliminate`, by Cholesky; an extra row for `right` saves the forward substitution."""
    n = len(right)
    augmented = xp.concatenate([matrix, right[None]])
    last = xp.concatenate([xp.zeros(n), xp.full(1, 1e300)])
    factor = cholesky(xp.concatenate([augmented, last[:, None]], axis=1), xp)
    pivots = xp.diagonal(factor)[:n] ** 2
    half = xp.where(xp.all(pivots > SINGULAR), factor[n, :n], xp.nan)
    return _backward(factor[:n, :n], half, xp), xp.sum(half * half)


def cholesky(matrix: Array, xp: Numpy) -> Array:
    """The lower factor; NaN if the matrix is not positive definite."""
    if xp is not np:
        return jnp.linalg.cholesky(matrix, symmetrize_input=False)
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def _backward(factor: Array, half: Array, xp: Numpy) -> Array:
    """x with `factor`ᵀ x = `half`."""
    if xp is np:
        return np.linalg.solve(factor.T, half)
    return jax.lax.linalg.triangular_solve(
        factor, half[:, None], left_side=True, lower=True, transpose_a=True
    )[:, 0]


class Factors(NamedTuple):
    """A factorised Hessian of the free parameters."""

    cholesky: Array
    reduced: _Reduced
    free: Array


def factorise(hessian: Blocks, free: Array, xp: Numpy = jnp) -> Factors:
    """Factorise for `solve`; the factor is NaN if the matrix is not positive definite."""
    reduced = _reduce(hessian, free, 0.0, xp)
    return Factors(cholesky(reduced.matrix, xp), reduced, free)


def solve(factors: Factors, right: Array, xp: Numpy = jnp) -> Array:
    """x with H x = right on the free parameters and 0 on the others; linear in `right`."""
    _, scale, coupling, inverse = factors.reduced
    n = scale.shape[0]
    right = right * factors.free
    dense, gamma = right[:n], right[n:]
    x = scale * dense - (gamma * inverse) @ coupling
    if xp is np:
        x = np.linalg.solve(factors.cholesky.T, np.linalg.solve(factors.cholesky, x))
    else:
        x = jax.scipy.linalg.cho_solve((factors.cholesky, True), x)
    return xp.concatenate([scale * x, inverse * (gamma - coupling @ x)])


def multiply(hessian: Blocks, vector: Array, xp: Numpy = jnp) -> Array:
    """H x over all parameters."""
    n = hessian.dense.shape[0]
    dense, gamma = vector[:n], vector[n:]
    return xp.concatenate(
        [
            hessian.dense @ dense + gamma @ hessian.coupling,
            hessian.coupling @ dense + hessian.diagonal * gamma,
        ]
    )
