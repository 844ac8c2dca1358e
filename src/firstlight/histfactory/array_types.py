"""Types of arguments and results of the HistFactory functions and the losses.

Results are NumPy arrays and plain numbers outside JAX transformations, JAX arrays inside. Under
`vmap` a number becomes an array as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import jax
    import numpy as np
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any] | jax.Array"
#: The module to compute with, `numpy` or `jax.numpy`.
Numpy: TypeAlias = ModuleType
Number: TypeAlias = "float | jax.Array"
Count: TypeAlias = "int | jax.Array"
Truth: TypeAlias = "bool | jax.Array"
#: Anything that converts to an array: data sets, parameter vectors, yields.
ArrayLike: TypeAlias = "Sequence[float] | NDArray[Any] | jax.Array"
#: Main counts, or main and auxiliary data, in pyhf's order; None: the observed data.
DataSet: TypeAlias = "ArrayLike | None"
#: Seed of toys: an integer, a JAX key, or the array of integers in a JAX key.
RandomKey: TypeAlias = "int | ArrayLike"
#: Index of elements of an array.
Index: TypeAlias = "int | tuple[slice | EllipsisType | NDArray[np.int64], ...]"
#: Values by name (all others at their starting value), or a vector in the order of the model.
Parameters: TypeAlias = "Mapping[str, Number] | ArrayLike | None"
