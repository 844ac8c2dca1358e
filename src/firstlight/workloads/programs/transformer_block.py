"""Forward and backward pass of one pre-norm transformer block.

Layer norm, causal self-attention, residual; layer norm, GELU (tanh form) network, residual; mean
squared loss. Every gradient is computed; large ones are returned as norms, to keep results small.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, in_float64, tensors

EPSILON = 1e-5
GELU_SCALE, GELU_CUBIC = (2 / 3.141592653589793) ** 0.5, 0.044715


def make_inputs(seed: int, batch: int, tokens: int, width: int, heads: int) -> Arrays:
    """Tokens, targets, then the weights: norm 1, query-key-value, output, norm 2, up, down."""
    import numpy as np

    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    return (
        *(normal(batch, tokens, width), normal(batch, tokens, width)),
        *(1 + normal(width, scale=0.1), normal(width, scale=0.1)),
        normal(width, 3 * width, scale=width**-0.5),
        normal(width, width, scale=width**-0.5),
        *(1 + normal(width, scale=0.1), normal(width, scale=0.1)),
        normal(width, 4 * width, scale=width**-0.5),
        normal(4 * width, width, scale=(4 * width) ** -0.5),
    )


def _norm_forward(x: Array, scale: Array, shift: Array) -> tuple[Array, Array, Array]:
    centred = x - x.mean(-1, keepdims=True)
    inverse = ((centred**2).mean(-1, keepdims=True) + EPSILON) ** -0.5
    unit = centred * inverse
    return unit * scale + shift, unit, inverse


def _norm_backward(
    d_out: Array, unit: Array, inverse: Array, scale: Array
) -> tuple[Array, Array, Array]:
    d_unit = d_out * scale
    along = (d_unit * unit).mean(-1, keepdims=True)
    d_x = inverse * (d_unit - d_unit.mean(-1, keepdims=True) - unit * along)
    return d_x, (d_out * unit).sum((0, 1)), d_out.sum((0, 1))


def _loss_and_gradients(heads: int, x: Array, target: Array, *weights: Array) -> tuple[Array, ...]:
    """The outputs of a step, with a hand-written backward pass."""
    import numpy as np

    scale_1, shift_1, w_qkv, w_out, scale_2, shift_2, w_up, w_down = weights
    batch, tokens, width = x.shape
    root = (width // heads) ** -0.5

    normed_1, unit_1, inverse_1 = _norm_forward(x, scale_1, shift_1)
    split = (normed_1 @ w_qkv).reshape(batch, tokens, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    query, key, value = split
    scores = query @ key.swapaxes(-1, -2) * root
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    chance = np.exp(scores - scores.max(-1, keepdims=True))
    chance /= chance.sum(-1, keepdims=True)
    mixed = (chance @ value).transpose(0, 2, 1, 3).reshape(x.shape)
    middle = x + mixed @ w_out
    normed_2, unit_2, inverse_2 = _norm_forward(middle, scale_2, shift_2)
    up = normed_2 @ w_up
    bend = np.tanh(GELU_SCALE * (up + GELU_CUBIC * up * up * up))
    active = 0.5 * up * (1 + bend)
    error = middle + active @ w_down - target
    loss = np.mean(error**2)

    d_out = 2 * error / error.size
    bend_slope = GELU_SCALE * (1 - bend**2) * (1 + 3 * GELU_CUBIC * up * up)
    d_up = (d_out @ w_down.T) * (0.5 * (1 + bend) + 0.5 * up * bend_slope)
    d_middle, d_scale_2, d_shift_2 = _norm_backward(d_up @ w_up.T, unit_2, inverse_2, scale_2)
    d_middle += d_out
    d_mixed = (d_middle @ w_out.T).reshape(batch, tokens, heads, -1).transpose(0, 2, 1, 3)
    d_chance = d_mixed @ value.swapaxes(-1, -2)
    d_scores = chance * (d_chance - (d_chance * chance).sum(-1, keepdims=True)) * root
    d_split = np.stack(
        [d_scores @ key, d_scores.swapaxes(-1, -2) @ query, chance.swapaxes(-1, -2) @ d_mixed]
    )
    d_qkv = d_split.transpose(1, 3, 0, 2, 4).reshape(batch, tokens, 3 * width)
    d_x, d_scale_1, d_shift_1 = _norm_backward(d_qkv @ w_qkv.T, unit_1, inverse_1, scale_1)
    d_x += d_middle

    def outer(left: Array, right: Array) -> Array:
        return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])

    gradients = (
        *(d_scale_1, d_shift_1, outer(normed_1, d_qkv), outer(mixed, d_middle)),
        *(d_scale_2, d_shift_2, outer(normed_2, d_up), outer(active, d_out)),
    )
    norms = np.stack([np.sqrt((g**2).sum()) for g in gradients])
    return loss, np.sqrt((d_x**2).sum(-1)), norms, gradients[0], gradients[3]


def build_numpy(compile: Compile, seed: int, **sizes: int) -> Built:
    """Loss, norms of each token's and each weight's gradient, and two gradients in full."""
    step = compile(lambda *arrays: _loss_and_gradients(sizes["heads"], *arrays))
    return step, make_inputs(seed, **sizes)


def build_jax(compile: Compile, seed: int, **sizes: int) -> Built:
    """The same outputs by `jax.value_and_grad`."""
    import jax
    import jax.numpy as jnp

    def norm(x: Array, scale: Array, shift: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + EPSILON) * scale + shift

    def loss_of(weights: Array, x: Array, target: Array) -> Array:
        scale_1, shift_1, w_qkv, w_out, scale_2, shift_2, w_up, w_down = weights
        tokens = x.shape[1]
        split = (norm(x, scale_1, shift_1) @ w_qkv).reshape(*x.shape[:2], 3, sizes["heads"], -1)
        query, key, value = jnp.moveaxis(split, 2, 0).swapaxes(2, 3)
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        scores = jnp.where(jnp.tri(tokens, dtype=bool), scores, -jnp.inf)
        mixed = (jax.nn.softmax(scores) @ value).swapaxes(1, 2).reshape(x.shape)
        x = x + mixed @ w_out
        x = x + jax.nn.gelu(norm(x, scale_2, shift_2) @ w_up, approximate=True) @ w_down
        return jnp.mean((x - target) ** 2)

    def step(x: Array, target: Array, *weights: Array) -> Array:
        loss, (grads, d_x) = jax.value_and_grad(loss_of, argnums=(0, 1))(weights, x, target)
        norms = jnp.stack([jnp.linalg.norm(g.ravel()) for g in grads])
        return loss, jnp.linalg.norm(d_x, axis=-1), norms, grads[0], grads[3]

    return compile(step), jax.device_put(make_inputs(seed, **sizes))


def build_torch(compile: Compile, seed: int, **sizes: int) -> Built:
    """The same outputs by `torch.func.grad_and_value` and PyTorch's fused attention."""
    import torch
    from torch.nn import functional

    def loss_of(weights: Array, x: Array, target: Array) -> Array:
        scale_1, shift_1, w_qkv, w_out, scale_2, shift_2, w_up, w_down = weights
        width = x.shape[-1]
        normed = functional.layer_norm(x, (width,), scale_1, shift_1, EPSILON)
        split = (normed @ w_qkv).reshape(*x.shape[:2], 3, sizes["heads"], -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ w_out
        normed = functional.layer_norm(x, (width,), scale_2, shift_2, EPSILON)
        x = x + functional.gelu(normed @ w_up, approximate="tanh") @ w_down
        return torch.mean((x - target) ** 2)

    def step(x: Array, target: Array, *weights: Array) -> Array:
        gradient = torch.func.grad_and_value(loss_of, argnums=(0, 1))
        (grads, d_x), loss = gradient(weights, x, target)
        norms = torch.stack([torch.linalg.vector_norm(g) for g in grads])
        return loss, torch.linalg.vector_norm(d_x, dim=-1), norms, grads[0], grads[3]

    return compile(step), tensors(make_inputs(seed, **sizes))


def reference(seed: int, **sizes: int) -> Arrays:
    """The outputs in float64, by the hand-written backward pass."""
    inputs = make_inputs(seed, **sizes)
    return in_float64(lambda *arrays: _loss_and_gradients(sizes["heads"], *arrays), inputs)
