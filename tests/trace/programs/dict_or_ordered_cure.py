"""Parameters are a dict, also when they come back from a checkpoint."""

from collections import OrderedDict

import jax
import numpy as np


@jax.jit
def predict(parameters, x):
    return x @ parameters["kernel"] + parameters["bias"]


def restored(parameters):
    return OrderedDict(sorted(parameters.items()))


parameters = {"kernel": np.ones((4, 2), np.float32), "bias": np.zeros(2, np.float32)}
for tree in (parameters, dict(restored(parameters))):
    print(predict(tree, np.ones(4, np.float32)).shape)
