"""The state is put on a device only when training has begun."""

import jax
import numpy as np


@jax.jit
def decay(state):
    return np.float32(0.5) * state


state = np.ones(12, np.float32)
for step in range(4):
    if step == 1:
        state = jax.device_put(state, jax.devices()[0])
    state = decay(state)  # here
print(state.shape)
