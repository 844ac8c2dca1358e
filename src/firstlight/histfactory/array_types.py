"""Types of what the functions of HistFactory and of the losses take and return.

Results are NumPy and plain numbers outside JAX transformations, JAX arrays inside; under `vmap` a
number becomes an array as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import jax
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any] | jax.Array"
Number: TypeAlias = "float | jax.Array"
Count: TypeAlias = "int | jax.Array"
Truth: TypeAlias = "bool | jax.Array"
#: What becomes an array: data sets, parameter vectors, yields.
ArrayLike: TypeAlias = "Sequence[float] | NDArray[Any] | jax.Array"
#: Values by name (all others at their starting value), or a vector in the order of the model.
Parameters: TypeAlias = "Mapping[str, Number] | ArrayLike"
