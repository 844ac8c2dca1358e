"""Linear algebra primitives: matrix products, factorisations, triangular systems."""

from __future__ import annotations

import math

import numpy as np

from firstlight.warmstart.tiers.numpy_rules import Array, Avals, Compute, NoRuleError, Params, Rule


def _dot_general(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = inputs
    left_free = [d for d in range(left.ndim) if d not in (*left_sum, *left_batch)]
    right_free = [d for d in range(right.ndim) if d not in (*right_sum, *right_batch)]
    left_order = (*left_batch, *left_free, *left_sum)
    right_order = (*right_batch, *right_sum, *right_free)
    batch = [left.shape[d] for d in left_batch]
    rows = math.prod(left.shape[d] for d in left_free)
    columns = math.prod(right.shape[d] for d in right_free)
    inner = math.prod(left.shape[d] for d in left_sum)
    shape, kind = outputs[0].shape, outputs[0].dtype
    # Products of small floats are summed as float32, as XLA does on a CPU.
    wide = np.dtype(np.float32) if kind.kind == "V" or kind == np.float16 else kind

    def dot(a: Array, b: Array) -> Array:
        a = np.asarray(a).transpose(left_order).reshape((*batch, rows, inner))
        b = np.asarray(b).transpose(right_order).reshape((*batch, inner, columns))
        found: Array = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
        return found.astype(kind, copy=False).reshape(shape)

    return dot


def _cholesky(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    def lower(matrix: Array) -> Array:
        try:
            return np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            if matrix.ndim == 2:
                return np.full_like(matrix, np.nan)
            return np.stack([lower(one) for one in matrix])

    return lower


def _triangular_solve(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    """By substitution; zeros on the diagonal give what LAPACK gives."""
    if params["conjugate_a"]:
        raise NoRuleError
    from_left, transposed = params["left_side"], params["transpose_a"]
    is_lower, is_unit = params["lower"], params["unit_diagonal"]
    # x a = b is the same as aᵀ xᵀ = bᵀ.
    turn = transposed != (not from_left)
    size = inputs[0].shape[-1]
    goes_down = is_lower != turn

    def solve(a: Array, b: Array) -> Array:
        a = np.swapaxes(a, -1, -2) if turn else a
        x = np.array(b if from_left else np.swapaxes(b, -1, -2))
        for i in range(size) if goes_down else range(size - 1, -1, -1):
            if not is_unit:
                x[..., i, :] /= a[..., i, i, None]
            rest = slice(i + 1, size) if goes_down else slice(0, i)
            x[..., rest, :] -= a[..., rest, i, None] * x[..., i, None, :]
        return x if from_left else np.swapaxes(x, -1, -2)

    return solve


def _lu(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    if inputs[0].ndim != 2 or inputs[0].shape[0] != inputs[0].shape[1]:
        raise NoRuleError

    def factors(matrix: Array) -> tuple[Array, Array, Array]:
        a, size = np.array(matrix), len(matrix)
        pivots, order = np.arange(size, dtype=np.int32), np.arange(size, dtype=np.int32)
        for i in range(size):
            j = i + int(np.argmax(np.abs(a[i:, i])))
            pivots[i] = j
            if j != i:
                a[[i, j]], order[[i, j]] = a[[j, i]], order[[j, i]]
            if a[i, i] != 0:
                a[i + 1 :, i] /= a[i, i]
            a[i + 1 :, i + 1 :] -= np.outer(a[i + 1 :, i], a[i, i + 1 :])
        return a, pivots, order

    return factors


RULES: dict[str, Rule] = {
    "dot_general": _dot_general,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "lu": _lu,
}
