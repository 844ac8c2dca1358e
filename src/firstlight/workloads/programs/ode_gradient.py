"""Differentiable simulation: fit the rates of a predator-prey model to observed trajectories.

An ensemble of Lotka-Volterra trajectories is integrated by the classical Runge-Kutta method; the
result is the mean squared distance to the observations and its gradient with respect to the four
rates. JAX scans over time; PyTorch and NumPy loop in Python. NumPy and the reference carry the
sensitivities forward (the tangent-linear equations of the same scheme); the others differentiate
backward.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, Step, in_float64, tensors

TIME_STEP = 0.05
TRUE_RATES = (1.1, 0.4, 0.1, 0.4)
GUESSED_RATES = (1.0, 0.45, 0.12, 0.45)


def make_inputs(seed: int, trajectories: int, steps: int) -> Arrays:
    """Guessed rates (4), initial states (2, trajectories), observations (steps, 2, ...)."""
    import numpy as np

    rng = np.random.default_rng(seed)
    initial = rng.uniform(2.0, 8.0, (2, trajectories)).astype(np.float32)
    state, observed = initial, []
    for _ in range(steps):
        state = _runge_kutta(lambda s: _rates_of_change(s, TRUE_RATES, np.stack), state)
        observed.append(state + 0.1 * rng.standard_normal(state.shape, dtype=np.float32))
    return np.array(GUESSED_RATES, np.float32), initial, np.stack(observed)


def _rates_of_change(state: Array, rates: Array, stack: Step) -> Array:
    """Prey grow and are eaten; predators grow by eating and die."""
    prey, predators = state[0], state[1]
    meals = prey * predators
    return stack([rates[0] * prey - rates[1] * meals, rates[2] * meals - rates[3] * predators])


def _runge_kutta(derivative: Step, state: Array) -> Array:
    """The state one time step later, by the classical fourth-order rule."""
    first = derivative(state)
    second = derivative(state + 0.5 * TIME_STEP * first)
    third = derivative(state + 0.5 * TIME_STEP * second)
    fourth = derivative(state + TIME_STEP * third)
    return state + TIME_STEP / 6 * (first + 2 * second + 2 * third + fourth)


def _tangent_linear(bundle: Array, rates: Array) -> Array:
    """Derivative of a bundle (5, 2, trajectories): the state, then its tangent for each rate."""
    import numpy as np

    (prey, predators), tangents = bundle[0], bundle[1:]
    meals = prey * predators
    d_meals = predators * tangents[:, 0] + prey * tangents[:, 1]
    change = np.empty_like(bundle)
    change[0, 0] = rates[0] * prey - rates[1] * meals
    change[0, 1] = rates[2] * meals - rates[3] * predators
    change[1:, 0] = rates[0] * tangents[:, 0] - rates[1] * d_meals
    change[1:, 1] = rates[2] * d_meals - rates[3] * tangents[:, 1]
    change[1, 0] += prey
    change[2, 0] -= meals
    change[3, 1] += meals
    change[4, 1] -= predators
    return change


def _loss_and_gradient(rates: Array, initial: Array, observed: Array) -> tuple[Array, Array]:
    """Loss and gradient by forward sensitivities, in the precision of the arguments."""
    import numpy as np

    bundle = np.concatenate([initial[None], np.zeros((4, *initial.shape), initial.dtype)])
    loss, gradient = np.zeros((), initial.dtype), np.zeros(4, initial.dtype)
    for seen in observed:
        bundle = _runge_kutta(lambda b: _tangent_linear(b, rates), bundle)
        error = bundle[0] - seen
        loss = loss + (error**2).sum()
        gradient = gradient + 2 * (error * bundle[1:]).sum((1, 2))
    return loss / observed.size, gradient / observed.size


def build_numpy(compile: Compile, seed: int, trajectories: int, steps: int) -> Built:
    """Loss and gradient by forward sensitivities."""
    return compile(_loss_and_gradient), make_inputs(seed, trajectories, steps)


def build_jax(compile: Compile, seed: int, trajectories: int, steps: int) -> Built:
    """Loss and gradient by reverse differentiation of `lax.scan`."""
    import jax
    import jax.numpy as jnp

    def loss_of(rates: Array, initial: Array, observed: Array) -> Array:
        def advance(state: Array, seen: Array) -> tuple[Array, Array]:
            state = _runge_kutta(lambda s: _rates_of_change(s, rates, jnp.stack), state)
            return state, jnp.mean((state - seen) ** 2)

        _, losses = jax.lax.scan(advance, initial, observed)
        return jnp.mean(losses)

    arguments = jax.device_put(make_inputs(seed, trajectories, steps))
    return compile(jax.value_and_grad(loss_of)), arguments


def build_torch(compile: Compile, seed: int, trajectories: int, steps: int) -> Built:
    """Loss and gradient by reverse differentiation of a Python loop over compiled time steps.

    The time step is compiled, not the loop: torch.compile unrolls loops, which took over four
    minutes for forty steps of this one.
    """
    import torch

    def advance(state: Array, rates: Array) -> Array:
        return _runge_kutta(lambda s: _rates_of_change(s, rates, torch.stack), state)

    compiled_advance = compile(advance)

    def step(rates: Array, initial: Array, observed: Array) -> tuple[Array, Array]:
        rates, state, losses = rates.detach().requires_grad_(), initial, []
        for seen in observed:
            state = compiled_advance(state, rates)
            losses.append(torch.mean((state - seen) ** 2))
        loss = torch.stack(losses).mean()
        (gradient,) = torch.autograd.grad(loss, rates)
        return loss.detach(), gradient

    return step, tensors(make_inputs(seed, trajectories, steps))


def reference(seed: int, trajectories: int, steps: int) -> Arrays:
    """Loss and gradient in float64, by forward sensitivities."""
    return in_float64(_loss_and_gradient, make_inputs(seed, trajectories, steps))
