"""The state is put on its device before the first step."""

import jax
import numpy as np


@jax.jit
def decay(state):
    return np.float32(0.5) * state


state = jax.device_put(np.ones(12, np.float32), jax.devices()[0])
for _ in range(4):
    state = decay(state)
print(state.shape)
