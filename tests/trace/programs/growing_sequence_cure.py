"""Generates a text token by token: the sequence is padded to the next power of two."""

import jax
import jax.numpy as jnp
import numpy as np

embedding = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


def padded(tokens):
    size = 1 << (len(tokens) - 1).bit_length()
    return np.pad(tokens, (0, size - len(tokens)))


@jax.jit
def next_token(embedding, tokens, length):
    mask = jnp.arange(len(tokens)) < length
    state = mask @ embedding[tokens] / length
    return jnp.argmax(embedding @ state)


tokens = [1, 5, 3]
for _ in range(5):
    token = next_token(embedding, padded(tokens), np.int32(len(tokens)))
    tokens.append(int(token))
print(len(tokens))
