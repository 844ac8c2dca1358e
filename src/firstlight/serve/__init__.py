"""A model server for jitted functions in which no request waits for a compile.

    from firstlight import serve

    @serve.model(inputs={"x": serve.Input("float32", (16,))}, parameters=weights)
    def classify(weights, x):            # one row: x is [16]
        return {"scores": jax.nn.softmax(x @ weights)}

`firstlight serve app.py:classify` compiles it for every batch size, then answers requests.
Submodules are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstlight.lazy_names import lazy_names

if TYPE_CHECKING:
    from firstlight.serve.declaration import DeclarationError, Input, Model, model
    from firstlight.serve.frozen_models import frozen

_HOME = {
    "declaration": ("DeclarationError", "Input", "Model", "model"),
    "frozen_models": ("frozen",),
}

__all__ = ["DeclarationError", "Input", "Model", "frozen", "model"]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
