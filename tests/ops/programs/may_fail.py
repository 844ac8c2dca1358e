"""A model that fails for rows with a negative number."""

import jax
import jax.numpy as jnp
import numpy as np

from firstlight import serve


def check(x):
    if (x < 0).any():
        raise ValueError("a negative number")
    return np.asarray(x)


@serve.model(inputs={"x": serve.Input("float32", (4,))}, buckets=(1, 2, 4, 8), version="2")
def demo(x):
    x = jax.pure_callback(
        check, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
    )
    return {"y": jnp.tanh(x).sum()}
